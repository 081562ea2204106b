"""Every registered planner keeps its family's promise: valid answers, repeatable, with what made them."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder, feed_of, random_graph

from tilewright.compiler import compile_graph
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, check_memory, memory_problem
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, check_partition
from tilewright.planning import Budget, Limits
from tilewright.schedule import SCHEDULERS, Schedule, ScheduleProblem, check_schedule
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.validate import program_violations

Array = np.ndarray[Any, Any]

MACHINE = load_preset("stcp920")


def graphs() -> list[Graph]:
    opaque = GraphBuilder("opaque")
    x = opaque.op("NobodyKnowsThis", opaque.op("Relu", opaque.input(4, 4)))
    split = opaque.ops("Split", [x], [(2, 4), (2, 4)], axis=0, num_outputs=2)
    passed_through = GraphBuilder("passed_through")
    value = passed_through.input(4, 4)
    return [
        GraphBuilder("empty").finish(),
        passed_through.finish(value),
        opaque.finish(opaque.op("Add", *split), split[0]),
        *(random_graph(seed, 3 + 4 * seed) for seed in range(8)),
    ]


def cut(name: str, graph: Graph) -> Partition:
    answer = PARTITIONERS.get(name).solve(PartitionProblem(graph, MACHINE), Budget(100))
    assert isinstance(answer, Partition)
    return answer


def order(name: str, problem: ScheduleProblem) -> Schedule:
    answer = SCHEDULERS.get(name).solve(problem, Budget(100))
    assert isinstance(answer, Schedule)
    return answer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PARTITIONERS.names())
def test_partitions_are_valid_and_repeat(name: str) -> None:
    for graph in graphs():
        partition = cut(name, graph)
        assert check_partition(PartitionProblem(graph, MACHINE), partition) == ()
        assert partition.provenance.planner == name
        again = cut(name, graph)
        assert [s.nodes for s in again.subgraphs] == [s.nodes for s in partition.subgraphs]
        assert again.decisions == partition.decisions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SCHEDULERS.names())
@pytest.mark.parametrize("max_groups", [1, 3])
def test_schedules_are_valid_and_repeat(name: str, max_groups: int) -> None:
    for graph in graphs():
        for partitioner in ("none", "layerwise"):
            problem = ScheduleProblem(cut(partitioner, graph), limits=Limits(max_groups))
            schedule = order(name, problem)
            assert check_schedule(problem, schedule) == ()
            assert schedule.provenance.planner == name
            assert order(name, problem).stages == schedule.stages


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MEMORY_PLANNERS.names())
def test_memory_plans_are_valid_and_repeat(name: str) -> None:
    for graph in graphs():
        for scheduler in ("sequential", "greedy"):
            schedule = order(scheduler, ScheduleProblem(cut("none", graph), limits=Limits(3)))
            problem = memory_problem(schedule)
            plan = MEMORY_PLANNERS.get(name).solve(problem, Budget(100))
            assert isinstance(plan, MemoryPlan)
            assert check_memory(problem, plan) == ()
            assert plan.provenance.planner == name
            assert MEMORY_PLANNERS.get(name).solve(problem, Budget(100)) == plan


@dataclass(frozen=True)
class Known:
    """A graph that every target runs, with values for its inputs and those that come out."""

    graph: Graph
    feed: dict[str, Array]
    expected: dict[str, Array]


@cache
def known() -> tuple[Known, ...]:
    """Of `graphs` one that passes its input through, and others with joins and forks."""
    chosen = [graph for graph in graphs() if graph.name not in ("empty", "opaque")][:3]
    feeds = [feed_of(graph) for graph in chosen]
    return tuple(
        Known(graph, feed, run_graph(graph, feed)) for graph, feed in zip(chosen, feeds, strict=True)
    )


def agrees(case: Known, options: Options) -> None:
    """The plan is valid by every checker, and the outputs are the interpreter's."""
    compilation = compile_graph(case.graph, options)
    program, target = compilation.program, find_target(options.target)
    assert program_violations(program, allows_slices=target.runs_slices) == ()
    assert [str(program.recipe)] == [f"{options.partition}, {options.schedule}, {options.memory}"]
    executable = compilation.code.load(1)
    try:
        got = executable.run(case.feed)
    finally:
        executable.close()
    assert got.keys() == case.expected.keys()
    for name, array in case.expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)


def some_memories(partition: str, schedule: str) -> list[str]:
    """Memory planners for a pair of planners: others for the next, so that each meets all of them."""
    names = MEMORY_PLANNERS.names()
    first = PARTITIONERS.names().index(partition) + SCHEDULERS.names().index(schedule)
    return [names[(first + number) % len(names)] for number in range(len(known()))]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", ["interpreter", "stcp920"])
@pytest.mark.parametrize("schedule", SCHEDULERS.names())
@pytest.mark.parametrize("partition", PARTITIONERS.names())
def test_any_planners_go_together_on_any_target(partition: str, schedule: str, target: str) -> None:
    for memory, case in zip(some_memories(partition, schedule), known(), strict=True):
        agrees(
            case,
            Options(
                target=TargetRef.parse(target),
                partition=partition,
                schedule=schedule,
                memory=memory,
                effort=1,
            ),
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("schedule", SCHEDULERS.names())
@pytest.mark.parametrize("partition", PARTITIONERS.names())
def test_any_planners_go_together_in_generated_code(partition: str, schedule: str) -> None:
    """Several memory planners with one graph: kernels are compiled once for them."""
    for memory in some_memories(partition, schedule):
        options = Options(partition=partition, schedule=schedule, memory=memory, effort=1, threads=1)
        agrees(known()[-1], options)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["interpreter", "stcp920", "cpu"])
@pytest.mark.parametrize("schedule", SCHEDULERS.names())
@pytest.mark.parametrize("partition", PARTITIONERS.names())
def test_all_planners_go_together(partition: str, schedule: str, target: str) -> None:
    for memory in MEMORY_PLANNERS.names():
        options = Options(
            target=TargetRef.parse(target), partition=partition, schedule=schedule, memory=memory, effort=1
        )
        for case in known():
            agrees(case, options)
