"""An order of instances as steps, and the live ranges of the pieces that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Value
from tilewright.ir.graph_regions import value_regions
from tilewright.ir.region import Region, volume
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, aligned
from tilewright.memory.scoped.base import Read, Step
from tilewright.partition.layers import LayerRegions
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceGraph, InstanceNode, Kind


@dataclass(slots=True, eq=False)
class Draft:
    """A piece on its way to a place. `may_take_over` are operands of its step that die there, no smaller."""

    id: int
    node: int
    value: Value
    region: Region
    size_bytes: int
    first_step: int
    last_step: int
    scope: Scope
    may_take_over: tuple[int, ...] = ()
    is_spilled: bool = False

    @property
    def reserved_bytes(self) -> int:
        """What it takes of a level: places begin at multiples of the alignment."""
        return aligned(self.size_bytes, DEFAULT_ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The steps of a schedule and the pieces that they make."""

    steps: tuple[Step, ...]
    drafts: tuple[Draft, ...]


def expand(graph: InstanceGraph, order: Sequence[int], bindings: Bindings) -> Timeline:
    """Steps and pieces of an order, in the scopes that the bindings ask for. O(steps + reads).

    Results of the network live in main memory; what an instance keeps to itself is local.
    """
    return _Expander(graph, bindings).run(order)


class _Expander:
    def __init__(self, graph: InstanceGraph, bindings: Bindings) -> None:
        self.graph = graph
        self.bindings = bindings
        self.steps: list[Step] = []
        self.drafts: list[Draft] = []
        self.made: dict[tuple[int, Value], int] = {}
        self.overwritten: dict[int, tuple[int, ...]] = {}
        self.layer_regions = LayerRegions(graph.maps)
        self.in_place = graph.partition.in_place

    def run(self, order: Sequence[int]) -> Timeline:
        for place in order:
            node = self.graph.nodes[place]
            if node.kind is Kind.INSTANCE:
                self._add_instance(node)
            else:
                self._add_passage(node)
        for draft in self.drafts:
            if draft.value in self.graph.results and self._is_result(draft):
                draft.last_step = len(self.steps) - 1
        for piece, operands in self.overwritten.items():
            self.drafts[piece].may_take_over = self._taken_over(self.drafts[piece], operands)
        return Timeline(tuple(self.steps), tuple(self.drafts))

    def _add_passage(self, node: InstanceNode) -> None:
        """A node that passes on what it reads: one step."""
        reads = tuple(
            Read(e.value, e.region, self.made[e.producer, e.value]) for e in self.graph.reads(node.id)
        )
        number = len(self.steps)
        writes = tuple(self._add_piece(node, v, r, number) for v, r in node.outputs.items())
        self._add_step(Step(node.id, 0, (), reads, writes))

    def _add_instance(self, node: InstanceNode) -> None:
        subgraph = self.graph.partition.subgraphs[node.subgraph_id]
        regions = value_regions(subgraph.nodes, node.outputs, self.graph.maps)
        sources = {e.value: self.made[e.producer, e.value] for e in self.graph.reads(node.id)}
        for number, layer in enumerate(self.graph.partition.layers_of(subgraph)):
            outputs = [v for v in layer.outputs if v in regions]
            if not outputs:
                continue
            needs = self.layer_regions.needs_of(layer, tuple(regions.get(v) for v in layer.outputs)).inputs
            read = zip(layer.inputs, needs, strict=True)
            reads = tuple(Read(v, r, sources.get(v)) for v, r in read if r is not None)
            writes = tuple(self._add_piece(node, v, regions[v], len(self.steps)) for v in outputs)
            sources.update(zip(outputs, writes, strict=True))
            if len(writes) == 1 and self.in_place:
                self.overwritten[writes[0]] = tuple(
                    r.piece for r in reads if r.piece is not None and r.value in layer.overwrites
                )
            self._add_step(Step(node.id, number, layer.nodes, reads, writes))

    def _add_piece(self, node: InstanceNode, value: Value, region: Region, step: int) -> int:
        scope = Scope.LOCAL
        if value in node.outputs:
            scope = self.bindings.scopes[node.id]
            if self._is_result_of(node, value):
                scope = Scope.MAIN
            elif scope is Scope.MAIN:
                # Its node makes a result of the network too, which is what main memory was meant for.
                scope = Scope.LOCAL
        size = self.graph.bytes_of(value, region)
        draft = Draft(len(self.drafts), node.id, value, region, size, step, step, scope)
        self.drafts.append(draft)
        self.made[node.id, value] = draft.id
        return draft.id

    def _add_step(self, step: Step) -> None:
        for read in step.reads:
            if read.piece is not None:
                self.drafts[read.piece].last_step = len(self.steps)
        self.steps.append(step)

    def _is_result(self, draft: Draft) -> bool:
        return self._is_result_of(self.graph.nodes[draft.node], draft.value)

    def _is_result_of(self, node: InstanceNode, value: Value) -> bool:
        return node.kind is Kind.INSTANCE and value in self.graph.results

    def _taken_over(self, draft: Draft, operands: Sequence[int]) -> tuple[int, ...]:
        """Operands whose place the piece may take: they die here, and no element is larger than theirs.

        An operand of which only a part is read lies no nearer to the beginning, element by element, than what
        is written there, so that a writer that goes forward never meets what it still has to read.
        """
        found: list[int] = []
        for number in operands:
            old = self.drafts[number]
            if (
                old.last_step == draft.first_step
                and not self._is_result(old)
                and old.size_bytes >= draft.size_bytes
                and old.size_bytes * volume(draft.region) >= draft.size_bytes * volume(old.region)
            ):
                found.append(number)
        return tuple(found)
