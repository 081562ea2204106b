# mypy: disable-error-code="arg-type"
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from tests.support.graphs import GraphBuilder, random_graph

from tilewright.cost.base import Estimate, KernelWork
from tilewright.errors import UsageError
from tilewright.ir.graph import Graph
from tilewright.partition import Partition, PartitionProblem
from tilewright.partition.none import NonePartitioner
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Bound, Budget, Limits, Quality, Rule, Status
from tilewright.schedule import Group, Instance, Schedule, ScheduleProblem, Stage, check_schedule
from tilewright.schedule.base import critical_path, single
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.random import RandomScheduler
from tilewright.schedule.sequential import Sequential
from tilewright.schedule.space import GROUPS, SCHEDULES


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


def built(problem: ScheduleProblem, stages: Sequence[Stage], splits: tuple[Split, ...] = ()) -> Schedule:
    schedule = Sequential().solve(ScheduleProblem(problem.partition), Budget())
    splits = splits or schedule.splits
    total = problem.estimate(stages, splits)
    # What leaves subgraphs out may be below the bound of all of them.
    bound = Bound(min(total.time_ns, total.bound_ns), SCHEDULES, "by hand")
    quality = Quality.of(total.time_ns, bound, unit="ns")
    return replace(schedule, stages=tuple(stages), quality=quality, splits=splits)


@dataclass(frozen=True)
class Durations:
    """Kernels with stated times, each group on a processor of its own."""

    ns: Mapping[str, float]  # by operator
    stage_ns: float | None = None
    source: str = "stated"
    proves_bounds: bool = True

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        time_ns = self.ns[work.nodes[-1].op_type]
        return Estimate(time_ns, time_ns, self.source)

    def stage(self, groups: Sequence[Sequence[KernelWork]], num_cores: Sequence[int | None] = ()) -> Estimate:
        time_ns = max(sum(self.kernel(work).time_ns for work in group) for group in groups)
        return Estimate(self.stage_ns or time_ns, 0.0, self.source)

    def transfer(self, size_bytes: int, source_level: str, target_level: str) -> Estimate:
        return Estimate(0.0, 0.0, self.source)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        time_ns = sum(self.kernel(work).time_ns for work in kernels) / num_groups
        return Estimate(time_ns, time_ns, self.source)


DIAMOND = Durations({"Relu": 1.0, "Sigmoid": 5.0, "Softmax": 2.0, "Add": 1.0})


def rules(problem: ScheduleProblem, *stages: Stage, splits: tuple[Split, ...] = ()) -> set[str]:
    return {v.rule for v in check_schedule(problem, built(problem, stages, splits))}


def test_sequential_runs_subgraphs_one_by_one(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    schedule = Sequential().solve(problem, Budget())
    assert [i.subgraph_id for i in schedule.instances()] == [0, 1, 2, 3]
    assert schedule.quality.status is Status.OPTIMAL  # one group at a time: nothing is faster


def test_greedy_runs_side_by_side_what_is_ready(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, limits=Limits(2))
    schedule = Greedy().solve(problem, Budget())
    assert schedule.stages == (stage((0,)), stage((1,), (2,)), stage((3,)))
    assert schedule.quality.unit == "ns"


def test_greedy_keeps_the_limit_of_groups() -> None:
    b = GraphBuilder()
    x = b.input(4)
    graph = b.finish(*(b.op("Relu", x) for _ in range(5)))
    schedule = Greedy().solve(ScheduleProblem(partition_of(graph), limits=Limits(2)), Budget())
    assert [len(s.groups) for s in schedule.stages] == [2, 2, 1]


def test_greedy_prefers_what_comes_first_in_the_partition() -> None:
    b = GraphBuilder()
    x = b.input(4)
    early = b.op("Relu", b.op("Relu", x))
    graph = b.finish(early, b.op("Relu", x))
    schedule = Greedy().solve(ScheduleProblem(partition_of(graph), limits=Limits(1)), Budget())
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
    problem = ScheduleProblem(diamond, cost=DIAMOND, limits=Limits(2))
    schedule = Greedy().solve(problem, Budget())
    assert critical_path(diamond, lambda i: problem.kernel(i).time_ns) == 1 + 5 + 1
    assert (schedule.quality.cost, schedule.quality.highest.value, schedule.quality.unit) == (7, 7, "ns")
    alone = Sequential().solve(replace(problem, limits=Limits(1)), Budget())
    assert (alone.quality.cost, alone.quality.bound) == (9, 9)


def test_a_stage_costs_what_the_model_says(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, cost=replace(DIAMOND, stage_ns=30.0), limits=Limits(2))
    schedule = Greedy().solve(problem, Budget())
    assert (schedule.quality.cost, schedule.quality.highest.value) == (1 + 30 + 1, 7)
    assert check_schedule(problem, schedule) == ()


def test_a_machine_that_overlaps_stages_prices_whole_schedules(diamond: Partition) -> None:
    problem = ScheduleProblem(
        diamond, price=lambda partition, stages, splits: Estimate(1e9, 0.0, "all at once")
    )
    quality = Sequential().solve(problem, Budget()).quality
    assert quality.cost == 1e9
    assert 0 < quality.bound < 1e9


def test_an_objective_without_energies_is_refused(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, objective="energy")
    with pytest.raises(UsageError, match="knows no energies"):
        Sequential().solve(problem, Budget())


def test_missing_and_repeated_subgraphs_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    assert rules(problem, *(single(i) for i in (0, 1, 2, 3))) == set()
    assert "cover" in rules(problem, single(0), single(1), single(3))
    assert "cover" in rules(problem, *(single(i) for i in (0, 1, 1, 2, 3)))


def test_a_subgraph_before_its_producer_is_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, limits=Limits(2))
    assert "order" in rules(problem, *(single(i) for i in (1, 0, 2, 3)))
    assert "order" in rules(problem, stage((0,), (1,)), single(2), single(3))
    assert rules(problem, stage((0, 1)), single(2), single(3)) == set()


def test_dependent_groups_in_one_stage_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, limits=Limits(2))
    assert "order" in rules(problem, single(0), stage((1, 3), (2,)))


def test_empty_stages_and_too_many_groups_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, limits=Limits(1))
    assert "empty" in rules(problem, *(single(i) for i in range(4)), Stage(()))
    assert "groups" in rules(problem, single(0), stage((1,), (2,)), single(3))
    coreless = Stage((Group((Instance(0),), 0),))
    assert "cores" in rules(problem, coreless, *(single(i) for i in (1, 2, 3)))


def test_a_wrong_cost_or_bound_is_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond)
    schedule = Sequential().solve(problem, Budget())
    quality = schedule.quality
    for wrong, rule in (
        (replace(quality, cost=1.0), "cost"),
        (replace(quality, bounds=(replace(quality.widest, value=quality.cost + 1),)), "bound"),
    ):
        assert rule in {v.rule for v in check_schedule(problem, replace(schedule, quality=wrong))}


def test_a_bound_of_other_schedules_is_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, limits=Limits(2))
    schedule = Greedy().solve(problem, Budget())  # a stage of two groups
    for most, seen in ((1, ["space"]), (2, [])):
        space = SCHEDULES.keeping(Rule(GROUPS, most))
        stated = replace(schedule.quality, bounds=(Bound(1, space, "by hand"),))
        assert [v.rule for v in check_schedule(problem, replace(schedule, quality=stated))] == seen


def split_diamond(diamond: Partition, split: Split, subgraph_id: int = 0) -> tuple[Split, ...]:
    return tuple(split if s.id == subgraph_id else WHOLE for s in diamond.subgraphs)


def instances(subgraph_id: int, *indices: int) -> Stage:
    return Stage((Group(tuple(Instance(subgraph_id, i) for i in indices)),))


@pytest.mark.parametrize("split", [Split(0, 4), Split(0, 3), Split(0, 2, Split(1, 2))], ids=str)
def test_every_instance_must_run_once(diamond: Partition, split: Split) -> None:
    problem = ScheduleProblem(diamond, allows_slices=True)
    splits, rest = split_diamond(diamond, split), (single(1), single(2), single(3))
    every = range(split.num_instances)
    assert rules(problem, instances(0, *every), *rest, splits=splits) == set()
    rest_ns = problem.estimate(rest).time_ns
    sliced_ns = problem.estimate([instances(0, *every), *rest], splits).time_ns
    assert sliced_ns - rest_ns == pytest.approx(problem.kernel(0).time_ns)
    for number in every:
        others = [i for i in every if i != number]
        assert "cover" in rules(problem, instances(0, *others), *rest, splits=splits)
        assert "cover" in rules(problem, instances(0, *every, number), *rest, splits=splits)
    assert "cover" in rules(problem, instances(0, *every, len(every)), *rest, splits=splits)
    assert "cover" in rules(problem, instances(0, *every), *rest)


def test_splits_that_outputs_or_the_problem_do_not_allow_are_seen(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, allows_slices=True)
    rest = (single(1), single(2), single(3))
    schedule = built(problem, (single(0), *rest))
    for split in (Split(2, 2), Split(0, 5), Split(0, 2, Split(0, 2)), Split(None, 2)):
        stages = (instances(0, *range(split.num_instances)), *rest)
        wrong = replace(schedule, stages=stages, splits=split_diamond(diamond, split))
        assert {v.rule for v in check_schedule(problem, wrong)} == {"splits"}
    assert {v.rule for v in check_schedule(problem, replace(schedule, splits=(WHOLE,)))} >= {"splits"}
    splits = split_diamond(diamond, Split(0, 2))
    assert rules(ScheduleProblem(diamond), instances(0, 0, 1), *rest, splits=splits) == {"slices"}


def test_slices_share_their_subgraphs_duration(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, cost=DIAMOND)
    splits = split_diamond(diamond, Split(0, 4), 1)
    assert problem.estimate([instances(1, 0)], splits).time_ns == 5 / 4
    assert problem.estimate([instances(1, 0, 1, 2, 3)], splits).time_ns == 5


def test_a_reader_must_wait_for_the_slices_that_it_reads(diamond: Partition) -> None:
    problem = ScheduleProblem(diamond, allows_slices=True)
    splits = split_diamond(diamond, Split(0, 2))
    early = Stage((Group((Instance(0, 0), Instance(1), Instance(0, 1))),))
    assert "order" in rules(problem, early, single(2), single(3), splits=splits)
    both = (Split(0, 2), Split(0, 2), WHOLE, WHOLE)
    order = (Instance(0, 0), Instance(1, 0), Instance(0, 1), Instance(1, 1))
    assert rules(problem, Stage((Group(order),)), single(2), single(3), splits=both) == set()
    order = (Instance(0, 0), Instance(1, 1), Instance(0, 1), Instance(1, 0))
    assert "order" in rules(problem, Stage((Group(order),)), single(2), single(3), splits=both)


def test_random_schedules_differ_by_seed_and_use_groups_of_several() -> None:
    problem = ScheduleProblem(partition_of(random_graph(3, 20)), limits=Limits(3))
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


def test_slices_at_the_same_time_take_the_time_of_one_and_the_energy_of_all() -> None:
    class WithEnergy(Durations):
        def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
            return replace(super().kernel(work), energy_pj=8.0, bound_pj=4.0)

    b = GraphBuilder()
    partition = partition_of(b.finish(b.op("Relu", b.input(4, 4))))
    halves = Stage(tuple(Group((Instance(0, index),)) for index in range(2)))
    problem = ScheduleProblem(partition, cost=WithEnergy({"Relu": 10.0}), allows_slices=True)
    total = problem.estimate([halves], (Split(0, 2),))
    assert (total.time_ns, total.energy_pj) == (5.0, 8.0)
