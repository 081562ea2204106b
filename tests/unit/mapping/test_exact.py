"""The exact mapper: nothing beats its answer or its bound, and odd problems are answered."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mappings import all_mappings

from tilewright.cost.base import Objective
from tilewright.cost.bound import objective_bound
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import measure
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, dims, layer
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact, mapper, search_states
from tilewright.mapping.exact.joined import Joined
from tilewright.mapping.exact.lattice import Lattice, num_points
from tilewright.mapping.exact.search_pass import Question, search
from tilewright.mapping.exact.space import Space
from tilewright.mapping.factors import prime_factors
from tilewright.mapping.paper import Paper
from tilewright.planning import Budget, Infeasible, Status

pytestmark = pytest.mark.sampled(24)

# Three levels, each with its own mind: words and clusters that differ, an operand that passes a level by.
SMALL = """
name: small
levels:
  - name: Inner
    capacity_bytes: 6
    holds: [weight, output]
    num_instances_per_parent: 2
    num_instances_per_access: 2
    read_pj: 1
    write_pj: 2
  - name: Outer
    capacity_bytes: 24
    holds: [input, output]
    words_per_access: 1
    num_instances_per_parent: 2
    read_pj: 8
  - name: Memory
    read_pj: 100
    write_pj: 130
    read_bytes_per_cycle: 2
    write_bytes_per_cycle: 1
units:
  - {name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}, mac_pj: 0.5}
energy_source: made up
"""


@cache
def small() -> Machine:
    return parse_machine(SMALL, "small")


def solved(problem: Problem, machine: Machine, objective: Objective) -> MappingSolution:
    answer = Exact(pads=False).solve(MappingProblem(problem, machine, objective), Budget())
    assert not isinstance(answer, Infeasible)
    return answer


PROBLEMS = {
    "product": convolution({"P": 4, "C": 2, "K": 3}),
    "window": convolution({"P": 4, "R": 3, "K": 2}),
    "strided": convolution({"P": 2, "Q": 2, "R": 2, "C": 2}, stride=(2, 1)),
    "overlap": convolution({"P": 3, "R": 2, "Q": 2, "S": 2}),
    "grouped": convolution({"G": 2, "P": 2, "C": 2, "K": 2}),
    "batch": convolution({"N": 2, "P": 6}),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_mapping_at_all_is_better(name: str) -> None:
    problem = PROBLEMS[name]
    values: dict[Objective, float] = {}
    least: dict[Objective, tuple[float, float]] = {}
    for mapping in all_mappings(problem, small()):
        try:
            cost = evaluate(problem, small(), mapping)
        except InfeasibleMapping:
            continue
        for objective in get_args(Objective):
            value = measure(objective, cost.cycles, cost.energy_pj)
            least[objective] = min(least.get(objective, (float("inf"),) * 2), (value, cost.energy_pj))
    for objective in get_args(Objective):
        answer = solved(problem, small(), objective)
        values[objective] = measure(objective, answer.cost.cycles, answer.cost.energy_pj)
        assert values[objective] <= least[objective][0] * (1 + 1e-9)
        assert values[objective] >= answer.quality.bound
        assert answer.quality.bound <= least[objective][0] * (1 + 1e-9)
        if objective == "latency":
            assert answer.cost.energy_pj <= least[objective][1] * (1 + 1e-9)
            assert answer.details["energy_bound_at_latency_pj"] <= least[objective][1] * (1 + 1e-9)
    assert evaluate(problem, small(), answer.mapping) == answer.cost


@st.composite
def drawn_mappings(draw: st.DrawFn) -> tuple[Problem, Mapping]:
    problem = layer(draw(st.sampled_from(["3_14_8_16_1", "1_28_16_8_2", "5_8_4_4_3", "1_1_64_32_1"])))
    machine = load_preset("simba-cosa-repo")
    temporal: dict[str, list[Loop]] = {level.name: [] for level in machine.levels}
    spatial: dict[str, list[Loop]] = {level.name: [] for level in machine.levels}
    room = {"GlobalBuffer": 16, "InputBuffer": 8, "AccumulationBuffer": 8}
    for dim, extent in problem.dims:
        for prime, count in prime_factors(extent):
            for _ in range(count):
                side = draw(st.sampled_from(["", *[n for n, left in room.items() if left >= prime]]))
                if side:
                    room[side] //= prime
                    spatial[side].append(Loop(dim, prime))
                else:
                    temporal[draw(st.sampled_from(list(temporal)))].append(Loop(dim, prime))
    levels = tuple(
        LevelLoops(level.name, tuple(draw(st.permutations(temporal[level.name]))), tuple(spatial[level.name]))
        for level in reversed(machine.levels)
    )
    return problem, Mapping(levels)


@cache
def bounds(problem: Problem) -> tuple[float, float]:
    machine = load_preset("simba-cosa-repo")
    return solved(problem, machine, "latency").quality.bound, solved(problem, machine, "energy").quality.bound


@given(drawn=drawn_mappings())
@settings(max_examples=300, deadline=None)
def test_every_mapping_costs_at_least_the_bound(drawn: tuple[Problem, Mapping]) -> None:
    problem, mapping = drawn
    try:
        cost = evaluate(problem, load_preset("simba-cosa-repo"), mapping)
    except InfeasibleMapping:
        return
    cycles, energy_pj = bounds(problem)
    assert cost.cycles >= cycles
    assert cost.energy_pj >= energy_pj * (1 - 1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "cycles", "energy_uj"),
    [  # the best that other searches found, with Timeloop's model
        ("3_56_64_64_1", 112896, 93.07),
        ("3_7_512_512_1", 240077, 291.08),
        ("1_1_2048_1000_1", 205005, 209.57),
        ("3_14_16_512_1", 14112, 24.10),
        ("R=3,S=3,P=240,Q=24,C=16,K=32", 25920, 40.79),
    ],
)
def test_it_is_as_good_as_the_best_known(text: str, cycles: int, energy_uj: float) -> None:
    problem = dims(text) if "=" in text else layer(text)
    answer = solved(problem, load_preset("simba-cosa-repo"), "latency")
    assert answer.cost.cycles == answer.bound_cycles == cycles
    assert answer.quality.status is Status.OPTIMAL
    assert answer.cost.energy_pj / 1e6 <= energy_uj + 0.005
    assert answer.cost.energy_pj <= 1.02 * answer.details["energy_bound_at_latency_pj"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "text",
    [
        "1_1_1_1_1",
        "P=10007,K=3",
        "P=10007,C=10009,K=10037",
        "K=65536,C=4096,P=4096",  # 2^40 operations
        "N=5040,P=5040,Q=5040,C=5040,K=5040,R=30,S=30",  # more tiles than can be looked at
    ],
)
def test_odd_extents_are_mapped_and_the_answer_says_how_good_it_is(text: str) -> None:
    problem = dims(text) if "=" in text else layer(text)
    task = MappingProblem(problem, load_preset("simba-cosa-repo"))
    answer = Exact().solve(task, Budget(deadline_s=6.0))
    assert isinstance(answer, MappingSolution)
    assert evaluate(problem, task.machine, answer.mapping) == answer.cost
    assert answer.cost.cycles >= answer.bound_cycles


@pytest.mark.sampled(3)
@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("text", ["K=32,P=16,C=8", "K=16,P=8,R=4,C=4", "K=64,C=16,Q=4"])
def test_a_merged_lattice_proves_nothing_of_the_tiles_that_it_lacks(text: str, objective: Objective) -> None:
    problem, machine = dims(text), load_preset("simba-cosa-repo")
    task = MappingProblem(problem, machine, objective)
    finer = Exact(pads=False).solve(task, Budget())
    merged = Exact(pads=False, max_points=12).solve(task, Budget())
    assert isinstance(finer, MappingSolution)
    assert isinstance(merged, MappingSolution)
    assert merged.quality.bound <= finer.quality.bound * (1 + 1e-9)
    assert finer.quality.cost <= merged.quality.cost * 1.015
    if merged.quality.status is Status.OPTIMAL:
        assert merged.quality.cost <= finer.quality.cost * (1 + 1e-9)


@pytest.mark.slow
def test_many_tiles_are_searched_as_they_are() -> None:
    problem = dims("N=64,R=3,S=3,P=56,Q=56,C=64,K=256")
    task = MappingProblem(problem, load_preset("simba-cosa-repo"), "energy")
    answer = Exact().solve(task, Budget(deadline_s=30.0))
    assert isinstance(answer, MappingSolution)
    assert answer.cost.energy_pj <= 18_543.1e6
    assert answer.quality.status is not Status.OPTIMAL


@pytest.mark.sampled(6)
@pytest.mark.parametrize("max_search_states", [2, 5, 12, 40])
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_found_no_place_is_in_the_bound(name: str, max_search_states: int) -> None:
    for objective in get_args(Objective):
        whole = solved(PROBLEMS[name], small(), objective)
        task = MappingProblem(PROBLEMS[name], small(), objective)
        answer = Exact(pads=False, max_search_states=max_search_states).solve(task, Budget())
        assert isinstance(answer, MappingSolution)
        assert answer.quality.bound <= whole.quality.cost * (1 + 1e-9)
        if answer.quality.status is Status.OPTIMAL:
            assert answer.quality.cost <= whole.quality.cost * (1 + 1e-9)


def test_what_fan_outs_divide_is_padded_to() -> None:
    """56 and 64 use 128 of 12 x 14 elements; 57 is divided by 3, and 56 elements run the rest."""
    problem = layer("1_56_64_64_1")
    answer = Exact().solve(MappingProblem(problem, load_preset("eyeriss")), Budget())
    assert isinstance(answer, MappingSolution)
    assert answer.cost.cycles == answer.quality.bound == 77_824
    assert answer.details["bound_unpadded"] == 100_352
    assert answer.details["energy_bound_at_latency_pj"] == 0, "nothing is proven of all that is padded"
    assert answer.quality.status is Status.OPTIMAL


def test_least_energy_of_mappings_that_pad_nothing_is_no_bound_of_all() -> None:
    problem = dims("K=7,C=11,P=13")
    answer = Exact().solve(MappingProblem(problem, load_preset("simba-cosa-repo"), "energy"), Budget())
    assert isinstance(answer, MappingSolution)
    assert answer.quality.bound <= objective_bound(problem, load_preset("simba-cosa-repo"), "energy")
    assert answer.quality.status is not Status.OPTIMAL


@pytest.mark.sampled(0)
def test_bandwidth_inside_the_chip_is_searched() -> None:
    """The buffer reads a word in four cycles: words that stay in the registers are what is fast."""
    text = SMALL.replace("    read_pj: 8\n", "    read_pj: 8\n    read_bytes_per_cycle: 0.25\n")
    machine = parse_machine(text, "slow inside")
    for problem in PROBLEMS.values():
        answer = solved(problem, machine, "latency")
        least_cycles = inf
        for mapping in all_mappings(problem, machine):
            with suppress(InfeasibleMapping):
                least_cycles = min(least_cycles, evaluate(problem, machine, mapping).cycles)
        assert answer.cost.cycles == answer.details["bound_unpadded"] == least_cycles


def test_a_large_prime_is_padded_where_that_is_faster() -> None:
    problem = dims("K=1021,C=1021,P=64,Q=64")
    machine = load_preset("simba-cosa-repo")
    exact = solved(problem, machine, "latency")
    padded = Exact().solve(MappingProblem(problem, machine), Budget())
    assert isinstance(padded, MappingSolution)
    assert padded.cost.cycles < exact.cost.cycles
    assert 0 < padded.mapping.padding(problem) < 0.1


def test_what_fits_nowhere_names_level_tensor_and_words() -> None:
    machine = parse_machine(SMALL.replace("capacity_bytes: 6", "capacity_bytes: 1"), "tiny")
    with pytest.raises(
        InfeasibleMapping, match=r"level Inner: Weights and Outputs need 2 words .* there is 1"
    ):
        solved(PROBLEMS["product"], machine, "latency")


@pytest.mark.parametrize("deadline_s", [1e-6, 0.05])
def test_a_passed_deadline_gives_the_best_so_far(deadline_s: float) -> None:
    problem = layer("3_56_64_64_1")
    task = MappingProblem(problem, load_preset("simba-cosa-repo"), "energy")
    answer = Exact().solve(task, Budget(deadline_s=deadline_s))
    assert isinstance(answer, MappingSolution)
    assert answer.quality.status in (Status.CUT_OFF, Status.FEASIBLE)
    assert answer.quality.bound <= answer.cost.energy_pj


def test_a_deadline_is_kept_within_a_level() -> None:
    """The clock is looked at after so much work, however many partial mappings a level has."""
    problem = layer("3_56_64_256_1")
    task = MappingProblem(problem, load_preset("eyeriss"), "energy")
    space = Space(task, Lattice.of(problem, TIMELOOP, 20_000))
    asked: list[None] = []

    def is_over() -> bool:
        asked.append(None)
        return len(asked) > 3 * len(space.levels)

    question = Question(search_states.ENERGY_WITHIN, inf, inf, 2_000_000)
    assert search(space, question, is_over) is None


def test_what_is_cut_off_is_no_worse_than_cosas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapper, "search", lambda *_: None)  # as when time is up
    task = MappingProblem(layer("3_14_10007_3_1"), load_preset("simba-cosa-repo"))
    answer, seed = (m.solve(task, Budget(deadline_s=600.0)) for m in (Exact(), Cosa()))
    assert isinstance(answer, MappingSolution)
    assert isinstance(seed, MappingSolution)
    assert answer.quality.status is Status.CUT_OFF
    assert answer.cost == seed.cost


@pytest.mark.parametrize(("deadline_s", "asks"), [(600.0, False), (1.0, True)])
def test_an_integer_program_is_solved_only_where_a_share_of_the_time_brought_nothing(
    deadline_s: float, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a twentieth of a second whenever it is looked at."""
    asked: list[None] = []

    class Counted(Cosa):
        def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
            asked.append(None)
            return super().solve(problem, budget)

    ticks = itertools.count(step=0.05)  # type: ignore[call-overload]  # any number
    monkeypatch.setattr(mapper, "Cosa", Counted)
    monkeypatch.setattr(
        mapper, "time", SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=time.perf_counter)
    )
    task = MappingProblem(layer("3_14_64_64_1"), load_preset("simba-cosa-repo"))
    answer = Exact().solve(task, Budget(deadline_s=deadline_s))
    assert isinstance(answer, MappingSolution)
    assert bool(asked) is asks


@pytest.mark.parametrize("max_search_states", [2, 12])
@pytest.mark.parametrize("name", PROBLEMS)
def test_where_no_place_is_left_it_is_no_worse_than_the_rule_for_kernels(
    name: str, max_search_states: int
) -> None:
    for objective in get_args(Objective):
        task = MappingProblem(PROBLEMS[name], small(), objective)
        answer, by_rule = (m.solve(task, Budget()) for m in (exact_of(max_search_states), Paper()))
        assert isinstance(answer, MappingSolution)
        assert isinstance(by_rule, MappingSolution)
        assert (
            answer.quality.cost <= by_rule.quality.cost * 1.015
        )  # within which nothing better is looked for


def exact_of(max_search_states: int) -> Exact:
    return Exact(pads=False, max_search_states=max_search_states)


def test_few_mappings_are_looked_at_beside_what_the_rule_for_kernels_gives() -> None:
    machine = parse_machine(BUFFERED, "buffered")
    problem = dims("P=40,Q=40,R=3,S=3,C=320,K=640")
    answer = Exact(pads=False).solve(MappingProblem(problem, machine, "energy"), Budget())
    assert isinstance(answer, MappingSolution)
    assert answer.quality.status is Status.OPTIMAL
    # Without a limit a few of each tile are a hundred thousand.
    assert answer.provenance.num_evaluations < num_points(problem)


BUFFERED = """
name: buffered
levels:
  - {name: cores, capacity_bytes: 535040, word_bits: 16}
  - {name: shared, capacity_bytes: 2145600, word_bits: 16, read_pj: 11, write_pj: 11}
  - {name: main, word_bits: 16, read_pj: 19, write_pj: 19}
units:
  - {name: mac, kind: mac, macs_per_cycle: {int8: 1}}
energy_source: made up
"""


def space_of(text: str, machine_name: str) -> Space:
    task = Joined.of(MappingProblem(layer(text), load_preset(machine_name))).task
    return Space(task, Lattice.of(task.problem, TIMELOOP, 200_000))


def never() -> bool:
    return False


def test_partial_mappings_forget_what_a_later_loop_must_undo() -> None:
    """Also the order of loops that give the same partial mapping: the best one stays."""
    space = space_of("3_7_32_64_1", "simba-cosa-repo")
    limit = 1.2 * space.least(search_states.ENERGY_WITHIN)
    question = Question(search_states.ENERGY_WITHIN, limit, inf, 2_000_000)
    few = search(space, question, never)
    space.commute[:] = False
    both_orders = search(space, question, never)
    for closed in space.closed:
        closed[:] = False
    many = search(space, question, never)
    assert few is not None
    assert both_orders is not None
    assert many is not None
    assert few.values[0] == both_orders.values[0] == many.values[0]
    assert few.num_search_states <= both_orders.num_search_states < many.num_search_states / 1.25


def test_without_limits_of_bandwidth_partial_mappings_of_the_least_latency_are_few() -> None:
    """They differ in the units that they use; how often words move does not matter."""
    space = space_of("7_112_3_64_2", "simba-chip")
    found = search(space, Question(search_states.LATENCY, 4704.0, inf, 2_000_000), never)
    assert found is not None
    assert found.values[0] == 4116
    assert found.num_search_states < 10 * len(space.lattice.num_tiles)


def test_rounded_alike_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where limits of bandwidth make the cost one cycle more than search states say, all of them do so."""
    evaluated: list[Mapping] = []

    def counted(problem: Problem, machine: Machine, mapping: Mapping, *rest: object) -> Cost:
        evaluated.append(mapping)
        cost = evaluate(problem, machine, mapping)
        return replace(cost, cycles=cost.cycles + 1)

    monkeypatch.setattr(mapper, "evaluate", counted)
    Exact(pads=False).solve(MappingProblem(layer("1_14_32_32_1"), load_preset("simba-cosa-repo")), Budget())
    assert len(evaluated) < 60


def test_the_same_problem_gets_the_same_answer() -> None:
    machine = load_preset("simba-cosa-repo")
    first, second = (solved(layer("3_14_256_256_1"), machine, "edp") for _ in range(2))
    assert (first.mapping, first.cost, first.quality) == (second.mapping, second.cost, second.quality)


def test_with_transfers_between_neighbours_only_the_roofline_is_claimed() -> None:
    problem = layer("3_14_16_16_1")
    machine = load_preset("simba-cosa-repo")
    cost_options = CostOptions(link_transfers=True)
    answer = Exact().solve(MappingProblem(problem, machine, "energy", cost_options), Budget())
    assert isinstance(answer, MappingSolution)
    assert answer.quality.bound <= objective_bound(problem, machine, "energy")
    assert answer.cost == evaluate(problem, machine, answer.mapping, cost_options)
