"""Blocks of threads: views of a GPU, launches, and what mappers answer under their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import pytest

from tilewright.cost.options import CostOptions
from tilewright.errors import InfeasibleMapping, InternalError, MachineError
from tilewright.hardware.block_view import block_limits, block_view
from tilewright.hardware.machine import Machine, Threads
from tilewright.hardware.machine_file import parse_machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Problem, convolution, layer
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.check_launch import check_launch
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import Exact
from tilewright.mapping.gpu import evaluate_blocks, least_cycles_of_sizes, solve_blocks, spread_evenly
from tilewright.mapping.launch import block_axes, has_shape, in_whole_warps
from tilewright.mapping.paper import Paper
from tilewright.mapping.random import Random
from tilewright.planning import UNLIMITED, Budget, Infeasible

pytestmark = pytest.mark.sampled(24)

GPU = """
name: tiny
clock_hz: 1 GHz
num_cores_per_cluster: 2
levels:
  - {name: Registers, per: core, capacity_bytes: 1 KiB, word_bits: 32, read_pj: 1, write_pj: 1}
  - {name: Shared, per: core, num_instances_per_parent: 2, capacity_bytes: 256, word_bits: 32, read_pj: 2,
     write_pj: 2, read_bytes_per_cycle: 32, write_bytes_per_cycle: 32}
  - {name: L2, per: machine, capacity_bytes: 4 KiB, word_bits: 32, read_pj: 4, write_pj: 4}
  - {name: DRAM, per: machine, word_bits: 32, read_pj: 50, write_pj: 50, read_bytes_per_s: 8 GB/s,
     write_bytes_per_s: 8 GB/s}
units: [{name: lane, kind: mac, num_per_instance: 8, macs_per_cycle: {float32: 1}, mac_pj: 1}]
threads:
  {registers: Registers, shared: Shared, num_per_warp: 4, max_per_block: 32, max_per_core: 64,
   max_block_shape: [8, 8, 2], max_registers_per_thread: 16, max_register_bytes_per_block: 512,
   max_shared_bytes_per_block: 128}
energy_source: made up
"""


def tiny(old: str = "", new: str = "") -> Machine:
    assert old in GPU
    return parse_machine(GPU.replace(old, new))


def test_a_view_divides_the_registers_of_a_block_among_its_threads() -> None:
    # 512 bytes are 128 registers: 4 for each of 32 threads, 16 for each of 8; of 4 no thread can name 32.
    for num_threads, registers in ((32, 4), (8, 16), (4, 16)):
        view = block_view(tiny(), num_threads)
        assert view.machine.level("Registers").capacity_bytes == 4 * registers
        assert view.machine.num_instances(view.machine.level("Registers")) == 2 * num_threads
        assert view.machine.level("Shared").capacity_bytes == 128


def test_threads_beyond_those_at_once_make_cycles_longer() -> None:
    # 32 threads on 8 lanes take 4 cycles for one step, in which 4 times as many bytes arrive.
    view = block_view(tiny(), 32)
    assert (view.real_cycles(10), view.machine.clock_hz) == (40, 0.25e9)
    assert view.machine.read_bytes_per_cycle(view.machine.level("Shared")) == 4 * 32
    assert view.machine.read_bytes_per_cycle(view.machine.level("DRAM")) == 4 * 8
    view = block_view(tiny(), 4)
    assert (view.real_cycles(10), view.machine.clock_hz, view.share_at_work) == (10, 1e9, 0.5)


def test_a_warp_works_on_one_tile_of_a_matrix_unit() -> None:
    # 4 units of 512 multiply-accumulates of float16: 128 threads at once with 16 each.
    view = block_view(load_preset("h200"), 256)
    (unit,) = view.machine.units
    assert (view.num_at_once, unit.num_per_instance, view.real_cycles(1)) == (128, 16, 2)


MATRIX = convolution({"K": 16, "C": 6, "P": 8}, name="product")
BY_HAND = Mapping(
    (
        LevelLoops("DRAM", (Loop("K", 4),)),
        LevelLoops("L2", (Loop("C", 3),), (Loop("P", 2),)),
        LevelLoops("Shared", (), (Loop("K", 4), Loop("P", 4))),
        LevelLoops("Registers", (Loop("C", 2),)),
    )
)


def test_a_launch_by_hand() -> None:
    cost, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    # 4 * 3 * 2 steps of 16 threads, 2 cycles each on 8 lanes; both multiprocessors work.
    assert cost.compute_cycles == 24 * 2
    assert cost.utilization == 768 / (16 * cost.cycles)
    assert (launch.shape, launch.num_threads) == ((4, 4, 1), 16)
    assert [list(axis) for axis in launch.axes] == [[Loop("P", 4)], [Loop("K", 4)], []]
    assert (launch.grid, launch.num_blocks) == ((Loop("K", 4), Loop("P", 2)), 8)
    assert launch.num_steps == 3
    # A thread holds 2 weights, 2 inputs, 1 output; a block 4 x 2 weights, 4 x 2 inputs, 4 x 4 outputs.
    assert launch.registers_per_thread == 5
    assert launch.shared_bytes == 4 * (8 + 8 + 16)
    # A multiprocessor has 1 KiB of registers, 3 times 16 x 5 of 4 bytes, and 256 bytes of shared memory.
    assert launch.max_resident == 2
    assert check_launch(MATRIX, tiny(), BY_HAND, launch) == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max_per_block: 32", "max_per_block: 8", "threads"),
        ("max_block_shape: [8, 8, 2]", "max_block_shape: [4, 2, 2]", "shape"),
        ("max_block_shape: [8, 8, 2]", "max_block_shape: [16]", "shape"),
        ("max_registers_per_thread: 16", "max_registers_per_thread: 4", "registers"),
        ("max_register_bytes_per_block: 512", "max_register_bytes_per_block: 316", "registers"),
        ("max_shared_bytes_per_block: 128", "max_shared_bytes_per_block: 127", "shared"),
        ("num_instances_per_parent: 2, capacity_bytes: 256", "capacity_bytes: 256", "instances"),
        ("capacity_bytes: 256", "capacity_bytes: 128", "shared"),
    ],
)
def test_each_broken_limit_is_named(old: str, new: str, said: str) -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    if "num_instances" in old:
        machine = parse_machine(GPU.replace(old, new).replace("num_cores_per_cluster: 2\n", ""))
    else:
        machine = tiny(old, new)
    assert said in {violation.rule for violation in check_launch(MATRIX, machine, BY_HAND, launch)}


def changed(name: str, value: object) -> Machine:
    """The machine with another limit of its threads, or other `bytes` or `number` of a level."""
    machine = tiny()
    level, _, what = name.partition(".")
    if not what:
        assert machine.threads is not None
        return machine.model_copy(update={"threads": machine.threads.model_copy(update={name: value})})
    what = {"bytes": "capacity_bytes", "number": "num_instances_per_parent"}[what]
    levels = tuple(x.model_copy(update={what: value}) if x.name == level else x for x in machine.levels)
    return machine.model_copy(update={"levels": levels})


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("limit", "needed", "less", "said"),
    [
        # By hand: 4 x 4 threads of 5 registers of 4 bytes; 128 bytes of shared memory; two resident blocks.
        ("max_per_block", 16, 15, ["threads"]),
        ("max_per_core", 32, 31, ["threads"]),
        ("max_per_core", 32, 15, ["threads", "threads"]),
        ("max_block_shape", (4, 4, 1), (3, 4, 1), ["shape"]),
        ("max_block_shape", (4, 4, 1), (4, 3, 1), ["shape"]),
        ("max_block_shape", (4, 4, 1), (4, 4), ["shape"]),
        ("max_block_shape", (4, 4, 1), (4, 4, 0), ["shape"]),
        ("max_registers_per_thread", 5, 4, ["registers"]),
        ("max_register_bytes_per_block", 320, 319, ["registers"]),
        ("max_shared_bytes_per_block", 128, 127, ["shared"]),
        ("Shared.bytes", 256, 255, ["shared"]),
        ("Shared.bytes", 256, 127, ["shared", "shared"]),
        ("Registers.bytes", 640, 639, ["registers"]),
        ("Registers.bytes", 640, 319, ["registers", "registers"]),
        ("Shared.number", 2, 1, ["instances"]),
        ("Shared.number", 2, 3, []),
        # Warps of 8 threads are two, of 9 two of 18, which a block of 16 cannot have.
        ("num_per_warp", 8, 16, []),
        ("register_bytes", 4, 3, ["registers"]),
    ],
)
def test_a_launch_takes_as_much_as_there_is_and_no_less(
    limit: str, needed: object, less: object, said: list[str]
) -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    assert check_launch(MATRIX, changed(limit, needed), BY_HAND, launch) == ()
    found = [violation.rule for violation in check_launch(MATRIX, changed(limit, less), BY_HAND, launch)]
    assert found == said


def test_idle_threads_of_the_last_warp_have_registers_too() -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    once = replace(launch, max_resident=1)
    for num_per_warp, allocated in ((16, 16), (5, 20), (7, 21), (32, 32), (40, 32)):
        threads = changed("num_per_warp", num_per_warp)
        for room, found in ((allocated * 20, []), (allocated * 20 - 1, ["registers"])):
            assert threads.threads is not None
            limits = threads.threads.model_copy(update={"max_register_bytes_per_block": room})
            machine = threads.model_copy(update={"threads": limits})
            assert [v.rule for v in check_launch(MATRIX, machine, BY_HAND, once)] == found


def test_limits_that_a_machine_does_not_state_are_none() -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    for limit in ("max_registers_per_thread", "max_register_bytes_per_block", "max_shared_bytes_per_block"):
        assert check_launch(MATRIX, changed(limit, None), BY_HAND, launch) == ()
    assert check_launch(MATRIX, changed("max_block_shape", None), BY_HAND, launch) == ()
    flat = replace(launch, axes=((Loop("P", 4), Loop("K", 4)), (), ()))
    assert check_launch(MATRIX, changed("max_block_shape", (16, 1, 1)), BY_HAND, flat) == ()
    bare = tiny().model_copy(update={"threads": None})
    assert [violation.rule for violation in check_launch(MATRIX, bare, BY_HAND, launch)] == ["machine"]


@pytest.mark.parametrize(
    ("levels", "rules"),
    [
        ({"DRAM": "K4"}, []),
        ({"DRAM": "K5"}, []),
        ({"DRAM": "K3"}, ["cover"]),
        ({"DRAM": "K4Z2"}, ["dim", "steps"]),
        ({"DRAM": "K4N1"}, []),
        ({"DRAM": "K4C2"}, ["steps"]),
        ({"DRAM": "K2/K2"}, ["instances"]),
        ({"L2": "C3P2"}, []),
        ({"L2": "/C3P2"}, ["instances", "sums"]),
        ({"L2": "C3/P3"}, ["instances"]),
        ({"Shared": "C1/K4P4"}, []),
        ({"Shared": "/K2P4", "DRAM": "K8"}, ["axes", "shared"]),
        ({"Registers": "C3", "L2": "C2/P2"}, ["registers", "shared"]),
    ],
)
def test_loops_cover_the_problem_where_the_launch_says(levels: dict[str, str], rules: list[str]) -> None:
    """Loops of levels written as `K4/P2`, temporal, then spatial ones; grid and steps are made to fit."""
    texts = {"DRAM": "K4", "L2": "C3/P2", "Shared": "/K4P4", "Registers": "C2"} | levels

    def loops(text: str) -> tuple[Loop, ...]:
        return tuple(Loop(dim, int(factor)) for dim, factor in zip(text[::2], text[1::2], strict=True))

    made = []
    for name, text in texts.items():
        temporal, _, spatial = text.partition("/")
        made.append(LevelLoops(name, loops(temporal), loops(spatial)))
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    factors = {(dim, kind): 1 for dim in "KPC" for kind in ("grid", "steps")}
    for level in made[:2]:
        for loop in (*level.temporal, *level.spatial):
            if loop.dim in "KP":
                factors[loop.dim, "grid"] *= loop.factor
    grid = tuple(Loop(dim, factors[dim, "grid"]) for dim in "KP")
    steps = 2 if levels.get("L2") == "C2/P2" else 3
    said = replace(launch, grid=grid, num_steps=steps, max_resident=1)
    assert sorted({v.rule for v in check_launch(MATRIX, tiny(), Mapping(tuple(made)), said)}) == rules


def test_levels_are_each_once_from_the_outside_in() -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    turned = Mapping((BY_HAND.levels[1], BY_HAND.levels[0], *BY_HAND.levels[2:]))
    assert [violation.rule for violation in check_launch(MATRIX, tiny(), turned, launch)] == ["level"]
    left_out = Mapping(tuple(level for level in BY_HAND.levels if level.level != "DRAM"))
    assert {v.rule for v in check_launch(MATRIX, tiny(), left_out, launch)} == {"cover", "grid"}


def test_threads_share_no_sums() -> None:
    *outer, threads, inside = BY_HAND.levels
    shared = Mapping((*outer, replace(threads, spatial=(Loop("C", 2), Loop("P", 4))), inside))
    with pytest.raises(InfeasibleMapping, match=r"^level Shared: C 2 as a spatial loop adds to the same"):
        evaluate_blocks(convolution({"K": 4, "C": 12, "P": 8}), tiny(), shared)
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    problem = convolution({"K": 4, "C": 12, "P": 8})
    assert "sums" in {violation.rule for violation in check_launch(problem, tiny(), shared, launch)}


def test_what_a_launch_says_is_held_against_the_loops() -> None:
    _, launch = evaluate_blocks(MATRIX, tiny(), BY_HAND)
    for change, said in (
        ({"axes": ((Loop("P", 4),), (Loop("K", 2),), ())}, "axes"),
        ({"axes": ((Loop("P", 4), Loop("K", 4)), ())}, "shape"),
        ({"grid": ()}, "grid"),
        ({"grid": (Loop("K", 4), Loop("P", 2), Loop("C", 2))}, "grid"),
        ({"num_steps": 2}, "steps"),
        ({"num_steps": 4}, "steps"),
        ({"shared_bytes": 127}, "shared"),
        ({"shared_bytes": 129}, "shared"),
        ({"registers_per_thread": 4}, "registers"),
        ({"registers_per_thread": 6}, "registers"),
        ({"max_resident": 3}, "shared"),
    ):
        wrong = replace(launch, **change)
        assert {v.rule for v in check_launch(MATRIX, tiny(), BY_HAND, wrong)} == {said}


LIMITS = Threads(
    registers="R", shared="S", max_per_block=64, max_per_core=64, max_block_shape=(8, 4, 2), num_per_warp=4
)


def test_loops_are_parted_over_axes_only_where_they_must_be() -> None:
    def axes(**loops: int) -> list[list[tuple[str, int]]]:
        found = block_axes(tuple(Loop(dim, factor) for dim, factor in loops.items()), LIMITS)
        return [[(loop.dim, loop.factor) for loop in axis] for axis in found]

    assert axes(K=4, P=8) == [[("P", 8)], [("K", 4)], []]
    assert axes(K=8, P=4) == [[("K", 8)], [("P", 4)], []]  # the innermost would be x, but K fits nothing else
    assert axes(N=2, K=4, P=4) == [[("P", 4)], [("K", 4)], [("N", 2)]]
    assert axes() == [[], [], []]
    shape = [1, 1, 1]
    for number, axis in enumerate(axes(K=64)):
        for _, factor in axis:
            shape[number] *= factor
    assert shape == [8, 4, 2]


def test_no_shape_is_an_error_of_one_line() -> None:
    assert not has_shape(11, LIMITS)
    with pytest.raises(InfeasibleMapping, match=r"^a block of K 11 = 11 threads does not fit 8 x 4 x 2"):
        block_axes((Loop("K", 11),), LIMITS)


def answer(mapper: str, problem: Problem, machine: Machine, objective: str = "latency") -> MappingSolution:
    found = solve_blocks(MAPPERS.get(mapper), problem, machine, objective, CostOptions(), Budget())  # type: ignore[arg-type]  # one of them
    assert isinstance(found, MappingSolution), found
    cost, launch = evaluate_blocks(problem, machine, found.mapping)
    assert check_launch(problem, machine, found.mapping, launch) == ()
    assert cost == found.cost
    assert found.cost.cycles >= found.bound_cycles > 0
    assert found.cost.energy_pj >= found.bound_energy_pj > 0
    assert 0 < found.cost.utilization <= 1
    assert found.details["threads"] == launch.num_threads
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mapper", ["cosa", "cosa-paper", "exact", "hybrid", "paper", "random"])
def test_every_mapper_keeps_the_limits_of_a_block(mapper: str) -> None:
    for problem in (MATRIX, convolution({"K": 12, "C": 5, "P": 7, "Q": 6, "R": 3, "S": 3}, stride=(2, 2))):
        answer(mapper, problem, tiny())
        answer(mapper, problem, tiny("max_block_shape: [8, 8, 2]", "max_block_shape: [3, 3, 1]"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["k80", "h200", "jetson-nano"])
def test_cosa_on_described_gpus(name: str) -> None:
    answer("cosa-paper", layer("3_14_256_256_1"), load_preset(name))


def test_what_cannot_fit_says_so_in_one_line() -> None:
    for mapper in ("cosa-paper", "exact"):
        for old, new, level in (
            ("max_registers_per_thread: 16", "max_registers_per_thread: 2", "Registers"),
            ("max_register_bytes_per_block: 512", "max_register_bytes_per_block: 32", "Registers"),
            ("max_shared_bytes_per_block: 128", "max_shared_bytes_per_block: 8", "Shared"),
        ):
            with pytest.raises(
                InfeasibleMapping, match=rf"^a block of \d+ threads of tiny: level {level}: .*"
            ):
                answer(mapper, MATRIX, tiny(old, new))


def test_a_machine_that_no_view_can_be_made_of() -> None:
    with pytest.raises(MachineError, match="only a GPU has blocks"):
        block_limits(load_preset("simba-cosa-repo"))
    with pytest.raises(MachineError, match=r"threads: levels .* must be 'Registers', 'L2'"):
        block_limits(tiny("shared: Shared", "shared: L2"))


def test_a_layer_that_divides_badly_over_the_multiprocessors_is_padded() -> None:
    """Of 13 an unpadded layer of powers of two and 7 uses 8 at most: 62 % of what there is."""
    problem, machine = layer("3_14_256_256_1"), load_preset("k80")
    found = answer("cosa-paper", problem, machine)
    assert 0 < found.mapping.padding(problem) < 0.1
    assert found.cost.cycles < 1.05 * found.bound_cycles
    assert "padded" in found.provenance.note
    spread = [p for loops, kind, p in found.mapping.loops() if kind == "spatial" and loops.level == "L2"]
    assert prod(loop.factor for loop in spread) > 8
    padded = list(spread_evenly(problem, machine, 100))
    assert padded
    for one in padded:
        changed = [(dim, old, one.extents[dim]) for dim, old in problem.dims if one.extents[dim] != old]
        ((dim, old, new),) = changed
        assert dim in problem.output.dims()
        assert old < new <= 1.25 * old
    best = padded[0]
    outputs = prod(best.extents[dim] for dim in best.output.dims())
    assert max(n for n in range(1, 14) if outputs % n == 0) == 13
    assert list(spread_evenly(layer("1_1_64_1_1"), machine, 9)) == []


@dataclass(frozen=True)
class Boasting:
    """Answers as another mapper does, and claims that nothing is faster than twice that."""

    name: str = "boasting"

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        found = Exact(pads=False).solve(problem, budget)
        assert isinstance(found, MappingSolution)
        bound = replace(found.quality.widest, value=2 * found.quality.cost)
        return replace(found, quality=replace(found.quality, bounds=(bound,)))


def test_an_answer_below_its_own_bound_is_our_error() -> None:
    with pytest.raises(InternalError, match=r"^layer product: .* answers \d+ cycles .* a least of \d+\.$"):
        solve_blocks(Boasting(), MATRIX, tiny(), "latency", CostOptions(), Budget())


def test_what_is_proven_of_sizes_is_said_where_it_is_about_the_answer() -> None:
    machine = load_preset("k80")
    even = convolution({"K": 256, "P": 13, "Q": 16, "C": 256})  # for 13 multiprocessors and 256 threads
    ten = layer("1_1_64_10_1")  # fewer threads than any size that is tried: nothing was proven of such blocks
    for problem, is_said in ((even, True), (ten, False)):
        found = answer("exact", problem, machine)
        bound = found.details.get("bound_of_sizes")
        assert (bound is not None) is is_said, found.details
        if bound is not None:
            assert found.quality.bound <= bound <= found.quality.cost


@pytest.mark.parametrize("num_trials", [2, 9])
def test_trials_are_counted_over_all_sizes_of_blocks(num_trials: int) -> None:
    problem, machine = layer("1_8_16_16_1"), load_preset("k80")
    budget = Budget(UNLIMITED)
    found = solve_blocks(Random(), problem, machine, "latency", CostOptions(), budget, num_trials)
    assert isinstance(found, MappingSolution)
    assert found.provenance.num_evaluations == num_trials


def test_extents_are_padded_to_what_feeds_the_multiprocessors_evenly() -> None:
    found = solve_blocks(
        Exact(), layer("3_14_256_256_1"), load_preset("h200"), "latency", CostOptions(), Budget()
    )
    assert isinstance(found, MappingSolution)
    assert found.mapping.padding(layer("3_14_256_256_1")) > 0
    assert found.quality.gap < 0.015


def test_exact_is_no_worse_than_cosa_where_nothing_proves_its_answer() -> None:
    problem = convolution({"P": 7, "K": 26, "C": 64})
    found, *others = (
        solve_blocks(mapper, problem, load_preset("k80"), "latency", CostOptions(), Budget())
        for mapper in (Exact(), Cosa(), Cosa("paper"))
    )
    assert isinstance(found, MappingSolution)
    for other in others:
        assert isinstance(other, MappingSolution)
        assert found.quality.cost <= other.quality.cost


@pytest.mark.parametrize("extents", [(3, 8), (5, 8)])
def test_blocks_have_as_many_threads_as_divide_the_output_well(extents: tuple[int, int]) -> None:
    problem = convolution({"K": extents[0], "P": extents[1], "C": 2})
    machine = parse_machine(GPU.replace("8 GB/s", "800 GB/s").replace("_cycle: 32", "_cycle: 320"))
    view = block_view(machine, block_limits(machine).max_per_block, shares_registers=False)
    least = least_cycles_of_sizes(problem, view)
    short = Exact(max_search_states=1000, pads=False)
    quickly = solve_blocks(short, problem, machine, "latency", CostOptions(), Budget(UNLIMITED))
    assert isinstance(quickly, MappingSolution)
    assert quickly.cost.compute_cycles == min(least.values()) < least[8]
    at_random = solve_blocks(
        Random(num_valid=20, max_draws=5_000), problem, machine, "latency", CostOptions(), Budget()
    )
    assert isinstance(at_random, MappingSolution)
    cost, launch = evaluate_blocks(problem, machine, at_random.mapping)
    assert cost.compute_cycles >= least[in_whole_warps(launch.num_threads, view.threads)]


@pytest.mark.parametrize("machine", ["v100", "k80", "jetson-nano"])
def test_a_short_search_fills_the_threads_that_divide_a_layer(machine: str) -> None:
    """Where GraphTurbo's rule, which spreads the outermost loops first, leaves nearly all of them idle."""
    gpu, problem = load_preset(machine), convolution({"K": 672, "P": 11, "Q": 11, "C": 3360})
    budget, short = Budget(UNLIMITED), Exact(pads=False, max_search_states=1000)
    found = solve_blocks(short, problem, gpu, "latency", CostOptions(), budget)
    by_rule = solve_blocks(Paper(), problem, gpu, "latency", CostOptions(), budget)
    assert isinstance(found, MappingSolution)
    assert isinstance(by_rule, MappingSolution)
    assert found.cost.cycles < 1.25 * found.bound_cycles
    assert by_rule.cost.cycles > 5 * found.cost.cycles
