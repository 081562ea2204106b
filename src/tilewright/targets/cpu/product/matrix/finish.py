"""From sums to the result: what is computed behind the products, and the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.records import dataclass
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.epilogue import Loaded, elementwise, load_operand, store_tile
from tilewright.targets.cpu.product.frame import Panel, Position
from tilewright.targets.cpu.product.loops import WindowLoop
from tilewright.targets.cpu.product.matrix.frame import Chunk, Columns, MatrixFrame
from tilewright.targets.llvm.values import I64, Int, Val

# Rows finished together: enough to hide latencies, few enough for the registers.
_FINISH_ROWS = 4


@dataclass(frozen=True, slots=True)
class Finish:
    """Emits what becomes of sums."""

    frame: MatrixFrame

    def block(self, number: Int, work: Chunk, columns: Columns, fixed: Loaded) -> None:
        """Finish and store the positions of a block that exist, one run of neighbours after the other."""
        e, grid, num = self.frame.emitter, self.frame.grid, columns.block.num_positions
        position = e.mul(number, num)
        if grid.has_window:
            pitch, extent = grid.pitch, grid.row.extent
            units = e.sub(work.last, work.first)
            end = e.min(e.add(position, num), e.add(e.mul(e.sub(units, 1), pitch), extent))
            begin = position
        else:
            axes = self.frame.loops.axes
            pitch = extent = axes[-1].extent
            begin = e.add(position, e.mul(work.first, num))
            end = e.min(e.add(begin, num), work.end)

        def run(at: Int, length: Int) -> None:
            row_bytes = columns.block.columns * TILE_BYTES_PER_ROW
            sums = e.gep(self.frame.block_sums(number), e.mul(e.sub(at, begin), row_bytes))
            self._run(sums, at, length, work, columns, fixed)

        if not grid.has_window and len(self.frame.loops.axes) == 1:
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
        fixed: Loaded,
    ) -> None:
        """`length` positions along the innermost axis; `sums` are those of the first."""
        e, plan = self.frame.emitter, self.frame.plan
        axis = self.frame.loops.axes[-1]
        c = self._output_offset(position, work, e.add(plan.c.offset, columns.first), lambda x: x.c)
        extras = [
            self._output_offset(position, work, start, lambda x, n=number: x.extras[n])  # type: ignore[misc]  # bound at once
            for number, start in enumerate(self._starts(columns))
        ]

        def rows(count: int) -> Callable[[Int, Sequence[Val]], None]:
            def body(number: Int, _: Sequence[Val]) -> None:
                for k in range(count):
                    r = e.add(number, k)
                    here = tuple(e.add(o, e.mul(r, s)) for o, s in zip(extras, axis.extras, strict=True))
                    at = e.gep(sums, e.mul(r, columns.block.columns * TILE_BYTES_PER_ROW))
                    self._row(at, Position(0, 0, e.add(c, e.mul(r, axis.c)), here, {}), columns.panel, fixed)

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
        if len(self.frame.loops.axes) > 1:
            total = e.add(total, e.mul(line, step(grid.line)))
        return e.add(total, e.mul(e.urem(position, grid.pitch), step(grid.row)))

    def _row(self, sums: Val, at: Position, panel: Panel, fixed: Loaded) -> None:
        """One position: every column tile's sums finished and stored."""
        e, frame = self.frame.emitter, self.frame
        places = (e.gep(sums, j * TILE_BYTES_PER_ROW) for j in range(panel.num_vectors))
        values = [e.load(frame.type, place, align_bytes=64) for place in places]
        if frame.plan.init is not None:
            inits = elementwise(frame, frame.plan.init, 1, at, panel, known=fixed)
            values = [e.fadd(value, init) for value, init in zip(values, inits, strict=True)]
        store_tile(frame, 1, at, panel, values, fixed)

    def _starts(self, columns: Columns) -> list[Int]:
        """Elements from the start of each epilogue operand to the first column."""
        e, plan = self.frame.emitter, self.frame.plan
        steps = zip(plan.extras, plan.vector.extras, strict=True)
        return [e.add(extra.offset, e.mul(columns.first, step)) for extra, step in steps]

    def fixed_reads(self, columns: Columns) -> Loaded:
        """Epilogue operands that do not vary with the position, by number and column tile: a bias."""
        plan, axes, panel = self.frame.plan, self.frame.loops.axes, columns.panel
        at = Position(0, 0, 0, tuple(self._starts(columns)), {})
        return {
            (number, 0, j): load_operand(self.frame, number, 0, j, at, panel)
            for number, step in enumerate(plan.vector.extras)
            if not any(x.extras[number] for x in axes if x.extent > 1)
            for j in (range(panel.num_vectors) if step else (0,))
        }
