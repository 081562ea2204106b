"""From sums to the result: what is computed behind the products, and the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.loops import WindowLoop
from tilewright.targets.cpu.product.matrix.frame import Chunk, Columns, Frame
from tilewright.targets.cpu.product.matrix.tiles import TILE_COLUMNS
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.values import I64, Int, Val

# Rows finished together: enough to hide latencies, few enough for the registers.
_FINISH_ROWS = 4
Fixed = dict[tuple[int, int], Val]
"""Operands that do not vary with the position, by number and column tile."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Emits what becomes of sums."""

    frame: Frame

    def block(self, number: Int, work: Chunk, columns: Columns, fixed: Fixed) -> None:
        """Finish and store the positions of a block that exist, one run of neighbours after the other."""
        e, grid, num = self.frame.emitter, self.frame.grid, columns.block.num_positions
        position = e.mul(number, num)
        if grid.has_window:
            pitch, extent = grid.pitch, grid.row.extent
            units = e.sub(work.last, work.first)
            end = e.min(e.add(position, num), e.add(e.mul(e.sub(units, 1), pitch), extent))
            begin = position
        else:
            axes = self.frame.problem.axes
            pitch = extent = axes[-1].extent
            begin = e.add(position, e.mul(work.first, num))
            end = e.min(e.add(begin, num), work.end)

        def run(at: Int, length: Int) -> None:
            row_bytes = columns.block.columns * TILE_BYTES_PER_ROW
            sums = e.gep(self.frame.block_sums(number), e.mul(e.sub(at, begin), row_bytes))
            self._run(sums, at, length, work, columns, fixed)

        if not grid.has_window and len(self.frame.problem.axes) == 1:
            run(begin, e.sub(end, begin))
            return

        def segment(carried: list[Val]) -> tuple[Val, Sequence[Val]]:
            (at,) = carried
            within = e.urem(at, pitch)
            length = e.min(e.sub(extent, within), e.sub(end, at))
            if pitch == extent:
                run(at, length)
            else:
                e.if_(e.compare("slt", within, extent), lambda: run(at, length))
            following = e.index(e.add(at, e.sub(pitch, within)))
            again = e.compare("slt", following, end)
            assert isinstance(again, Val)
            return again, (following,)

        e.do_while(segment, [(I64, e.index(begin))])

    def _run(
        self,
        sums: Val,
        position: Int,
        length: Int,
        work: Chunk,
        columns: Columns,
        fixed: Fixed,
    ) -> None:
        """`length` positions along the innermost axis; `sums` are those of the first."""
        e, problem = self.frame.emitter, self.frame.problem
        axis = problem.axes[-1]
        c = self._output_offset(
            position, work, e.add(problem.contraction.c_offset, columns.first), lambda x: x.c
        )
        extras = [
            self._output_offset(
                position,
                work,
                e.add(start, e.mul(columns.first, step)),
                lambda x, n=number: x.extras[n],  # type: ignore[misc]  # bound at once
            )
            for number, (start, step) in enumerate(
                zip(problem.contraction.extra_offsets, problem.columns_extras, strict=True)
            )
        ]

        def rows(count: int) -> Callable[[Int, Sequence[Val]], None]:
            def body(number: Int, _: Sequence[Val]) -> None:
                for k in range(count):
                    r = e.add(number, k)
                    here = [e.add(o, e.mul(r, s)) for o, s in zip(extras, axis.extras, strict=True)]
                    at = e.gep(sums, e.mul(r, columns.block.columns * TILE_BYTES_PER_ROW))
                    self._row(at, e.add(c, e.mul(r, axis.c)), here, columns, fixed)

            return body

        if _FINISH_ROWS == 1 or length == 1:
            e.loop(0, length, 1, rows(1))
            return
        whole = e.mul(e.udiv(length, _FINISH_ROWS), _FINISH_ROWS)
        e.loop(0, whole, _FINISH_ROWS, rows(_FINISH_ROWS))
        e.loop(whole, length, 1, rows(1))

    def _output_offset(
        self, position: Int, work: Chunk, start: Int, step: Callable[[WindowLoop], int]
    ) -> Int:
        """Elements to an output position, counted within the chunk where there is a window."""
        e, grid = self.frame.emitter, self.frame.grid
        if not grid.has_window:
            return self.frame.walk(position, start, step)
        line = e.add(work.first, e.udiv(position, grid.pitch))
        total = self.frame.batch_offset(work.batch, start, step)
        if len(self.frame.problem.axes) > 1:
            total = e.add(total, e.mul(line, step(grid.line)))
        return e.add(total, e.mul(e.urem(position, grid.pitch), step(grid.row)))

    def _row(self, sums: Val, c: Int, extras: Sequence[Int], columns: Columns, fixed: Fixed) -> None:
        """One position: every column tile's sums finished and stored."""
        e, problem = self.frame.emitter, self.frame.problem
        nest = problem.nest
        dtype = nest.write.operand.dtype
        for j in range(columns.block.columns):
            active = columns.active if j == columns.block.columns - 1 else TILE_COLUMNS

            def read(index: int, j: int = j, active: int = active) -> Val:
                number = problem.contraction.extra_reads.index(index)
                if (number, j) in fixed:
                    return fixed[number, j]
                return self._extra(number, extras[number], j, active)

            value = e.load(self.frame.type, e.gep(sums, j * TILE_BYTES_PER_ROW), align_bytes=64)
            if nest.init is not None:
                value = e.fadd(value, emit_expr(e, nest.init, read, lanes=TILE_COLUMNS))
            if nest.finish is not None:
                value = emit_expr(e, nest.finish, read, value, lanes=TILE_COLUMNS)
            pointer = self.frame.pointer("c", e.add(c, j * TILE_COLUMNS), dtype.size_bytes)
            store_lanes(e, dtype, value, pointer, active=active)

    def _extra(self, number: int, start: Int, j: int, active: int) -> Val:
        e, problem = self.frame.emitter, self.frame.problem
        operand = problem.nest.reads[problem.contraction.extra_reads[number]].operand
        step = problem.columns_extras[number]
        elements = e.add(start, j * TILE_COLUMNS * step)
        pointer = e.moved(self.frame.extra_pointers[number], elements, operand.dtype.size_bytes)
        return load_lanes(e, operand.dtype, pointer, TILE_COLUMNS, stride=step, active=active)

    def fixed_reads(self, columns: Columns) -> Fixed:
        """Epilogue operands that do not vary with the position, by number and column tile: a bias."""
        e, problem = self.frame.emitter, self.frame.problem
        fixed: Fixed = {}
        for number, (start, step) in enumerate(
            zip(problem.contraction.extra_offsets, problem.columns_extras, strict=True)
        ):
            if any(x.extras[number] for x in problem.axes if x.extent > 1):
                continue
            for j in range(columns.block.columns):
                active = columns.active if j == columns.block.columns - 1 else TILE_COLUMNS
                at = e.add(start, e.mul(columns.first, step))
                fixed[number, j] = self._extra(number, at, j, active)
        return fixed
