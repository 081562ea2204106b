"""The matrix-unit kernel: split the inputs of a chunk into bfloat16 pieces, multiply tiles, finish and store.

Condition of use: a processor with the matrix unit, float32, constant weights, summed elements side by side.
With three products of two pieces each (`num_products` 3) the error of a factor is 2^-17 of it, with six that
of float32, and long sums are cut into passes that are added up; one product is plain bfloat16. It beats the
direct kernel by the unit's rate: 16 times that of fused multiply-adds, divided by the number of products,
less what splitting and finishing cost.

Padding is zeros around the split image: no tap is tested for being inside. Every output is the same sequence
of operations whichever chunk computes it. An infinite factor may give NaN where one product would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.targets.cpu.arrangements import TILE_BYTES, TILE_COLUMNS, MatrixTiles, window
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, Packed
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.finish import Finish
from tilewright.targets.cpu.product.matrix.frame import Chunk, Columns, Frame
from tilewright.targets.cpu.product.matrix.match import MatrixProblem
from tilewright.targets.cpu.product.matrix.plan import MatrixPlan, phases, shift
from tilewright.targets.cpu.product.matrix.planes import Planes
from tilewright.targets.cpu.product.matrix.tiles import Block
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val

_Taps = list[tuple[int, int]]  # phase and positions ahead of each


def generate_matrix(problem: MatrixProblem, plan: MatrixPlan, isa: Isa) -> Kernel:
    """The kernel of a product with constant weights."""
    return _Generator(problem, plan, isa).kernel()


class _Generator:
    """Emits one kernel: its chunks, their panels of columns, the products of each."""

    def __init__(self, problem: MatrixProblem, plan: MatrixPlan, isa: Isa) -> None:
        self.frame = Frame(problem, plan, Emitter(attributes=isa.function_attributes))
        self.weights = pack_weights(problem, plan)
        self.planes = Planes(self.frame)
        self.results = Finish(self.frame)

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, problem, plan = self.frame.emitter, self.frame.problem, self.frame.plan
        args = problem.contraction.operands(self.weights)
        with kernel_function(e, args, has_rows=problem.row_loop is not None) as function:
            scratch, self.frame.extra_pointers = function.scratch, function.pointers[3:]
            self.frame.pointers = {
                **dict(zip(("a", "b", "c"), function.pointers[:3], strict=True)),
                "sums": scratch,
                "partial": e.gep(scratch, plan.sums_bytes),
                "planes": e.gep(scratch, plan.planes_offset),
            }
            self._chunk(function.chunk, function.num_rows())
        return function.kernel(
            f"matrix{plan.num_products}",
            num_chunks=plan.num_chunks,
            scratch_bytes=plan.scratch_bytes,
            template=f"matrix-{plan.num_products}",
            macs=problem.contraction.num_macs,
            notes=(
                f"{plan.num_products} bfloat16 products",
                f"tile {plan.block.num_positions}x{plan.panel_width}",
                f"{plan.batch_parts * plan.unit_parts}x{plan.panel_parts} chunks",
            ),
        )

    def _chunk(self, chunk: Val, num_rows: Val | None) -> None:
        """What a chunk covers, and its products if the run has any rows of it."""
        e, plan = self.frame.emitter, self.frame.plan
        panel_part: Int = e.urem(chunk, plan.panel_parts)
        rest = e.udiv(chunk, plan.panel_parts)
        unit_part: Int = e.urem(rest, plan.unit_parts)
        batch: Int = e.udiv(rest, plan.unit_parts) if plan.batch_parts > 1 else 0
        if plan.unit_parts * plan.batch_parts == 1:
            panel_part = chunk if plan.panel_parts > 1 else 0
        elif plan.batch_parts == 1:
            unit_part = rest
        units, end = self._asked(num_rows)
        work = Chunk(batch, *e.piece(unit_part, plan.unit_parts, units), end)
        if num_rows is None:
            self._products(work, panel_part)
            return
        is_asked = e.compare("slt", work.first, work.last)
        if self.frame.grid.has_window and self._rows_are_images:
            is_asked = e.compare("slt", batch, self._asked_images(num_rows))
        e.if_(is_asked, lambda: self._products(work, panel_part))

    @property
    def _rows_are_images(self) -> bool:
        """Whether rows are along an axis outside the images that chunks belong to."""
        return len(self.frame.problem.axes) > 2

    def _asked(self, num_rows: Val | None) -> tuple[Int, Int]:
        """Units of an image, and positions where there is no window, of as many rows as a run has."""
        e, problem, plan = self.frame.emitter, self.frame.problem, self.frame.plan
        if num_rows is None or problem.row_loop is None:
            return plan.num_units, problem.num_positions
        asked = e.iterations(problem.row_loop, num_rows)
        if self.frame.grid.has_window:
            return plan.num_units if self._rows_are_images else asked, problem.num_positions
        end = e.mul(asked, problem.num_positions // problem.axes[0].extent)
        size = plan.block.num_positions
        return e.udiv(e.add(end, size - 1), size), end

    def _asked_images(self, num_rows: Val) -> Int:
        """Images of as many rows as a run has."""
        e, problem = self.frame.emitter, self.frame.problem
        assert problem.row_loop is not None
        inside = self.frame.grid.batch // problem.axes[0].extent
        return e.mul(e.iterations(problem.row_loop, num_rows), inside)

    def _products(self, work: Chunk, panel_part: Int) -> None:
        """The planes of a chunk, and its panels of columns."""
        e, plan = self.frame.emitter, self.frame.plan
        first, last = e.piece(panel_part, plan.panel_parts, plan.num_panels)
        amx.configure(e)
        self.planes.fill(work)
        lanes = (self.frame.problem.columns - 1) % TILE_COLUMNS + 1
        full, tail = plan.num_full_panels, plan.num_tail_tiles
        if full:
            # Only the very last panel may lack columns; it gets code of its own.
            whole = full if tail or lanes == TILE_COLUMNS else full - 1
            e.loop(
                first,
                e.min(last, whole),
                1,
                lambda panel, _: self._panel(panel, work, plan.block.columns, TILE_COLUMNS),
            )
            if whole < full:
                e.if_(
                    e.compare("eq", last, plan.num_panels),
                    lambda: self._panel(whole, work, plan.block.columns, lanes),
                )
        if tail:
            e.if_(e.compare("eq", last, plan.num_panels), lambda: self._panel(full, work, tail, lanes))
        amx.release(e)

    def _panel(self, panel: Int, work: Chunk, num_tiles: int, active: int) -> None:
        e, plan = self.frame.emitter, self.frame.plan
        block = Block(plan.block.rows, num_tiles)
        full_bytes = (
            self.frame.problem.num_taps * plan.num_steps * plan.num_pieces * plan.block.columns * TILE_BYTES
        )
        b = e.gep(self.frame.pointers["b"], e.mul(panel, full_bytes))
        columns = Columns(e.mul(panel, plan.panel_width), block, active)
        fixed = self.results.fixed_reads(columns)
        units = e.sub(work.last, work.first)
        if self.frame.grid.has_window:
            computed = e.add(e.mul(e.sub(units, 1), self.frame.grid.pitch), self.frame.grid.row.extent)
            num_blocks: Int = e.udiv(e.add(computed, block.num_positions - 1), block.num_positions)
        else:
            num_blocks = units

        self._sums(b, block, num_blocks, lambda number: self.results.block(number, work, columns, fixed))

    def _sums(self, b: Val, block: Block, num_blocks: Int, finish: Callable[[Int], None]) -> None:
        """The sums of every block of the chunk for one panel, whose weights start at `b`.

        If there is more than one pass, each goes over all blocks, and sums wait in memory for the next.
        """
        e, plan = self.frame.emitter, self.frame.plan
        line_taps = self._taps()
        row_taps = len(line_taps[0])
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        if plan.num_passes == 1:

            def whole(number: Int, _: Sequence[Val]) -> None:
                tiles.clear_sums(e, block)
                self._steps(number, 0, plan.num_steps, block, b, line_taps[0])
                tiles.store_sums(e, block, self.frame.pointers["sums"])
                finish(number)

            e.loop(0, num_blocks, 1, whole, nonempty=True)
            return
        for line_number, taps in enumerate(line_taps):
            at_b = e.gep(b, line_number * plan.num_steps * row_taps * step_bytes)

            e.loop(
                0,
                plan.num_steps,
                plan.steps_together,
                partial(self._pass, block, num_blocks, at_b, taps, line_number),
            )
        e.loop(0, num_blocks, 1, lambda number, _: finish(number), nonempty=True)

    def _pass(
        self, block: Block, num_blocks: Int, b: Val, taps: _Taps, line_tap: int, first: Int, _: Sequence[Val]
    ) -> None:
        """Steps of the depth from `first` on, as many as are taken together, for every block."""
        e, plan = self.frame.emitter, self.frame.plan
        last = e.min(e.add(first, plan.steps_together), plan.num_steps)

        def one(number: Int, _: Sequence[Val]) -> None:
            sums = self.frame.block_sums(number)
            is_first = e.compare("eq", first, 0) if line_tap == 0 else False
            if plan.adds_passes:
                partial_sums = self.frame.pointers["partial"]
                tiles.clear_sums(e, block)
                self._steps(number, first, last, block, b, taps)
                e.if_(
                    is_first,
                    lambda: tiles.store_sums(e, block, sums),
                    lambda: self._add_sums(block, partial_sums, sums),
                )
                return
            e.if_(
                is_first,
                lambda: tiles.clear_sums(e, block),
                lambda: tiles.load_sums(e, block, sums),
            )
            self._steps(number, first, last, block, b, taps)
            tiles.store_sums(e, block, sums)

        e.loop(0, num_blocks, 1, one, nonempty=True)

    def _add_sums(self, block: Block, partial_sums: Val, sums: Val) -> None:
        """Add the sums in the tiles to those in memory."""
        e, row = self.frame.emitter, self.frame.type
        tiles.store_sums(e, block, partial_sums)

        def one(at: Int, _: Sequence[Val]) -> None:
            place = e.gep(sums, at)
            added = e.fadd(e.load(row, place), e.load(row, e.gep(partial_sums, at)))
            e.store(added, place)

        e.loop(0, block.rows * block.columns * TILE_BYTES, row.size_bytes, one)

    def _taps(self) -> list[_Taps]:
        """Phase and positions ahead of every tap: for each tap along lines those along the row."""
        if not self.frame.grid.has_window:
            return [[(0, 0)]]
        grid, line, row = self.frame.grid, self.frame.grid.line, self.frame.grid.row
        found: list[_Taps] = []
        for i in range(line.num_taps):
            found.append([])
            for j in range(row.num_taps):
                line_phase = phases(line).index(line.tap_step * i % line.step)
                row_phase = phases(row).index(row.tap_step * j % row.step)
                ahead = shift(line, i) * grid.pitch + shift(row, j)
                found[-1].append((line_phase * len(grid.row_phases) + row_phase, ahead))
        return found

    def _steps(self, number: Int, first: Int, last: Int, block: Block, b: Val, taps: _Taps) -> None:
        """Steps [first, last) of the depth for one block, every tap along the row in each."""
        e, plan = self.frame.emitter, self.frame.plan
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        a = e.gep(self.frame.pointers["planes"], self.frame.origin(e.mul(number, block.num_positions)))

        def step(index: Int, _: Sequence[Val]) -> None:
            for tap, (phase, ahead) in enumerate(taps):
                at_a = e.gep(e.gep(a, ahead * TILE_BYTES_PER_ROW), self.frame.plane(index, phase, 0))
                at_b = e.gep(b, e.mul(e.add(e.mul(index, len(taps)), tap), step_bytes))
                tiles.multiply(
                    e,
                    block,
                    plan.num_products,
                    lambda piece, i, at=at_a: e.gep(at, piece * plan.plane_bytes + i * TILE_BYTES),  # type: ignore[misc]  # bound at once
                    lambda piece, j, at=at_b: e.gep(at, (piece * block.columns + j) * TILE_BYTES),  # type: ignore[misc]
                )

        e.loop(first, last, 1, step, nonempty=True)


def pack_weights(problem: MatrixProblem, plan: MatrixPlan) -> Packed:
    """The constant factor as the kernel reads it."""
    line, row = plan.grid.line, plan.grid.row
    shape = (line.num_taps, row.num_taps, problem.depth, problem.columns)
    strides = (line.tap_b, row.tap_b, problem.depth_b, problem.columns_b)
    pieces = plan.num_pieces
    num_tiles = -(-problem.columns // TILE_COLUMNS)
    size_bytes = pieces * problem.num_taps * plan.num_steps * num_tiles * TILE_BYTES
    arrangement = MatrixTiles(
        window(shape, strides, problem.contraction.b_offset), pieces, plan.block.columns
    )
    return Packed(problem.contraction.b.operand, arrangement, size_bytes)
