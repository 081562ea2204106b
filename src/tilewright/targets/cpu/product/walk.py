"""The loops of a product's kernel from a chunk down to its register tiles, and where each of them lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.targets.cpu.product.frame import Factor, Frame, Panel, Position
from tilewright.targets.cpu.product.loops import digits
from tilewright.targets.cpu.product.tiling import RowTile
from tilewright.targets.llvm.values import Int, Val

Range = tuple[Int, Int]


class TileWalk(ABC):
    """Emits a chunk of a plan whose columns lie in panels; the attributes are fixed facts."""

    def __init__(self, frame: Frame, factor: Factor) -> None:
        self.frame, self.emitter, self.factor = frame, frame.emitter, factor
        self.plan, self.panels = frame.plan, frame.plan.panels
        self.row_tiles = self.plan.row_tiles

    @abstractmethod
    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One of the chunk's panels for its units of rows."""

    def chunk(self, chunk: Val, num_rows: Val | None) -> None:
        """All tiles of a chunk, of as many rows as a run has."""
        self.products(*self.pieces(chunk, num_rows))

    def products(self, panels: Range, units: Range) -> None:
        """Panels by units of rows: panel by panel."""
        self.each_panel(panels, lambda index, panel: self.units(index, panel, panels, units))

    def pieces(self, chunk: Int, num_rows: Val | None) -> tuple[Range, Range]:
        """The panels of a chunk, and its units of rows."""
        e, cut = self.emitter, self.plan.cut
        panel_part: Int = e.urem(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else chunk
        row_part = e.udiv(chunk, cut.num_panel_parts)
        if cut.num_panel_parts == 1:
            panel_part, row_part = 0, chunk
        if cut.num_row_parts == 1:
            row_part = 0
        panels = e.piece(panel_part, cut.num_panel_parts, self.panels.num_panels)
        return panels, e.piece(row_part, cut.num_row_parts, self.asked_units(num_rows))

    def asked_units(self, num_rows: Val | None) -> Int:
        """Pieces that rows are cut into, of as many as a run has."""
        return self.asked(num_rows, self.plan.num_units)

    def asked(self, num_rows: Val | None, num_pieces: int) -> Int:
        """Of pieces, those of as many rows as a run has; without loops outside they are the tiles of one."""
        e, loop = self.emitter, self.plan.row_loop
        if num_rows is None or loop is None or loop.rows is None:
            return num_pieces
        extent = e.iterations(loop.rows, num_rows)
        if self.plan.outer:
            return e.mul(extent, num_pieces // loop.extent)
        first, *others = self.row_tiles
        if not others:
            return e.udiv(e.add(extent, first.rows - 1), first.rows)
        # The first tiles have one row more than those behind them.
        (second,) = others
        behind = e.udiv(e.add(e.max(e.sub(extent, second.start), 0), second.rows - 1), second.rows)
        before = e.udiv(e.add(e.min(extent, second.start), first.rows - 1), first.rows)
        return e.add(before, behind)

    def each_panel(self, panels: Range, body: Callable[[Int, Panel], None]) -> None:
        """Emit a body for full panels, and one for the last if it is narrower."""
        e, (first, last) = self.emitter, panels
        lanes, tail = self.panels.lanes, self.panels.tail
        full, narrow = self.step_strides()
        if self.panels.num_full:
            whole = Panel(self.panels.num_vectors, lanes, full)
            e.loop(first, e.min(last, self.panels.num_full), 1, lambda index, _: body(index, whole))
        if tail:
            rest = Panel(self.panels.tail_vectors, (tail - 1) % lanes + 1, narrow)
            is_last = e.compare("eq", last, self.panels.num_panels)
            e.if_(is_last, lambda: body(self.panels.num_full, rest))

    def step_strides(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Elements of B moved by summed loops in a full panel, and in a narrower one."""
        return {}, {}

    def panel_start(self, index: Int) -> tuple[Int, Int]:
        """Where a panel of B begins, and its first column."""
        e, factor = self.emitter, self.factor
        return e.add(e.mul(index, factor.panel_stride), factor.offset), e.mul(index, self.panels.width)

    def at_outer(self, number: Int, b: Int, column: Int) -> Position:
        """Offsets at one combination of the outer loops, at the panel's first column."""
        e, plan = self.emitter, self.plan
        a: Int = e.add(plan.a.offset, e.mul(column, plan.vector.a))
        c: Int = e.add(column, plan.c.offset)
        sums: Int = column
        extras: list[Int] = [
            e.add(e.mul(column, s), extra.offset)
            for s, extra in zip(plan.vector.extras, plan.extras, strict=True)
        ]
        indices: dict[str, Int] = {}
        for x, index in digits(e, number, plan.outer):
            indices[x.name] = index
            a = e.add(a, e.mul(index, x.a))
            b = e.add(b, e.mul(index, self.factor.outer_strides.get(x.name, 0)))
            sums = e.add(sums, e.mul(index, self.columns_between(x.name)))
            c = e.add(c, e.mul(index, x.c))
            extras = [e.add(o, e.mul(index, s)) for o, s in zip(extras, x.extras, strict=True)]
        return Position(a, b, c, tuple(extras), indices, sums)

    def columns_between(self, loop: str) -> int:
        """Columns that a step of an outer loop moves in the sums of B's columns."""
        return 0

    def at_row(self, position: Position, row: Int) -> Position:
        """Offsets `row` rows further."""
        e, step = self.emitter, self.plan.row
        return replace(
            position,
            a=e.add(position.a, e.mul(row, step.a)),
            c=e.add(position.c, e.mul(row, step.c)),
            extras=tuple(e.add(o, e.mul(row, s)) for o, s in zip(position.extras, step.extras, strict=True)),
        )

    def tile_number(self, number: Int, position: Position, tile: Callable[[int, Position], None]) -> None:
        """Emit the `number`-th row tile, whose size depends on where it lies."""
        e = self.emitter
        first, *others = self.row_tiles

        def at(size: RowTile, number: Int) -> None:
            row = e.add(e.mul(number, size.rows), size.start)
            tile(size.rows, self.at_row(position, row))

        if not others:
            at(first, number)
            return
        (second,) = others
        e.if_(
            e.compare("slt", number, first.count),
            lambda: at(first, number),
            lambda: at(second, e.sub(number, first.count)),
        )
