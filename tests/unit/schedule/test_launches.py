"""What becomes a kernel of its own where a machine launches each subgraph."""

from __future__ import annotations

from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.none import NonePartitioner
from tilewright.partition.split import Split
from tilewright.planning import Budget, Limits, Provenance
from tilewright.schedule import Group, Instance, Schedule, ScheduleProblem, Stage
from tilewright.schedule.base import build_schedule
from tilewright.schedule.instances import Kind, instance_graph
from tilewright.schedule.launches import Launch, launches_of, most_cores


def forked() -> Graph:
    """A value with two readers, whose results are added."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 8))
    return b.finish(b.op("Add", b.op("Neg", x), b.op("Abs", x)))


def partition(graph: Graph) -> Partition:
    found = NonePartitioner().solve(PartitionProblem(graph), Budget())
    assert isinstance(found, Partition)
    return found


def scheduled(*stages: Stage, splits: tuple[Split, ...] = ()) -> tuple[Schedule, tuple[Launch, ...]]:
    problem = ScheduleProblem(partition(forked()), limits=Limits(2), allows_slices=True)
    schedule = build_schedule(problem, stages, Provenance("by hand"), splits)
    return schedule, launches_of(schedule, instance_graph(schedule.partition, schedule.splits))


def stage(*groups: tuple[tuple[int, int], ...], num_cores: int | None = None) -> Stage:
    return Stage(tuple(Group(tuple(Instance(*i) for i in group), num_cores) for group in groups))


def test_each_subgraph_is_a_kernel_of_its_stage_and_group() -> None:
    _, launches = scheduled(
        stage(((0, 0),)), stage(((1, 0),), ((2, 0),), num_cores=3), stage(((3, 0),), num_cores=2)
    )
    assert [(x.stage, x.group, x.num_cores, x.is_alone) for x in launches] == [
        (0, 0, None, True),
        (1, 0, 3, False),
        (1, 1, 3, False),
        (2, 0, 2, True),
    ]
    assert most_cores(launches) == {1: 3, 2: 3, 3: 2}


def test_slices_that_follow_each_other_are_one_kernel_and_collect_what_they_read() -> None:
    whole, halves = Split(None, 1), Split(0, 2)
    schedule, launches = scheduled(
        stage(((0, 0),)),
        stage(((0, 1),)),
        stage(((1, 0), (2, 0)), ((2, 1),)),
        stage(((3, 0),), ((3, 1),)),
        splits=(halves, whole, halves, halves),
    )
    graph = instance_graph(schedule.partition, schedule.splits)
    nodes = [[graph.nodes[n] for n in x.nodes] for x in launches]
    assert [str(n) for n in nodes[0]] == ["0.0", "0.1"], "two stages of one group each, of one subgraph"
    assert [n.kind for n in nodes[1]] == [Kind.CONCAT, Kind.INSTANCE]
    assert [x.stage for x in launches] == [0, 2, 2, 2, 3, 3], "groups of a stage are kernels of their own"
    assert sorted(n for x in launches for n in x.nodes) == [n.id for n in graph.nodes]
