"""Peaks of instances are those of the graph that they are in, whatever its partition was split for."""

from functools import cache

import pytest
from tests.support.integer_networks import integer_network

from tilewright.errors import InternalError
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition import PartitionProblem
from tilewright.partition.base import Partition
from tilewright.partition.check_splits import _peaks, _regions
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import WHOLE
from tilewright.planning import Budget
from tilewright.schedule import ScheduleProblem
from tilewright.schedule.instance_orders import ExactOrder, demand_of, peaks_of
from tilewright.schedule.instances import Kind, instance_graph
from tilewright.schedule.orders import Demand

SEEDS = range(24)


@cache
def plan(seed: int) -> Partition:
    graph = integer_network(seed)
    capacity = max(v.size_bytes for v in graph.values()) // 2
    planner = GraphTurbo(capacity_bytes=capacity, element_bytes=4, dims="any")
    return planner.solve(PartitionProblem(graph), Budget())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_peaks_are_those_of_the_instances_of_a_graph(seed: int) -> None:
    partition = plan(seed)
    split, whole = instance_graph(partition), instance_graph(partition, (WHOLE,) * len(partition.splits))
    for graph in (split, whole):
        peaks = peaks_of(graph)
        for subgraph in partition.subgraphs:
            ranges = [
                _peaks(partition, subgraph, tuple(n.outputs), *_regions(subgraph, n.outputs, RegionMaps()))
                for n in graph.nodes
                if n.kind is Kind.INSTANCE and n.subgraph_id == subgraph.id
            ]
            assert max(r[0] for r in ranges) <= peaks[subgraph.id] <= max(r[1] for r in ranges)


def test_a_peak_below_what_is_read_is_a_broken_invariant() -> None:
    graph = next(g for g in map(instance_graph, map(plan, SEEDS)) if g.edges)
    with pytest.raises(InternalError, match="peak is 0"):
        Demand.of(graph, dict.fromkeys(range(len(graph.partition.subgraphs)), 0))


def test_the_exact_order_of_whole_subgraphs_counts_whole_subgraphs() -> None:
    """Planned for slices, run whole: every subgraph that is cut holds more at its peak."""
    grown = 0
    for seed in SEEDS:
        partition = plan(seed)
        whole = demand_of(instance_graph(partition, (WHOLE,) * len(partition.splits)))
        schedule = ExactOrder(False).solve(ScheduleProblem(partition), Budget())
        order = tuple(i.subgraph_id for i in schedule.instances())
        assert partition.weighed is not None
        cost = whole.cost_of(order, partition.weighed.capacity_bytes)
        assert f"{cost.overflow_bytes} bytes over" in schedule.provenance.note
        grown += cost.peak_bytes > max(partition.weighed.peak_bytes)
    assert grown > 0
