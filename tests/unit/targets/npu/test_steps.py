"""What tiles of a step wait for, against the regions that they read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.region import Region, hull, input_regions, volume
from tilewright.known_facts import KnownFacts
from tilewright.memory.scopes import ScopePlan, place
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.partition.split import Split
from tilewright.planning import Budget
from tilewright.schedule.binding import bind
from tilewright.schedule.instance_orders import demand_of
from tilewright.schedule.instances import Kind, instance_graph
from tilewright.schedule.orders import breadth_first
from tilewright.targets.npu.simulated_step import Load, SimulatedStep
from tilewright.targets.npu.steps import lower
from tilewright.targets.npu.tiles import Tiling
from tilewright.targets.npu.work import Works

MACHINE = load_preset("stcp920")


def lowered(
    graph: Graph, splits: Sequence[Split] | None = None, machine: Machine = MACHINE
) -> tuple[ScopePlan, tuple[SimulatedStep, ...]]:
    """Every node by itself, split as told, else along a random axis."""
    partition = PARTITIONERS.get("none").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    if splits is None:
        rng = random.Random(len(graph.nodes))
        axes = [rng.randrange(len(s.outputs[0].shape)) for s in partition.subgraphs]
        splits = [
            Split(axis, rng.randint(1, s.outputs[0].shape[axis]))
            for axis, s in zip(axes, partition.subgraphs, strict=True)
        ]
    instances = instance_graph(partition, splits)
    order = breadth_first(demand_of(instances))
    bindings = bind(instances, order, 1)
    plan = place(instances, order, bindings, machine)
    return plan, lower(plan, bindings, Works(machine, element_types(machine)))


def cuts(region: Region, tiling: Tiling) -> list[Region]:
    """The tiles of a region."""
    axis = tiling.axis
    if axis is None:
        return [region]
    start, stop = region[axis]
    ends = [start + (stop - start) * i // tiling.num_tiles for i in range(tiling.num_tiles + 1)]
    # Of more tiles than elements several make a part of one.
    return [(*region[:axis], (a, max(b, a + 1)), *region[axis + 1 :]) for a, b in pairwise(ends)]


def needed(nodes: Sequence[Node], made: Value, region: Region, value: Value) -> Region | None:
    regions = {made: region}
    for node in reversed(nodes):
        for position, result in enumerate(node.outputs):
            if result in regions and result is not None and volume(regions[result]):
                needs = input_regions(node, regions[result], position)
                for operand, need in zip(node.inputs, needs, strict=True):
                    if operand is not None and need is not None:
                        regions[operand] = hull(regions[operand], need) if operand in regions else need
    return regions.get(value)


def covers(outer: Sequence[Region], inner: Region) -> bool:
    """Whether neighbouring tiles, joined, hold a region."""
    joined = hull(outer[0], *outer[1:])
    return all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(joined, inner, strict=True))


def num_tiles_that_wait_for_less_than_they_read(
    plan: ScopePlan, steps: Sequence[SimulatedStep]
) -> tuple[int, int]:
    """Among how many."""
    wrong = count = 0
    for step, planned in zip(steps, plan.steps, strict=True):
        if plan.graph.nodes[planned.node].kind is not Kind.INSTANCE:
            continue
        written = max((plan.buffers[i] for i in planned.writes), key=lambda p: volume(p.region))
        loads: list[Load] = list(step.loads)
        for load, read in zip(loads, planned.reads, strict=True):
            if not load.tiles or read.buffer is None:
                continue
            buffer = plan.buffers[read.buffer]
            made = cuts(buffer.region, steps[buffer.first_step].tiling)
            for part, last in zip(cuts(written.region, step.tiling), load.tiles, strict=True):
                need = needed(planned.operators, written.value, part, read.value)
                if need is not None and volume(part):
                    count += 1
                    wrong += not covers(made[: last + 1], tuple(map(clip, need, read.region)))
    return wrong, count


def clip(interval: tuple[int, int], within: tuple[int, int]) -> tuple[int, int]:
    return max(interval[0], within[0]), min(interval[1], within[1])


def test_slices_of_equal_extents_over_different_borders_wait_for_what_they_read() -> None:
    """Both halves make 4 rows of 5: the upper one begins in the padding, the lower one ends in it."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 1, 8, 4))
    y = b.op("Conv", x, b.constant(1, 1, 3, 3), pads=(1, 1, 1, 1))
    plan, steps = lowered(b.finish(y), (Split(2, 1), Split(2, 2)))
    upper, lower_ = (s.loads[0].tiles for s in steps if s.name.startswith("conv"))
    assert (upper, lower_) == ((1, 2, 3, 4), (5, 6, 7, 7)), "row by row, as the input comes"
    assert num_tiles_that_wait_for_less_than_they_read(plan, steps) == (0, 8)


def test_slices_that_begin_between_two_rows_wait_for_what_they_read() -> None:
    """Up-sampled by two, 5 rows of 3: a slice begins with the first or with the second copy of a row."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 1, 20, 1))
    scales = b.graph.constant(np.array([1, 1, 2, 1], np.float32), "scales")
    empty = b.graph.constant(np.array([], np.float32), "roi")
    y = b.op(
        "Resize",
        x,
        empty,
        scales,
        shape=(1, 1, 40, 1),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    plan, steps = lowered(b.finish(y), (Split(2, 20), Split(2, 8)))
    assert num_tiles_that_wait_for_less_than_they_read(plan, steps)[0] == 0


def test_tiles_of_all_results_of_a_step_wait_for_what_they_read() -> None:
    """The second half of a Split reads the last channels with its first tile."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 16, 4, 4))
    left, right = b.ops("Split", (x,), ((1, 8, 4, 4), (1, 8, 4, 4)), axis=1, num_outputs=2)
    plan, steps = lowered(b.finish(b.conv(left, 8), b.conv(right, 8)), (Split(1, 1),) * 4)
    split, planned = next(pair for pair in zip(steps, plan.steps, strict=True) if len(pair[0].stores) == 2)
    (read,), (load,) = planned.reads, split.loads
    assert read.buffer is not None
    buffer = plan.buffers[read.buffer]
    made = cuts(buffer.region, steps[buffer.first_step].tiling)
    assert split.tiling.num_tiles > 1 < len(made)
    for written in (plan.buffers[i] for i in planned.writes):
        for part, last in zip(cuts(written.region, split.tiling), load.tiles, strict=True):
            need = needed(planned.operators, written.value, part, read.value)
            assert need is not None
            assert covers(made[: last + 1], need)


def test_tiles_that_are_parts_of_one_channel_wait_for_what_all_of_it_reads() -> None:
    """64 tiles along 32 channels and rows: each reads what the last tile of the layer before makes."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 32, 8, 8))
    y = b.op("Conv", x, b.constant(32, 32, 3, 3), pads=(1, 1, 1, 1))
    plan, steps = lowered(b.finish(y), (Split(2, 1),) * 2, with_local_bytes(MACHINE, 512))
    (load,) = steps[-1].loads
    assert steps[-1].tiling.num_tiles > 32
    assert set(load.tiles) == {steps[0].tiling.num_tiles - 1}
    assert num_tiles_that_wait_for_less_than_they_read(plan, steps)[0] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(20))
def test_tiles_wait_for_all_that_they_read(seed: int) -> None:
    plan, steps = lowered(integer_network(seed))
    wrong, count = num_tiles_that_wait_for_less_than_they_read(plan, steps)
    assert wrong == 0
    assert count > 0


@pytest.mark.parametrize("most", [3, 1000])
def test_steps_are_the_same_whatever_is_known_of_other_plans(most: int) -> None:
    graph = integer_network(5)
    partition = PARTITIONERS.get("none").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    works, known = Works(MACHINE, element_types(MACHINE)), KnownFacts(most)
    for parts in (1, 2, 3, 2):
        splits = [Split(0, min(parts, s.outputs[0].shape[0])) for s in partition.subgraphs]
        instances = instance_graph(partition, splits)
        order = breadth_first(demand_of(instances))
        bindings = bind(instances, order, 1)
        plan = place(instances, order, bindings, MACHINE)
        found = lower(plan, bindings, works, known=known)
        for mine, alone in zip(
            found, lower(plan, bindings, Works(MACHINE, element_types(MACHINE))), strict=True
        ):
            assert [(w.unit, w.seconds) for w in mine.works] == [(w.unit, w.seconds) for w in alone.works]
            assert (mine.loads, mine.stores, mine.weights) == (alone.loads, alone.stores, alone.weights)
            assert (mine.tiling, mine.binding, mine.after) == (alone.tiling, alone.binding, alone.after)
