"""The ways to run one operator in a step whose operands are in part on chip: what passes in which pieces.

Of the operands from outside one passes word by word, the others in tiles that stay while it passes. Dims are
of four sorts: those that move all operands go one by one, outside; the others are tiled where this
lets a smaller tile stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple, Self

from tilewright.mapping.chains.nested import Axis, Operator
from tilewright.mapping.factors import quotients

Loops = tuple[tuple[str, int], ...]


class Tile(NamedTuple):
    """Loops over some dims: the iterations of one step, and the steps."""

    size: int
    steps: int
    loops: Loops


class LeafWay(NamedTuple):
    """Words held and moved; loops from the outermost, the depths of operands that stay, and which streams."""

    held: int
    moved: int
    loops: Loops
    depths: tuple[tuple[str, int], ...]
    streamed: str | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """The dims of an operator in a box, by which operands they move.

    `rows` move input and result, `columns` weights and result, `sums` input and weights, `alike` all of them.
    `input_rows` are the elements of the input along the axes of rows, which are more where windows slide.
    """

    rows: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    sums: tuple[tuple[str, int], ...]
    alike: tuple[tuple[str, int], ...]
    windows: tuple[tuple[str, int], ...]
    input_rows: int
    input_alike: int
    slides: bool

    @classmethod
    def of(
        cls, operator: Operator, place: int, axes: Sequence[Axis], lengths: Mapping[int, tuple[int, int]]
    ) -> Self:
        """Those of a box with (elements that are made, that are needed) along each axis."""
        sorts: dict[tuple[bool, bool, bool], list[tuple[str, int]]] = {}
        input_rows = input_alike = 1
        slides = bool(operator.windows)
        for number in sorted(operator.axes):
            made, needed = lengths[number]
            sort = number in operator.inputs, number in operator.weights, number in operator.outputs
            if sort == (True, False, True):
                input_rows *= needed
                axis = axes[number]
                slides |= axis.reaches[place - axis.first] is not None
            elif all(sort):
                input_alike *= needed
            length = made if sort[2] else needed
            if length != 1:
                sorts.setdefault(sort, []).append((axes[number].dims[place], length))
        return cls(
            tuple(sorts.get((True, False, True), ())),
            tuple(sorts.get((False, True, True), ())),
            tuple(sorts.get((True, True, False), ())),
            tuple(sorts.get((True, True, True), ())),
            operator.windows,
            input_rows,
            input_alike,
            slides,
        )


def leaf_ways(lengths: Lengths, is_outside: Mapping[str, bool]) -> Iterator[LeafWay]:
    """The ways that may hold or move least: input "x", weights "w" and result "y", if from outside."""
    outside = "".join(kind for kind in "xwy" if is_outside[kind])
    numbers = _Numbers(lengths)
    if numbers.is_empty or not outside:
        yield LeafWay(0, 0, (), (), None)
    elif len(outside) == 1:
        yield LeafWay(1, numbers.words[outside], (), (), outside)
    else:
        yield from getattr(numbers, f"of_{outside}")()


class _Numbers:
    """What all ways of a box take."""

    def __init__(self, lengths: Lengths) -> None:
        self.slides = lengths.slides
        self.rows, self.columns = _size(lengths.rows), _size(lengths.columns)
        self.window = _size(lengths.windows)
        self.sums = _size(lengths.sums)
        alike = _size(lengths.alike)
        self.is_empty = not self.rows * self.columns * self.sums * alike
        self.input_rows = lengths.input_rows
        self.words = {
            "x": lengths.input_alike * lengths.input_rows * self.sums,
            "w": alike * self.window * self.sums * self.columns,
            "y": alike * self.rows * self.columns,
        }
        self.alike: Loops = tuple((name, 1) for name, _ in lengths.alike)
        self.by_row: Loops = tuple((name, 1) for name, _ in lengths.rows)
        self.by_column: Loops = tuple((name, 1) for name, _ in lengths.columns)
        self.by_sum: Loops = tuple((name, 1) for name, _ in lengths.sums)
        self.by_window: Loops = tuple((name, 1) for name, _ in lengths.windows)
        self.row_tiles = _tiles(lengths.rows)
        self.column_tiles = _tiles(lengths.columns)
        self.sum_tiles = _tiles(lengths.sums)
        # Sums over windows, too: all of the window, or parts of it for one sum each.
        self.weight_tiles = [Tile(t.size * self.window, t.steps, t.loops) for t in self.sum_tiles]
        self.weight_tiles += [
            Tile(t.size, t.steps * self.sums, (*self.by_sum, *t.loops))
            for t in _tiles(lengths.windows)
            if t.steps > 1
        ]
        self.whole_rows = [Tile(self.rows, 1, ())]

    def of_xw(self) -> Iterator[LeafWay]:
        """The result adds up on chip: an input stays for a word of each sum, or weights do."""
        x, w = self.words["x"], self.words["w"]
        before = (*self.alike, *self.by_sum)
        for size, steps, loops in self.whole_rows if self.slides else self.row_tiles:
            held = self.input_rows if self.slides else size
            loops = (*before, *loops)
            yield LeafWay(held + 1, x + w * steps, loops, (("x", len(loops)),), "w")
        for size, steps, loops in self.column_tiles:
            loops = (*before, *loops)
            yield LeafWay(size * self.window + 1, w + x * steps, loops, (("w", len(loops)),), "x")

    def of_wy(self) -> Iterator[LeafWay]:
        """The input is there."""
        w, y = self.words["w"], self.words["y"]
        for size, steps, loops in self.row_tiles:
            loops = (*self.alike, *self.by_column, *loops)
            yield LeafWay(size + 1, y + w * steps, loops, (("y", len(loops)),), "w")
        for size, steps, loops in self.weight_tiles:
            loops = (*self.alike, *self.by_column, *loops)
            yield LeafWay(size + 1, w + y * (2 * steps - 1), loops, (("w", len(loops)),), "y")

    def of_xy(self) -> Iterator[LeafWay]:
        """Weights are there."""
        x, y = self.words["x"], self.words["y"]
        rows = () if self.slides else self.by_row
        for size, steps, loops in self.column_tiles:
            loops = (*self.alike, *rows, *loops)
            held = size * self.rows if self.slides else size
            yield LeafWay(held + 1, y + x * steps, loops, (("y", len(loops)),), "x")
        for size, steps, loops in self.sum_tiles:
            loops = (*self.alike, *rows, *loops)
            held = size * self.input_rows if self.slides else size
            yield LeafWay(held + 1, x + y * (2 * steps - 1), loops, (("x", len(loops)),), "y")

    def of_xwy(self) -> Iterator[LeafWay]:
        """Nothing is there: one operand stays in tiles, and of another one what the third one meets."""
        x, w, y = (self.words[kind] for kind in "xwy")
        all_rows = self.whole_rows if self.slides else self.row_tiles
        for row, column in product(all_rows, self.column_tiles):
            outer = (*self.alike, *row.loops, *column.loops)
            loops = (*outer, *self.by_sum)
            input_words = self.input_rows if self.slides else row.size
            for inner, kind, other in (
                (input_words, "x", "w"),
                (column.size * self.window, "w", "x"),
            ):
                depths = ("y", len(outer)), (kind, len(loops))
                held = row.size * column.size + inner + 1
                yield LeafWay(held, y + x * column.steps + w * row.steps, loops, depths, other)
        for row, summed in product(all_rows, self.sum_tiles):
            outer = (*self.alike, *row.loops, *summed.loops)
            loops = (*outer, *self.by_column)
            input_words = (self.input_rows if self.slides else row.size) * summed.size
            for inner, kind, other in ((row.size, "y", "w"), (summed.size * self.window, "w", "y")):
                depths = ("x", len(outer)), (kind, len(loops))
                moved = x + w * row.steps + y * (2 * summed.steps - 1)
                yield LeafWay(input_words + inner + 1, moved, loops, depths, other)
        if self.slides:
            return
        for column, summed in product(self.column_tiles, self.sum_tiles):
            outer = (*self.alike, *column.loops, *summed.loops)
            loops = (*outer, *self.by_row)
            for inner, kind, other in ((column.size, "y", "x"), (summed.size, "x", "y")):
                depths = ("w", len(outer)), (kind, len(loops))
                moved = w + x * column.steps + y * (2 * summed.steps - 1)
                yield LeafWay(column.size * summed.size + inner + 1, moved, loops, depths, other)


def _size(dims: Sequence[tuple[str, int]]) -> int:
    return prod(extent for _, extent in dims)


def _tiles(dims: Sequence[tuple[str, int]]) -> list[Tile]:
    """Tiles of some dims of which none is as small as another one with as few steps."""
    listed = [
        Tile(
            prod(sizes),
            prod(-(-extent // size) for size, (_, extent) in zip(sizes, dims, strict=True)),
            tuple((name, size) for size, (name, extent) in zip(sizes, dims, strict=True) if size < extent),
        )
        for sizes in product(*(quotients(extent) for _, extent in dims))
    ]
    listed.sort(key=lambda tile: tile[:2])
    best: list[Tile] = []
    for tile in listed:
        if not best or tile.steps < best[-1].steps:
            best.append(tile)
    return best
