"""The exact mapper against every mapping there is, on random tiny machines: nothing beats its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isclose, prod
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.mappings import all_mappings
from tests.support.walk import Walk

from tilewright.cost.base import Objective
from tilewright.cost.bound import latency_bound_cycles, objective_bound
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import measure
from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping.base import MAPPINGS, MappingProblem, MappingSolution
from tilewright.mapping.checked import violations_of
from tilewright.mapping.exact import Exact, padding, search_states
from tilewright.mapping.exact.lattice import Lattice
from tilewright.mapping.exact.padding import least_compute_cycles
from tilewright.mapping.exact.search_pass import Question, search
from tilewright.mapping.exact.space import Space
from tilewright.mapping.paper import Paper
from tilewright.planning import Budget

pytestmark = pytest.mark.sampled(4)

_MACHINE = """
name: tiny
levels:
  - name: Buffer
    capacity_bytes: {capacity}
    holds: [{holds}]
    shares: [{shares}]
    words_per_access: {inner_block}
    num_instances_per_parent: {instances}
    read_pj: {inner_pj}
{inner_rates}  - name: Memory
    words_per_access: {block}
    read_pj: 50
    write_pj: {write_pj}
    read_bytes_per_cycle: {read_rate}
    write_bytes_per_cycle: 1
    has_shared_port: {shared_port}
units:
  - {{name: mac, kind: mac, num_per_instance: {units}, macs_per_cycle: {{int8: 1}}, mac_pj: 0.5}}
energy_source: made up
"""


_INNER_RATES = (
    "",
    "    read_bytes_per_cycle: 1\n",
    "    read_bytes_per_cycle: 2\n    write_bytes_per_cycle: 0.5\n",
    "    read_bytes_per_cycle: 1\n    write_bytes_per_cycle: 1\n    has_shared_port: true\n",
)


def _machine(rooms: dict[str, int], **numbers: int | str) -> Machine:
    """Two levels; the inner one holds these kinds of tensor, each in a share of its own."""
    kinds = list(rooms)
    text = _MACHINE.format(
        capacity=sum(rooms.values()),
        holds=", ".join(kinds),
        shares=", ".join(f"{{holds: [{kind}], capacity_bytes: {rooms[kind]}}}" for kind in kinds[:-1]),
        **{
            "inner_block": 1,
            "instances": 1,
            "inner_pj": 1,
            "block": 1,
            "write_pj": 10,
            "read_rate": 4,
            "units": 1,
            "shared_port": "false",
            "inner_rates": "",
        }
        | numbers,
    )
    return parse_machine(text, "tiny")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    kept = draw(
        st.sampled_from([("weight", "input"), ("weight", "input", "output"), ("input",), ("input", "output")])
    )
    rooms = {kind: draw(st.sampled_from([2, 3, 4, 6] if kind == "input" else [1, 2, 4])) for kind in kept}
    return _machine(
        rooms,
        inner_block=draw(st.sampled_from([1, 1, 2])),
        instances=draw(st.sampled_from([1, 2])),
        inner_pj=draw(st.sampled_from([1, 3])),
        block=draw(st.sampled_from([1, 1, 4])),
        write_pj=draw(st.sampled_from([10, 100])),
        shared_port=draw(st.sampled_from(["true", "false"])),
        read_rate=draw(st.sampled_from([1, 2, 4])),
        units=draw(st.sampled_from([1, 2])),
        inner_rates=draw(st.sampled_from(_INNER_RATES)),
    )


WIDE = """
name: wide
levels:
  - {name: Inner, capacity_bytes: 8, num_instances_per_parent: 2, read_pj: 1, words_per_access: 8}
  - {name: Middle, capacity_bytes: 16, num_instances_per_parent: 2, read_pj: 2}
  - {name: Memory, read_pj: 2, words_per_access: 8}
units:
  - {name: mac, kind: mac, num_per_instance: 2, macs_per_cycle: {int8: 1}}
energy_source: made up
"""


@st.composite
def wide_machines(draw: st.DrawFn) -> Machine:
    """Three levels of several instances, each of which rounds up to whole accesses of many words."""
    text = WIDE
    for was, choices in (
        ("words_per_access: 8", [1, 2, 8]),
        ("num_instances_per_parent: 2", [2, 4]),
        ("capacity_bytes: 8", [4, 8]),
        ("read_pj: 2}", [1, 2, 9]),
    ):
        key = was.split(":")[0]
        end = "}" if was.endswith("}") else ""
        text = text.replace(was, f"{key}: {draw(st.sampled_from(choices))}{end}", 1)
    return parse_machine(text, "wide")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Windows that slide, with every kind of step; tiles that meet by chance most of all."""
    extents = {"P": draw(st.sampled_from([2, 4, 6, 8])), "R": draw(st.sampled_from([2, 3, 4]))}
    if draw(st.booleans()):
        extents |= draw(st.sampled_from([{"K": 2}, {"C": 2}, {"Q": 2}, {"Q": 2, "S": 2}]))
        extents["P"] = min(4, extents["P"])
    steps = st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1)])
    return convolution(extents, stride=draw(steps), dilation=draw(steps))


@dataclass(frozen=True, slots=True)
class Least:
    """The least value of each objective over all mappings, and the least energy at the least latency."""

    values: dict[Objective, float]
    energy_at_latency_pj: float


def least(problem: Problem, machine: Machine, cost_options: CostOptions) -> Least | None:
    costs: list[Cost] = []
    for mapping in all_mappings(problem, machine):
        try:
            costs.append(evaluate(problem, machine, mapping, cost_options))
        except InfeasibleMapping:
            continue
    if not costs:
        return None
    values = {o: min(measure(o, c.cycles, c.energy_pj) for c in costs) for o in get_args(Objective)}
    return Least(values, min(c.energy_pj for c in costs if c.cycles == values["latency"]))


# A step of P moves the window on as the steps of R inside it did.
@example(
    _machine({"weight": 2, "input": 6}, inner_pj=3, block=4, write_pj=100, read_rate=1),
    convolution({"P": 8, "R": 4}, stride=(2, 1)),
    False,
)
# A stride jumps over pixels, of which the window's next position brings more than it moves.
@example(_machine({"input": 2, "output": 1}), convolution({"P": 4, "R": 2}, stride=(2, 1)), True)
@given(machine=machines(), problem=problems(), skips_pixels=st.booleans())
@settings(max_examples=70, deadline=None)
def test_no_mapping_at_all_beats_the_answer_or_the_bound(
    machine: Machine, problem: Problem, skips_pixels: bool
) -> None:
    cost_options = CostOptions(skips_pixels=skips_pixels)
    known = least(problem, machine, cost_options)
    if known is None:
        return
    for objective, value in known.values.items():
        answer = Exact(pads=False).solve(MappingProblem(problem, machine, objective, cost_options), Budget())
        assert isinstance(answer, MappingSolution)
        found = measure(objective, answer.cost.cycles, answer.cost.energy_pj)
        assert objective_bound(problem, machine, objective) <= value * (1 + 1e-9)
        assert answer.quality.bound <= value * (1 + 1e-9)
        assert found <= max(value, 1.015 * answer.quality.bound) * (1 + 1e-9)
        if objective == "latency" and found == value:
            assert answer.details["energy_bound_at_latency_pj"] <= known.energy_at_latency_pj * (1 + 1e-9)


@given(
    machine=st.one_of(machines(), wide_machines()),
    problem=problems(),
    objective=st.sampled_from(get_args(Objective)),
)
@settings(max_examples=60, deadline=None)
def test_a_short_search_is_right_and_hardly_ever_worse_than_the_rule_for_kernels(
    machine: Machine, problem: Problem, objective: Objective
) -> None:
    task = MappingProblem(problem, machine, objective)
    try:
        by_rule = Paper().solve(task, Budget())
    except InfeasibleMapping:
        return
    answer = Exact(pads=False, max_search_states=1000).solve(task, Budget())
    assert isinstance(answer, MappingSolution)
    assert isinstance(by_rule, MappingSolution)
    assert violations_of(task, answer) == ()
    # Within 1.5 % of what there can be at least nothing better is looked for.
    proven = Exact(pads=False).solve(task, Budget())
    assert isinstance(proven, MappingSolution)
    assert answer.quality.bound <= proven.quality.cost * (1 + 1e-9)
    assert answer.quality.cost <= max(by_rule.quality.cost, 1.05 * proven.quality.cost) * (1 + 1e-9)


def padded(problem: Problem) -> Iterator[Problem]:
    """The problem with each extent as it is or up to two more."""
    choices = [range(extent, extent + (3 if extent > 1 else 1)) for _, extent in problem.dims]
    for extents in product(*choices):
        yield replace(problem, dims=tuple(zip(problem.extents, extents, strict=True)))


@given(
    machine=machines(),
    extents=st.sampled_from([{"P": 5}, {"K": 3, "C": 2}, {"P": 3, "R": 2}, {"K": 5, "P": 2}, {"C": 7}]),
)
@settings(max_examples=40, deadline=None)
def test_no_padded_mapping_beats_the_bound(machine: Machine, extents: dict[str, int]) -> None:
    problem = convolution(extents)
    known = [
        found for layer in padded(problem) if (found := least(layer, machine, CostOptions())) is not None
    ]
    if not known:
        return
    for objective in get_args(Objective):
        value = min(found.values[objective] for found in known)
        answer = Exact().solve(MappingProblem(problem, machine, objective), Budget())
        assert isinstance(answer, MappingSolution)
        assert answer.quality.bound <= value * (1 + 1e-9)
        if answer.quality.optimal_among == MAPPINGS:
            assert measure(objective, answer.cost.cycles, answer.cost.energy_pj) <= value * (1 + 1e-9)


@given(problem=problems(), units=st.integers(1, 12), instances=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_no_spatial_factors_compute_faster_than_the_least(
    problem: Problem, units: int, instances: int
) -> None:
    task = MappingProblem(problem, _machine({"input": 2}, units=units, instances=instances))
    extents = [extent for _, extent in problem.dims]

    def spreads(most: int) -> list[tuple[int, ...]]:
        ways = product(*(range(1, min(extent, most) + 1) for extent in extents))
        return [factors for factors in ways if prod(factors) <= most]

    least_steps = min(
        prod(-(-extent // (a * b)) for extent, a, b in zip(extents, outer, inner, strict=True))
        for outer in spreads(instances)
        for inner in spreads(units)
    )
    assert least_compute_cycles(task) == least_steps


def test_of_too_many_ways_to_spread_the_least_is_still_none_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_preset("simba-chip")
    least = least_compute_cycles(MappingProblem(layer("3_13_40_50_1"), machine))
    monkeypatch.setattr(padding, "_MOST_FOLLOWED", 1)
    fewer = least_compute_cycles(MappingProblem(layer("3_13_40_50_1"), machine))
    assert layer("3_13_40_50_1").num_macs / (36 * 16 * 8 * 8) <= fewer < least


# Loops of two iterations: there the second one of each stands for no other.
_TWICE = st.sampled_from(
    [{"P": 4, "R": 2}, {"P": 2, "R": 2, "K": 2}, {"K": 4, "C": 2}, {"P": 2, "Q": 2, "S": 2}]
)
_STEPS = st.sampled_from([(1, 1), (2, 1), (3, 1)])


@given(
    machine=st.one_of(machines(), wide_machines()),
    extents=_TWICE,
    stride=_STEPS,
    dilation=_STEPS,
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_costs_are_those_of_a_walk_over_every_step(
    machine: Machine,
    extents: dict[str, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    data: st.DataObject,
) -> None:
    problem = convolution(extents, stride=stride, dilation=dilation)
    mappings = [
        m for m in all_mappings(problem, machine) if all(loop.factor == 2 for _, _, loop in m.loops())
    ]
    mapping = data.draw(st.sampled_from(mappings))
    try:
        cost = evaluate(problem, machine, mapping)
    except InfeasibleMapping:
        return
    walk = Walk(problem, machine, mapping)
    counted = {
        (level.level, name): (count.reads, count.updates, count.fills)
        for level in cost.levels
        for name, count in level.tensors.items()
    }
    assert counted == walk.counts
    assert cost.cycles == walk.cycles
    assert isclose(cost.energy_pj, walk.energy_pj, rel_tol=1e-9)


_SMALL = st.sampled_from(
    [
        {"G": 4},
        {"G": 2, "K": 2},
        {"K": 4},
        {"P": 4, "C": 2},
        {"C": 4},
        {"P": 2, "R": 2},
        {"K": 2, "C": 2, "P": 2},
    ]
)


# Two accesses of eight words on two instances, four on four: the more instances are dearer.
@pytest.mark.sampled(0)
@example(parse_machine(WIDE, "wide"), {"G": 4})
@given(machine=wide_machines(), extents=_SMALL)
@settings(max_examples=60, deadline=None)
def test_more_instances_round_up_more(machine: Machine, extents: dict[str, int]) -> None:
    problem = convolution(extents)
    known = least(problem, machine, CostOptions())
    assert known is not None
    for objective, value in known.values.items():
        answer = Exact(pads=False).solve(MappingProblem(problem, machine, objective), Budget())
        assert isinstance(answer, MappingSolution)
        assert answer.quality.bound <= value * (1 + 1e-9)
        assert measure(objective, answer.cost.cycles, answer.cost.energy_pj) <= value * 1.015


@given(
    problem=problems(),
    read_rate=st.sampled_from([0.3, 0.7, 2.4, 3.84, 10]),
    write_rate=st.sampled_from([0.21, 0.9, 2.4]),
    takes_turns=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_no_cost_is_below_the_roofline(
    problem: Problem, read_rate: float, write_rate: float, takes_turns: bool
) -> None:
    shared = "true" if takes_turns else "false"
    text = _MACHINE.replace("write_bytes_per_cycle: 1", f"write_bytes_per_cycle: {write_rate}")
    values = {
        "capacity": 4096,
        "holds": "weight, input, output",
        "shares": "",
        "write_pj": 1,
        "inner_pj": 1,
        "inner_rates": "",
    }
    numbers = {"inner_block": 1, "instances": 1, "block": 1, "units": 64}
    machine = parse_machine(text.format(**values, **numbers, read_rate=read_rate, shared_port=shared), "tiny")
    loops = tuple(Loop(dim, extent) for dim, extent in problem.dims)
    mapping = Mapping((LevelLoops("Memory"), LevelLoops("Buffer", loops)))
    cost = evaluate(problem, machine, mapping)
    assert cost.cycles >= latency_bound_cycles(problem, machine)


@given(machine=machines(), problem=problems(), skips_pixels=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_search_counts_no_more_than_the_cost(
    machine: Machine, problem: Problem, skips_pixels: bool
) -> None:
    task = MappingProblem(problem, machine, "energy", CostOptions(skips_pixels=skips_pixels))
    space = Space(task, Lattice.of(problem, task.cost_options, 1000))
    for objective in (search_states.ENERGY_WITHIN, search_states.LATENCY):
        found = search(space, Question(objective, inf, inf, 100_000), lambda: False)
        assert found is not None
        for number, value in enumerate(found.values):
            mapping = found.mapping(number)
            cost = evaluate(problem, machine, mapping, task.cost_options)
            assert value <= (cost.energy_pj if objective == search_states.ENERGY_WITHIN else cost.cycles) * (
                1 + 1e-9
            )
