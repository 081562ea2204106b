"""Kernels that are launched separately: what passes between them goes through main memory, to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.interpret import run_graph
from tilewright.ir.region import full_region, volume
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.planning import Budget, Limits
from tilewright.schedule import SCHEDULERS, Schedule, ScheduleProblem
from tilewright.schedule.check_instances import check_bindings
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan, simulated

SEEDS = range(8)
MACHINE = load_preset("stcp920").model_copy(update={"launches": "each subgraph"})
AS_PROGRAM = load_preset("stcp920")


def planned(
    graph: Graph, partitioner: str, scheduler: str = "sequential", machine: Machine = MACHINE
) -> tuple[Schedule, SimulatedPlan]:
    partition = PARTITIONERS.get(partitioner).solve(PartitionProblem(graph, machine), Budget())
    assert isinstance(partition, Partition)
    problem = ScheduleProblem(partition, limits=Limits(3))
    schedule = SCHEDULERS.get(scheduler).solve(problem, Budget(100))
    assert isinstance(schedule, Schedule)
    return schedule, simulated(schedule, machine)


def crossing_bytes(partition: Partition) -> tuple[int, int]:
    """Read and written between kernels: what a subgraph makes for others once, what it reads of others once.

    From the subgraphs alone; nothing of a plan is asked.
    """
    makers = {v: s.id for s in partition.subgraphs for n in s.nodes for v in n.results()}
    graph_inputs = set(partition.graph.inputs)
    read = written = 0
    for subgraph in partition.subgraphs:
        made = subgraph.outputs or tuple(subgraph.nodes[-1].results())
        written += sum(partition.main_bytes_of(v, full_region(v.shape)) for v in made)
        needed = value_regions(subgraph.nodes, {v: full_region(v.shape) for v in made}, RegionMaps())
        for value in subgraph.inputs:
            if value in needed and volume(needed[value]) and not value.is_constant:
                assert value in graph_inputs or makers[value] != subgraph.id
                read += partition.main_bytes_of(value, needed[value])
    return read, written


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scheduler", ["sequential", "greedy"])
@pytest.mark.parametrize("partitioner", ["none", "layerwise"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_passes_between_kernels_goes_through_main_memory(
    seed: int, partitioner: str, scheduler: str
) -> None:
    schedule, plan = planned(integer_network(seed), partitioner, scheduler)
    weights = sum(w.size_bytes for step in plan.simulation.steps for w in step.weights)
    read, written = crossing_bytes(plan.partition)
    traffic = plan.simulation.traffic
    assert traffic.main_written == written
    assert traffic.main_read - read == weights
    num_kernels = len(plan.bindings.launches)
    assert num_kernels == len(plan.partition.subgraphs)
    launching_s = num_kernels * MACHINE.overheads.kernel_launch_ns * 1e-9
    assert plan.simulation.time_s >= launching_s / max(len(stage.groups) for stage in schedule.stages)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scheduler", ["greedy", "random", "depth-first"])
@pytest.mark.parametrize("partitioner", ["none", "graphturbo", "random"])
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_compute_the_values_of_the_network(seed: int, partitioner: str, scheduler: str) -> None:
    graph = integer_network(seed)
    _, plan = planned(graph, partitioner, scheduler)
    assert check_scopes(plan.scopes, plan.bindings) == ()
    assert check_bindings(plan.instances, plan.bindings) == ()
    found = execute(plan.scopes, integer_feed(graph))
    for name, array in run_graph(graph, integer_feed(graph)).items():
        np.testing.assert_array_equal(found[name], array)


def test_joining_layers_saves_the_traffic_between_them() -> None:
    graph = integer_network(0)
    apart, joined = (planned(graph, name)[1].simulation for name in ("none", "layerwise"))
    assert joined.traffic.main_written < apart.traffic.main_written
    assert joined.time_s < apart.time_s
    as_program = planned(graph, "none", machine=AS_PROGRAM)[1].simulation
    assert as_program.traffic.main_written < joined.traffic.main_written
