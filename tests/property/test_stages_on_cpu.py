"""Stages on the processor: the same bits by any schedule and on any number of threads, in memory that groups
which run at the same time never share."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.graphs import feed_of, random_graph

from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.memory import MEMORY_PLANNERS, check_memory
from tilewright.memory.base import MemoryPlan
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.layerwise import Layerwise
from tilewright.partition.random import RandomPartitioner
from tilewright.planning import Budget, Limits
from tilewright.program import Program
from tilewright.schedule import ScheduleProblem, check_schedule
from tilewright.schedule.base import Schedule, Stage, build_schedule
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.random import RandomScheduler
from tilewright.schedule.sequential import Sequential
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.lower.arrange import Barriers, arrange
from tilewright.targets.cpu.lower.check_places import check_places
from tilewright.targets.cpu.lower.layouts import Tensor
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import LoweredModel, LoweredStage
from tilewright.targets.cpu.lower.storage import memory_problem
from tilewright.targets.cpu.target import CpuTarget

BARRIERS: tuple[Barriers, ...] = ("stages", "strict")
BUDGET = Budget(200)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def partition_of(graph: Graph, seed: int) -> Partition:
    partitioner = RandomPartitioner(seed, 0.3) if seed % 2 else Layerwise()
    return partitioner.solve(PartitionProblem(graph), BUDGET)


def random_schedule(partition: Partition, seed: int) -> Schedule:
    """Up to four groups beside each other, some of them on a number of cores."""
    rng = random.Random(seed)
    problem = ScheduleProblem(partition, limits=Limits(4))
    found = RandomScheduler(seed).solve(problem, BUDGET)
    stages = tuple(
        Stage(tuple(replace(g, num_cores=rng.choice((None, None, 1, 2))) for g in stage.groups))
        for stage in found.stages
    )
    schedule = build_schedule(problem, stages, found.provenance)
    assert not check_schedule(problem, schedule)
    return schedule


def outputs(
    graph: Graph, schedule: Schedule, barriers: Barriers, cache: Path, threads: tuple[int, ...]
) -> list[dict[str, bytes]]:
    """What a schedule computes on some numbers of threads."""
    options = Options(cache_dir=cache, threads=2)
    code = CpuTarget(barriers).generate(Program(graph, schedule.partition, schedule, options))
    results = []
    for num_threads in threads:
        executable = code.load(num_threads)
        results += [executable.run(feed_of(graph)) for _ in range(3)]
        executable.close()
    return [{name: array.tobytes() for name, array in result.items()} for result in results]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_every_schedule_mode_and_number_of_threads_gives_the_same_bits(seed: int, cache: Path) -> None:
    graph = random_graph(seed, 22, side=192)
    partition = partition_of(graph, seed)
    problem = ScheduleProblem(partition, limits=Limits(4))
    sequential = Sequential().solve(problem, BUDGET)
    assert isinstance(sequential, Schedule)
    (expected, *_) = outputs(graph, sequential, "stages", cache, (1,))
    for name, array in run_graph(graph, feed_of(graph)).items():
        got = np.frombuffer(expected[name], array.dtype).reshape(array.shape)
        np.testing.assert_allclose(got, array, rtol=2e-3, atol=1e-3 * max(1.0, float(np.abs(array).max())))
    schedules = [random_schedule(partition, 10 * seed + i) for i in range(2)]
    for schedule in (Greedy().solve(problem, BUDGET), *schedules):
        for barriers in BARRIERS:
            found = outputs(graph, schedule, barriers, cache, (1, 2, 4))
            assert all(result == expected for result in found)


def placed(
    seed: int, barriers: Barriers, planner: str = "arena"
) -> tuple[LoweredModel, MemoryPlan, dict[Tensor, int]]:
    """A random model under a random schedule, with a plan of its arena."""
    graph = random_graph(seed, 30)
    partition = partition_of(graph, seed)
    schedule = random_schedule(partition, seed)
    lowered = arrange(lower_partition(partition, host_isa()), schedule, barriers)
    problem, names = memory_problem(lowered, graph)
    plan = MEMORY_PLANNERS.get(planner).solve(problem, BUDGET)
    assert isinstance(plan, MemoryPlan)
    assert not check_memory(problem, plan)
    return lowered, plan, {root: plan.offsets[name] for root, name in names.items()}


PLANNERS = "arena", "first-fitting", "greedy-by-size", "naive", "next-fit", "random"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("planner", PLANNERS)
def test_what_may_be_used_at_the_same_time_never_shares_a_byte(planner: str) -> None:
    concurrent = 0
    for seed in range(12):
        for barriers in BARRIERS:
            lowered, _, offsets = placed(seed, barriers, planner)
            assert not check_places(lowered, offsets)
            concurrent += lowered.has_concurrency
    assert concurrent > 12


def test_damaged_places_are_noticed() -> None:
    """Any buffer moved onto one that a kernel of another group uses."""
    damaged = 0
    for seed in range(12):
        lowered, _, offsets = placed(seed, "stages", "naive")
        for step in lowered.steps:
            if not isinstance(step, LoweredStage) or len(step.groups) < 2:
                continue
            written = [{lowered.root(t) for x in group.launches for t in x.writes} for group in step.groups]
            for first, second in itertools.pairwise(written):
                for a in first & offsets.keys():
                    for b in (second & offsets.keys()) - {a}:
                        assert check_places(lowered, {**offsets, b: offsets[a]})
                        damaged += 1
    assert damaged > 20


def test_the_checker_needs_no_more_than_the_order_asks_for() -> None:
    """On one group at a time nothing is concurrent: the plan of the same order one after another is right."""
    for seed in range(6):
        graph = random_graph(seed, 30)
        partition = partition_of(graph, seed)
        schedule = Sequential().solve(ScheduleProblem(partition), BUDGET)
        assert isinstance(schedule, Schedule)
        lowered = arrange(lower_partition(partition, host_isa()), schedule)
        problem, names = memory_problem(lowered, graph)
        plan = MEMORY_PLANNERS.get("arena").solve(problem, BUDGET)
        assert isinstance(plan, MemoryPlan)
        assert not check_places(lowered, {root: plan.offsets[name] for root, name in names.items()})
