"""Lanes: layers of a kernel on groups of its cores at the same time; what they take, and what a checker notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.support.accelerator import checked
from tests.support.graphs import GraphBuilder

from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.partition import Partition, PartitionProblem, Reason
from tilewright.partition.base import build_partition
from tilewright.planning import Budget, Limits, Provenance
from tilewright.schedule import Schedule, ScheduleProblem, check_schedule
from tilewright.schedule.base import Group, Instance, Stage
from tilewright.schedule.binding import Scope
from tilewright.schedule.lane_search import parts_of
from tilewright.schedule.lanes import Lane, Sections
from tilewright.schedule.virtual_units import VirtualUnits
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.costs import UNPRICED
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan, simulated
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.target import NpuTarget

A310 = load_preset("a310")
PLENTY = 4096


def machine(num_cores: int, *, binds: bool = True) -> Machine:
    """The A310 with so many cores; where memory does not bind, all levels are as fast as anybody could ask for,
    and nothing is to be waited for."""
    levels = list(A310.levels)
    of_core = [i for i, level in enumerate(levels) if level.per == "core"][-1]
    levels[of_core] = levels[of_core].model_copy(update={"num_instances_per_parent": num_cores})
    changed: dict[str, object] = {"num_cores_per_cluster": num_cores}
    if not binds:
        for place, level in enumerate(levels):
            rates = ("read_bytes_per_cycle", "write_bytes_per_cycle", "read_bytes_per_s", "write_bytes_per_s")
            known = {name: rate * PLENTY for name in rates if (rate := getattr(level, name)) is not None}
            levels[place] = level.model_copy(update=known)
        nothing = {"kernel_launch_ns": 0.0, "barrier_ns": 0.0}
        changed["overheads"] = A310.overheads.model_copy(update=nothing)
    return A310.model_copy(update={**changed, "levels": tuple(levels)})


def conv(b: GraphBuilder, x: Value, channels: int, kernel: int, name: str) -> Value:
    weight = b.constant(channels, x.shape[1], kernel, kernel)
    shape = (x.shape[0], channels, *x.shape[2:])
    return b.op("Conv", x, weight, shape=shape, name=name, pads=(kernel // 2,) * 4)


def example_4() -> Graph:
    """Four convolutions of one value, each of which fills the tile of one unit and no more."""
    b = GraphBuilder()
    x = b.input(1, 256, 4, 4)
    return b.finish(*(conv(b, x, 16, kernel, f"CONV{kernel}") for kernel in (1, 3, 5, 7)))


def residual(side: int = 14) -> Graph:
    """A block whose input passes two convolutions, and another one beside these."""
    b = GraphBuilder()
    x = b.op("Relu", conv(b, b.input(1, 32, side, side), 32, 3, "stem"))
    y = conv(b, b.op("Relu", conv(b, x, 32, 3, "first")), 32, 3, "second")
    z = b.op("Relu", conv(b, x, 32, 1, "beside"))
    return b.finish(conv(b, b.op("Add", y, z), 32, 1, "last"))


def whole(graph: Graph) -> Partition:
    """All of a graph as one kernel."""
    return build_partition(
        PartitionProblem(graph), [graph.nodes], lambda *_: Reason.CLUSTER, Provenance("test"), quality=UNPRICED
    )


def layer_named(partition: Partition, name: str) -> int:
    (subgraph,) = partition.subgraphs
    layers = partition.layers_of(subgraph)
    return next(i for i, layer in enumerate(layers) if any(node.name == name for node in layer.nodes))


def lanes_of(partition: Partition, num_cores: Sequence[int]) -> Sections:
    """The residual block's two ways at the same time."""
    ways = (("first", "second"), ("beside",))
    return (
        tuple(
            Lane(tuple(layer_named(partition, name) for name in names), count)
            for names, count in zip(ways, num_cores, strict=True)
        ),
    )


def scheduled(partition: Partition, sections: Sections, num_cores: int | None = None) -> Schedule:
    group = Group((Instance(0),), num_cores, inside=(sections,))
    return Schedule(partition, (Stage((group,)),), UNPRICED, Provenance("test"))


@cache
def in_lanes(num_cores: int = 2, shares: tuple[int, ...] = (1, 1)) -> SimulatedPlan:
    partition = whole(residual())
    return checked(simulated(scheduled(partition, lanes_of(partition, shares)), machine(num_cores)), machine(num_cores))


# What they take


def planned(graph: Graph, on: Machine, *, inside: bool = True) -> tuple[float, Schedule, SimulatedPlan]:
    """The simulated seconds of one kernel on virtual units, and its plan."""
    partition = whole(graph)
    backend = NpuTarget(on).backend(graph, Options())
    problem = ScheduleProblem(
        partition, on, backend.costs, limits=backend.limits, allows_lanes=backend.runs_lanes
    )
    schedule = VirtualUnits(inside=inside).solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()
    found = checked(simulated(schedule, on, types=element_types(on).inside), on)
    assert schedule.quality.cost == pytest.approx(found.simulation.time_s * 1e9)
    return found.simulation.time_s, schedule, found


def test_example_4_inside_a_kernel_one_unit_takes_the_sum_and_four_the_longest() -> None:
    found = {n: planned(example_4(), machine(n, binds=False)) for n in (1, 4)}
    works = [work for step in found[1][2].simulation.steps for work in step.works]
    alone = sorted(work.seconds for work in works if work.macs)
    assert [round(seconds / alone[0]) for seconds in alone] == [1, 9, 25, 49]
    assert found[1][0] == pytest.approx(sum(alone), rel=0.01)
    assert found[4][0] == pytest.approx(alone[-1], rel=0.01)
    assert not found[1][1].stages[0].groups[0].has_lanes
    (section,) = found[4][1].stages[0].groups[0].inside[0]
    assert [lane.num_cores for lane in section] == [1, 1, 1, 1]
    without, _, _ = planned(example_4(), machine(4, binds=False), inside=False)
    assert without == pytest.approx(sum(alone), rel=0.01)


def test_two_units_take_what_the_best_packing_does() -> None:
    seconds, schedule, found = planned(example_4(), machine(2, binds=False))
    alone = sorted(w.seconds for step in found.simulation.steps for w in step.works if w.macs)
    assert seconds == pytest.approx(alone[-1], rel=0.01)  # the other three together take less
    (section,) = schedule.stages[0].groups[0].inside[0]
    assert sorted(len(lane.layers) for lane in section) == [1, 3]
