"""An order of instances as a memory problem: steps, and the buffers that they write and read.

A step is one layer of an instance, or one concatenation, copy or redistribution. A buffer holds the region of
one value that one step makes, and lives in one level for its whole life. Local buffers of a cluster's cores
count as one level: a value is distributed over all of them.

Rows that an instance keeps for later ones are copied to a buffer of their own as soon as they are made, by a
step that takes its time like any other; where they are all that was made, its buffer stays. A layer reads an
operand in as many parts as it lies in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, intersect, volume
from tilewright.memory.base import Buffer, MemoryLevel, MemoryProblem
from tilewright.partition.layers import Layer
from tilewright.partition.rows import ChainInstance
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceGraph, InstanceNode, Kind

SCOPES = (Scope.LOCAL, Scope.SHARED, Scope.MAIN)
"""What the levels of these problems are, innermost first."""
REMEDIES = ("a smaller batch", "a machine with more memory")


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a buffer holds: `region` of `value`, made by node `node` of the instance graph in `first_step`.

    `is_kept`: a copy of rows of what the node made, for later instances of its subgraph. It is needed to
    `last_step`: to the step of its last reader, as a result of the network to the end.
    """

    node: int
    value: Value
    region: Region
    is_kept: bool = False
    first_step: int = 0
    last_step: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A region of a value that a step reads.

    `buffer` is the number of the buffer that holds it; None for an input of the network.
    """

    value: Value
    region: Region
    buffer: int | None


@dataclass(frozen=True, slots=True, eq=False)
class InstanceStep:
    """What happens at one time. `layer` counts the layers of the node's subgraph, from 0.

    `operators` are those of the layer; a concatenation, copy or redistribution has none, nor has a copy of
    rows that layer `layer` made. `reads` are in the order of the layer's operands, several of one that lies
    in several buffers. `writes` are the numbers of the buffers that it makes.
    """

    node: int
    layer: int
    operators: tuple[Node, ...]
    reads: tuple[Read, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The steps of an order, and the problem of placing what they make.

    `contents[i]` is what `problem.buffers[i]` holds; steps are numbered by their place.
    """

    graph: InstanceGraph
    order: tuple[int, ...]
    steps: tuple[InstanceStep, ...]
    contents: tuple[Content, ...]
    problem: MemoryProblem


def expand(
    graph: InstanceGraph, order: Sequence[int], bindings: Bindings, levels: Sequence[MemoryLevel]
) -> Timeline:
    """Steps and buffers of an order, in the scopes that the bindings ask for. O(steps + reads).

    `levels` are those of the scopes. Results of the network live in main memory, to the end; what an instance
    keeps to itself is local. What groups of a stage hold that run at the same time, they hold together: such
    a buffer has its place from the first step of the stage that makes it to the last one of the stage that
    reads it last; likewise of sections of lanes within a kernel. What passes from lane to lane, or between a
    lane and all cores, goes to the shared buffer. What one group of cores makes for another one has its place
    for a round longer: until as many nodes have run as there are groups, from its last reader on.
    """
    return _Expander(graph, bindings).run(order, tuple(levels))


def is_result(graph: InstanceGraph, node: InstanceNode, value: Value) -> bool:
    """Whether what a node makes of a value is a part of the network's results."""
    return node.kind is Kind.INSTANCE and value in graph.results


def buffer_name(content: Content) -> str:
    """What a buffer is called: no other of the same problem has its name."""
    return f"{content.value.name}@{content.node}{' kept' if content.is_kept else ''}"


def bytes_made(graph: InstanceGraph, node: InstanceNode, value: Value, region: Region) -> int:
    """Bytes of what a node makes of a value; the network's results lie as they leave it."""
    bytes_of = graph.main_bytes_of if is_result(graph, node, value) else graph.bytes_of
    return bytes_of(value, region)


@dataclass(slots=True, eq=False)
class _Draft:
    """A buffer whose readers are still to come."""

    content: Content
    size_bytes: int
    first_step: int
    scope: Scope
    is_result: bool
    read_steps: list[int]
    operands: tuple[int, ...] = ()  # in whose place it might be written

    @property
    def last_read(self) -> int:
        return self.read_steps[-1] if self.read_steps else self.first_step


class _Expander:
    def __init__(self, graph: InstanceGraph, bindings: Bindings) -> None:
        self.graph = graph
        self.bindings = bindings
        self.steps: list[InstanceStep] = []
        self.drafts: list[_Draft] = []
        self.made: dict[tuple[int, Value], int] = {}
        self.kept: dict[
            tuple[int, int], dict[Value, list[int]]
        ] = {}  # by chain: buffers of earlier instances
        self.in_place = graph.partition.in_place
        self.together: Mapping[int, tuple[int, int]] = {}
        self.behind: Mapping[int, int] = {}  # of steps that groups of cores run: the last one of the round

    def run(self, order: Sequence[int], levels: tuple[MemoryLevel, ...]) -> Timeline:
        for place in order:
            node = self.graph.nodes[place]
            if node.kind is Kind.INSTANCE:
                self._add_instance(node)
            else:
                self._add_passage(node)
        names = [buffer_name(d.content) for d in self.drafts]
        self.together = self._together()
        self.behind = self._rounds(order)
        self._keep_between_launches()
        self._pass_between_lanes()
        buffers = tuple(self._buffer(number, names) for number in range(len(names)))
        return Timeline(
            self.graph,
            tuple(order),
            tuple(self.steps),
            tuple(
                replace(d.content, first_step=d.first_step, last_step=self._last_step(d)) for d in self.drafts
            ),
            MemoryProblem(buffers, levels, REMEDIES),
        )

    def _add_passage(self, node: InstanceNode) -> None:
        """A node that passes on what it reads: one step."""
        reads = tuple(
            Read(e.value, e.region, self.made[e.producer, e.value]) for e in self.graph.reads(node.id)
        )
        writes = tuple(self._add_buffer(node, v, r) for v, r in node.outputs.items())
        self._add_step(InstanceStep(node.id, 0, (), reads, writes))

    def _add_instance(self, node: InstanceNode) -> None:
        sources = {e.value: self.made[e.producer, e.value] for e in self.graph.reads(node.id)}
        if node.rows is not None:
            self._add_chained(node, node.rows, sources)
            return
        subgraph = self.graph.partition.subgraphs[node.subgraph_id]
        maps = self.graph.maps
        regions = maps.values_of(subgraph.nodes, node.outputs)
        for number, layer in enumerate(self.graph.partition.layers_of(subgraph)):
            outputs = [v for v in layer.outputs if v in regions]
            if not outputs:
                continue
            needed = maps.values_of(layer.nodes, {v: regions[v] for v in outputs})
            reads = tuple(Read(v, needed[v], sources.get(v)) for v in layer.inputs if v in needed)
            writes = tuple(self._add_buffer(node, v, regions[v]) for v in outputs)
            sources.update(zip(outputs, writes, strict=True))
            self._add_layer(node, number, layer, reads, writes)

    def _add_chained(self, node: InstanceNode, rows: ChainInstance, sources: dict[Value, int]) -> None:
        """An instance that makes new rows only, and reads what earlier ones of its chain kept."""
        parts = self.kept.setdefault((node.subgraph_id, node.index - rows.position), {})
        own: dict[Value, int] = {}
        keeping: list[tuple[Value, int]] = []
        for run in rows.runs:
            reads: list[Read] = []
            for value, region in run.read.items():
                there = [*parts.get(value, ()), *((own[value],) if value in own else ())]
                met = ((b, intersect(self.drafts[b].content.region, region)) for b in there)
                found = [Read(value, part, buffer) for buffer, part in met if part is not None]
                reads += found or [Read(value, region, sources.get(value))]
            writes = tuple(self._add_buffer(node, v, r) for v, r in run.made.items())
            own.update(zip(run.made, writes, strict=True))
            self._add_layer(node, run.number, run.layer, tuple(reads), writes)
            for value, buffer in zip(run.made, writes, strict=True):
                kept = rows.kept.get(value)
                if kept is None:
                    continue
                keeping.append((value, buffer if kept.is_all else len(self.drafts)))
                if not kept.is_all:
                    self._add_copy(
                        node, run.number, Content(node.id, value, kept.region, is_kept=True), buffer
                    )
        for value, buffer in keeping:
            parts.setdefault(value, []).append(buffer)

    def _add_copy(self, node: InstanceNode, layer: int, content: Content, source: int) -> None:
        """Rows that are kept, copied as soon as they are made: what is not may then be given up."""
        size = self.graph.bytes_of(content.value, content.region)
        self.drafts.append(_Draft(content, size, len(self.steps), Scope.LOCAL, False, []))
        read = Read(content.value, content.region, source)
        self._add_step(InstanceStep(node.id, layer, (), (read,), (len(self.drafts) - 1,)))

    def _add_layer(
        self, node: InstanceNode, number: int, layer: Layer, reads: tuple[Read, ...], writes: tuple[int, ...]
    ) -> None:
        if len(writes) == 1 and self.in_place:
            values = [r.value for r in reads]
            self.drafts[writes[0]].operands = tuple(
                r.buffer
                for r in reads
                if r.buffer is not None and r.value in layer.overwrites and values.count(r.value) == 1
            )
        self._add_step(InstanceStep(node.id, number, layer.nodes, reads, writes))

    def _add_buffer(self, node: InstanceNode, value: Value, region: Region) -> int:
        in_results = is_result(self.graph, node, value)
        scope = Scope.LOCAL
        if value in node.outputs:
            scope = self.bindings.scopes[node.id]
            if in_results:
                scope = Scope.MAIN
            elif scope is Scope.MAIN and not self.bindings.launches:
                # Its node makes a result of the network too, which is what main memory was meant for.
                cores = self.bindings.cores
                is_crossing = cores is not None and node.id in cores.crossing
                scope = Scope.SHARED if is_crossing else Scope.LOCAL
        size = bytes_made(self.graph, node, value, region)
        self.made[node.id, value] = len(self.drafts)
        content = Content(node.id, value, region)
        self.drafts.append(_Draft(content, size, len(self.steps), scope, in_results, []))
        return len(self.drafts) - 1

    def _add_step(self, step: InstanceStep) -> None:
        for read in step.reads:
            if read.buffer is not None:
                self.drafts[read.buffer].read_steps.append(len(self.steps))
        self.steps.append(step)

    def _keep_between_launches(self) -> None:
        """Rows that an instance keeps for one of another launch do not stay on the chip."""
        launch_of = {node: i for i, launch in enumerate(self.bindings.launches) for node in launch.nodes}
        for step in self.steps if launch_of else ():
            for read in step.reads:
                if read.buffer is None:
                    continue
                draft = self.drafts[read.buffer]
                if launch_of[draft.content.node] != launch_of[step.node]:
                    draft.scope = Scope.MAIN

    def _pass_between_lanes(self) -> None:
        """What is made on other cores of a kernel than those that read it lies where both reach it."""
        lanes = [self.bindings.lane_of(step.node, step.layer) for step in self.steps]
        for number, step in enumerate(self.steps if any(lanes) else ()):
            for read in step.reads:
                if read.buffer is None:
                    continue
                draft = self.drafts[read.buffer]
                if draft.scope is Scope.LOCAL and lanes[draft.first_step] != lanes[number]:
                    draft.scope = Scope.SHARED

    def _last_step(self, draft: _Draft) -> int:
        return len(self.steps) - 1 if draft.is_result else draft.last_read

    def _together(self) -> dict[int, tuple[int, int]]:
        """First and last step of its stage, or its section of lanes, of each step that others run beside."""
        steps_of: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            steps_of.setdefault(step.node, []).append(number)
        stages: dict[int, list[int]] = {}
        for launch in self.bindings.launches:
            if not launch.is_alone:
                stages.setdefault(launch.stage, []).extend(s for n in launch.nodes for s in steps_of[n])
        sections: dict[tuple[int, int], list[int]] = {}
        for number, step in enumerate(self.steps):
            lane = self.bindings.lane_of(step.node, step.layer)
            if lane is not None:
                sections.setdefault((step.node, lane.section), []).append(number)
        together = (*sections.values(), *stages.values())
        return {step: (min(steps), max(steps)) for steps in together for step in steps}

    def _rounds(self, order: Sequence[int]) -> dict[int, int]:
        """For each step of a program on groups of cores the last step of as many nodes as there are groups,
        which may run at the same time."""
        if self.bindings.cores is None:
            return {}
        last = {step.node: number for number, step in enumerate(self.steps)}
        nodes = [node for node in order if node in last]
        num_groups = len(self.bindings.cores.groups)
        until = {node: last[nodes[min(i + num_groups, len(nodes)) - 1]] for i, node in enumerate(nodes)}
        return {number: until[step.node] for number, step in enumerate(self.steps)}

    def _is_crossing(self, draft: _Draft) -> bool:
        """Whether another group of cores reads a buffer."""
        cores, content = self.bindings.cores, draft.content
        if cores is None or content.is_kept or content.node not in cores.crossing:
            return False
        return content.value in self.graph.nodes[content.node].outputs

    def _buffer(self, number: int, names: Sequence[str]) -> Buffer:
        draft = self.drafts[number]
        first, last = draft.first_step, self._last_step(draft)
        if self._is_crossing(draft):
            last = self.behind[last]  # else what others write meanwhile would wait for its reader
        return Buffer(
            names[number],
            draft.size_bytes,
            self.together.get(first, (first, first))[0],
            self.together.get(last, (last, last))[1],
            may_reuse=tuple(names[old] for old in draft.operands if self._may_reuse(draft, self.drafts[old])),
            level=SCOPES.index(draft.scope),
            read_steps=tuple(dict.fromkeys(draft.read_steps)),
        )

    def _may_reuse(self, draft: _Draft, old: _Draft) -> bool:
        """Whether an operand dies where a buffer is made, and no element is larger than the operand's.

        An operand of which only a part is read lies no nearer to the beginning, element by element, than what
        is written there, so that a writer that goes forward never meets what it still has to read.
        """
        return (
            old.last_read == draft.first_step
            and not self._is_crossing(old)
            and draft.first_step not in self.together
            and not old.is_result
            and old.size_bytes >= draft.size_bytes
            and old.size_bytes * volume(draft.content.region) >= draft.size_bytes * volume(old.content.region)
        )
