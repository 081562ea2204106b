from dataclasses import replace
from itertools import pairwise

import pytest
from tests.support.graphs import GraphBuilder, random_graph

from tilewright.ir.graph import Graph
from tilewright.partition import Partition, PartitionProblem
from tilewright.partition.none import NonePartitioner
from tilewright.planning import Budget, Quality, Status
from tilewright.schedule import Group, Instance, Schedule, ScheduleProblem, Slice, Stage, check_schedule
from tilewright.schedule.base import critical_path, single
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.random import RandomScheduler
from tilewright.schedule.sequential import Sequential


def partition_of(graph: Graph) -> Partition:
    return NonePartitioner().solve(PartitionProblem(graph), Budget())


@pytest.fixture
def diamond() -> Partition:
    """0 -> 1 -> 3, 0 -> 2 -> 3."""
    b = GraphBuilder()
    a = b.op("Relu", b.input(4, 4))
    return partition_of(b.finish(b.op("Add", b.op("Sigmoid", a), b.op("Softmax", a))))


def stage(*groups: tuple[int, ...]) -> Stage:
    return Stage(tuple(Group(tuple(Instance(i) for i in group)) for group in groups))


def built(problem: ScheduleProblem, *stages: Stage) -> Schedule:
    return replace(Sequential().solve(problem, Budget()), stages=stages, quality=cost_of(problem, *stages))


def cost_of(problem: ScheduleProblem, *stages: Stage) -> Quality:
    cost = sum(problem.cost_of(s) for s in stages)
    # What leaves subgraphs out may be below the bound of all of them.
    return Quality.of(cost, bound=min(cost, problem.lower_bound()), unit="steps")


def rules(problem: ScheduleProblem, *stages: Stage) -> set[str]:
    return {v.rule for v in check_schedule(problem, built(problem, *stages))}


def test_sequential_runs_subgraphs_one_by_one(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    schedule = Sequential().solve(problem, Budget())
    assert [i.subgraph_id for i in schedule.instances()] == [0, 1, 2, 3]
    assert schedule.quality.status is Status.OPTIMAL  # one group at a time: nothing is faster


def test_greedy_runs_side_by_side_what_is_ready(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, max_groups=2)
    schedule = Greedy().solve(problem, Budget())
    assert schedule.stages == (stage((0,)), stage((1,), (2,)), stage((3,)))
    assert (schedule.quality.cost, schedule.quality.bound) == (3, 3)


def test_greedy_keeps_the_limit_of_groups() -> None:
    b = GraphBuilder()
    x = b.input(4)
    graph = b.finish(*(b.op("Relu", x) for _ in range(5)))
    schedule = Greedy().solve(ScheduleProblem(partition_of(graph), max_groups=2), Budget())
    assert [len(s.groups) for s in schedule.stages] == [2, 2, 1]


def test_greedy_prefers_what_comes_first_in_the_partition() -> None:
    b = GraphBuilder()
    x = b.input(4)
    early = b.op("Relu", b.op("Relu", x))
    graph = b.finish(early, b.op("Relu", x))
    schedule = Greedy().solve(ScheduleProblem(partition_of(graph), max_groups=1), Budget())
    assert [i.subgraph_id for i in schedule.instances()] == [0, 1, 2]


def test_memory_order_finishes_a_branch_before_the_next() -> None:
    """Each branch widens and narrows; the graph's own order would hold all wide values at once."""
    b = GraphBuilder()
    x = b.input(2, 2)
    wide = [b.op("MatMul", x, b.constant(2, 64), shape=(2, 64)) for _ in range(3)]
    narrow = [b.op("MatMul", w, b.constant(64, 2), shape=(2, 2)) for w in wide]
    graph = b.finish(b.op("Add", b.op("Add", narrow[0], narrow[1]), narrow[2]))
    schedule = Sequential("memory").solve(ScheduleProblem(partition_of(graph)), Budget())
    order = [i.subgraph_id for i in schedule.instances()]
    assert check_schedule(ScheduleProblem(schedule.partition), schedule) == ()
    live = peak = 0
    for place in order:
        made = schedule.partition.subgraphs[place].outputs[0]
        live += made in wide
        peak = max(peak, live)
        live -= made in narrow
    assert peak == 1


def test_the_bound_is_the_longest_chain_or_the_work_per_group(diamond: Partition) -> None:
    durations = {0: 1.0, 1: 5.0, 2: 2.0, 3: 1.0}
    problem = ScheduleProblem(diamond, lambda s: durations[s.id], "ns", max_groups=2)
    assert critical_path(diamond, durations.__getitem__) == 1 + 5 + 1
    assert problem.lower_bound() == 7
    assert replace(problem, max_groups=1).lower_bound() == 9
    assert Greedy().solve(problem, Budget()).quality.cost == 7


def test_a_given_stage_cost_is_used(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, max_groups=2, stage_cost=lambda s: 10.0 * len(s.groups), bound=30.0)
    schedule = Greedy().solve(problem, Budget())
    assert (schedule.quality.cost, schedule.quality.bound) == (40, 30)
    assert check_schedule(problem, schedule) == ()


def test_missing_and_repeated_subgraphs_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    assert rules(problem, *(single(i) for i in (0, 1, 2, 3))) == set()
    assert "cover" in rules(problem, single(0), single(1), single(3))
    assert "cover" in rules(problem, *(single(i) for i in (0, 1, 1, 2, 3)))


def test_a_subgraph_before_its_producer_is_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, max_groups=2)
    assert "order" in rules(problem, *(single(i) for i in (1, 0, 2, 3)))
    assert "order" in rules(problem, stage((0,), (1,)), single(2), single(3))
    assert rules(problem, stage((0, 1)), single(2), single(3)) == set()


def test_dependent_groups_in_one_stage_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, max_groups=2)
    assert "order" in rules(problem, single(0), stage((1, 3), (2,)))


def test_empty_stages_and_too_many_groups_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, max_groups=1)
    assert "empty" in rules(problem, *(single(i) for i in range(4)), Stage(()))
    assert "groups" in rules(problem, single(0), stage((1,), (2,)), single(3))


def test_a_wrong_cost_or_bound_is_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    schedule = Sequential().solve(problem, Budget())
    quality = schedule.quality
    for wrong, rule in ((replace(quality, cost=1.0), "cost"), (replace(quality, bound=99.0), "bound")):
        assert rule in {v.rule for v in check_schedule(problem, replace(schedule, quality=wrong))}


def sliced(subgraph_id: int, *cuts: int) -> Stage:
    return Stage((Group(tuple(Instance(subgraph_id, Slice(0, a, b)) for a, b in pairwise(cuts))),))


def test_slices_must_cover_the_output_once(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    rest = (single(1), single(2), single(3))
    assert rules(problem, sliced(0, 0, 2, 4), *rest) == set()
    assert rules(problem, sliced(0, 0, 1, 4), *rest) == set()
    assert "cover" in rules(problem, sliced(0, 0, 2), *rest)
    assert "cover" in rules(problem, sliced(0, 1, 4), *rest)
    assert "cover" in rules(problem, sliced(0, 0, 2, 5), *rest)
    overlap = Stage((Group((Instance(0, Slice(0, 0, 3)), Instance(0, Slice(0, 2, 4)))),))
    assert "cover" in rules(problem, overlap, *rest)
    mixed = Stage((Group((Instance(0, Slice(0, 0, 2)), Instance(0, Slice(1, 2, 4)))),))
    assert "cover" in rules(problem, mixed, *rest)


def grid(*cells: tuple[int, int, int, int]) -> Stage:
    """Instances of subgraph 0: [start, end) of axis 0, of these [start, end) of axis 1."""
    instances = (Instance(0, Slice(0, a, b, Slice(1, c, d))) for a, b, c, d in cells)
    return Stage((Group(tuple(instances)),))


def test_slices_of_slices_must_cover_the_output_once(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    rest = (single(1), single(2), single(3))
    cells = [(0, 2, 0, 2), (0, 2, 2, 4), (2, 4, 0, 2), (2, 4, 2, 4)]
    assert rules(problem, grid(*cells), *rest) == set()
    assert problem.cost_of(grid(*cells)) == problem.cost_of(single(0))
    for number in range(4):
        assert "cover" in rules(problem, grid(*cells[:number], *cells[number + 1 :]), *rest)
        assert "cover" in rules(problem, grid(*cells, cells[number]), *rest)
    assert "cover" in rules(problem, grid((0, 2, 0, 4), (2, 4, 0, 2), (2, 4, 3, 4)), *rest)
    whole_and_part = Stage((Group((Instance(0, Slice(0, 0, 4)), *grid((0, 4, 0, 2)).instances())),))
    assert "cover" in rules(problem, whole_and_part, *rest)


def test_slices_share_their_subgraphs_duration(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, lambda s: 8.0)
    assert problem.instance_duration(Instance(0, Slice(0, 0, 1))) == 2.0
    assert problem.cost_of(sliced(0, 0, 1, 4)) == 8.0


def test_a_reader_must_wait_for_the_last_slice(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    early = Stage((Group((Instance(0, Slice(0, 0, 2)), Instance(1), Instance(0, Slice(0, 2, 4)))),))
    assert "order" in rules(problem, early, single(2), single(3))


def test_random_schedules_differ_by_seed_and_use_groups_of_several() -> None:
    problem = ScheduleProblem(partition_of(random_graph(3, 20)), max_groups=3)
    schedules = [RandomScheduler(seed).solve(problem, Budget()) for seed in range(10)]
    assert all(check_schedule(problem, s) == () for s in schedules)
    assert len({s.stages for s in schedules}) > 5
    assert any(len(g.instances) > 1 for s in schedules for st in s.stages for g in st.groups)
    assert any(len(st.groups) > 1 for s in schedules for st in s.stages)


def test_an_empty_graph_has_an_empty_schedule() -> None:
    problem = ScheduleProblem(partition_of(GraphBuilder().finish()))
    schedule = Sequential().solve(problem, Budget())
    assert schedule.stages == ()
    assert check_schedule(problem, schedule) == ()
