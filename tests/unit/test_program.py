from typing import Any

import numpy as np
import pytest
from tests.support.graphs import feed_of, random_graph

from tilewright.errors import InternalError, UsageError
from tilewright.ir.derive import macs
from tilewright.ir.interpret import run_graph
from tilewright.memory import MEMORY_PLANNERS, MemoryPlan, memory_problem
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.planning import Budget
from tilewright.program import Program
from tilewright.schedule import SCHEDULERS, Schedule, ScheduleProblem
from tilewright.targets.base import Target
from tilewright.targets.interpreter import InterpreterTarget
from tilewright.targets.null import NullTarget


def program_of(seed: int, *, planned: bool = True) -> Program:
    graph = random_graph(seed, 12)
    partition = PARTITIONERS.get("layerwise").solve(PartitionProblem(graph), Budget())
    assert isinstance(partition, Partition)
    schedule = SCHEDULERS.get("sequential").solve(ScheduleProblem(partition), Budget())
    assert isinstance(schedule, Schedule)
    if not planned:
        return Program(graph, partition, schedule, Options())
    problem = memory_problem(schedule)
    memory = MEMORY_PLANNERS.get("arena").solve(problem, Budget())
    assert isinstance(memory, MemoryPlan)
    return Program(graph, partition, schedule, Options(), memory, problem)


def made_by(target: Target, program: Program) -> Any:
    """The code that a target makes of a program."""
    return target.backend(program.graph, program.options).generate(program)


def test_the_interpreter_computes_the_reference() -> None:
    program = program_of(1)
    feed = feed_of(program.graph)
    results = made_by(InterpreterTarget(), program).load(None).run(feed)
    expected = run_graph(program.graph, feed)
    assert list(results) == [v.name for v in program.graph.outputs]
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array)


def test_the_null_target_counts() -> None:
    program = program_of(2)
    counts = made_by(NullTarget(), program).counts
    assert program.memory is not None
    assert counts.num_kernels == len(program.partition.subgraphs) == counts.num_instances
    assert counts.macs == sum(macs(n) for n in program.graph.nodes)
    assert counts.external_bytes == sum(s.external_bytes for s in program.partition.subgraphs)
    assert counts.arena_bytes == program.memory.peak_bytes
    assert made_by(NullTarget(), program_of(2, planned=False)).counts.arena_bytes is None


def test_the_null_target_gives_no_results() -> None:
    with pytest.raises(UsageError, match="runs nothing"):
        made_by(NullTarget(), program_of(3)).load(None).run({})


def test_targets_refuse_wrong_plans() -> None:
    program = program_of(4)
    schedule = Schedule(
        program.partition,
        tuple(reversed(program.schedule.stages)),
        program.schedule.quality,
        program.schedule.provenance,
    )
    broken = Program(program.graph, program.partition, schedule, Options())
    for target in (NullTarget(), InterpreterTarget()):
        with pytest.raises(
            InternalError, match=r"the plan of 'random4' is wrong: order: .* more; please report"
        ):
            made_by(target, broken)


def test_parts_of_different_programs_do_not_mix() -> None:
    one, other = program_of(5), program_of(6)
    with pytest.raises(ValueError, match="belong together"):
        Program(one.graph, other.partition, other.schedule, Options())
    with pytest.raises(ValueError, match="belong together"):
        Program(one.graph, one.partition, other.schedule, Options())
    with pytest.raises(ValueError, match="or neither"):
        Program(one.graph, one.partition, one.schedule, Options(), memory=one.memory)
