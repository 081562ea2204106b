"""A chain: operators that are tiled together, and how a step's part of each value follows from their nests.

Steps are tiles of the loops of the last contraction, the anchor. An axis of a value moves with at most
one of these loops, so what a step needs is a box whose sides are found loop by loop. Which axis moves with
which loop is read off the region functions of the nests; nothing here knows an operator by name.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from tilewright.errors import UsageError
from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import is_complex, is_pointwise, macs, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.nest import Affine, Dim, Nest
from tilewright.ir.region import Interval, Region, access_region, full_region, hull, volume
from tilewright.mapping.chains.sides import EMPTY, STILL, Reach, Side, hull_of

PartKind = Literal["result", "intermediate", "input", "constant"]
MAX_LAYERS = 6
"""Contractions of one chain."""
_MAX_EXTENT = 1 << 16  # of a loop in tiles: steps of one iteration are listed


class CannotFuse(UsageError):
    """Operators have no joint tiling; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Who reads a value: a part of the chain that is computed from it, through a node's input.

    `axes` says for each axis of what is computed which axis of the value moves with it. The anchor's operands
    are read by its loops: there `axes` is by the place of the loop.
    """

    part: int
    node: Node
    position: int
    axes: dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ChainPart:
    """A value of a chain. `axis_of_loop` has the axis that each loop moves, None where it moves none.

    A value that is not held is made in the place of the one computed from it. One that may stream comes from
    outside and can be read word by word: weights, as what they meet is on chip, and what is added to the
    result. One that leaves is needed by later operators, too: all of it is made, once, and written as it is
    made. `macs_per_word` are the multiply-accumulates of one element.
    """

    value: Value
    kind: PartKind
    whole: Region
    readers: tuple[Reader, ...]
    axis_of_loop: tuple[int | None, ...]
    is_held: bool = True
    may_stream: bool = False
    leaves: bool = False
    macs_per_word: int = 0
    still: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False)

    @property
    def num_words(self) -> int:
        """Elements that the chain needs of it."""
        return volume(self.whole)

    def num_still_words(self, loops: tuple[int, ...]) -> int:
        """Elements of the axes that none of these loops moves."""
        if loops not in self.still:
            moving = {self.axis_of_loop[loop] for loop in loops}
            sides = (stop - start for axis, (start, stop) in enumerate(self.whole) if axis not in moving)
            self.still[loops] = prod(sides)
        return self.still[loops]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Operators to tile together.

    `parts[0]` is what the anchor computes, in whose place pointwise operators after it write; each part comes
    after those computed from it. `loops` are the anchor's that may be tiled.
    """

    nodes: tuple[Node, ...]
    anchor: Node
    nest: Nest
    loops: tuple[Dim, ...]
    parts: tuple[ChainPart, ...]
    reaches: Reaches = field(repr=False)
    known: dict[tuple[object, ...], Side] = field(default_factory=dict, repr=False)

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates where nothing is computed twice."""
        return sum(part.macs_per_word * part.num_words for part in self.parts)

    @property
    def written_words(self) -> int:
        """What leaves: the result, and values that later operators need, too."""
        return sum(part.num_words for part in self.parts if part.leaves)

    def needed(self, part: ChainPart, loop: int, made: Sequence[Side]) -> Side:
        """What each step of a loop needs of a part whose readers make these sides: the hull of needs."""
        sides = []
        for reader, side in zip(part.readers, made, strict=True):
            key = part, reader, loop, side
            if key not in self.known:
                self.known[key] = self._reach(part, reader, loop).of(side)
            sides.append(self.known[key])
        if len(sides) == 1:
            return sides[0]
        together = (loop, *sides)
        if together not in self.known:
            self.known[together] = hull_of(sides)
        return self.known[together]

    def touched(self) -> list[int]:
        """Elements of each part that are needed at least, without what strides jump over."""
        sets: list[list[set[int]]] = []  # of each part the positions along its axes
        for part in self.parts:
            needs = [[set(range(*interval)) for interval in part.whole]]
            if part.readers and not part.leaves:
                needs = [self._touched_by(reader, part, sets) for reader in part.readers]
            sets.append(max(needs, key=lambda sides: prod(map(len, sides))))
        return [prod(map(len, sides)) for sides in sets]

    def _touched_by(self, reader: Reader, part: ChainPart, made: list[list[set[int]]]) -> list[set[int]]:
        sides = [set(range(*interval)) for interval in part.whole]
        for moved, axis in reader.axes.items():
            if reader.node is self.anchor:
                dim = self.loops[moved]
                reach = self.reaches.of_loop(self.anchor, reader.position, dim, axis)
                positions = set(range(dim.extent))
            else:
                whole = self.parts[reader.part].whole
                reach = self.reaches.of_axis(reader.node, reader.position, whole, moved, axis)
                positions = made[reader.part][moved]
            if reach.needs:
                sides[axis] &= {x for at in positions for x in range(*reach.needs[at - reach.start])}
        return sides

    def _reach(self, part: ChainPart, reader: Reader, loop: int) -> Reach:
        """What a reader needs of a part for each position along the axis that it computes in a loop."""
        if part.axis_of_loop[loop] is None:
            return STILL
        if reader.node is self.anchor:
            axis = reader.axes.get(loop)
            dim = self.loops[loop]
            return STILL if axis is None else self.reaches.of_loop(self.anchor, reader.position, dim, axis)
        computed = self.parts[reader.part]
        moved = computed.axis_of_loop[loop]
        axis = None if moved is None else reader.axes.get(moved)
        if moved is None or axis is None:
            return STILL
        return self.reaches.of_axis(reader.node, reader.position, computed.whole, moved, axis)


class Reaches:
    """What operators need of an operand along one axis; worked out once for all chains of a graph."""

    def __init__(self) -> None:
        self.maps = RegionMaps()
        self._known: dict[tuple[object, ...], Reach] = {}

    def of_loop(self, anchor: Node, position: int, dim: Dim, axis: int) -> Reach:
        """For each iteration of a loop of the anchor."""
        key = anchor, position, dim.name, axis
        if key not in self._known:
            (nest,) = nests_of(anchor)
            tiles = ({dim.name: (at, at + 1)} for at in range(dim.extent))
            regions = (_anchor_region(nest, position, tile) for tile in tiles)
            self._known[key] = Reach(0, tuple(EMPTY if r is None else r[axis] for r in regions))
        return self._known[key]

    def of_axis(self, node: Node, position: int, whole: Region, moved: int, axis: int) -> Reach:
        """For each position along an axis of an operator's result, of which `whole` is needed in all."""
        key = node, position, whole, moved, axis
        if key not in self._known:
            start, stop = whole[moved]
            parts = ((*whole[:moved], (at, at + 1), *whole[moved + 1 :]) for at in range(start, stop))
            regions = (self.maps.inputs_of(node, 0, part)[position] for part in parts)
            self._known[key] = Reach(start, tuple(EMPTY if r is None else r[axis] for r in regions))
        return self._known[key]


def chain_of(
    nodes: Sequence[Node],
    results: frozenset[Value] = frozenset(),
    *,
    most_layers: int = MAX_LAYERS,
    reaches: Reaches | None = None,
) -> Chain:
    """The chain of some nodes, given in order; `results` are values that must leave.

    Chains of one graph may share `reaches`.

    Raises:
        CannotFuse: they are no chain, or a value's axis moves with several loops.
    """
    anchor = next((node for node in reversed(nodes) if is_complex(node)), None)
    num_layers = sum(map(is_complex, nodes))
    if anchor is None or num_layers > most_layers:
        raise CannotFuse(f"chain: {num_layers} operators sum products; a chain has 1 to {most_layers}.")
    before, after = tuple(nodes[: nodes.index(anchor)]), tuple(nodes[nodes.index(anchor) + 1 :])
    leaving = _leaving(nodes, results)
    _check_after(anchor, after)
    nests = nests_of(anchor)
    if len(nests) != 1 or contraction_of(nests[0]) is None:
        raise CannotFuse(
            f"chain: node {anchor.name!r} is more than one sum of products; end the chain before it."
        )
    reaches = reaches or Reaches()
    unfolding = _Unfolding(anchor, nests[0], reaches.maps)
    for dim in unfolding.loops:
        if dim.extent > _MAX_EXTENT:
            raise CannotFuse(f"chain: {dim.name} has {dim.extent:,} iterations, more than {_MAX_EXTENT:,}.")
    unfolding.add_result(after)
    for value in leaving - set(nodes[-1].results()):
        if value.producer not in before:
            raise CannotFuse(f"chain: {value.name!r} is used outside the chain; end the chain there.")
    for node in reversed(before):
        unfolding.add_intermediate(node, leaving)
    unfolding.add_outside(after)
    return Chain(tuple(nodes), anchor, nests[0], unfolding.loops, tuple(unfolding.parts), reaches)


def _leaving(nodes: Sequence[Node], results: frozenset[Value]) -> set[Value]:
    """What later operators need of what nodes compute, each of them one value."""
    inside, leaving = set(nodes), set()
    for node in nodes:
        if len(list(node.results())) != 1 or node.captures or not nests_of(node):
            raise CannotFuse(
                f"chain: node {node.name!r} has several results or no loops; end the chain before it."
            )
        value = node.outputs[0]
        assert value is not None
        if value in results or not inside.issuperset(value.users) or not value.users:
            leaving.add(value)
    return leaving


def _check_after(anchor: Node, after: Sequence[Node]) -> None:
    for node in after:
        if not is_pointwise(node) or next(node.results()).shape != next(anchor.results()).shape:
            raise CannotFuse(f"chain: node {node.name!r} after the last sum of products is not pointwise.")


def _loops(nest: Nest) -> tuple[Dim, ...]:
    """Loops that may be tiled: no two of them move one axis of an operand, parallel ones come first."""
    taken: list[set[str]] = []
    chosen: list[Dim] = []
    sums = [
        set(index.dims())
        for access in (*nest.reads, nest.write)
        for index in access.index
        if isinstance(index, Affine) and len(index.terms) > 1
    ]
    for dim in (*nest.parallel_dims, *nest.reduce_dims):
        meets = [group for group in sums if dim.name in group]
        if dim.extent > 1 and not any(group & {d.name for d in chosen} for group in meets):
            if dim.role == "reduce" and meets:
                continue  # A window: its positions overlap those of the loop it slides along.
            chosen.append(dim)
            taken += meets
    return tuple(chosen)


def _anchor_region(nest: Nest, position: int, tiles: dict[str, Interval]) -> Region | None:
    intervals = {dim.name: tiles.get(dim.name, (0, dim.extent)) for dim in nest.dims}
    regions = [
        access_region(access, intervals) for access in nest.reads if access.operand.key == ("input", position)
    ]
    touched = [region for region in regions if region is not None]
    return hull(*touched) if touched else None


class _Unfolding:
    """The parts of a chain, from the anchor's result up to what comes from outside.

    `readers` are those of values that are no parts yet, `regions` what they need of them.
    """

    def __init__(self, anchor: Node, nest: Nest, maps: RegionMaps) -> None:
        self.anchor, self.nest, self.loops, self.maps = anchor, nest, _loops(nest), maps
        self.parts: list[ChainPart] = []
        self.readers: dict[Value, list[Reader]] = {}
        self.regions: dict[Value, Region] = {}

    def add_result(self, after: Sequence[Node]) -> None:
        """What the anchor computes, in whose place the operators after it write."""
        result = next(self.anchor.results())
        whole = full_region(result.shape)
        axes = tuple(_written_axis(self.nest, loop) for loop in self.loops)
        macs_per_word = _macs_per_word(self.anchor)
        part = ChainPart(result, "result", whole, (), axes, leaves=True, macs_per_word=macs_per_word)
        self.parts.append(part)
        needs = [_anchor_region(self.nest, position, {}) for position in range(len(self.anchor.inputs))]
        self._add_readers(self.anchor, _anchor_axes(self.anchor, self.nest, self.loops), needs)
        made = {result, *(value for node in after for value in node.results())}
        for node in after:
            from_others = [
                need if value not in made else None
                for value, need in zip(node.inputs, self.maps.inputs_of(node, 0, whole), strict=True)
            ]
            self._add_readers(node, _node_axes(node, whole, from_others, self.maps), from_others)

    def add_intermediate(self, node: Node, leaving: Set[Value]) -> None:
        """What an operator before the anchor computes.

        Raises:
            CannotFuse: nothing needs it, or a part of what must leave, or its axes move in no single way.
        """
        value = next(node.results())
        if value not in self.readers:
            raise CannotFuse(f"chain: nothing in it needs {value.name!r}; leave node {node.name!r} out.")
        part = self._part(value, "intermediate", _macs_per_word(node))
        if value in leaving:
            if part.whole != full_region(value.shape):
                raise CannotFuse(f"chain: {value.name!r} leaves, but only a part of it is needed inside.")
            part = replace(part, is_held=True, leaves=True)
        self.parts.append(part)
        needs = self.maps.inputs_of(node, 0, part.whole)
        self._add_readers(node, _node_axes(node, part.whole, needs, self.maps), needs)

    def add_outside(self, after: Sequence[Node]) -> None:
        """What is left: values that none of the operators computes."""
        for value in list(self.readers):
            part = self._part(value, "constant" if value.is_constant else "input")
            may_stream = value.is_constant or all(reader.node in after for reader in part.readers)
            self.parts.append(replace(part, may_stream=may_stream))

    def _add_readers(
        self, node: Node, axes: Sequence[dict[int, int]], needs: Sequence[Region | None]
    ) -> None:
        """Note what a node that makes the last part, or writes in its place, needs of its operands."""
        last = len(self.parts) - 1
        for position, (value, need) in enumerate(zip(node.inputs, needs, strict=True)):
            if value is not None and need is not None:
                self.readers.setdefault(value, []).append(Reader(last, node, position, axes[position]))
                self.regions[value] = hull(self.regions[value], need) if value in self.regions else need

    def _part(self, value: Value, kind: PartKind, macs_per_word: int = 0) -> ChainPart:
        readers = tuple(self.readers.pop(value))
        axes, whole = self._axis_of_loop(value, readers), self.regions[value]
        is_held = (
            kind != "intermediate" or len(readers) > 1 or not _is_in_place(value, readers[0], self.parts)
        )
        return ChainPart(value, kind, whole, readers, axes, is_held, macs_per_word=macs_per_word)

    def _axis_of_loop(self, value: Value, readers: Sequence[Reader]) -> tuple[int | None, ...]:
        """The axis of a value that each loop moves.

        Raises:
            CannotFuse: there are several, or two loops move one axis.
        """
        axis_of_loop: list[int | None] = []
        for loop, dim in enumerate(self.loops):
            moved = {self._moved(reader, loop) for reader in readers}
            if None in moved:
                moved = {None}  # Who needs all of an axis in each step needs what the others do.
            if len(moved) > 1:
                raise CannotFuse(
                    f"chain: {value.name!r} is read along different axes for tiles of {dim.name}."
                )
            axis_of_loop += moved
        used = [axis for axis in axis_of_loop if axis is not None]
        if len(set(used)) < len(used):
            raise CannotFuse(
                f"chain: an axis of {value.name!r} moves with two loops of {self.anchor.name!r}."
            )
        return tuple(axis_of_loop)

    def _moved(self, reader: Reader, loop: int) -> int | None:
        if reader.node is self.anchor:
            return reader.axes.get(loop)
        axis = self.parts[reader.part].axis_of_loop[loop]
        return None if axis is None else reader.axes.get(axis)


def _is_in_place(value: Value, reader: Reader, parts: Sequence[ChainPart]) -> bool:
    """Whether a value's place is taken by the only one computed from it, element by element."""
    node = reader.node
    others = [v for v in node.inputs if v is not None and v is not value and v.shape == value.shape]
    computed = parts[reader.part].value
    return is_pointwise(node) and computed.shape == value.shape and all(v.is_constant for v in others)


def _macs_per_word(node: Node) -> int:
    result = next(node.results())
    return macs(node) // max(1, result.num_elements)


def _written_axis(nest: Nest, loop: Dim) -> int | None:
    axes = [
        axis
        for axis, index in enumerate(nest.write.index)
        if isinstance(index, Affine) and loop.name in index.dims()
    ]
    return axes[0] if axes else None


def _anchor_axes(anchor: Node, nest: Nest, loops: Sequence[Dim]) -> list[dict[int, int]]:
    """Of each input, by the place of a loop, the axis that the loop moves."""
    listed = []
    for position in range(len(anchor.inputs)):
        whole = _anchor_region(nest, position, {})
        axes: dict[int, int] = {}
        for place, loop in enumerate(loops):
            parts = [_anchor_region(nest, position, {loop.name: end}) for end in _ends((0, loop.extent))]
            _note_axis(axes, place, whole, parts, f"node {anchor.name!r}")
        listed.append(axes)
    return listed


def _node_axes(
    node: Node, whole: Region, needs: Sequence[Region | None], maps: RegionMaps
) -> list[dict[int, int]]:
    """Of each input, by the axis of the result, the axis that moves with it."""
    listed: list[dict[int, int]] = [{} for _ in needs]
    for axis, interval in enumerate(whole):
        if interval[1] - interval[0] < 2:
            continue
        ends = [maps.inputs_of(node, 0, (*whole[:axis], end, *whole[axis + 1 :])) for end in _ends(interval)]
        for position, need in enumerate(needs):
            _note_axis(listed[position], axis, need, [end[position] for end in ends], f"node {node.name!r}")
    return listed


def _ends(interval: Interval) -> tuple[Interval, Interval]:
    return (interval[0], interval[0] + 1), (interval[1] - 1, interval[1])


def _note_axis(
    axes: dict[int, int], place: int, whole: Region | None, ends: Sequence[Region | None], what: str
) -> None:
    """Remember which axis changes if only one end is asked for.

    Raises:
        CannotFuse: several do, or the last part comes first.
    """
    if whole is None:
        return
    first, last = ends
    moving = [
        axis
        for axis, interval in enumerate(whole)
        if any(end is not None and end[axis] != interval for end in ends)
    ]
    if len(moving) > 1:
        raise CannotFuse(f"chain: {what} spreads one axis of its result over several of an input.")
    if moving:
        (axis,) = moving
        if first is not None and last is not None and last[axis][0] < first[axis][0]:
            raise CannotFuse(f"chain: {what} reads an axis from its end.")
        axes[place] = axis
