"""The Winograd kernel: transform a block of tiles, multiply matrix by matrix, transform back and store.

Condition of use: 3x3, steps of one, float32 or bytes, constant weights, channels contiguous on both sides,
groups of channels (if any) whose outputs are whole vectors. It beats
the direct kernel where (tile + 2)² / tile² products instead of 9 outweigh the transforms and the larger
weights: `winograd_gain` estimates that. F(2, 3) errs as the direct kernel does, F(4, 3) about three times as
much, more with longer sums (`benchmarks/micro_winograd.py` measures it), and a NaN or an infinity reaches all
outputs of the tiles that read it: a caller chooses.

Bytes less their zero points are transformed by integer matrices: F(4, 3) makes numbers of 16 bits of the
inputs and of the weights, which are multiplied in pairs, half as many at a time as bytes. All sums are modulo
2**32 and give 576 times the result, of which 9 is divided out by its inverse and 64 by a shift: exact as long
as results stay within 26 bits (`Context.small_sums`).

A chunk is one block of output tiles and, of one group of channels, some panels of outputs. Its scratch
area holds V [matrix][tile][input channel], M [matrix][tile][panel column] and one patch for tiles that reach
outside the image. Every output is the same sequence of operations whichever chunk computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial

import numpy as np

from tilewright.fields import Signed
from tilewright.records import dataclass
from tilewright.targets.cpu.arrangements import NUM_TAPS, Arrangement, WinogradPanels, window
from tilewright.targets.cpu.integer_arrangements import WinogradWords
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, Packed
from tilewright.targets.cpu.product.frame import product_function
from tilewright.targets.cpu.product.integer.dot import planned_dot
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.loops import digits
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.cpu.product.tiling import RowTile
from tilewright.targets.cpu.product.winograd.match import WinogradLoops, plan_loops, tiles_along
from tilewright.targets.cpu.product.winograd.plan import sizes_of
from tilewright.targets.cpu.product.winograd.transform import (
    Transform,
    emit_input,
    emit_output,
    integer_transform,
    winograd_transform,
)
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.values import Bool, Int, Type, Val, vec

_FLOAT_BYTES = 4
# Longer sums, by tile, are cut into equal blocks whose totals are added up in M: most of the error comes from
# these sums, magnified by the output transform. Against one chain of 256 steps, blocks of 16 leave a quarter
# of the error of F(4, 3), blocks of 64 half of that of F(2, 3), for less than 5 % of the time. Shorter ones
# leave no less: what remains are the roundings of the transforms.
MAX_CHAIN_STEPS = {2: 64, 4: 16}


def generate_winograd(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan."""
    return _Generator(plan, isa).kernel()


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Weights to fetch meanwhile: `num_vectors` from `pointer` on in every step."""

    pointer: Val
    num_vectors: int


class _Generator:
    """Emits one kernel; the attributes are the fixed facts of the problem and the arguments' addresses."""

    def __init__(self, plan: KernelPlan, isa: Isa) -> None:
        self.plan = plan
        self.loops = plan_loops(plan)
        self.sizes = sizes_of(plan, self.loops)
        is_float = plan.zeros is None
        self.transform: Transform = (winograd_transform if is_float else integer_transform)(self.sizes.tile)
        self.size = self.transform.size
        self.num_matrices = self.size**2
        self.lanes = plan.panels.lanes
        self.type: Type = vec("float" if is_float else "i32", self.lanes)
        self.channels = self.lanes * self.loops.channels_per_step  # of a vector of inputs
        self.input_type: Type = self.type if is_float else vec("i16", self.channels)
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.pointers: Mapping[str, Val] = {}
        self.extra_pointers: tuple[Val, ...] = ()
        self.matrix_index: Int = 0
        self.group: Int = 0

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, sizes, plan = self.emitter, self.sizes, self.plan
        weights, has_rows = pack_weights(plan, self.loops, self.transform), self.loops.row_loop is not None
        with product_function(e, plan, self.type, weights, {}, has_rows=has_rows) as frame:
            function = frame.function
            scratch, self.extra_pointers = function.scratch, frame.extra_pointers
            self.pointers = {
                **frame.pointers,
                "v": scratch,
                "m": e.gep(scratch, sizes.m_offset * _FLOAT_BYTES),
                "patch": e.gep(scratch, sizes.patch_offset * _FLOAT_BYTES),
            }
            self._chunk(function.chunk, function.num_rows())
        rows = max(t.rows for t in sizes.row_tiles)
        return function.kernel(
            f"winograd{sizes.tile}",
            num_chunks=sizes.num_chunks,
            scratch_bytes=sizes.scratch_bytes,
            template=f"winograd-{sizes.tile}" if plan.zeros is None else f"integer-winograd-{plan.dot}",
            macs=plan.num_macs,
            notes=(
                f"tile {rows}x{sizes.panels.width}",
                f"{sizes.num_blocks} blocks of {sizes.block_tiles} tiles x {sizes.panel_parts} panel groups",
            ),
            plan=plan,
        )

    def _chunk(self, chunk: Val, num_rows: Val | None) -> None:
        e, sizes = self.emitter, self.sizes
        block, part = e.udiv(chunk, sizes.panel_parts), e.urem(chunk, sizes.panel_parts)
        if self.loops.groups is not None:
            block, self.group = e.udiv(block, sizes.num_groups), e.urem(block, sizes.num_groups)
        if sizes.num_blocks == 1:
            block = 0
            part = chunk if self.loops.groups is None else part
        first, last = e.piece(block, sizes.num_blocks, sizes.num_tiles)
        first_panel, last_panel = e.piece(part, sizes.panel_parts, sizes.panels.num_panels)
        row_loop = self.loops.row_loop
        if row_loop is None or num_rows is None:
            self._block(first, last, first_panel, last_panel)
            return
        # A block takes as long for few tiles as for all of its own: those of a run fill its first blocks.
        inside = sizes.num_tiles // self.loops.batch[0].extent
        end = e.min(last, e.mul(e.iterations(row_loop, num_rows), inside))
        is_asked = e.compare("slt", first, end)
        e.if_(is_asked, lambda: self._block(first, end, first_panel, last_panel))

    def _block(self, first: Int, last: Int, first_panel: Int, last_panel: Int) -> None:
        """Output tiles [first, last), panels [first_panel, last_panel)."""
        e, sizes = self.emitter, self.sizes
        self._transform_inputs(first, last)
        panels = sizes.panels
        if panels.num_full:
            e.loop(
                first_panel,
                e.min(last_panel, panels.num_full),
                1,
                lambda panel, _: self._panel(panel, panels.num_vectors, panels.width, first, last),
            )
        if panels.tail:
            e.if_(
                e.compare("eq", last_panel, panels.num_panels),
                lambda: self._panel(panels.num_full, panels.tail_vectors, panels.tail, first, last),
            )

    def _tile(self, number: Int) -> TileIndex:
        e, loops, tile = self.emitter, self.loops, self.sizes.tile
        columns, rows = tiles_along(loops.columns, tile), tiles_along(loops.rows, tile)
        rest = e.udiv(number, columns)
        column = e.mul(e.urem(number, columns), tile)
        row = e.mul(e.urem(rest, rows) if loops.batch else rest, tile)
        rest = e.udiv(rest, rows)
        indices = [index for _, index in digits(e, rest, loops.batch)]
        return TileIndex(row, column, tuple(reversed(indices)), self.group)

    def _all(self, conditions: Sequence[Bool]) -> Bool:
        unknown = [c for c in conditions if isinstance(c, Val)]
        if not all(c for c in conditions if isinstance(c, bool)):
            return False
        result: Bool = True
        for condition in unknown:
            result = condition if result is True else self.emitter.and_(result, condition)
        return result

    def _pointer(self, base: Val, elements: Int, element_bytes: int = _FLOAT_BYTES) -> Val:
        return element_pointer(self.emitter, base, elements, element_bytes)

    # Inputs.

    def _transform_inputs(self, first: Int, last: Int) -> None:
        """V of the block. Behind the image's last tile it holds copies of that tile, so that no row of the
        products meets numbers of unknown origin."""
        e, sizes, loops = self.emitter, self.sizes, self.loops
        is_even = sizes.num_tiles % sizes.num_blocks == 0 and loops.row_loop is None

        def one(number: Int, _: Sequence[Val]) -> None:
            index = e.add(first, number)
            at = self._tile(index if is_even else e.min(index, e.sub(last, 1)))
            row, column = e.add(at.row, loops.rows.offset), e.add(at.column, loops.columns.offset)
            a = at.offset(e, self.plan.a.offset, loops, "a")
            inside = [
                e.compare("sge", row, 0) if loops.rows.offset < 0 else True,
                e.compare("sge", column, 0) if loops.columns.offset < 0 else True,
                e.compare("sle", row, loops.rows.size - self.size),
                e.compare("sle", column, loops.columns.size - self.size),
            ]
            v = self._pointer(self.pointers["v"], e.mul(number, sizes.v_row))
            e.if_(
                self._all(inside), lambda: self._inner_tile(a, v), lambda: self._edge_tile(a, row, column, v)
            )

        e.loop(0, sizes.block_tiles, 1, one)

    def _channel_groups(self, body: Callable[[Int, int], None]) -> None:
        """`body(first channel, how many)` for every vector of input channels."""
        extent, lanes = self.loops.inputs.extent, self.channels
        full = extent - extent % lanes
        self.emitter.loop(0, full, lanes, lambda channel, _: body(channel, lanes))
        if full < extent:
            body(full, extent - full)

    def _inner_tile(self, a: Int, v: Val) -> None:
        """A tile whose inputs all lie inside the image."""
        operand = self.plan.a.operand
        size_bytes = operand.dtype.size_bytes

        def group(channel: Int, active: int) -> None:
            e = self.emitter
            base = self._pointer(self.pointers["a"], e.add(a, channel), size_bytes)

            def load(row: int, column: int) -> Val:
                elements = row * self.loops.rows.a + column * self.loops.columns.a
                return self._input(e.gep(base, elements * size_bytes), active)

            self._input_transform(load, self._step_pointer(v, channel))

        self._channel_groups(group)

    def _input(self, pointer: Val, active: int) -> Val:
        """A vector of inputs; bytes less their zero point."""
        e, dtype, zeros = self.emitter, self.plan.a.operand.dtype, self.plan.zeros
        value = load_lanes(e, dtype, pointer, self.channels, active=active)
        if zeros is None:
            return value
        value = e.cast("sext" if dtype.is_signed else "zext", value, "i16")
        return e.isub(value, zeros.a) if zeros.a else value

    def _step_pointer(self, base: Val, channel: Int) -> Val:
        """The place of a channel, the first of a vector, where steps lie from `base` on."""
        return self._pointer(base, self.emitter.udiv(channel, self.loops.channels_per_step))

    def _edge_tile(self, a: Int, row: Int, column: Int, v: Val) -> None:
        """A tile that reaches outside: what is inside is copied into a patch of zeros first."""
        e, loops, size = self.emitter, self.loops, self.size
        operand = self.plan.a.operand
        patch = self.pointers["patch"]
        vector_bytes = self.type.size_bytes
        for position in range(self.num_matrices):
            e.store(e.zero(self.input_type), e.gep(patch, position * vector_bytes))
        rows = e.max(e.sub(0, row), 0), e.min(e.sub(loops.rows.size, row), size)
        columns = e.max(e.sub(0, column), 0), e.min(e.sub(loops.columns.size, column), size)

        def group(channel: Int, active: int) -> None:
            base = e.add(a, channel)

            def copy_row(i: Int, _: Sequence[Val]) -> None:
                source = e.add(base, e.mul(i, loops.rows.a))

                def copy(j: Int, _: Sequence[Val]) -> None:
                    at = e.add(source, e.mul(j, loops.columns.a))
                    pointer = self._pointer(self.pointers["a"], at, operand.dtype.size_bytes)
                    value = self._input(pointer, active)
                    e.store(value, self._pointer(patch, e.mul(e.add(e.mul(i, size), j), self.lanes)))

                e.loop(*columns, 1, copy)

            e.loop(*rows, 1, copy_row)
            self._input_transform(
                lambda i, j: e.load(self.input_type, e.gep(patch, (i * size + j) * vector_bytes)),
                self._step_pointer(v, channel),
            )

        self._channel_groups(group)

    def _input_transform(self, load: Callable[[int, int], Val], v: Val) -> None:
        """`B^T d B` of one vector of channels, stored one vector per matrix."""
        e, size = self.emitter, self.size
        columns = [emit_input(e, self.transform, [load(i, j) for i in range(size)]) for j in range(size)]
        for i in range(size):
            made = emit_input(e, self.transform, [columns[j][i] for j in range(size)])
            for j, value in enumerate(made):
                e.store(value, e.gep(v, (i * size + j) * self.sizes.v_matrix * _FLOAT_BYTES))

    # Products and outputs of one panel.

    def _panel(self, index: Int, num_vectors: int, extent: int, first: Int, last: Int) -> None:
        e, sizes, loops = self.emitter, self.sizes, self.loops
        steps = loops.num_steps
        width = num_vectors * self.lanes
        panel = e.add(index, e.mul(self.group, sizes.panels.num_panels))
        b = e.mul(panel, self.num_matrices * steps * sizes.panels.width)
        # Together the row tiles of one matrix fetch the weights of the next, evenly over their steps.
        share = -(-num_vectors // sum(rows.count for rows in sizes.row_tiles))

        def matrix(number: Int, _: Sequence[Val]) -> None:
            at_b = e.add(b, e.mul(number, steps * width))
            at_v, at_m = e.mul(number, sizes.v_matrix), e.mul(number, sizes.m_matrix)
            before = 0
            for rows in sizes.row_tiles:

                def tile(position: Int, _: Sequence[Val], rows: RowTile = rows, before: int = before) -> None:
                    row = e.add(e.mul(position, rows.rows), rows.start)
                    vector = e.urem(e.mul(e.add(position, before), share), num_vectors)
                    ahead = e.add(at_b, e.add(e.mul(vector, self.lanes), steps * width))
                    self._products(
                        rows.rows,
                        num_vectors,
                        self._pointer(self.pointers["v"], e.add(at_v, e.mul(row, sizes.v_row))),
                        self._pointer(self.pointers["b"], at_b),
                        self._pointer(self.pointers["m"], e.add(at_m, e.mul(row, width))),
                        _Ahead(self._pointer(self.pointers["b"], ahead), share)
                        if self.plan.fetches_ahead
                        else None,
                    )

                e.loop(0, rows.count, 1, tile)
                before += rows.count

        e.loop(0, self.num_matrices, 1, matrix)
        column = e.mul(index, sizes.panels.width)

        def output(number: Int, _: Sequence[Val]) -> None:
            at = self._tile(e.add(first, number))
            m = self._pointer(self.pointers["m"], e.mul(number, width))
            whole = self._all(
                [
                    e.compare("sle", start, axis.extent - sizes.tile)
                    for start, axis in ((at.row, loops.rows), (at.column, loops.columns))
                    if axis.extent % sizes.tile
                ]
            )
            e.if_(
                whole,
                lambda: self._outputs(at, m, column, extent, is_clipped=False),
                lambda: self._outputs(at, m, column, extent, is_clipped=True),
            )

        e.loop(0, e.sub(last, first), 1, output, nonempty=True)

    def _products(
        self, num_rows: int, num_vectors: int, v: Val, b: Val, m: Val, ahead: _Ahead | None
    ) -> None:
        """One register tile of one matrix of M: rows of V times the panel."""
        e, sizes, steps = self.emitter, self.sizes, self.loops.num_steps
        width = num_vectors * self.lanes
        dot = None if self.plan.zeros is None else planned_dot(self.plan)

        def step(k: Int, totals: Sequence[Val]) -> list[Val]:
            at_b = self._pointer(b, e.mul(k, width))
            vectors = [e.load(self.type, e.gep(at_b, j * self.type.size_bytes)) for j in range(num_vectors)]
            if ahead is not None:
                next_b = self._pointer(ahead.pointer, e.mul(k, width))
                for j in range(ahead.num_vectors):
                    e.prefetch(e.gep(next_b, j * self.type.size_bytes))
            at_v = self._pointer(v, k)
            result: list[Val] = []
            for r in range(num_rows):
                scalar = e.broadcast_load(self.type, e.gep(at_v, r * sizes.v_row * _FLOAT_BYTES))
                for j, vector in enumerate(vectors):
                    total = totals[r * num_vectors + j]
                    multiply = e.fma if dot is None else partial(dot.halves, e)
                    result.append(multiply(scalar, vector, total))
            return result

        def summed(low: Int, high: Int) -> list[Val]:
            zeros = [(self.type, e.zero(self.type))] * (num_rows * num_vectors)
            return e.loop(low, high, 1, step, zeros, nonempty=True)

        def target(number: int) -> Val:
            row, vector = divmod(number, num_vectors)
            return e.gep(m, (row * width + vector * self.lanes) * _FLOAT_BYTES)

        size = steps if dot is not None else -(-steps // -(-steps // MAX_CHAIN_STEPS[sizes.tile]))
        for number, value in enumerate(summed(0, size)):
            e.store(value, target(number))

        def block(low: Int, _: Sequence[Val]) -> None:
            for number, value in enumerate(summed(low, e.min(e.add(low, size), steps))):
                e.store(e.fadd(e.load(self.type, target(number)), value), target(number))

        e.loop(size, steps, size, block)

    def _outputs(self, at: TileIndex, m: Val, column: Int, extent: int, *, is_clipped: bool) -> None:
        """All vectors of the panel at one tile; the last may have fewer lanes."""
        lanes = self.lanes
        full = extent - extent % lanes
        self.emitter.loop(
            0, full, lanes, lambda lane, _: self._output_vector(at, m, column, lane, lanes, is_clipped)
        )
        if full < extent:
            self._output_vector(at, m, column, full, extent - full, is_clipped)

    def _output_vector(
        self, at: TileIndex, m: Val, column: Int, lane: Int, active: int, is_clipped: bool
    ) -> None:
        """`A^T m A` of one vector of channels, epilogue, stores."""
        e, loops, size, tile = self.emitter, self.loops, self.size, self.sizes.tile
        base = self._pointer(m, lane)

        def load(i: int, j: int) -> Val:
            return e.load(self.type, e.gep(base, (i * size + j) * self.sizes.m_matrix * _FLOAT_BYTES))

        columns = [emit_output(e, self.transform, [load(i, j) for i in range(size)]) for j in range(size)]
        channel = e.add(column, lane)

        def epilogue() -> Epilogue:
            return Epilogue(
                e, self.plan, loops, self.pointers["c"], self.extra_pointers, at, channel, self.lanes, active
            )

        whole = epilogue()
        for i in range(tile):
            made = emit_output(e, self.transform, [columns[j][i] for j in range(size)])
            for j, value in enumerate(map(self._undivided, made)):
                if not is_clipped:
                    whole.store(i, j, value)
                    continue
                exists = self._all(
                    [
                        e.compare("slt", e.add(at.row, i), loops.rows.extent),
                        e.compare("slt", e.add(at.column, j), loops.columns.extent),
                    ]
                )
                e.if_(exists, partial(epilogue().store, i, j, value))

    def _undivided(self, value: Val) -> Val:
        """A result of integer transforms over their divisor, all of it modulo 2**32."""
        e, divisor = self.emitter, self.transform.divisor
        if divisor == 1:
            return value
        shift = (divisor & -divisor).bit_length() - 1
        inverse = pow(divisor >> shift, -1, 1 << 32)
        return e.ashr(e.imul(value, inverse - (inverse >> 31 << 32)), shift)


def pack_weights(plan: KernelPlan, loops: WinogradLoops, transform: Transform) -> Packed:
    """The constant factor as the kernel reads it, panels of all groups one behind the other."""
    panels, num_outputs = plan.panels, loops.num_groups * loops.outputs.extent
    shape = (NUM_TAPS, NUM_TAPS, loops.inputs.extent, num_outputs)
    strides = (loops.rows.tap_b, loops.columns.tap_b, loops.inputs.b, loops.outputs.b)
    source, lanes, width = window(shape, strides, plan.b.offset), panels.lanes, panels.width
    if plan.zeros is None:
        weight = np.array(transform.weight, np.float64).tolist()
        arrangement: Arrangement = WinogradPanels(source, lanes, width, tuple(map(tuple, weight)))
    else:
        rows = tuple(tuple(Signed(int(x)) for x in row) for row in transform.weight)
        arrangement = WinogradWords(source, Signed(plan.zeros.b), lanes, width, rows)
    size_bytes = 4 * transform.size**2 * loops.num_steps * panels.padded_extent * loops.num_groups
    return Packed(plan.b.operand, arrangement, size_bytes)


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
