"""The checker of schedules, to the row and the core: each fault alone, and its neighbour that is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph
from tilewright.partition import Partition, PartitionProblem
from tilewright.partition.base import Reason, build_partition
from tilewright.partition.none import NonePartitioner
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Budget, Limits, Provenance, Rule
from tilewright.schedule import Group, Instance, Schedule, ScheduleProblem, Stage, check_schedule
from tilewright.schedule.lanes import Lane
from tilewright.schedule.sequential import Sequential
from tilewright.schedule.space import WHOLE_SUBGRAPHS, WITHOUT_MERGES
from tilewright.targets.npu.costs import UNPRICED

ROWS = 7


def partition_of(graph: Graph) -> Partition:
    return NonePartitioner().solve(PartitionProblem(graph), Budget())


@cache
def windows(height: int) -> Partition:
    """0: elementwise; 1: a window of so many rows over it, without padding."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(2, 1, ROWS, 2))
    y = b.op("MaxPool", x, shape=(2, 1, ROWS - height + 1, 2), kernel_shape=(height, 1))
    return partition_of(b.finish(y))


@cache
def chain() -> Partition:
    b = GraphBuilder()
    x = b.input(4, 6)
    for kind in ("Relu", "Sigmoid", "Neg"):
        x = b.op(kind, x)
    return partition_of(b.finish(x))


def in_sequence(*instances: Instance) -> tuple[Stage, ...]:
    return (Stage((Group(instances),)),)


def found(
    problem: ScheduleProblem, stages: Iterable[Stage], splits: tuple[Split, ...] = (), **changes: Any
) -> list[str]:
    """Rules that a schedule breaks, whose stated cost is right."""
    stages = tuple(stages)
    schedule = Sequential().solve(ScheduleProblem(problem.partition), Budget())
    assert isinstance(schedule, Schedule)
    splits = splits or schedule.splits
    quality = schedule.quality
    if all(stage.groups for stage in stages):
        cost = problem.estimate(stages, splits).cost(problem.objective)
        quality = replace(quality, cost=cost, bounds=())
    made = replace(schedule, stages=stages, splits=splits, quality=quality, **changes)
    return [violation.rule for violation in check_schedule(problem, made)]


def cut_at(extent: int, factor: int, index: int) -> tuple[int, int]:
    return extent * index // factor, extent * (index + 1) // factor


@pytest.mark.parametrize("height", [1, 3])
def test_a_window_waits_for_the_rows_that_it_reads_and_for_no_others(height: int) -> None:
    partition = windows(height)
    problem = ScheduleProblem(partition, allows_slices=True)
    results = ROWS - height + 1
    for made in range(1, 5):
        for read in range(1, 4):
            splits = (Split(2, made), Split(2, read))
            for late in range(made):
                for early in range(read):
                    first = [Instance(0, i) for i in range(made) if i != late]
                    then = [Instance(1, i) for i in range(read) if i != early]
                    order = (*first, Instance(1, early), Instance(0, late), *then)
                    begin, end = cut_at(results, read, early)
                    start, stop = cut_at(ROWS, made, late)
                    meets = max(begin, start) < min(end + height - 1, stop)
                    assert found(problem, in_sequence(*order), splits) == ["order"] * meets, order


def test_a_value_that_is_read_twice_is_waited_for_as_far_as_either_reads() -> None:
    """One row, and that with its neighbours: whichever comes first."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(1, 1, 4, 2))
    alone = b.op("Neg", x)
    around = b.op("MaxPool", x, shape=(1, 1, 4, 2), kernel_shape=(3, 1), pads=(1, 0, 1, 0))
    graph = b.finish(b.op("Add", alone, around))
    partition = build_partition(
        PartitionProblem(graph),
        [graph.nodes[:1], graph.nodes[1:]],
        lambda *_: Reason.CLUSTER,
        Provenance("test"),
        quality=UNPRICED,
    )
    problem, splits = ScheduleProblem(partition, allows_slices=True), (Split(2, 4), Split(2, 4))
    for late in range(4):
        for early in range(4):
            first = [Instance(0, i) for i in range(4) if i != late]
            then = [Instance(1, i) for i in range(4) if i != early]
            order = (*first, Instance(1, early), Instance(0, late), *then)
            assert found(problem, in_sequence(*order), splits) == ["order"] * (abs(late - early) < 2)


def test_slices_of_slices_are_found_by_both_axes() -> None:
    """Two images in three parts each: the digits of an index, the innermost last."""
    problem = ScheduleProblem(windows(1), allows_slices=True)
    splits = (Split(0, 2, Split(2, 3)), Split(2, 3, Split(0, 2)))
    for late in range(6):
        first = [Instance(0, i) for i in range(6) if i != late]
        for early in range(6):
            then = [Instance(1, i) for i in range(6) if i != early]
            order = (*first, Instance(1, early), Instance(0, late), *then)
            meets = (late // 3, late % 3) == (early % 2, early // 2)
            assert found(problem, in_sequence(*order), splits) == ["order"] * meets


def test_a_whole_subgraph_waits_for_every_slice_and_a_slice_for_the_whole() -> None:
    problem = ScheduleProblem(chain(), allows_slices=True)
    for splits in ((Split(0, 2), WHOLE, WHOLE), (Split(0, 2), Split(0, 2), WHOLE)):
        every = [Instance(s, i) for s in range(3) for i in range(splits[s].num_instances)]
        assert found(problem, in_sequence(*every), splits) == []
    late = (Instance(0, 0), Instance(1, 0), Instance(0, 1), Instance(2, 0))
    assert found(problem, in_sequence(*late), (Split(0, 2), WHOLE, WHOLE)) == ["order"]
    early = (Instance(1, 0), Instance(0, 0), Instance(1, 1), Instance(2, 0))
    assert found(problem, in_sequence(*early), (WHOLE, Split(0, 2), WHOLE)) == ["order"]


def test_a_stage_waits_for_those_before_and_groups_for_themselves_alone() -> None:
    problem = ScheduleProblem(chain(), limits=Limits(3))
    a, b, c = (Group((Instance(i),)) for i in range(3))
    assert found(problem, (Stage((a,)), Stage((b,)), Stage((c,)))) == []
    assert found(problem, (Stage((a,)), Stage((b, c)))) == ["order"]
    assert found(problem, (Stage((a, b)), Stage((c,)))) == ["order"]
    assert found(problem, (Stage((a, b, c)),)) == ["order", "order"]
    assert found(problem, (Stage((Group((Instance(0), Instance(1))),)), Stage((c,)))) == []
    assert found(problem, (Stage((Group((Instance(1), Instance(0))),)), Stage((c,)))) == ["order"]


@pytest.mark.parametrize(
    ("split", "order", "broken"),
    [
        (Split(0, 4, keeps_rows=True), (0, 1, 2, 3), 0),
        (Split(0, 4, keeps_rows=True), (0, 2, 1, 3), 1),
        (Split(0, 4, keeps_rows=True), (3, 2, 1, 0), 3),
        (Split(0, 4), (3, 2, 1, 0), 0),
        (Split(0, 2, Split(1, 3, keeps_rows=True)), (3, 4, 5, 0, 1, 2), 0),
        (Split(0, 2, Split(1, 3, keeps_rows=True)), (0, 3, 1, 4, 2, 5), 0),
        (Split(0, 2, Split(1, 3, keeps_rows=True)), (1, 0, 2, 3, 5, 4), 2),
        (Split(0, 2, Split(1, 3)), (5, 4, 3, 2, 1, 0), 0),
    ],
)
def test_rows_are_kept_from_one_instance_to_the_next_of_its_chain(
    split: Split, order: tuple[int, ...], broken: int
) -> None:
    problem = ScheduleProblem(chain(), allows_slices=True)
    every = (*(Instance(0, i) for i in order), Instance(1), Instance(2))
    assert found(problem, in_sequence(*every), (split, WHOLE, WHOLE)) == ["order"] * broken


def test_an_instance_that_waits_for_the_one_before_it_does_so_across_stages_and_not_groups() -> None:
    problem = ScheduleProblem(chain(), limits=Limits(2), allows_slices=True)
    splits = (Split(0, 2, keeps_rows=True), WHOLE, WHOLE)
    one, two = (Group((Instance(0, i),)) for i in range(2))
    rest = (Stage((Group((Instance(1), Instance(2))),)),)
    assert found(problem, (Stage((one,)), Stage((two,)), *rest), splits) == []
    assert found(problem, (Stage((one, two)), *rest), splits) == ["order"]
    assert found(problem, (Stage((two,)), Stage((one,)), *rest), splits) == ["order"]


def test_instances_are_those_of_the_splits_and_run_once() -> None:
    problem = ScheduleProblem(chain(), allows_slices=True)
    splits = (Split(0, 2, Split(1, 2)), WHOLE, WHOLE)
    every = [*(Instance(0, i) for i in range(4)), Instance(1), Instance(2)]
    assert found(problem, in_sequence(*every), splits) == []
    for number in range(6):
        assert found(problem, in_sequence(*every[:number], *every[number + 1 :]), splits) == ["cover"]
        assert found(problem, in_sequence(*every, every[number]), splits) == ["cover"]
    assert found(problem, in_sequence(*every, Instance(0, 4)), splits) == ["cover"]
    assert found(problem, in_sequence(*every, Instance(1, 1)), splits) == ["cover"]
    assert found(problem, in_sequence(*every[1:], *every[2:4]), splits) == ["cover"] * 3


def test_what_is_missing_and_what_runs_twice_is_named() -> None:
    problem, splits = ScheduleProblem(chain(), allows_slices=True), (Split(0, 4), WHOLE, WHOLE)
    schedule = Sequential().solve(ScheduleProblem(chain()), Budget())
    assert isinstance(schedule, Schedule)

    def said(*instances: Instance) -> list[str]:
        made = replace(schedule, stages=in_sequence(*instances), splits=splits)
        return [violation.message for violation in check_schedule(problem, made)]

    every = [*(Instance(0, i) for i in range(4)), Instance(1), Instance(2)]
    assert said(*every[:1], *every[4:5]) == [f"4 instances never run: {Instance(0, 1)} is the first"]
    assert said(*every, every[2]) == [f"instance {Instance(0, 2)} runs twice"]
    assert said(*every, Instance(0, 4)) == [f"there is no instance {Instance(0, 4)}"]


def test_results_that_nothing_reads_are_waited_for_by_nobody() -> None:
    """A split's first half is dead: slices of the second read the operand as far as they need it."""
    b = GraphBuilder()
    x = b.op("Relu", b.input(4, 6))
    _, used = b.ops("Split", [x], [(4, 3), (4, 3)], axis=1, num_outputs=2)
    partition = partition_of(b.finish(b.op("Neg", used)))
    problem = ScheduleProblem(partition, allows_slices=True)
    split = Split(0, 2)
    order = (Instance(0, 0), Instance(1, 0), Instance(2, 0), Instance(0, 1), Instance(1, 1), Instance(2, 1))
    assert found(problem, in_sequence(*order), (split, split, split)) == []
    order = (Instance(0, 0), Instance(1, 1), Instance(0, 1), Instance(1, 0), Instance(2, 0), Instance(2, 1))
    assert found(problem, in_sequence(*order), (split, split, split)) == ["order"]


@pytest.mark.parametrize(
    ("split", "wrong"),
    [
        (Split(0, 4), []),
        (Split(1, 6), []),
        (Split(0, 4, Split(1, 6)), []),
        (Split(0, 5), ["splits"]),
        (Split(1, 7), ["splits"]),
        (Split(2, 1, Split(0, 2)), []),
        (Split(2, 2), ["splits"]),
        (Split(-1, 2), ["splits"]),
        (Split(0, 2, Split(0, 2)), ["splits"]),
        (Split(0, 0), ["splits"]),
        (Split(None, 2), ["splits"]),
    ],
)
def test_a_split_cuts_axes_of_the_outputs_into_parts_that_are_not_empty(
    split: Split, wrong: list[str]
) -> None:
    problem = ScheduleProblem(chain(), allows_slices=True)
    every = (*(Instance(0, i) for i in range(max(split.num_instances, 1))), Instance(1), Instance(2))
    schedule = Sequential().solve(ScheduleProblem(chain()), Budget())
    assert isinstance(schedule, Schedule)
    made = replace(schedule, stages=in_sequence(*every), splits=(split, WHOLE, WHOLE))
    rules = {violation.rule for violation in check_schedule(problem, made)}
    assert rules - {"cost", "cover"} == set(wrong)
    is_cut = bool(split.cuts)
    refused = {violation.rule for violation in check_schedule(ScheduleProblem(chain()), made)}
    assert ("slices" in refused) is is_cut or split.dim is None


def test_there_are_as_many_splits_as_subgraphs_and_the_partition_is_the_problems() -> None:
    problem = ScheduleProblem(chain())
    stages = tuple(Stage((Group((Instance(i),)),)) for i in range(3))
    schedule = Sequential().solve(problem, Budget())
    assert isinstance(schedule, Schedule)
    for splits in ((WHOLE,) * 2, (WHOLE,) * 4):
        made = replace(schedule, stages=stages, splits=splits)
        assert check_schedule(problem, made)[0].rule == "splits"
    merged = (stages[0], Stage(tuple(stage.groups[0] for stage in stages[1:]), "merge"))
    made = replace(schedule, stages=merged, splits=(WHOLE,) * 2)
    assert [violation.rule for violation in check_schedule(problem, made)] == ["splits", "cover"]
    made = replace(schedule, partition=replace(problem.partition))
    assert [violation.rule for violation in check_schedule(problem, made)] == ["partition"]


def test_stages_have_groups_on_cores_and_no_more_than_may_run() -> None:
    a, b, c = (Group((Instance(i),)) for i in range(3))
    for most, broken in ((1, True), (2, False), (3, False)):
        problem = ScheduleProblem(chain(), limits=Limits(most))
        expected = ["groups"] * broken + ["order"]
        assert found(problem, (Stage((a, b)), Stage((c,)))) == expected
    problem = ScheduleProblem(chain(), limits=Limits(2))
    rest = (Stage((b,)), Stage((c,)))
    for cores, wrong in ((None, []), (1, []), (0, ["cores"]), (-1, ["cores"])):
        assert found(problem, (Stage((replace(a, num_cores=cores),)), *rest)) == wrong
    assert "empty" in found(problem, (Stage((a,)), Stage(()), *rest))
    assert "empty" in found(problem, (Stage((a, Group(()))), *rest))


def test_a_stated_cost_is_right_to_a_billionth() -> None:
    problem = ScheduleProblem(chain())
    schedule = Sequential().solve(problem, Budget())
    assert isinstance(schedule, Schedule)
    cost = schedule.quality.cost
    for factor, wrong in (
        (1.0, []),
        (1 + 1e-10, []),
        (1 - 1e-10, []),
        (1 + 1e-8, ["cost"]),
        (1 - 1e-8, ["cost"]),
    ):
        quality = replace(schedule.quality, cost=cost * factor)
        assert [v.rule for v in check_schedule(problem, replace(schedule, quality=quality))] == wrong
    (bound, *_) = schedule.quality.bounds
    for is_proven, wrong in ((True, ["bound"]), (False, [])):
        quality = replace(schedule.quality, bounds=(replace(bound, value=cost * 2, is_proven=is_proven),))
        assert [v.rule for v in check_schedule(problem, replace(schedule, quality=quality))] == wrong


@cache
def two_ways() -> Partition:
    """All as one kernel of five layers: 0 feeds 1 and 2, 3 reads both, 4 reads 3."""
    b = GraphBuilder()
    x = b.conv(b.input(1, 4, 5, 5), 4)
    joined = b.op("Concat", b.conv(x, 4), b.conv(x, 4), shape=(1, 8, 5, 5), axis=1)
    graph = b.finish(b.op("MaxPool", joined, shape=(1, 8, 5, 5), kernel_shape=(1, 1)))
    partition = build_partition(
        PartitionProblem(graph),
        [graph.nodes],
        lambda *_: Reason.CLUSTER,
        Provenance("test"),
        quality=UNPRICED,
    )
    assert len(partition.layers_of(partition.subgraphs[0])) == 5
    return partition


def lanes(*sections: str) -> tuple[tuple[Lane, ...], ...]:
    """Sections written as `1on1 2on1`: layers on cores, lane by lane."""
    return tuple(
        tuple(
            Lane(tuple(map(int, layers)), int(cores))
            for layers, cores in (lane.split("on") for lane in section.split())
        )
        for section in sections
    )


@pytest.mark.parametrize(
    ("sections", "wrong"),
    [
        ((), 0),
        (("1on1 2on1",), 0),
        (("2on1 1on1",), 0),
        (("1on1 2on2",), 1),
        (("1on2 2on1",), 1),
        (("1on1 2on0",), 1),
        (("1on1 on1",), 1),
        (("1on1",), 1),
        (("1on1 3on1",), 1),
        (("0on1 1on1",), 1),
        (("2on1 3on1",), 1),
        (("1on1 23on1",), 1),
        (("13on1 2on1",), 1),
        (("2on1 3on1", "1on1 0on1"), 2),
        (("3on1 4on1",), 1),
        (("4on1 5on1",), 1),
        (("1on1 1on1",), 1),
        (("1on1 2on1", "3on1 4on1"), 1),
        (("1on1 2on1", "2on1 3on1"), 1),
        (("1on1 2on1", "1on1 2on1"), 1),
        (("1on1", "2on1 3on1"), 2),
        (("012on1 34on1",), 1),
        (("102on1 34on1",), 2),
        (("0on1 12on1",), 2),
    ],
)
def test_lanes_hold_layers_that_follow_each_other_and_not_from_each_other(
    sections: tuple[str, ...], wrong: int
) -> None:
    partition = two_ways()
    group = Group((Instance(0),), inside=(lanes(*sections),))
    schedule = Schedule(partition, (Stage((group,)),), UNPRICED, Provenance("test"))
    problem = ScheduleProblem(partition, limits=Limits(num_cores=2), allows_lanes=True)
    assert [v.rule for v in check_schedule(problem, schedule)] == (["lanes"] * wrong or ["cost"])
    refused = check_schedule(replace(problem, allows_lanes=False), schedule)
    assert len(refused) == (wrong + 1 if sections else 1)
    # A group's own number of cores goes before the problem's.
    wider = replace(schedule, stages=(Stage((replace(group, num_cores=3),)),))
    too_many = sections in ((("1on1 2on2"),), (("1on2 2on1"),))
    assert [v.rule for v in check_schedule(problem, wider)] == (["lanes"] * (wrong - too_many) or ["cost"])


@pytest.mark.parametrize(
    ("sections", "wrong"),
    [
        (("1on1 2on1 3on1",), 0),
        (("1on1 2on1", "3on1 4on1"), 0),
        (("1on1 2on1", "2on1 3on1"), 1),
        (("1on1 2on1 3on1", "3on1 4on1"), 1),
        (("1on1 2on1 3on1", "2on1 3on1"), 1),
        (("3on1 4on1", "1on1 2on1"), 1),
        (("1on1 2on1 4on1",), 1),
        (("4on1 5on1 6on1",), 1),
        (("1on1 2on2 3on1",), 1),
    ],
)
def test_sections_come_one_behind_the_other(sections: tuple[str, ...], wrong: int) -> None:
    """Layers 1 to 4 read what 0 makes, 5 puts their results together; on three cores."""
    b = GraphBuilder()
    x = b.conv(b.input(1, 4, 5, 5), 4)
    graph = b.finish(b.op("Concat", *(b.conv(x, 2) for _ in range(4)), shape=(1, 8, 5, 5), axis=1))
    partition = build_partition(
        PartitionProblem(graph),
        [graph.nodes],
        lambda *_: Reason.CLUSTER,
        Provenance("test"),
        quality=UNPRICED,
    )
    assert len(partition.layers_of(partition.subgraphs[0])) == 6
    group = Group((Instance(0),), inside=(lanes(*sections),))
    schedule = Schedule(partition, (Stage((group,)),), UNPRICED, Provenance("test"))
    problem = ScheduleProblem(partition, limits=Limits(num_cores=3), allows_lanes=True)
    assert [v.rule for v in check_schedule(problem, schedule)] == (["lanes"] * wrong or ["cost"])


def test_lanes_are_of_whole_subgraphs_that_do_not_merge_one_entry_an_instance() -> None:
    partition = two_ways()
    problem = ScheduleProblem(partition, limits=Limits(num_cores=2), allows_lanes=True, allows_slices=True)
    section = lanes("1on1 2on1")
    made = Schedule(partition, (), UNPRICED, Provenance("test"))

    def rules(*groups: Group, strategy: str = "parallel", split: Split = WHOLE) -> list[str]:
        stages = tuple(Stage((group,), strategy) for group in groups)  # type: ignore[arg-type]
        found = check_schedule(problem, replace(made, stages=stages, splits=(split,)))
        return [v.rule for v in found if v.rule == "lanes"]

    whole, halves = (Instance(0),), (Instance(0), Instance(0, 1))
    assert rules(Group(whole, inside=(section,))) == []
    assert rules(Group(whole, inside=(section, section))) == ["lanes"]
    assert rules(Group(whole, inside=(section,)), strategy="merge") == ["lanes"]
    assert rules(Group(whole, inside=((),)), strategy="merge") == []
    cut = Split(1, 2)
    assert rules(Group(halves, inside=(section, section)), split=cut) == ["lanes", "lanes"]
    assert rules(Group(halves, inside=((), section)), split=cut) == ["lanes"]
    assert rules(Group(halves, inside=((), ())), split=cut) == []
    one, two = (Group((half,), inside=(section,)) for half in halves)
    assert rules(one, two, split=cut) == ["lanes", "lanes"]
    assert rules(Group(halves[:1]), two, split=cut) == ["lanes"]
    for first in (Group(halves[:1]), Group(halves[:1], inside=(section, section))):
        stage = (Stage((first, two)),)
        found = check_schedule(problem, replace(made, stages=stage, splits=(cut,)))
        assert [v.rule for v in found if v.rule == "lanes"] == ["lanes"] * (1 + len(first.inside) // 2)
    assert rules(Group(halves[:1], inside=(section, section)), two, split=cut) == ["lanes", "lanes"]


def test_slices_that_read_nothing_of_a_value_do_not_wait_for_it_and_whole_subgraphs_do() -> None:
    b = GraphBuilder()
    x, y = b.op("Relu", b.input(4, 2)), b.op("Neg", b.input(4, 2))
    joined = partition_of(b.finish(b.op("Concat", x, y, shape=(8, 2), axis=0)))
    problem = ScheduleProblem(joined, allows_slices=True)
    first, second = Instance(2, 0), Instance(2, 1)
    halves = (WHOLE, WHOLE, Split(0, 2))
    order = (Instance(0), first, Instance(1), second)
    assert found(problem, in_sequence(*order), halves) == []
    order = (Instance(1), first, Instance(0), second)
    assert found(problem, in_sequence(*order), halves) == ["order"]
    b = GraphBuilder()
    unread = b.op("Relu", b.input(4, 6))
    kept = b.op("Concat", b.op("Neg", b.input(4, 2)), unread, shape=(4, 8), axis=1)
    bounds = (b.integers(number) for number in (0, 2, 1))
    partition = build_partition(
        PartitionProblem(b.finish(b.op("Slice", kept, *bounds, shape=(4, 2)))),
        [b.graph.nodes[:1], b.graph.nodes[1:2], b.graph.nodes[2:]],
        lambda *_: Reason.CLUSTER,
        Provenance("test"),
        quality=UNPRICED,
    )
    made = {s.nodes[0].op_type: s.id for s in partition.subgraphs}
    early = [Instance(made[kind]) for kind in ("Neg", "Concat", "Relu")]
    assert found(ScheduleProblem(partition), in_sequence(*early)) == ["order"]


def test_what_does_not_merge_is_named_before_order_and_cost_are_looked_at() -> None:
    problem = ScheduleProblem(chain())
    a, b, c = (Group((Instance(i),)) for i in range(3))
    stages = (Stage((a,)), Stage((b, c), "merge"))
    schedule = Schedule(chain(), stages, UNPRICED, Provenance("test"))
    (violation,) = check_schedule(problem, schedule)
    assert (violation.rule, "other operators" in violation.message) == ("merge", True)


def test_a_cost_is_that_of_an_order_that_can_run() -> None:
    a, b, c = (Stage((Group((Instance(i),)),)) for i in range(3))
    schedule = Schedule(chain(), (b, a, c), UNPRICED, Provenance("test"))
    assert [v.rule for v in check_schedule(ScheduleProblem(chain()), schedule)] == ["order"]


def test_bounds_are_of_spaces_that_hold_the_schedule() -> None:
    problem = ScheduleProblem(chain(), limits=Limits(2), allows_slices=True)
    schedule = Sequential().solve(ScheduleProblem(chain()), Budget())
    assert isinstance(schedule, Schedule)
    (bound, *_) = schedule.quality.bounds
    splits = (Split(0, 2), WHOLE, WHOLE)
    every = in_sequence(Instance(0, 0), Instance(0, 1), Instance(1), Instance(2))
    cost = problem.estimate(every, splits).cost(problem.objective)
    for rules, wrong in (
        ((), []),
        ((WHOLE_SUBGRAPHS,), ["space"]),
        ((Rule("what no checker knows"),), []),
        ((WITHOUT_MERGES,), []),
    ):
        space = replace(bound.space, rules=rules)
        bounds = (replace(bound, value=0.0, space=space),)
        quality = replace(schedule.quality, cost=cost, bounds=bounds)
        made = replace(schedule, stages=every, splits=splits, quality=quality)
        assert [v.rule for v in check_schedule(problem, made)] == wrong
