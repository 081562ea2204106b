"""The matrix-unit kernel: split the inputs of a chunk into pieces, multiply tiles, finish and store.

Condition of use: a processor with the matrix unit, float32, summed elements side by side; constant weights
or, of bfloat16, a second factor that a kernel before splits and packs.
With three products of bfloat16 the error of a factor is 2^-17 of it, with six that of float32, and long sums
are cut into passes that are added up; one product is plain bfloat16. Products of digits are summed exactly,
and each pass becomes float32 with the scales of its inputs (`slices.py`).

Padding is zeros around the split image: no tap is tested for being inside. Every output is the same sequence
of operations whichever chunk computes it. An infinite factor may give NaN where one product would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.nest import Operand
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import (
    TILE_BYTES,
    TILE_COLUMNS,
    Arrangement,
    MatrixTiles,
    SliceTiles,
    window,
)
from tilewright.targets.cpu.cut import choose_num_chunks
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, KernelArg, Packed
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product import amx
from tilewright.targets.cpu.product.amx import TILE_BYTES_PER_ROW
from tilewright.targets.cpu.product.epilogue import Loaded, elementwise, load_operand, store_tile
from tilewright.targets.cpu.product.frame import Factor, Panel, Position, product_function
from tilewright.targets.cpu.product.loops import WindowLoop, digits
from tilewright.targets.cpu.product.matrix import tiles
from tilewright.targets.cpu.product.matrix.frame import Chunk, Columns, MatrixFrame
from tilewright.targets.cpu.product.matrix.match import heads_of
from tilewright.targets.cpu.product.matrix.plan import packed_factor, phases, plan_loops, shift, sizes_of
from tilewright.targets.cpu.product.matrix.planes import Planes
from tilewright.targets.cpu.product.matrix.slices import Slices
from tilewright.targets.cpu.product.matrix.tiles import Block
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.cpu.product.walk import Range, TileWalk
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import I64, Bool, Int, Val, vec

_Taps = list[tuple[int, int]]  # phase and positions ahead of each


def matrix_kernels(plan: KernelPlan, isa: Isa, next_local: int) -> tuple[Kernel, ...]:
    """The kernels of a plan: where B is no constant it is split and packed first, into a local."""
    if plan.packing != "in panels":
        return (generate_matrix(plan, isa),)
    packing, packed = pack_tiles(plan, next_local, isa)
    return packing, replace(generate_matrix(packed, isa), plan=plan)


def pack_tiles(plan: KernelPlan, local_position: int, isa: Isa) -> tuple[Kernel, KernelPlan]:
    """The kernel that packs B into a new local, and the plan of the product that reads it."""
    heads, factor = heads_of(plan.outer), packed_factor(plan)
    num_heads = prod(x.extent for x in heads)
    packed = Operand("local", local_position, DType.INT8, (num_heads * factor.size_bytes,))
    e, num_pieces = Emitter(attributes=isa.function_attributes), num_heads * factor.num_tiles
    num_chunks = choose_num_chunks(num_pieces, num_heads * factor.depth * factor.columns)
    with kernel_function(e, (plan.b.operand, packed)) as function:
        source, target = function.pointers

        def piece(number: Int, _: Sequence[Val]) -> None:
            head, tile = e.udiv(number, factor.num_tiles), e.urem(number, factor.num_tiles)
            at: Int = plan.b.offset
            for x, index in digits(e, head, heads):
                at = e.add(at, e.mul(index, x.b))
            to = e.gep(target, e.mul(head, factor.size_bytes))
            start = e.gep(source, e.mul(at, factor.dtype.size_bytes))
            factor.pack(e, start, to, tile, e.add(tile, 1))

        low, high = e.piece(function.chunk, num_chunks, num_pieces)
        e.loop(low, high, 1, piece)
    kernel = function.kernel(
        "pack_tiles",
        num_chunks=num_chunks,
        template="matrix-tiles",
        notes=(f"{num_heads} x {factor.num_tiles} tiles of columns, {factor.num_pieces} pieces",),
        estimate_cycles=num_heads * factor.packing_cycles,
    )
    return kernel, replace(plan, b=Strided(packed))


def generate_matrix(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan whose factors are multiplied in pieces, of which B is packed already."""
    sizes, loops = sizes_of(plan), plan_loops(plan)
    weights: KernelArg = plan.b.operand if plan.packing == "in panels" else pack_weights(plan)
    terms, name = sizes.terms, "slices" if sizes.terms.is_bytes else "matrix"
    e, has_rows = Emitter(attributes=isa.function_attributes), loops.row_loop is not None
    with product_function(e, plan, vec("float", TILE_COLUMNS), weights, {}, has_rows=has_rows) as frame:
        num_rows = frame.function.num_rows()
        _MatrixWalk(MatrixFrame.of(frame), weights).chunk(frame.function.chunk, num_rows)
    return frame.function.kernel(
        f"{name}{terms.num_products}",
        num_chunks=sizes.num_chunks,
        scratch_bytes=sizes.scratch_bytes,
        template=f"{name}-{terms.num_products}",
        macs=plan.num_macs,
        notes=(
            plan.dot,
            f"tile {sizes.block.num_positions}x{sizes.panel_width}",
            f"{sizes.batch_parts * sizes.unit_parts}x{sizes.panel_parts} chunks",
        ),
        plan=plan,
    )


class _MatrixWalk(TileWalk):
    """Emits one kernel: its chunks, their panels of columns, the products of each."""

    frame: MatrixFrame

    def __init__(self, frame: MatrixFrame, weights: KernelArg) -> None:
        sizes = frame.sizes
        super().__init__(frame, Factor(weights, {}, sizes.panel_bytes, sizes.factors_bytes))
        self.sizes, self.loops = sizes, frame.loops
        self._set(frame)
        self.batch: Int = 0
        self.end: Int = self.loops.num_positions

    def _set(self, frame: MatrixFrame) -> None:
        self.frame, self.planes, self.results = frame, Planes(frame), Finish(frame)

    def _move_to_head(self, head: Int) -> None:
        """Operands from the first element of a combination of the loops that move B on."""
        e, plan, frame = self.emitter, self.plan, self.frame
        heads = heads_of(plan.outer)
        at: dict[str | int, Int] = dict.fromkeys(("a", "c", *range(len(plan.extras))), 0)
        for x, index in digits(e, head, heads):
            at = {place: e.add(offset, e.mul(index, x.moves(place))) for place, offset in at.items()}

        def moved(pointer: Val, place: str | int, operand: Operand) -> Val:
            return e.gep(pointer, e.mul(at[place], operand.dtype.size_bytes))

        pointers = dict(frame.pointers)
        pointers["a"] = moved(pointers["a"], "a", plan.a.operand)
        pointers["c"] = moved(pointers["c"], "c", plan.c.operand)
        pointers["b"] = e.gep(pointers["b"], e.mul(head, packed_factor(plan).size_bytes))
        extras = zip(frame.extra_pointers, plan.extras, strict=True)
        extra_pointers = tuple(moved(pointer, n, x.operand) for n, (pointer, x) in enumerate(extras))
        self._set(replace(frame, pointers=pointers, extra_pointers=extra_pointers))

    def chunk(self, chunk: Val, num_rows: Val | None) -> None:
        """What a chunk covers, and its products if the run has any rows of it."""
        e, sizes = self.emitter, self.sizes
        rest: Int = chunk
        if sizes.num_heads > 1:
            self._move_to_head(e.udiv(chunk, self.plan.cut.num_chunks))
            rest = e.urem(chunk, self.plan.cut.num_chunks)
        if sizes.batch_parts > 1:
            self.batch, rest = (
                e.udiv(chunk, self.plan.cut.num_chunks),
                e.urem(chunk, self.plan.cut.num_chunks),
            )
        panels, units = self.pieces(rest, num_rows)
        if num_rows is None:
            self.products(panels, units)
            return
        is_asked = e.compare("slt", *units)
        if self.frame.grid.has_window and self._rows_are_images:
            is_asked = e.compare("slt", self.batch, self._asked_images(num_rows))
        e.if_(is_asked, lambda: self.products(panels, units))

    @property
    def _rows_are_images(self) -> bool:
        """Whether rows are along an axis outside the images that chunks belong to."""
        return len(self.loops.axes) > 2

    def asked_units(self, num_rows: Val | None) -> Int:
        """Units of an image of as many rows as a run has; without a window their positions end at `end`."""
        e, loops, sizes = self.emitter, self.loops, self.sizes
        if num_rows is None or loops.row_loop is None:
            return sizes.num_units
        asked = e.iterations(loops.row_loop, num_rows)
        if self.frame.grid.has_window:
            return sizes.num_units if self._rows_are_images else asked
        self.end = e.mul(asked, loops.num_positions // loops.axes[0].extent)
        size = sizes.block.num_positions
        return e.udiv(e.add(self.end, size - 1), size)

    def _asked_images(self, num_rows: Val) -> Int:
        """Images of as many rows as a run has."""
        e, loops = self.emitter, self.loops
        assert loops.row_loop is not None
        inside = self.frame.grid.batch // loops.axes[0].extent
        return e.mul(e.iterations(loops.row_loop, num_rows), inside)

    def products(self, panels: Range, units: Range) -> None:
        """The planes of a chunk, and its panels of columns."""
        amx.configure(self.emitter)
        self.planes.fill(self._work(units))
        super().products(panels, units)
        amx.release(self.emitter)

    def _work(self, units: Range) -> Chunk:
        return Chunk(self.batch, *units, self.end)

    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One panel of columns for a chunk's blocks of positions."""
        e, work = self.emitter, self._work(units)
        block = Block(self.sizes.block.rows, panel.num_vectors)
        start, column = self.panel_start(index)
        b = e.gep(self.frame.pointers["b"], start)
        columns = Columns(column, block, panel)
        fixed = self.results.fixed_reads(columns)
        num_units = e.sub(work.last, work.first)
        if self.frame.grid.has_window:
            computed = e.add(e.mul(e.sub(num_units, 1), self.frame.grid.pitch), self.frame.grid.row.extent)
            num_blocks: Int = e.udiv(e.add(computed, block.num_positions - 1), block.num_positions)
        else:
            num_blocks = num_units

        self._sums(b, block, num_blocks, lambda number: self.results.block(number, work, columns, fixed))

    def _sums(self, b: Val, block: Block, num_blocks: Int, finish: Callable[[Int], None]) -> None:
        """The sums of every block of the chunk for one panel, whose weights start at `b`.

        If there is more than one pass, each goes over all blocks, and sums wait in memory for the next.
        """
        e, plan = self.emitter, self.sizes
        line_taps = self._taps()
        row_taps = len(line_taps[0])
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        if plan.num_passes == 1:

            def whole(number: Int, _: Sequence[Val]) -> None:
                tiles.clear_sums(e, block, plan.terms)
                self._steps(number, 0, plan.num_steps, block, b, line_taps[0])
                self._keep_sums(number, block, b, 0, is_first=True)
                finish(number)

            e.loop(0, num_blocks, 1, whole, nonempty=True)
            return
        for line_number, taps in enumerate(line_taps):
            at_b = e.gep(b, line_number * plan.num_steps * row_taps * step_bytes)

            e.loop(
                0,
                plan.num_steps,
                plan.steps_together,
                partial(self._pass, block, num_blocks, b, at_b, taps, line_number),
            )
        e.loop(0, num_blocks, 1, lambda number, _: finish(number), nonempty=True)

    def _pass(
        self,
        block: Block,
        num_blocks: Int,
        panel: Val,
        b: Val,
        taps: _Taps,
        line_tap: int,
        first: Int,
        _: Sequence[Val],
    ) -> None:
        """Steps of the depth from `first` on, as many as are taken together, for every block."""
        e, plan = self.emitter, self.sizes
        last = e.min(e.add(first, plan.steps_together), plan.num_steps)

        def one(number: Int, _: Sequence[Val]) -> None:
            is_first = e.compare("eq", first, 0) if line_tap == 0 else False
            if plan.adds_passes:
                tiles.clear_sums(e, block, plan.terms)
            else:
                e.if_(
                    is_first,
                    lambda: tiles.clear_sums(e, block, plan.terms),
                    lambda: tiles.load_sums(e, block, self.frame.block_sums(number)),
                )
            self._steps(number, first, last, block, b, taps)
            # Sums that were loaded hold what is in memory already.
            replaces = is_first if plan.adds_passes else True
            self._keep_sums(number, block, panel, line_tap, is_first=replaces)

        e.loop(0, num_blocks, 1, one, nonempty=True)

    def _keep_sums(self, number: Int, block: Block, panel: Val, line_tap: int, *, is_first: Bool) -> None:
        """The sums in the tiles in memory, as float32, added to those there unless they are the first."""
        e, plan, sums = self.emitter, self.sizes, self.frame.block_sums(number)
        if plan.terms.is_bytes:
            columns = e.gep(panel, plan.tiles_bytes(block.columns, self.loops.num_taps))
            position = e.mul(number, block.num_positions)
            Slices(self.frame).add_sums(position, line_tap, columns, sums, is_first)
            return
        e.if_(is_first, lambda: tiles.store_sums(e, block, sums), lambda: self._add_sums(block, sums))

    def _add_sums(self, block: Block, sums: Val) -> None:
        """Add the sums in the tiles to those in memory."""
        e, row, partial_sums = self.emitter, self.frame.type, self.frame.pointers["partial"]
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
        e, plan = self.emitter, self.sizes
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        a = e.gep(self.frame.pointers["planes"], self.frame.origin(e.mul(number, block.num_positions)))

        def step(index: Int, _: Sequence[Val]) -> None:
            for tap, (phase, ahead) in enumerate(taps):
                at_a = e.gep(e.gep(a, ahead * TILE_BYTES_PER_ROW), self.frame.plane(index, phase, 0))
                at_b = e.gep(b, e.mul(e.add(e.mul(index, len(taps)), tap), step_bytes))
                tiles.multiply(
                    e,
                    block,
                    plan.terms,
                    lambda piece, i, at=at_a: e.gep(at, piece * plan.plane_bytes + i * TILE_BYTES),  # type: ignore[misc]  # bound at once
                    lambda piece, j, at=at_b: e.gep(at, (piece * block.columns + j) * TILE_BYTES),  # type: ignore[misc]
                )

        e.loop(first, last, 1, step, nonempty=True)


def pack_weights(plan: KernelPlan) -> Packed:
    """The constant factor as the kernel reads it."""
    sizes, loops = sizes_of(plan), plan_loops(plan)
    line, row = sizes.grid.line, sizes.grid.row
    columns = plan.vector
    shape = (line.num_taps, row.num_taps, loops.depth.extent, columns.extent)
    strides = (line.tap_b, row.tap_b, loops.depth.b, columns.b)
    reads, panel_tiles = window(shape, strides, plan.b.offset), sizes.block.columns
    arrangement: Arrangement
    if sizes.terms.is_bytes:
        arrangement = SliceTiles(reads, panel_tiles)
    else:
        arrangement = MatrixTiles(reads, sizes.num_pieces, panel_tiles)
    num_tiles = sizes.num_columns_tiles
    size_bytes = sizes.tiles_bytes(num_tiles, loops.num_taps) + sizes.scale_bytes(num_tiles)
    return Packed(plan.b.operand, arrangement, sizes.factors_bytes + size_bytes)


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
        self, sums: Val, position: Int, length: Int, work: Chunk, columns: Columns, fixed: Loaded
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
