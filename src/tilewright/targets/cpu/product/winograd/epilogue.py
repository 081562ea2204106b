"""From the sums of one tile position to the stored output: initial value, `finish`, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.winograd.match import WinogradLoops
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.values import Int, Val


@dataclass(frozen=True, slots=True)
class TileIndex:
    """One output tile: its first row and column, its index along each batch dim, its group of channels."""

    row: Int
    column: Int
    batch: tuple[Int, ...]
    group: Int

    def offset(self, e: Emitter, start: Int, loops: WinogradLoops, place: str | int) -> Int:
        """Elements from the start of an operand (a, c, or one of the epilogue by its number) to this tile."""
        total = start
        axes = (loops.rows, loops.columns, *loops.batch)
        for index, loop in zip((self.row, self.column, *self.batch), axes, strict=True):
            total = e.add(total, e.mul(index, loop.moves(place)))
        if loops.groups is not None:
            total = e.add(total, e.mul(self.group, loops.groups.moves(place)))
        return total


def element_pointer(e: Emitter, base: Val, elements: Int, element_bytes: int = 4) -> Val:
    """`base` moved by elements, if it is moved at all."""
    return base if isinstance(elements, int) and elements == 0 else e.moved(base, elements, element_bytes)


@dataclass(slots=True)
class Epilogue:
    """Finishes one vector of channels of one tile; operands that do not vary within the tile are read once.

    `channel` is the first of `active` channels in `lanes` lanes.
    """

    emitter: Emitter
    plan: KernelPlan
    loops: WinogradLoops
    output: Val
    extras: Sequence[Val]
    at: TileIndex
    channel: Int
    lanes: int
    active: int
    _loaded: dict[tuple[int, int, int], Val] = field(default_factory=dict)

    def store(self, row: int, column: int, value: Val) -> None:
        """Finish and store the output at this row and column of the tile."""
        e, plan, loops = self.emitter, self.plan, self.loops

        def read(number: int) -> Val:
            return self._read(number, row, column)

        if plan.init is not None:
            first = emit_expr(e, plan.init, read, lanes=self.lanes)
            value = (e.fadd if plan.zeros is None else e.iadd)(value, first)
        if plan.finish is not None:
            value = emit_expr(e, plan.finish, read, value, lanes=self.lanes)
        dtype = plan.c.operand.dtype
        start = self.at.offset(e, e.add(self.channel, plan.c.offset), loops, "c")
        base = element_pointer(e, self.output, start, dtype.size_bytes)
        within = row * loops.rows.c + column * loops.columns.c
        store_lanes(e, dtype, value, e.gep(base, within * dtype.size_bytes), active=self.active)

    def _read(self, number: int, row: int, column: int) -> Val:
        e, loops, extra = self.emitter, self.loops, self.plan.extras[number]
        row_step, column_step = loops.rows.extras[number], loops.columns.extras[number]
        channel_step = loops.outputs.extras[number]
        key = (number, row if row_step else 0, column if column_step else 0)
        if key not in self._loaded:
            operand = extra.operand
            start = e.add(extra.offset, e.mul(self.channel, channel_step))
            start = self.at.offset(e, start, loops, number)
            elements = e.add(start, key[1] * row_step + key[2] * column_step)
            pointer = element_pointer(e, self.extras[number], elements, operand.dtype.size_bytes)
            self._loaded[key] = load_lanes(
                e, operand.dtype, pointer, self.lanes, stride=channel_step, active=self.active
            )
        return self._loaded[key]
