"""From the sums of one tile position to the stored output: initial value, `finish`, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.loops import StridedLoop
from tilewright.targets.cpu.product.winograd.match import WinogradProblem
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

    def offset(self, e: Emitter, start: Int, problem: WinogradProblem, operand: str, read: int = 0) -> Int:
        """Elements from the start of an operand (a, c, or the `read`-th extra) to this tile."""
        total = start
        loops = (problem.rows, problem.columns, *problem.batch)
        for index, loop in zip((self.row, self.column, *self.batch), loops, strict=True):
            total = e.add(total, e.mul(index, _step(loop, operand, read)))
        if problem.groups is not None:
            total = e.add(total, e.mul(self.group, _step(problem.groups, operand, read)))
        return total


def _step(loop: StridedLoop, operand: str, read: int) -> int:
    match operand:
        case "a":
            return loop.a
        case "c":
            return loop.c
    return loop.extras[read]


def element_pointer(e: Emitter, base: Val, elements: Int, element_bytes: int = 4) -> Val:
    """`base` moved by elements, if it is moved at all."""
    return base if isinstance(elements, int) and elements == 0 else e.moved(base, elements, element_bytes)


@dataclass(slots=True)
class Epilogue:
    """Finishes one vector of channels of one tile; operands that do not vary within the tile are read once.

    `channel` is the first of `active` channels in `lanes` lanes.
    """

    emitter: Emitter
    problem: WinogradProblem
    output: Val
    extras: Sequence[Val]
    at: TileIndex
    channel: Int
    lanes: int
    active: int
    _loaded: dict[tuple[int, int, int], Val] = field(default_factory=dict)

    def store(self, row: int, column: int, value: Val) -> None:
        """Finish and store the output at this row and column of the tile."""
        e, problem, nest = self.emitter, self.problem, self.problem.nest

        def read(index: int) -> Val:
            return self._read(problem.contraction.extra_reads.index(index), row, column)

        if nest.init is not None:
            value = e.fadd(value, emit_expr(e, nest.init, read, lanes=self.lanes))
        if nest.finish is not None:
            value = emit_expr(e, nest.finish, read, value, lanes=self.lanes)
        dtype = nest.write.operand.dtype
        start = self.at.offset(e, e.add(self.channel, problem.contraction.c_offset), problem, "c")
        base = element_pointer(e, self.output, start, dtype.size_bytes)
        within = row * problem.rows.c + column * problem.columns.c
        store_lanes(e, dtype, value, e.gep(base, within * dtype.size_bytes), active=self.active)

    def _read(self, number: int, row: int, column: int) -> Val:
        e, problem = self.emitter, self.problem
        row_step, column_step = problem.rows.extras[number], problem.columns.extras[number]
        channel_step = problem.outputs.extras[number]
        key = (number, row if row_step else 0, column if column_step else 0)
        if key not in self._loaded:
            operand = problem.nest.reads[problem.contraction.extra_reads[number]].operand
            start = e.add(problem.contraction.extra_offsets[number], e.mul(self.channel, channel_step))
            start = self.at.offset(e, start, problem, "extra", number)
            elements = e.add(start, key[1] * row_step + key[2] * column_step)
            pointer = element_pointer(e, self.extras[number], elements, operand.dtype.size_bytes)
            self._loaded[key] = load_lanes(
                e, operand.dtype, pointer, self.lanes, stride=channel_step, active=self.active
            )
        return self._loaded[key]
