"""Live ranges of a schedule: which values need the arena, from when to when, and which may share a place."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.graph import Value
from tilewright.ir.in_place import in_place_operands
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, Buffer, MemoryLevel, MemoryProblem
from tilewright.partition.base import Subgraph
from tilewright.schedule.base import Schedule

NO_SCRATCH: Mapping[int, int] = {}


def memory_problem(
    schedule: Schedule,
    *,
    capacity_bytes: int | None = None,
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
    scratch_bytes: Mapping[int, int] = NO_SCRATCH,
    in_place: bool = True,
) -> MemoryProblem:
    """One buffer per value that passes between subgraphs, named as the value.

    Graph inputs, graph outputs and constants lie outside the arena. A value lives from the step of the first
    instance that makes it to that of the last that reads it. `scratch_bytes` by subgraph id adds workspaces,
    named `scratch:<id>`, that live while their subgraph runs. With `in_place`, a subgraph may write its
    result in the place of an operand that dies there.
    """
    first, last = _steps(schedule)
    outside = {*schedule.partition.graph.inputs, *schedule.partition.graph.outputs}
    last_read = _last_reads(schedule, last)
    buffers: list[Buffer] = []
    for subgraph in schedule.partition.subgraphs:
        start = first[subgraph.id]
        kept = [v for v in subgraph.outputs if v not in outside]
        for value in kept:
            reusable = _reusable(schedule, subgraph, start, last_read, outside) if in_place else ()
            end = last_read[value][0]
            buffers.append(Buffer(value.name, value.size_bytes, start, end, alignment_bytes, reusable))
        scratch = scratch_bytes.get(subgraph.id, 0)
        if scratch:
            name = f"scratch:{subgraph.id}"
            buffers.append(Buffer(name, scratch, start, last[subgraph.id], alignment_bytes))
    return MemoryProblem(tuple(buffers), (MemoryLevel("arena", capacity_bytes),))


def _steps(schedule: Schedule) -> tuple[dict[int, int], dict[int, int]]:
    """First and last step of every subgraph. Groups side by side share the one step of their stage."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    step = 0
    for stage in schedule.stages:
        for instance in stage.instances():
            first.setdefault(instance.subgraph_id, step)
            last[instance.subgraph_id] = step
            if len(stage.groups) == 1:
                step += 1
        if len(stage.groups) > 1:
            step += 1
    return first, last


def _last_reads(schedule: Schedule, last: Mapping[int, int]) -> dict[Value, tuple[int, list[int]]]:
    """For each value that crosses, its last reading step and the subgraphs that read it there."""
    reads: dict[Value, tuple[int, list[int]]] = {}
    for subgraph in schedule.partition.subgraphs:
        for value in subgraph.inputs:
            step = last[subgraph.id]
            known = reads.get(value)
            if known is None or step > known[0]:
                reads[value] = (step, [subgraph.id])
            elif step == known[0]:
                known[1].append(subgraph.id)
    return reads


def _reusable(
    schedule: Schedule,
    subgraph: Subgraph,
    start: int,
    last_read: Mapping[Value, tuple[int, list[int]]],
    outside: set[Value],
) -> tuple[str, ...]:
    """Names of operands that die in this subgraph and in whose place its one result may be made."""
    if len(subgraph.outputs) != 1:
        return ()
    result = subgraph.outputs[0]
    dying = [
        value
        for value in subgraph.inputs
        if value not in outside
        and last_read[value] == (start, [subgraph.id])
        and value.dtype.size_bytes == result.dtype.size_bytes
        and value.size_bytes >= result.size_bytes
    ]
    if not dying:
        return ()
    in_place = in_place_operands(subgraph.nodes, dying, result)
    return tuple(value.name for value in dying if value in in_place)
