"""The simulator runs every registered schedule of every registered partition with every memory planner."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder, feed_of, random_graph
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node
from tilewright.ir.interpret import run_graph
from tilewright.memory import MEMORY_PLANNERS
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, Reason
from tilewright.partition.base import build_partition
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Budget, Limits, Provenance
from tilewright.schedule import (
    SCHEDULERS,
    Group,
    Instance,
    Schedule,
    ScheduleProblem,
    Stage,
    check_schedule,
)
from tilewright.schedule.base import build_schedule
from tilewright.schedule.binding import Scope
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan, simulated

MACHINES = [load_preset(name) for name in ("stcp920", "ipu-mk1")]


@dataclass(frozen=True, eq=False)
class Case:
    """A network, values for its inputs, and those that come out."""

    graph: Graph
    feed: dict[str, np.ndarray]

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:
        return run_graph(self.graph, self.feed)


@cache
def networks() -> list[Case]:
    empty = GraphBuilder("empty").finish()
    passed = GraphBuilder("passed_through")
    value = passed.input(4, 4)
    graphs = [empty, passed.finish(value), random_graph(2, 12)]
    cases = [Case(g, feed_of(g)) for g in graphs]
    return cases + [Case(g, integer_feed(g)) for g in map(integer_network, range(3))]


@cache
def partitions(name: str, case: Case) -> tuple[Partition, ...]:
    """The partition of a registered partitioner; GraphTurbo's also where it has to cut a lot."""
    graph = case.graph
    found = PARTITIONERS.get(name).solve(PartitionProblem(graph, MACHINES[0]), Budget(100))
    assert isinstance(found, Partition)
    if name != "graphturbo":
        return (found,)
    largest = max((v.size_bytes for v in graph.values()), default=0)
    cut = GraphTurbo(capacity_bytes=largest // 2, dims="any").solve(PartitionProblem(graph), Budget())
    assert isinstance(cut, Partition)
    return found, cut


def right(schedule: Schedule, case: Case, machine: Machine, memory: str) -> SimulatedPlan:
    """The plan of a schedule: valid, with the network's values, above its bound."""
    planned = simulated(schedule, machine, MEMORY_PLANNERS.get(memory))
    assert planned.scopes.memory.provenance.planner == memory
    assert check_scopes(planned.scopes, planned.bindings) == ()
    found = execute(planned.scopes, case.feed)
    assert found.keys() == case.expected.keys()
    for name, array in case.expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    assert planned.simulation.time_s >= planned.simulation.lower_bound_s
    nodes = [planned.instances.nodes[place] for place in planned.order]
    made = [n.subgraph_id for n in nodes if n.kind is Kind.INSTANCE]
    assert made == [i.subgraph_id for i in schedule.instances()]
    return planned


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scheduler", SCHEDULERS.names())
@pytest.mark.parametrize("partitioner", PARTITIONERS.names())
def test_whatever_is_registered_runs(partitioner: str, scheduler: str) -> None:
    for number, case in enumerate(networks()):
        machine = with_local_bytes(MACHINES[number % 2], 64)
        for partition in partitions(partitioner, case):
            for allows_slices in (False, True) if partition.is_split else (False,):
                problem = ScheduleProblem(partition, limits=Limits(3), allows_slices=allows_slices)
                schedule = SCHEDULERS.get(scheduler).solve(problem, Budget(100))
                assert isinstance(schedule, Schedule)
                right(schedule, case, machine, "largest-size")
                planned = right(schedule, case, machine, "longest-liveness")
                again = simulated(schedule, machine, MEMORY_PLANNERS.get("longest-liveness"))
                assert again.simulation.runs == planned.simulation.runs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", MEMORY_PLANNERS.names())
def test_whatever_places_buffers_runs(memory: str) -> None:
    for number, case in enumerate(networks()):
        machine = with_local_bytes(MACHINES[number % 2], 64)
        for partition in partitions("graphturbo", case):
            schedule = SCHEDULERS.get("depth-first").solve(ScheduleProblem(partition), Budget())
            assert isinstance(schedule, Schedule)
            right(schedule, case, machine, memory)


def by_hand(graph: Graph, seed: int) -> Partition:
    """Neighbours in a random topological order as subgraphs, with as many results as they happen to have."""

    def reason(producer: Node, consumer: Node, value: object, fused: bool) -> Reason:
        return Reason.CLUSTER if fused else Reason.NO_FUSION

    rng = random.Random(seed)
    clusters: list[list[Node]] = []
    for node in graph.nodes:
        if clusters and rng.random() < 0.6:
            clusters[-1].append(node)
        else:
            clusters.append([node])
    return build_partition(PartitionProblem(graph), clusters, reason, Provenance("by hand"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
def test_subgraphs_of_several_results_run(seed: int) -> None:
    graph = integer_network(seed)
    problem = ScheduleProblem(by_hand(graph, seed), limits=Limits(2))
    assert any(len(s.outputs) > 1 for s in problem.partition.subgraphs)
    schedule = SCHEDULERS.get("random").solve(problem, Budget())
    assert isinstance(schedule, Schedule)
    for machine in MACHINES:
        right(schedule, Case(graph, integer_feed(graph)), machine, "longest-liveness")


def sliced(indices: Sequence[int], *, is_turned: bool = False) -> tuple[Schedule, Graph]:
    """A pointwise operator in three slices, side by side in one stage, before one that reads all of them."""
    b = GraphBuilder()
    graph = b.finish(b.op("Transpose", b.op("Neg", b.input(7, 6)), shape=(6, 7), perm=(1, 0)))
    partition = PARTITIONERS.get("none").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    problem = ScheduleProblem(partition, limits=Limits(4), allows_slices=True)
    groups = tuple(Group((Instance(0, index),)) for index in indices)
    stages = (Stage(groups), Stage((Group((Instance(1),)),)))
    splits = (Split(0, 3), WHOLE)
    schedule = build_schedule(problem, stages[::-1] if is_turned else stages, Provenance("by hand"), splits)
    assert bool(check_schedule(problem, schedule)) == (is_turned or sorted(indices) != [0, 1, 2])
    return schedule, graph


def test_slices_side_by_side_are_put_together_for_their_reader() -> None:
    schedule, graph = sliced((1, 0, 2))
    planned = right(schedule, Case(graph, feed_of(graph)), MACHINES[0], "longest-liveness")
    ran = [str(planned.instances.nodes[place]) for place in planned.order]
    assert ran == ["0.1", "0.0", "0.2", "concat(neg)->1.0", "1.0"]
    # Of the first subgraph, the longest of the slices that run at the same time has 3 of 7 rows.
    problem = ScheduleProblem(schedule.partition)
    times_ns = [problem.kernel(i).time_ns for i in (0, 1)]
    assert schedule.quality.cost == pytest.approx(times_ns[0] * 3 / 7 + times_ns[1])
    assert schedule.quality.bound <= schedule.quality.cost


@pytest.mark.parametrize(
    ("indices", "is_turned", "said"),
    [((0, 1, 2, 3), False, r"0\.3 is no instance"), ((0, 1, 2), True, "runs before")],
)
def test_what_cannot_run_is_one_line(indices: tuple[int, ...], is_turned: bool, said: str) -> None:
    schedule, _ = sliced(indices, is_turned=is_turned)
    with pytest.raises(UsageError, match=said) as raised:
        simulated(schedule, MACHINES[0])
    assert len(str(raised.value).splitlines()) == 1


def test_elements_are_as_wide_as_the_machine_keeps_them_whoever_cut_the_network() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("Softmax", b.op("Relu", b.conv(b.input(2, 3, 8, 8), 4))))
    sizes = set()
    for name in PARTITIONERS.names():
        partition = PARTITIONERS.get(name).solve(PartitionProblem(graph, MACHINES[0]), Budget())
        assert isinstance(partition, Partition)
        schedule = SCHEDULERS.get("sequential").solve(ScheduleProblem(partition), Budget())
        assert isinstance(schedule, Schedule)
        planned = simulated(schedule, MACHINES[0])
        sizes.add(sum(p.size_bytes for p in planned.scopes.buffers if p.scope is Scope.MAIN))
        assert dict(planned.partition.element_bytes or {}) == {"float32": 2}
        if name in ("layerwise", "graphturbo"):
            assert [s.name for s in planned.simulation.steps] == ["conv", "softmax"]
    assert sizes == {4 * 2 * 4 * 8 * 8}, "a result lies in main memory as the file says"
