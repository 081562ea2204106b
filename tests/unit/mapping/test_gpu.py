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
from tilewright.mapping.exact import Exact
from tilewright.mapping.gpu import evaluate_blocks, solve_blocks, spread_evenly
from tilewright.mapping.launch import block_axes, has_shape
from tilewright.mapping.random import Random
from tilewright.planning import UNLIMITED, Budget, Infeasible

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
        ({"grid": ()}, "grid"),
        ({"num_steps": 1}, "steps"),
        ({"shared_bytes": 4}, "shared"),
        ({"registers_per_thread": 4}, "registers"),
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
