"""What is asked of tilers: the operands of a step, what each of them needs for a part of its main result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.nest import Access
from tilewright.ir.region import Region, volume
from tilewright.mapping.network import products_of
from tilewright.schedule.binding import Binding, extents
from tilewright.targets.npu.mapped_products import axes_of_dims, restricted_nest
from tilewright.targets.npu.tiles import Moved, TileRequest


@dataclass(frozen=True, slots=True, eq=False)
class RequestPart:
    """A part of a value that a step reads or writes, or of a constant that it needs, and where it lives.

    `reader` is the node that reads a constant, and as which of its inputs. `num_places` is how often it lies
    in a core that holds it.
    """

    value: Value
    region: Region
    size_bytes: int
    is_local: bool = False
    is_main: bool = True
    reader: tuple[Node, int] | None = None
    num_places: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """The parts that a step moves. `regions` are those of all values of its operators, `binding` is that of
    the main result, of which tiles are parts."""

    operators: Sequence[Node]
    regions: Mapping[Value, Region]
    main: Value
    binding: Binding
    weights: Sequence[RequestPart]
    loads: Sequence[RequestPart]
    stores: Sequence[RequestPart]


@dataclass(slots=True)
class TileRequests:
    """Makes requests for steps of one graph, of which buffers leave so many bytes free."""

    maps: RegionMaps
    local_bytes: int
    shared_bytes: int

    def plain(self, parts: StepParts) -> TileRequest:
        """The request for a step, without what it multiplies."""
        whole = parts.regions[parts.main]
        of_one = [self._regions_of_one(parts, axis) for axis in range(len(whole))]
        return TileRequest(
            tuple(self._weight(parts, part, of_one) for part in parts.weights),
            tuple(self._value(parts, part, of_one) for part in parts.loads),
            tuple(self._value(parts, part, of_one) for part in parts.stores),
            extents(whole),
            self.local_bytes,
            self.shared_bytes,
            layer=parts.operators[0].name,
        )

    def passed_on(
        self, loads: Sequence[tuple[int, bool, bool, int]], stores: Sequence[tuple[int, bool, bool, int]]
    ) -> TileRequest:
        """The request for a step that puts together or copies. Of each operand: bytes, whether it lives in
        the cores, whether in main memory, how often it lies in a core."""
        read, written = (tuple(Moved(*x) for x in listed) for listed in (loads, stores))
        return TileRequest((), read, written, (), self.local_bytes, self.shared_bytes, is_passed_on=True)

    def _regions_of_one(self, parts: StepParts, axis: int) -> Mapping[Value, Region]:
        """Regions of all values for one element along an axis, in the middle, where no border cuts it off."""
        whole = parts.regions[parts.main]
        start, stop = whole[axis]
        middle = (start + stop) // 2
        part = (*whole[:axis], (middle, min(stop, middle + 1)), *whole[axis + 1 :])
        return value_regions(parts.operators, {parts.main: part}, self.maps)

    def _value(self, parts: StepParts, part: RequestPart, of_one: Sequence[Mapping[Value, Region]]) -> Moved:
        needs = [regions.get(part.value, part.region) for regions in of_one]
        return self._moved(parts, part, needs)

    def _weight(self, parts: StepParts, part: RequestPart, of_one: Sequence[Mapping[Value, Region]]) -> Moved:
        if part.reader is None:
            return self._moved(parts, part, [part.region for _ in of_one])
        node, position = part.reader
        needs = [self._part_of(node, position, regions) or part.region for regions in of_one]
        return self._moved(parts, part, needs)

    def _part_of(self, node: Node, position: int, regions: Mapping[Value, Region]) -> Region | None:
        for number, value in enumerate(node.outputs):
            if value is not None and value in regions:
                return self.maps.inputs_of(node, number, regions[value])[position]
        return None

    def _moved(self, parts: StepParts, part: RequestPart, needs: Sequence[Region]) -> Moved:
        size, elements = part.size_bytes, max(1, volume(part.region))
        axis_bytes = tuple(min(size, -(-size * volume(need) // elements)) for need in needs)
        pairs = zip(axis_bytes, parts.binding, strict=True)
        return Moved(
            size,
            part.is_local,
            part.is_main,
            part.num_places * prod(cores for needed, cores in pairs if needed >= size),
            axis_bytes,
            max(1, size // elements),
            passes=_passes(parts.operators, part.value),
        )

    def detailed(self, request: TileRequest, parts: StepParts) -> TileRequest:
        """The request with the sum of products that the step computes, if it computes one."""
        sums = [(node, nest) for node in parts.operators for nest in nests_of(node) if contraction_of(nest)]
        if len(sums) != 1 or len({part.value for part in parts.loads}) < len(parts.loads):
            return request  # an operand in several buffers is no box
        ((node, nest),) = sums
        region = parts.regions.get(node.output)
        restricted = None if region is None else restricted_nest(nest, region)
        products = None if restricted is None else products_of(node, restricted)
        if restricted is None or products is None or region is None:
            return request
        roles: dict[RequestPart, str] = {}
        for name, access in products.accesses.items():
            part = _written(parts) if name == "Outputs" else _read(parts, node, access)
            if part is not None:
                roles[part] = name

        def named(moved: tuple[Moved, ...], listed: Sequence[RequestPart]) -> tuple[Moved, ...]:
            pairs = zip(moved, listed, strict=True)
            return tuple(replace(x, role=roles.get(part, "")) for x, part in pairs)

        is_alike = extents(region) == request.extents
        return replace(
            request,
            weights=named(request.weights, parts.weights),
            loads=named(request.loads, parts.loads),
            stores=named(request.stores, parts.stores),
            problem=replace(products.problem, name=""),
            result_axes=axes_of_dims(restricted, products.problem) if is_alike else (),
        )


def _written(parts: StepParts) -> RequestPart | None:
    return next((part for part in parts.stores if part.value is parts.main), None)


def _read(parts: StepParts, node: Node, access: Access) -> RequestPart | None:
    """What an operand of products is among what the step reads; None of what it reads nothing for."""
    value = node.inputs[access.operand.position] if access.operand.kind == "input" else None
    if value is None:
        return None
    if value.is_constant:
        return next((part for part in parts.weights if part.value is value), None)
    makers = {made: maker for maker in parts.operators for made in maker.results()}
    while value in makers:
        # What one operator makes of one operand arrives as that operand does.
        before = [v for v in makers[value].inputs if v is not None and not v.is_constant]
        if len(before) != 1:
            return None
        (value,) = before
    return next((part for part in parts.loads if part.value is value), None)


def _passes(operators: Sequence[Node], value: Value) -> int:
    """How often operators go through a value, if they hold none of it: once for each nest that reads it."""
    counts = [
        sum(any(a.operand.key == ("input", place) for a in nest.reads) for nest in nests_of(node))
        for node in operators
        for place, operand in enumerate(node.inputs)
        if operand is value
    ]
    return max([1, *counts])
