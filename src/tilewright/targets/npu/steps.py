"""The steps of a scope plan as an accelerator runs them: what each moves, fetches and computes, by tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.hardware.machine import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import value_regions
from tilewright.ir.region import Region, full_region, hull, volume
from tilewright.memory.instances import InstanceStep, Read
from tilewright.memory.scopes import PlacedBuffer, ScopePlan
from tilewright.schedule.binding import Binding, Bindings, Scope, extents, plain_binding, transfers
from tilewright.schedule.instances import Edge, Kind
from tilewright.targets.npu.work import UnitWork, Works, is_read, is_table, only_moves

NUM_TILES = 4
"""Into how many tiles a step's work is cut, so that moving and computing overlap (spec: tiles = 4)."""


@dataclass(frozen=True, slots=True)
class Load:
    """A region that a step reads. `producer` is the step that made it, or that brought it to the cores where
    this one reads it; None for the network's inputs.

    Tile t waits for the producer's tiles up to `tiles[t]`; without an entry, for all of them. `moved_bytes`
    change cores on the way.
    """

    value: str
    region: Region
    size_bytes: int
    scope: Scope
    producer: int | None
    tiles: tuple[int, ...]
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Store:
    """What a step writes, and where it goes."""

    value: str
    size_bytes: int
    scope: Scope
    is_result: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """The part of a constant that a step needs. Without a name it is not kept: rows of a table that data
    choose."""

    name: str | None
    size_bytes: int
    region: Region = ()

    @property
    def key(self) -> str | None:
        """What names the part among those of all constants."""
        return None if self.name is None else f"{self.name} {self.region}"


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedStep:
    """One step with all that takes time. `after` are steps whose places in memory it reuses."""

    number: int
    name: str
    kind: Kind
    works: tuple[UnitWork, ...]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    weights: tuple[Weight, ...]
    num_tiles: int
    after: tuple[int, ...]


def lower(plan: ScopePlan, bindings: Bindings, machine: Machine, dtype: DType) -> tuple[SimulatedStep, ...]:
    """The steps of a plan on a machine that computes floating-point numbers as `dtype`.

    O(operators of the layers of all instances).
    """
    return _Lowering(plan, bindings, machine, dtype).run()


class _Lowering:
    def __init__(self, plan: ScopePlan, bindings: Bindings, machine: Machine, dtype: DType) -> None:
        self.plan, self.graph, self.bindings = plan, plan.graph, bindings
        self.num_cores = machine.num_cores_per_cluster
        self.works = Works(machine, dtype)
        self.moves = transfers(self.graph, bindings, plan.scopes)
        self.edges: dict[tuple[int, Value, int], Edge] = {
            (e.consumer, e.value, e.producer): e for e in self.graph.edges
        }
        self.redistributed: dict[Edge, int] = {}  # by which step
        self.known_tiles: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.known_works: dict[tuple[object, ...], tuple[UnitWork, ...]] = {}
        self.reused = _reused_places(plan)

    def run(self) -> tuple[SimulatedStep, ...]:
        return tuple(self._step(number, step) for number, step in enumerate(self.plan.steps))

    def _step(self, number: int, step: InstanceStep) -> SimulatedStep:
        node = self.graph.nodes[step.node]
        written = [self.plan.buffers[i] for i in step.writes]
        made = {buffer.value: buffer.region for buffer in written}
        results = self.graph.results
        stores = tuple(
            Store(p.value.name, p.size_bytes, p.scope, p.value in results and node.kind is Kind.INSTANCE)
            for p in written
        )
        if not step.operators:
            loads = tuple(self._load(number, step, read, (), {}, 1) for read in step.reads)
            # Buffers that are put together, or rows that are kept: what is read moves to where it is written.
            is_row_copy = node.kind is Kind.INSTANCE
            name = f"keep {written[0].value.name}" if is_row_copy else f"{node.kind} {node.value.name}"
            kind = Kind.CONCAT if is_row_copy else node.kind
            return SimulatedStep(number, name, kind, (), loads, stores, (), 1, self.reused[number])
        regions = value_regions(step.operators, made, self.graph.maps)
        main = max(made, key=lambda v: volume(made[v]))
        tiles = NUM_TILES if max(extents(made[main]), default=1) > 1 else 1
        loads = tuple(self._load(number, step, read, (main,), regions, tiles) for read in step.reads)
        return SimulatedStep(
            number, step.operators[0].name, node.kind, self._works_of(step, regions, main), loads, stores,
            tuple(self._weights(step.operators, regions)), tiles, self.reused[number],
        )  # fmt: skip

    def _works_of(
        self, step: InstanceStep, regions: Mapping[Value, Region], main: Value
    ) -> tuple[UnitWork, ...]:
        node = self.graph.nodes[step.node]
        own = self.bindings.bindings[step.node] if main in node.outputs else None
        shapes = tuple(extents(regions[v]) for n in step.operators for v in n.results() if v in regions)
        key = (node.subgraph_id, step.layer, shapes, own)
        found = self.known_works.get(key)
        if found is None:
            found = tuple(
                work
                for n in step.operators
                for work in self._work(n, regions, own if main in set(n.results()) else None)
            )
            if only_moves(step.operators):
                found = (self._movement(step, main),)
            self.known_works[key] = found
        return found

    def _movement(self, step: InstanceStep, main: Value) -> UnitWork:
        """A layer that only moves: what lies between its operators exists as tiles, its results move once."""
        written = [self.plan.buffers[i] for i in step.writes]
        elements = sum(volume(buffer.region) for buffer in written)
        return self.works.of_movement(
            step.operators, main.dtype, elements, sum(buffer.size_bytes for buffer in written)
        )

    def _work(self, node: Node, regions: Mapping[Value, Region], own: Binding | None) -> tuple[UnitWork, ...]:
        value = next((v for v in node.results() if v in regions), None)
        if value is None:
            return ()
        region = regions[value]
        is_own = own is not None and len(own) == len(region)
        return self.works.of(
            node,
            region,
            own
            if is_own and own is not None
            else plain_binding(extents(region), self.num_cores, self.works.axes_of(node)),
        )

    def _load(
        self,
        number: int,
        step: InstanceStep,
        read: Read,
        main: tuple[Value, ...],
        regions: Mapping[Value, Region],
        tiles: int,
    ) -> Load:
        value, region, source = read.value, read.region, read.buffer
        size = self.graph.bytes_of(value, region)
        if source is None:
            return Load(value.name, region, size, Scope.MAIN, None, (), 0)
        buffer = self.plan.buffers[source]
        edge = self.edges.get((step.node, value, buffer.node))
        if edge is None or all(t.kind is not Kind.REDISTRIBUTE for t in self.moves.get(edge, ())):
            needs = self._tile_needs(step, value, main[0], regions, buffer.region, tiles) if main else ()
            return Load(value.name, region, size, buffer.scope, buffer.first_step, needs, 0)
        if buffer.scope is not Scope.LOCAL:
            # Each reader brings it anew, distributed as it wants it.
            return Load(value.name, region, size, buffer.scope, buffer.first_step, (), 0)
        # What changes cores is distributed anew as a whole, once for all layers of the instance.
        first = self.redistributed.setdefault(edge, number)
        if first != number:
            return Load(value.name, region, size, buffer.scope, first, (), 0)
        moved = self.graph.bytes_of(value, edge.region)
        return Load(value.name, region, size, buffer.scope, buffer.first_step, (), moved)

    def _tile_needs(
        self,
        step: InstanceStep,
        value: Value,
        main: Value,
        regions: Mapping[Value, Region],
        there: Region,
        tiles: int,
    ) -> tuple[int, ...]:
        """Up to which tile of an operand's buffer, `there`, each tile of the result needs it.

        Tiles cut the axis that `_tiled_axis` says.
        """
        # Nothing less than the regions themselves: slices of equal extents may reach over different borders,
        # and an up-sampled row may begin anywhere between two rows.
        subgraph = self.graph.nodes[step.node].subgraph_id
        key = (subgraph, step.layer, value, main, regions[main], there)
        found = self.known_tiles.get(key)
        if found is None:
            found = self.known_tiles[key] = self._derive_tiles(step, value, main, regions, there, tiles)
        return found

    def _derive_tiles(
        self,
        step: InstanceStep,
        value: Value,
        main: Value,
        regions: Mapping[Value, Region],
        source: Region,
        tiles: int,
    ) -> tuple[int, ...]:
        out = regions[main]
        axis, source_axis = _tiled_axis(out), _tiled_axis(source)
        if axis is None or source_axis is None or tiles == 1:
            return ()
        start, stop = out[axis]
        low, high = source[source_axis]
        needs: list[int] = []
        for tile in range(tiles):
            cut = (start + (stop - start) * tile // tiles, start + (stop - start) * (tile + 1) // tiles)
            if cut[0] == cut[1]:
                needs.append(needs[-1] if needs else 0)
                continue
            part = {main: (*out[:axis], cut, *out[axis + 1 :])}
            region = value_regions(step.operators, part, self.graph.maps).get(value)
            end = low if region is None else region[source_axis][1]
            needs.append(max(0, -(-(end - low) * NUM_TILES // (high - low)) - 1))
        return tuple(needs)

    def _weights(self, nodes: Sequence[Node], regions: Mapping[Value, Region]) -> list[Weight]:
        found: list[Weight] = []
        for node in nodes:
            for position, operand in enumerate(node.inputs):
                if operand is None or not operand.is_constant or operand.num_elements <= 1:
                    continue
                if not is_read(node, position):
                    continue
                value = next((v for v in node.results() if v in regions), None)
                if value is not None and is_table(node, position):
                    whole = self.graph.bytes_of(operand, full_region(operand.shape))
                    found.append(Weight(None, min(whole, self.graph.bytes_of(value, regions[value]))))
                    continue
                part = self._part_of(node, position, regions)
                if part is not None:
                    found.append(Weight(operand.name, self.graph.bytes_of(operand, part), part))
        return found

    def _part_of(self, node: Node, position: int, regions: Mapping[Value, Region]) -> Region | None:
        """The part of a constant operand that makes these regions of results: of some channels, their own."""
        found: Region | None = None
        for number, value in enumerate(node.outputs):
            if value is None or value not in regions:
                continue
            need = self.graph.maps.inputs_of(node, number, regions[value])[position]
            if need is not None:
                found = need if found is None else hull(found, need)
        return found


def _reused_places(plan: ScopePlan) -> list[tuple[int, ...]]:
    """For each step those that wrote or read what lay where its own buffers come to lie.

    Every reader counts, not the last one only: steps on different units may end in any order.
    """
    after: list[set[int]] = [set() for _ in plan.steps]
    users = [{buffer.first_step} for buffer in plan.buffers]
    for number, step in enumerate(plan.steps):
        for read in step.reads:
            if read.buffer is not None:
                users[read.buffer].add(number)
    for scope in (Scope.LOCAL, Scope.SHARED):
        own = sorted((p for p in plan.buffers if p.scope is scope), key=lambda p: p.first_step)
        there: list[PlacedBuffer] = []
        for buffer in own:
            if buffer.size_bytes == 0:
                continue
            kept = []
            for other in there:
                if other.offset_bytes >= buffer.end_bytes or other.end_bytes <= buffer.offset_bytes:
                    kept.append(other)
                    continue
                after[buffer.first_step] |= {u for u in users[other.id] if u < buffer.first_step}
                if other.offset_bytes < buffer.offset_bytes or other.end_bytes > buffer.end_bytes:
                    kept.append(other)  # part of it is still to be reused
            there = [*kept, buffer]
    return [tuple(sorted(steps)) for steps in after]


def _tiled_axis(region: Region) -> int | None:
    """The axis that tiles cut: the outermost that has an element for each tile, or else more than one."""
    own = extents(region)
    long = [axis for axis, extent in enumerate(own) if extent >= NUM_TILES]
    return next(iter(long), next((axis for axis, extent in enumerate(own) if extent > 1), None))
