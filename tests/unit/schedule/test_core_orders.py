"""Groups of cores in schedules: how work is divided, and which groups there may be."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.graphs import GraphBuilder

from tilewright.errors import UsageError
from tilewright.families import PARTITIONERS, SCHEDULERS
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.planning import Budget
from tilewright.schedule.base import Group, Schedule, ScheduleProblem, Stage
from tilewright.schedule.check import check_schedule
from tilewright.schedule.core_groups import CoreGroup, core_groups_of
from tilewright.schedule.core_orders import balanced
from tilewright.schedule.instances import instance_graph

MACHINE = load_preset("stcp920")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(work=st.lists(st.integers(0, 9), min_size=1, max_size=9), stages=st.integers(1, 9))
def test_no_other_stages_have_less_in_the_largest(work: list[int], stages: int) -> None:
    stages = min(stages, len(work))
    ends = balanced(work, stages)
    assert len(ends) == stages
    assert ends[-1] == len(work)
    least = min(largest(work, (*cuts, len(work))) for cuts in combinations(range(1, len(work)), stages - 1))
    assert largest(work, ends) == least


def largest(work: list[int], ends: tuple[int, ...]) -> int:
    begins = (0, *ends)
    assert all(begin < end for begin, end in zip(begins, ends, strict=False)), "no stage is empty"
    return max(sum(work[begin:end]) for begin, end in zip(begins, ends, strict=False))


def test_there_are_no_more_stages_than_pieces() -> None:
    with pytest.raises(ValueError, match="3 stages for 2"):
        balanced([1.0, 2.0], 3)


def network() -> Graph:
    b = GraphBuilder()
    x = b.input(8, 16)
    for _ in range(4):
        x = b.op("Relu", b.op("MatMul", x, b.constant(16, 16), shape=(8, 16)))
    return b.finish(x)


def problem(graph: Graph, *, allows_slices: bool = True, machine: bool = True) -> ScheduleProblem:
    partition = PARTITIONERS.get("layerwise").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    return ScheduleProblem(partition, MACHINE if machine else None, allows_slices=allows_slices)


def solved(name: str, of: ScheduleProblem) -> Schedule:
    schedule = SCHEDULERS.get(name).solve(of, Budget())
    assert isinstance(schedule, Schedule)
    assert not check_schedule(of, schedule)
    return schedule


@pytest.mark.parametrize("name", ["core-groups{number=4}", "core-pipeline{stages=4}"])
def test_groups_divide_the_cores(name: str) -> None:
    schedule = solved(name, problem(network()))
    graph = instance_graph(schedule.partition, schedule.splits)
    cores = core_groups_of(schedule, graph, MACHINE.num_cores_per_cluster)
    assert cores is not None
    assert cores.groups == tuple(CoreGroup(i, 2 * i, 2) for i in range(4))
    assert set(cores.of_nodes) == {0, 1, 2, 3}


def test_samples_stay_on_their_group_and_layers_on_their_stage() -> None:
    groups = solved("core-groups{number=2}", problem(network()))
    pipeline = solved("core-pipeline{stages=2}", problem(network()))
    for schedule, is_pipeline in ((groups, False), (pipeline, True)):
        graph = instance_graph(schedule.partition, schedule.splits)
        cores = core_groups_of(schedule, graph, 8)
        assert cores is not None
        assert bool(cores.crossing) is is_pipeline
        assert len({n.subgraph_id for n in graph.nodes if cores.of_nodes[n.id] == 0}) == (
            len(schedule.partition.subgraphs) // (2 if is_pipeline else 1)
        )


@pytest.mark.parametrize("name", ["core-groups", "core-pipeline"])
def test_without_a_machine_or_slices_there_is_a_schedule_all_the_same(name: str) -> None:
    schedule = solved(name, problem(network(), machine=False))
    assert all(group.first_core is None for stage in schedule.stages for group in stage.groups)
    whole = solved(name, problem(network(), allows_slices=False))
    assert all(split.num_instances == 1 for split in whole.splits)


def placed(schedule: Schedule, *cores: tuple[int | None, int]) -> Schedule:
    """The schedule with these cores for its groups, in turn."""
    groups = [group for stage in schedule.stages for group in stage.groups]
    stages = tuple(
        Stage((Group(g.instances, count, first),))
        for i, g in enumerate(groups)
        for first, count in [cores[i % len(cores)]]
    )
    return replace(schedule, stages=stages)


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (((0, 4), (2, 4)), "cores 0 to 3 are a group that reaches beyond core 1"),
        (((0, 4), (6, 4)), "cores 6 to 9 are a group that reaches beyond core 7"),
        (((0, 4), (None, 4)), "runs on no group of cores"),
    ],
)
def test_groups_that_cannot_be_are_refused(cores: tuple[tuple[int | None, int], ...], said: str) -> None:
    schedule = placed(solved("sequential", problem(network())), *cores)
    with pytest.raises(UsageError, match=said):
        core_groups_of(schedule, instance_graph(schedule.partition, schedule.splits), 8)
