"""What an instance of a part of the graph needs: regions of inputs, its work, the peak of what it holds.

A part is a layer, or parts joined in order. The footprint of joined parts follows from those of its members,
which are remembered, so that joining a layer to a long subgraph costs as much as the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tilewright.ir.graph import Value
from tilewright.ir.region import Region, full_region, hull, volume
from tilewright.partition.layers import Layer, LayerRegions, Outputs
from tilewright.partition.rows import RowChain, chain_slices
from tilewright.partition.split import Split


@dataclass(frozen=True, slots=True)
class Held:
    """An input of which more is kept than the part itself needs: other parts read it too."""

    value: Value
    size_bytes: int
    until_end: bool


NOTHING_HELD: frozenset[Held] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """One instance of a part. `inputs` are the regions read of values from outside."""

    inputs: Mapping[Value, Region]
    peak_bytes: int
    macs: float
    elements: int
    num_divided: int


@dataclass(slots=True, eq=False)
class SubgraphPart:
    """Layers that run one after another as one subgraph: one layer, or the `members` it was joined from."""

    layer: Layer | None
    members: tuple[SubgraphPart, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    position: int
    known: dict[tuple[Outputs, frozenset[Held]], Footprint] = field(default_factory=dict)
    _layers: tuple[Layer, ...] | None = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All its layers, in order; collected when first asked for, since most parts are joined on."""
        if self._layers is None:
            found: list[Layer] = []
            stack = [self]
            while stack:
                part = stack.pop()
                if part.layer is not None:
                    found.append(part.layer)
                stack.extend(reversed(part.members))
            self._layers = tuple(found)
        return self._layers

    @property
    def is_opaque(self) -> bool:
        """Whether it is an operator without nests, which is never joined to anything."""
        return self.layer is not None and self.layer.is_opaque


def single(layer: Layer, position: int) -> SubgraphPart:
    """A part of one layer."""
    return SubgraphPart(layer, (), layer.inputs, layer.outputs, position)


def joined(members: Sequence[SubgraphPart], outputs: Sequence[Value]) -> SubgraphPart:
    """A part of several, given in an order in which they can run."""
    made = {v for m in members for v in m.outputs}
    inputs = tuple(dict.fromkeys(v for m in members for v in m.inputs if v not in made))
    return SubgraphPart(None, tuple(members), inputs, tuple(outputs), members[-1].position)


class Footprints:
    """Footprints of parts, where an element of a value takes `element_bytes(value)`.

    Without `in_place` no result is made in place of an operand.
    """

    def __init__(
        self, regions: LayerRegions, element_bytes: Callable[[Value], int], *, in_place: bool
    ) -> None:
        self.regions = regions
        self.element_bytes = element_bytes
        self.in_place = in_place
        self._depth = 0
        self._singles: dict[tuple[Layer, int], SubgraphPart] = {}
        self._chains: dict[tuple[SubgraphPart, Split, int], RowChain] = {}
        self._joined: dict[tuple[tuple[SubgraphPart, ...], tuple[Value, ...]], SubgraphPart] = {}

    def single(self, layer: Layer, position: int) -> SubgraphPart:
        """A part of one layer, the same object each time: what is known of it serves all partitions."""
        key = layer, position
        if key not in self._singles:
            self._singles[key] = single(layer, position)
        return self._singles[key]

    def joined(self, members: Sequence[SubgraphPart], outputs: Sequence[Value]) -> SubgraphPart:
        """A part of several in an order in which they can run, the same object each time."""
        key = tuple(members), tuple(outputs)
        if key not in self._joined:
            self._joined[key] = joined(*key)
        return self._joined[key]

    def chain(self, part: SubgraphPart, split: Split, number: int) -> RowChain:
        """The slices that keep rows for each other in chain `number` of a part that is split so."""
        key = part, split, number
        if key not in self._chains:
            slices = chain_slices(part.outputs, split, number)
            self._chains[key] = RowChain(part.layers, slices, self.regions)
        return self._chains[key]

    def whole(self, part: SubgraphPart) -> Footprint:
        """The footprint of a part that runs once."""
        return self.of(part, tuple(full_region(v.shape) for v in part.outputs))

    def of(self, part: SubgraphPart, outputs: Outputs, held: frozenset[Held] = NOTHING_HELD) -> Footprint:
        """The footprint of the instance that makes these regions of the outputs; None asks nothing of one."""
        key = (outputs, held)
        found = part.known.get(key)
        if found is None:
            found = part.known[key] = self._walk(part, outputs, held)
        return found

    def bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a region of a value."""
        return volume(region) * self.element_bytes(value)

    def _walk(self, part: SubgraphPart, outputs: Outputs, held: frozenset[Held]) -> Footprint:
        walk = _Walk(self, part, self._units(part, outputs), outputs)
        self._depth += 1
        walk.propagate()
        found = walk.footprint(held)
        self._depth -= 1
        return found

    def _units(self, part: SubgraphPart, outputs: Outputs) -> Sequence[SubgraphPart | Layer]:
        """What to walk over: members where the last of them knows its answer, else layer by layer.

        Members of members are always walked layer by layer: a chain may have thousands of them.
        """
        if part.members and self._depth == 0:
            last = part.members[-1]
            wanted = dict(zip(part.outputs, outputs, strict=True))
            if (tuple(wanted.get(v) for v in last.outputs), NOTHING_HELD) in last.known:
                return part.members
        return part.layers


class _Walk:
    """One pass backwards for regions, one forwards for what is live."""

    def __init__(
        self,
        footprints: Footprints,
        part: SubgraphPart,
        units: Sequence[SubgraphPart | Layer],
        outputs: Outputs,
    ) -> None:
        self.footprints = footprints
        self.part = part
        self.units = units
        self.regions = {v: r for v, r in zip(part.outputs, outputs, strict=True) if r is not None}
        self.outputs = dict(self.regions)
        self.needs: list[dict[Value, Region]] = []
        self.wanted: list[Outputs] = []
        self.macs, self.elements, self.num_divided = 0.0, 0, 0

    def propagate(self) -> None:
        """Regions of everything, from the last unit to the first."""
        for unit in reversed(self.units):
            wanted = tuple(self.regions.get(v) for v in unit.outputs)
            needs: dict[Value, Region] = {}
            if any(r is not None for r in wanted):
                needs = self._needs(unit, wanted)
                for value, region in needs.items():
                    known = self.regions.get(value)
                    self.regions[value] = region if known is None else hull(known, region)
            self.needs.append(needs)
            self.wanted.append(wanted)
        self.needs.reverse()
        self.wanted.reverse()

    def _needs(self, unit: SubgraphPart | Layer, wanted: Outputs) -> dict[Value, Region]:
        if isinstance(unit, Layer):
            found = self.footprints.regions.needs_of(unit, wanted)
            needs = {v: r for v, r in zip(unit.inputs, found.inputs, strict=True) if r is not None}
            self._count(found.macs, found.elements, found.num_divided)
            return needs
        footprint = self.footprints.of(unit, wanted)
        self._count(footprint.macs, footprint.elements, footprint.num_divided)
        return dict(footprint.inputs)

    def _count(self, macs: float, elements: int, num_divided: int) -> None:
        self.macs += macs
        self.elements += elements
        self.num_divided += num_divided

    def footprint(self, held: frozenset[Held]) -> Footprint:
        """The peak over the units in order, and with it the answer."""
        size = {v: self.footprints.bytes_of(v, r) for v, r in self.regions.items()}
        last_use: dict[Value, float] = {}
        for number, needs in enumerate(self.needs):
            last_use.update(dict.fromkeys(needs, number))
        last_use.update(dict.fromkeys(self.outputs, inf))
        for kept in held:
            size[kept.value] = kept.size_bytes
            if kept.until_end:
                last_use[kept.value] = inf
        inputs = {v: self.regions[v] for v in self.part.inputs if v in self.regions}
        live_bytes = sum(size[v] for v in inputs)
        peak = live_bytes
        for number, unit in enumerate(self.units):
            wanted = self.wanted[number]
            if not any(r is not None for r in wanted):
                continue
            new = sum(size[v] for v, r in zip(unit.outputs, wanted, strict=True) if r is not None)
            needs = self.needs[number]
            if isinstance(unit, Layer):
                reused = self._reused_bytes(unit, new, needs, size, last_use, number)
                peak = max(peak, live_bytes + new - reused)
            else:
                peak = max(peak, self._peak_within(unit, wanted, needs, size, last_use, number, live_bytes))
            live_bytes += new - sum(size[v] for v in needs if last_use[v] == number)
        return Footprint(inputs, peak, self.macs, self.elements, self.num_divided)

    def _reused_bytes(
        self,
        layer: Layer,
        new: int,
        needs: Mapping[Value, Region],
        size: Mapping[Value, int],
        last_use: Mapping[Value, float],
        number: int,
    ) -> int:
        """Bytes of the result that take the place of an operand that dies here."""
        if not self.footprints.in_place:
            return 0
        fits = any(v in layer.overwrites and last_use[v] == number and size[v] >= new for v in needs)
        return new if fits else 0

    def _peak_within(
        self,
        part: SubgraphPart,
        wanted: Outputs,
        needs: Mapping[Value, Region],
        size: Mapping[Value, int],
        last_use: Mapping[Value, float],
        number: int,
        live_bytes: int,
    ) -> int:
        """The peak while a member runs: its own, beside everything live that it does not read."""
        own = {v: self.footprints.bytes_of(v, r) for v, r in needs.items()}
        held = frozenset(
            Held(v, size[v], last_use[v] > number) for v in needs if last_use[v] > number or size[v] != own[v]
        )
        beside = live_bytes - sum(size[v] for v in needs)
        return beside + self.footprints.of(part, wanted, held).peak_bytes
