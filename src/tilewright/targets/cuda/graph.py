"""The graph of a schedule: what runs, and what must have run before it.

Groups of a stage have no edges between them, so that a GPU runs them at the same time; within a group, and
from stage to stage, work runs in order. With edges of data alone a kernel waits for its operands only.
Operators on the host stand between graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tilewright.records import dataclass
from tilewright.schedule.base import Schedule
from tilewright.targets.cuda.lower import HostOperator, Lowered, Tensor, Work

Edges = Literal["stages", "data"]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedNode:
    """Work at its place in the order of a run, after these others; `stage` is that of the schedule.

    `work` None is a joint: what follows waits for all that it follows.
    """

    work: Work | None
    after: tuple[int, ...]
    stage: int
    subgraph_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGraph:
    """All nodes of a run in an order in which one after another could run."""

    nodes: tuple[PlannedNode, ...]

    def segments(self) -> list[tuple[int, ...]]:
        """The graphs and, alone, the operators on the host, in order."""
        found: list[tuple[int, ...]] = []
        current: list[int] = []
        for number, node in enumerate(self.nodes):
            if not isinstance(node.work, HostOperator):
                current.append(number)
                continue
            if current:
                found.append(tuple(current))
                current = []
            found.append((number,))
        return [*found, tuple(current)] if current else found


def plan_graph(lowered: Lowered, schedule: Schedule, edges: Edges = "stages") -> PlannedGraph:
    """The nodes of a schedule of the partition that was lowered."""
    builder = _Builder(lowered)
    ends: list[int] = []
    for stage, groups in enumerate(schedule.stages):
        starts, ends = _joined(builder, ends, len(groups.groups), stage), []
        for group in groups.groups:
            last = starts
            for instance in group.instances:
                for work in lowered.work[instance.subgraph_id]:
                    number = builder.add(work, last if edges == "stages" else (), stage, instance.subgraph_id)
                    last = [number]
            if last is not starts:
                ends += last
        ends = ends or starts
    return PlannedGraph(tuple(builder.nodes))


def _joined(builder: _Builder, ends: list[int], num_groups: int, stage: int) -> list[int]:
    """What a stage waits for: the ends of the one before, or a joint of several for several."""
    if len(ends) < 2 or num_groups < 2:
        return ends
    return [builder.add(None, ends, stage, None)]


@dataclass(frozen=True, slots=True)
class _Use:
    """What a node reads or writes of a tensor's memory: bytes of it."""

    number: int
    start: int
    end: int
    writes: bool

    def conflicts(self, other: _Use) -> bool:
        """Whether one writes what the other touches."""
        return (self.writes or other.writes) and self.start < other.end and other.start < self.end


class _Builder:
    """Nodes so far; each new one follows those that made its operands, and those whose memory it changes."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.nodes: list[PlannedNode] = []
        self.before: list[int] = []
        self.uses: dict[Tensor, list[_Use]] = {}
        self.last_host = -1

    def add(self, work: Work | None, after: Iterable[int], stage: int, subgraph_id: int | None) -> int:
        """A node, after these and those that data need; edges that others imply are left out."""
        number = len(self.nodes)
        wanted = set(after)
        touched: list[tuple[Tensor, _Use]] = []
        if work is not None:
            touched = [self._use(t, number, writes=False) for t in work.reads]
            touched += [self._use(t, number, writes=True) for t in work.writes]
        for root, use in touched:
            wanted.update(other.number for other in self.uses.get(root, ()) if other.conflicts(use))
        if isinstance(work, HostOperator):
            wanted.update(range(number))  # the host waits for all that was launched
        elif self.last_host >= 0:
            wanted.add(self.last_host)
        before = 0
        direct: list[int] = []
        for other in sorted(wanted, reverse=True):
            if not before >> other & 1:
                direct.append(other)
                before |= self.before[other] | 1 << other
        for root, use in touched:
            self.uses.setdefault(root, []).append(use)
        self.nodes.append(PlannedNode(work, tuple(sorted(direct)), stage, subgraph_id))
        self.before.append(before)
        if isinstance(work, HostOperator):
            self.last_host = number
        return number

    def _use(self, tensor: Tensor, number: int, *, writes: bool) -> tuple[Tensor, _Use]:
        root, start = self.lowered.place(tensor)
        return root, _Use(number, start, start + tensor.size_bytes, writes)
