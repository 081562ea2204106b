"""What passes a buffer, held against the bytes one by one; runs whose needs come too late."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import pytest
from tests.support.accelerator import plan
from tests.support.graphs import GraphBuilder

from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.planning.portfolio import Recipe
from tilewright.targets.npu.check_order import check_order, leaves_early
from tilewright.targets.npu.ports import DMA
from tilewright.targets.npu.recipes import MEMORY, Baseline
from tilewright.targets.npu.trace import Trace
from tilewright.targets.simulated import UnitRun

STCP920 = load_preset("stcp920")


def runs(times: list[float], sizes: list[int]) -> list[UnitRun]:
    """Runs of no length."""
    return [UnitRun(DMA, at, at, 0, "load", size_bytes=size) for at, size in zip(times, sizes, strict=True)]


def parts(rng: random.Random, total: int, largest: int) -> list[int]:
    sizes: list[int] = []
    while (left := total - sum(sizes)) > 0:
        sizes.append(rng.randint(1, min(left, largest)))
    return sizes


def first_early(coming: list[UnitRun], going: list[UnitRun], bytes_in_turn: list[int]) -> UnitRun | None:
    """By the bytes, numbered as they come, in the turn in which they go."""
    turn = iter(bytes_in_turn)
    for run in going:
        there = sum(come.size_bytes for come in coming if come.end_s <= run.start_s)
        if any(next(turn) >= there for _ in range(run.size_bytes)):
            return run
    return None


@pytest.mark.parametrize("num_times", [1, 2, 3])
def test_blocks_leave_as_often_as_all_of_it_does_before_the_next_is_wanted(num_times: int) -> None:
    rng = random.Random(num_times)
    for _ in range(300):
        block, num_blocks = rng.randint(2, 6), rng.randint(1, 4)
        total = block * num_blocks - rng.randint(0, block - 1)
        turn = [
            byte
            for start in range(0, total, block)
            for _ in range(num_times)
            for byte in range(start, min(start + block, total))
        ]
        come, go = parts(rng, total, block), parts(rng, total * num_times, total)
        # One byte a second comes, and each run goes when its last byte is there, or a little earlier.
        coming = runs([float(end) for end in accumulate(come)], come)
        going_at: list[float] = []
        for end, size in zip(accumulate(go), go, strict=True):
            wanted = 1 + max(turn[end - size : end])
            ready = next(run.end_s for run in coming if run.end_s >= wanted)
            going_at.append(max([ready, *going_at]))
        shift = rng.choice((0.0, 0.0, 0.5, 1.0))
        late = rng.randrange(len(go))
        going_at = [at - shift if place >= late else at for place, at in enumerate(going_at)]
        going = runs(going_at, go)
        going.sort(key=lambda run: run.start_s)
        expected = first_early(coming, going, turn)
        assert leaves_early(coming, going, block, 0.0) == expected, (block, total, come, going)
        if block == total or num_times == 1:
            assert leaves_early(coming, going, 0, 0.0) == expected


@pytest.mark.parametrize(
    ("come", "go", "held_bytes", "first"),
    [
        ([(0, 4)], [(0, 4)], 0, None),
        ([(1, 4)], [(0, 4)], 0, 0),
        ([], [(0, 4)], 0, 0),  # nothing has come
        ([(1, 4)], [], 0, None),
        ([(0, 4), (2, 4)], [(1, 5)], 0, 0),
        ([(0, 4), (2, 4)], [(1, 4), (1, 1)], 0, 1),
        ([(2, 4), (0, 4)], [(1, 4), (2, 4)], 0, None),  # in any order
        ([(0, 4), (2, 4)], [(1, 4), (1, 4), (2, 8)], 4, None),  # each half twice
        ([(0, 4), (2, 4)], [(1, 4), (1, 5), (2, 7)], 4, 1),
        ([(0, 4), (2, 4)], [(1, 5), (2, 11)], 0, 0),  # all of it twice
        ([(0, 4), (2, 4)], [(1, 5), (2, 11)], 8, 0),
        ([(0, 4), (2, 4)], [(1, 9), (2, 7)], 2, None),  # halves of several blocks, twice: 9 bytes are 4
        ([(0, 4), (2, 4)], [(1, 10), (2, 6)], 2, 0),
        ([(0, 1), (2, 1)], [(1, 2), (2, 2)], 1, None),
        ([(0, 1), (2, 7)], [(1, 3), (2, 13)], 2, None),  # one of several blocks among single ones
        ([(0, 2), (0, 1), (2, 1), (2, 2)], [(1, 5), (2, 5)], 2, None),  # more than once, less than twice
    ],
)
def test_first_run_that_is_early(
    come: list[tuple[float, int]], go: list[tuple[float, int]], held_bytes: int, first: int | None
) -> None:
    coming, going = (runs([at for at, _ in pairs], [size for _, size in pairs]) for pairs in (come, go))
    found = leaves_early(coming, going, held_bytes, 0.0)
    assert found is (None if first is None else going[first])
    sooner = runs([at - 0.25 for at, _ in go], [size for _, size in go])
    assert (leaves_early(coming, sooner, held_bytes, 0.25) is None) == (first is None)


def tied() -> Graph:
    """Products with the same weights, and sums with others."""
    b = GraphBuilder()
    x, weight = b.input(64, 64), b.constant(64, 64)
    for _ in range(3):
        x = b.op("MatMul", x, weight, shape=x.shape)
        x = b.op("Add", x, b.constant(64, 64))
    return b.finish(x)


def test_weights_that_stay_are_waited_for_by_every_step_that_reads_them() -> None:
    planned = plan(tied(), STCP920, Baseline(Recipe("layerwise", "core-groups{number=1}", MEMORY)))
    assert not check_order(Trace(planned, STCP920))
    found = planned.simulation
    brought = {run.name: run for run in found.runs if run.what == "weights"}
    readers = {
        name: {n for n, step in enumerate(found.steps) if name in [w.key for w in step.weights]}
        for name in brought
    }
    assert sorted(map(len, readers.values())) == [1, 1, 1, 3]
    for name, run in brought.items():
        late = replace(run, start_s=found.time_s, end_s=found.time_s + run.end_s - run.start_s)
        runs = tuple(late if each is run else each for each in found.runs)
        changed = replace(planned, simulation=replace(found, runs=runs))
        violations = [v for v in check_order(Trace(changed, STCP920)) if f"reads weight {name}" in str(v)]
        late_steps = {n for n in range(len(found.steps)) if any(f"step {n} " in str(v) for v in violations)}
        assert late_steps == readers[name]
