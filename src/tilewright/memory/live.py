"""Live ranges of a schedule: which values need the arena, from when to when, and which may share a place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir.graph import Value
from tilewright.ir.in_place import in_place_operands
from tilewright.memory.base import Buffer, MemoryLevel, MemoryProblem
from tilewright.partition.base import Subgraph
from tilewright.schedule.base import Schedule


def memory_problem(
    schedule: Schedule,
    *,
    capacity_bytes: int | None = None,
    in_place: bool = True,
) -> MemoryProblem:
    """One buffer per value that passes between subgraphs, named as the value.

    Graph inputs, graph outputs and constants lie outside the arena. Every instance is a step. A value lives
    from that of the first instance that makes it to that of the last that reads it; what instances of
    different groups of a stage use never shares memory, since these run at the same time. With `in_place`, a
    subgraph may write its result in the place of an operand that dies there.
    """
    steps = _steps(schedule)
    first = {subgraph_id: numbers[0] for subgraph_id, numbers in steps.items()}
    last = {subgraph_id: numbers[-1] for subgraph_id, numbers in steps.items()}
    uses = _Uses(schedule, steps)
    outside = {*schedule.partition.graph.inputs, *schedule.partition.graph.outputs}
    last_read = _last_reads(schedule, last)
    buffers: list[Buffer] = []
    for subgraph in schedule.partition.subgraphs:
        start = first[subgraph.id]
        kept = [v for v in subgraph.outputs if v not in outside]
        for value in kept:
            reusable = _reusable(schedule, subgraph, start, last_read, outside) if in_place else ()
            end = last_read[value][0]
            used, beside = uses.of((subgraph.id, *uses.readers.get(value, ())))
            buffers.append(
                Buffer(
                    value.name,
                    value.size_bytes,
                    start,
                    end,
                    may_reuse=reusable,
                    used=used,
                    beside=beside,
                )
            )
    return MemoryProblem(tuple(buffers), (MemoryLevel("arena", capacity_bytes),))


def _steps(schedule: Schedule) -> dict[int, list[int]]:
    """The steps of every subgraph, in order."""
    steps: dict[int, list[int]] = {}
    for number, instance in enumerate(schedule.instances()):
        steps.setdefault(instance.subgraph_id, []).append(number)
    return steps


class _Uses:
    """Which steps use something, and which may run at the same time; nothing where none may."""

    def __init__(self, schedule: Schedule, steps: Mapping[int, Sequence[int]]) -> None:
        self._beside: dict[int, int] = {}
        self._steps = steps
        number = 0
        for stage in schedule.stages:
            sizes = [len(group.instances) for group in stage.groups]
            whole = ((1 << sum(sizes)) - 1) << number
            for size in sizes:
                others = whole & ~(((1 << size) - 1) << number)
                if others:
                    self._beside.update(dict.fromkeys(range(number, number + size), others))
                number += size

        self.readers: dict[Value, list[int]] = {}
        for subgraph in schedule.partition.subgraphs:
            for value in subgraph.inputs:
                self.readers.setdefault(value, []).append(subgraph.id)

    def of(self, subgraph_ids: Iterable[int]) -> tuple[int, int]:
        """The steps of some subgraphs, and those beside them, as bit sets."""
        used = beside = 0
        if self._beside:
            for step in (step for subgraph_id in subgraph_ids for step in self._steps[subgraph_id]):
                used |= 1 << step
                beside |= self._beside.get(step, 0)
        return used, beside


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
