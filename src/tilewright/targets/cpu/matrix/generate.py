"""The matrix-unit kernel: split the inputs of a chunk into bfloat16 pieces, multiply tiles, finish and store.

Condition of use: a processor with the matrix unit, float32, constant weights, summed elements side by side.
With three products of two pieces each (`num_products` 3) the error of a factor is 2^-17 of it, with six that
of float32; one product is plain bfloat16. It beats the direct kernel by the unit's rate: 16 times that of
fused multiply-adds, divided by the number of products, less what splitting and finishing cost.

Padding is zeros around the split image: no tap is tested for being inside. Every output is the same sequence
of operations whichever chunk computes it. An infinite factor may give NaN where one product would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.ir.nest import Nest
from tilewright.targets.cpu.contraction.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.exprgen import emit_expr
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Declined,
    Kernel,
    KernelArg,
    Layouts,
    OperandKey,
    name_by_content,
)
from tilewright.targets.cpu.matrix import tiles
from tilewright.targets.cpu.matrix.match import Axis, MatrixProblem, match_matrix
from tilewright.targets.cpu.matrix.pack import pack_weights
from tilewright.targets.cpu.matrix.plan import Plan, choose_plan, chosen_plan, phases, shift
from tilewright.targets.cpu.matrix.tiles import (
    TILE_BYTES,
    TILE_BYTES_PER_ROW,
    TILE_COLUMNS,
    TILE_DEPTH,
    Block,
)
from tilewright.targets.cpu.values import I64, PTR, Int, Type, Val, vec
from tilewright.tuning import Choice

_Taps = list[tuple[int, int]]  # phase and positions ahead of each
_INDEX_TYPES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
# Rows finished together: enough to hide latencies, few enough for the registers.
_FINISH_ROWS = 4


def lower_matrix(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    num_products: int,
    choice: Choice | None = None,
) -> tuple[Kernel, ...] | Declined:
    """The kernel of one product with `num_products` (1, 3 or 6) products of pieces, or why there is none.

    `constants` are the operands whose data are known now: the weights must be among them. `choice` is one of
    `matrix_candidates` for these products; without it the estimate decides.
    """
    if not isa.has_matrix_unit:
        return Declined(f"{isa.name} here has no matrix unit")
    problem = match_matrix(nest, layouts)
    if isinstance(problem, Declined):
        return problem
    if problem.contraction.b.operand.key not in constants:
        return Declined("weights that are computed at run time")
    plan = choose_plan(problem, num_products, isa)
    if choice is not None:
        chosen = chosen_plan(problem, num_products, choice, isa)
        if isinstance(chosen, Declined):
            return chosen
        plan = chosen
    return (_Generator(problem, plan, isa).kernel(),)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What one chunk covers: units [first, last), and the image they belong to."""

    batch: Int
    first: Int
    last: Int


@dataclass(frozen=True, slots=True)
class _Columns:
    """One panel's columns: the first of them, its tiles, the lanes of the last tile that exist."""

    first: Int
    block: Block
    active: int


class _Generator:
    """Emits one kernel; the attributes are the fixed facts of the problem and the arguments' addresses."""

    def __init__(self, problem: MatrixProblem, plan: Plan, isa: Isa) -> None:
        self.problem = problem
        self.plan = plan
        self.grid = plan.grid
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.weights = pack_weights(problem, plan)
        self.type: Type = vec("float", TILE_COLUMNS)
        self.pointers: dict[str, Val] = {}
        self.extra_pointers: tuple[Val, ...] = ()

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, problem, plan = self.emitter, self.problem, self.plan
        nest = problem.nest
        extras = tuple(nest.reads[i].operand for i in problem.contraction.extra_reads)
        args: tuple[KernelArg, ...] = (
            problem.contraction.a.operand,
            self.weights,
            nest.write.operand,
            *extras,
        )
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, scratch):
            loaded = [e.load(PTR, e.gep(block, 8 * i)) for i in range(len(args))]
            self.extra_pointers = tuple(loaded[3:])
            self.pointers = {
                **dict(zip(("a", "b", "c"), loaded[:3], strict=True)),
                "sums": scratch,
                "planes": e.gep(scratch, plan.sums_bytes),
            }
            self._chunk(chunk)
        symbol, text = name_by_content(e.text(), f"matrix{plan.num_products}")
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=plan.num_chunks,
            args=args,
            scratch_bytes=plan.scratch_bytes,
            template=f"matrix-{plan.num_products}",
            macs=problem.contraction.num_macs,
            notes=(
                f"{plan.num_products} bfloat16 products",
                f"tile {plan.block.num_positions}x{plan.panel_width}",
                f"{plan.batch_parts * plan.unit_parts}x{plan.panel_parts} chunks",
            ),
        )

    def _chunk(self, chunk: Val) -> None:
        e, plan = self.emitter, self.plan
        panel_part: Int = e.urem(chunk, plan.panel_parts)
        rest = e.udiv(chunk, plan.panel_parts)
        unit_part: Int = e.urem(rest, plan.unit_parts)
        batch: Int = e.udiv(rest, plan.unit_parts) if plan.batch_parts > 1 else 0
        if plan.unit_parts * plan.batch_parts == 1:
            panel_part = chunk
        elif plan.batch_parts == 1:
            unit_part = rest
        work = _Chunk(batch, *self._part(unit_part, plan.unit_parts, plan.num_units))
        first, last = self._part(panel_part, plan.panel_parts, plan.num_panels)
        tiles.configure(e)
        if self.grid.has_window:
            self._split_lines(work)
        else:
            self._split_positions(work)
        lanes = (self.problem.columns - 1) % TILE_COLUMNS + 1
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
        tiles.release(e)

    def _part(self, part: Int, num_parts: int, extent: int) -> tuple[Int, Int]:
        """Bounds of the `part`-th of `num_parts` nearly equal pieces of `extent`."""
        e = self.emitter
        if num_parts == 1:
            return 0, extent
        return (
            e.udiv(e.mul(part, extent), num_parts),
            e.udiv(e.mul(e.add(part, 1), extent), num_parts),
        )

    # Inputs into planes.

    def _plane(self, step: Int, phase: int, piece: Int) -> Int:
        """Bytes from the first plane to that of a step of the depth, a phase and a piece."""
        e, plan = self.emitter, self.plan
        plane = e.mul(e.add(piece, phase * plan.num_pieces), plan.plane_bytes)
        return e.add(e.mul(step, plan.step_bytes), plane)

    def _origin(self, position: Int) -> Int:
        """Bytes from the start of the planes to a position of the chunk, in the first of its planes.

        Without a window a block's planes follow one another, in the order in which its steps load them.
        """
        e, plan = self.emitter, self.plan
        if self.grid.has_window:
            return e.mul(position, TILE_BYTES_PER_ROW)
        size = plan.block.num_positions
        block = e.mul(e.udiv(position, size), plan.planes_bytes)
        return e.add(block, e.mul(e.urem(position, size), TILE_BYTES_PER_ROW))

    def _split_positions(self, work: _Chunk) -> None:
        """The chunk's positions one after the other."""
        e, block = self.emitter, self.plan.block
        first = e.mul(work.first, block.num_positions)
        last = e.min(e.mul(work.last, block.num_positions), self.problem.num_positions)

        def one(position: Int, _: Sequence[Val]) -> None:
            a = self.problem.a_offset
            start = self._walk(position, a, lambda x: x.step * x.a)
            self._split(start, self._origin(e.sub(position, first)), 0)

        e.loop(first, last, 1, one, nonempty=True)

    def _walk(self, position: Int, start: Int, step: Callable[[Axis], int]) -> Int:
        """`start` plus the steps of every axis to a position counted over all of them."""
        e, axes = self.emitter, self.problem.axes
        total, rest = start, position
        for number, x in enumerate(reversed(axes)):
            is_outermost = number == len(axes) - 1
            index = rest if is_outermost else e.urem(rest, x.extent)
            rest = rest if is_outermost else e.udiv(rest, x.extent)
            total = e.add(total, e.mul(index, step(x)))
        return total

    def _split_lines(self, work: _Chunk) -> None:
        """The lines that the chunk's positions read, phase by phase, zeros where there is no input."""
        grid = self.grid
        start = self._batch_offset(work.batch, self.problem.a_offset, lambda x: x.step * x.a)
        for row_number, row_phase in enumerate(grid.row_phases):
            for line_number, line_phase in enumerate(grid.line_phases):
                phase = line_number * len(grid.row_phases) + row_number
                self._split_phase(work, start, phase, line_phase, row_phase)

    def _split_phase(self, work: _Chunk, start: Int, phase: int, line_phase: int, row_phase: int) -> None:
        e, grid = self.emitter, self.grid
        line, row = grid.line, grid.row
        lead, num_inputs, _ = grid.columns(row_phase)
        num_lines = e.add(e.sub(work.last, work.first), grid.num_lines_read(1) - 1)

        def one(number: Int, _: Sequence[Val]) -> None:
            index = e.add(e.mul(e.add(work.first, number), line.step), line_phase + line.offset)
            at = e.mul(number, grid.pitch)

            def inside() -> None:
                first_input = row.step * lead + row_phase + row.offset if row.is_window else 0
                a = e.add(e.add(start, e.mul(index, line.a)), first_input * row.a)
                self._zeros(at, 0, lead, phase)

                def column(position: Int, _: Sequence[Val]) -> None:
                    here = e.add(a, e.mul(position, row.step * row.a))
                    self._split(here, self._origin(e.add(e.add(at, lead), position)), phase)

                e.loop(0, num_inputs, 1, column)
                self._zeros(at, lead + num_inputs, grid.pitch, phase)

            if self._leaves(line):
                unsigned = self._is_index(index, line.size)
                e.if_(unsigned, inside, lambda: self._zeros(at, 0, grid.pitch, phase))
            else:
                inside()

        e.loop(0, num_lines, 1, one, nonempty=True)
        self._zeros(e.mul(num_lines, grid.pitch), 0, grid.width - grid.pitch, phase)

    def _leaves(self, axis: Axis) -> bool:
        """Whether lines may be read that are not in the image."""
        if not axis.is_window:
            return False
        last = axis.step * (self.grid.num_lines_read(axis.extent) - 1) + axis.step - 1 + axis.offset
        return axis.offset < 0 or last >= axis.size

    def _is_index(self, index: Int, size: int) -> Val | bool:
        e = self.emitter
        if isinstance(index, int):
            return 0 <= index < size
        return e.icmp("ult", index, size)

    def _batch_offset(self, batch: Int, start: Int, step: Callable[[Axis], int]) -> Int:
        e, axes = self.emitter, self.problem.axes[:-2]
        total, rest = start, batch
        for number, x in enumerate(reversed(axes)):
            is_outermost = number == len(axes) - 1
            total = e.add(total, e.mul(rest if is_outermost else e.urem(rest, x.extent), step(x)))
            rest = rest if is_outermost else e.udiv(rest, x.extent)
        return total

    def _zeros(self, at: Int, first: int, last: int, phase: int) -> None:
        """Zeros to positions `at + [first, last)` of every plane of a phase."""
        e, plan = self.emitter, self.plan
        if last <= first:
            return
        zero = e.zero(vec("i16", TILE_DEPTH))

        def step(number: Int, _: Sequence[Val]) -> None:
            for piece in range(plan.num_pieces):
                plane = e.gep(self.pointers["planes"], self._plane(number, phase, piece))
                where = e.gep(plane, e.mul(at, TILE_BYTES_PER_ROW))

                def one(position: Int, _: Sequence[Val], where: Val = where) -> None:
                    e.store(zero, e.gep(where, e.mul(position, TILE_BYTES_PER_ROW)), align_bytes=64)

                e.loop(first, last, 1, one)

        e.loop(0, plan.num_steps, 1, step)

    def _split(self, a: Int, origin: Int, phase: int) -> None:
        """The depth of one position, from A to `origin` in every plane of a phase."""
        e, problem, plan = self.emitter, self.problem, self.plan
        dtype = problem.contraction.a.operand.dtype
        source = self._pointer("a", a, dtype.size_bytes)
        target = e.gep(self.pointers["planes"], origin)
        num_full, rest = divmod(problem.depth, TILE_DEPTH)

        def step(number: Int, active: int) -> None:
            half = TILE_DEPTH // 2
            at = e.gep(source, e.mul(number, TILE_DEPTH * dtype.size_bytes))
            low = load_lanes(e, dtype, at, half, active=min(active, half))
            high = e.zero(self.type)
            if active > half:
                behind = e.gep(at, half * dtype.size_bytes)
                high = load_lanes(e, dtype, behind, half, active=active - half)
            pieces = tiles.split(e, low, high, plan.num_pieces)
            tiles.store_pieces(e, pieces, e.gep(target, self._plane(number, phase, 0)), plan.plane_bytes)

        if num_full:
            e.loop(0, num_full, 1, lambda number, _: step(number, TILE_DEPTH))
        if rest:
            step(num_full, rest)

    # Products.

    def _panel(self, panel: Int, work: _Chunk, num_tiles: int, active: int) -> None:
        e, plan = self.emitter, self.plan
        block = Block(plan.block.rows, num_tiles)
        full_bytes = (
            self.problem.num_taps * plan.num_steps * plan.num_pieces * plan.block.columns * TILE_BYTES
        )
        b = e.gep(self.pointers["b"], e.mul(panel, full_bytes))
        columns = _Columns(e.mul(panel, plan.panel_width), block, active)
        fixed = self._fixed_reads(columns)
        units = e.sub(work.last, work.first)
        if self.grid.has_window:
            computed = e.add(e.mul(e.sub(units, 1), self.grid.pitch), self.grid.row.extent)
            num_blocks: Int = e.udiv(e.add(computed, block.num_positions - 1), block.num_positions)
        else:
            num_blocks = units

        self._sums(b, block, num_blocks, lambda number: self._finish(number, work, columns, fixed))

    def _sums(self, b: Val, block: Block, num_blocks: Int, finish: Callable[[Int], None]) -> None:
        """The sums of every block of the chunk for one panel, whose weights start at `b`.

        If there is more than one pass, each goes over all blocks, and sums wait in memory for the next.
        """
        e, plan = self.emitter, self.plan
        line_taps = self._taps()
        row_taps = len(line_taps[0])
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        if plan.num_passes == 1:

            def whole(number: Int, _: Sequence[Val]) -> None:
                tiles.clear_sums(e, block)
                self._steps(number, 0, plan.num_steps, block, b, line_taps[0])
                tiles.store_sums(e, block, self.pointers["sums"])
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
        e, plan = self.emitter, self.plan
        last = e.min(e.add(first, plan.steps_together), plan.num_steps)

        def one(number: Int, _: Sequence[Val]) -> None:
            sums = self._block_sums(number)
            e.if_(
                e.compare("eq", first, 0) if line_tap == 0 else False,
                lambda: tiles.clear_sums(e, block),
                lambda: tiles.load_sums(e, block, sums),
            )
            self._steps(number, first, last, block, b, taps)
            tiles.store_sums(e, block, sums)

        e.loop(0, num_blocks, 1, one, nonempty=True)

    def _block_sums(self, number: Int) -> Val:
        """Where the sums of a block of the chunk wait."""
        e, plan = self.emitter, self.plan
        if plan.num_passes == 1:
            return self.pointers["sums"]
        return e.gep(self.pointers["sums"], e.mul(number, plan.block_sums_bytes))

    def _taps(self) -> list[_Taps]:
        """Phase and positions ahead of every tap: for each tap along lines those along the row."""
        if not self.grid.has_window:
            return [[(0, 0)]]
        grid, line, row = self.grid, self.grid.line, self.grid.row
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
        e, plan = self.emitter, self.plan
        step_bytes = plan.num_pieces * block.columns * TILE_BYTES
        a = e.gep(self.pointers["planes"], self._origin(e.mul(number, block.num_positions)))

        def step(index: Int, _: Sequence[Val]) -> None:
            for tap, (phase, ahead) in enumerate(taps):
                at_a = e.gep(e.gep(a, ahead * TILE_BYTES_PER_ROW), self._plane(index, phase, 0))
                at_b = e.gep(b, e.mul(e.add(e.mul(index, len(taps)), tap), step_bytes))
                tiles.multiply(
                    e,
                    block,
                    plan.num_products,
                    lambda piece, i, at=at_a: e.gep(at, piece * plan.plane_bytes + i * TILE_BYTES),  # type: ignore[misc]  # bound at once
                    lambda piece, j, at=at_b: e.gep(at, (piece * block.columns + j) * TILE_BYTES),  # type: ignore[misc]
                )

        e.loop(first, last, 1, step, nonempty=True)

    # From sums to the result.

    def _finish(
        self, number: Int, work: _Chunk, columns: _Columns, fixed: dict[tuple[int, int], Val]
    ) -> None:
        """Finish and store the positions of a block that exist, one run of neighbours after the other."""
        e, grid, num = self.emitter, self.grid, columns.block.num_positions
        position = e.mul(number, num)
        if grid.has_window:
            pitch, extent = grid.pitch, grid.row.extent
            units = e.sub(work.last, work.first)
            end = e.min(e.add(position, num), e.add(e.mul(e.sub(units, 1), pitch), extent))
            begin = position
        else:
            axes = self.problem.axes
            pitch = extent = axes[-1].extent
            begin = e.add(position, e.mul(work.first, num))
            end = e.min(e.add(begin, num), self.problem.num_positions)

        def run(at: Int, length: Int) -> None:
            row_bytes = columns.block.columns * TILE_BYTES_PER_ROW
            sums = e.gep(self._block_sums(number), e.mul(e.sub(at, begin), row_bytes))
            self._run(sums, at, length, work, columns, fixed)

        if not grid.has_window and len(self.problem.axes) == 1:
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
        work: _Chunk,
        columns: _Columns,
        fixed: dict[tuple[int, int], Val],
    ) -> None:
        """`length` positions along the innermost axis; `sums` are those of the first."""
        e, problem = self.emitter, self.problem
        axis = problem.axes[-1]
        c = self._output_offset(position, work, e.add(problem.c_offset, columns.first), lambda x: x.c)
        extras = [
            self._output_offset(
                position,
                work,
                e.add(start, e.mul(columns.first, step)),
                lambda x, n=number: x.extras[n],  # type: ignore[misc]  # bound at once
            )
            for number, (start, step) in enumerate(
                zip(problem.extra_offsets, problem.columns_extras, strict=True)
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

    def _output_offset(self, position: Int, work: _Chunk, start: Int, step: Callable[[Axis], int]) -> Int:
        """Elements to an output position, counted within the chunk where there is a window."""
        e, grid = self.emitter, self.grid
        if not grid.has_window:
            return self._walk(position, start, step)
        line = e.add(work.first, e.udiv(position, grid.pitch))
        total = self._batch_offset(work.batch, start, step)
        if len(self.problem.axes) > 1:
            total = e.add(total, e.mul(line, step(grid.line)))
        return e.add(total, e.mul(e.urem(position, grid.pitch), step(grid.row)))

    def _row(
        self, sums: Val, c: Int, extras: Sequence[Int], columns: _Columns, fixed: dict[tuple[int, int], Val]
    ) -> None:
        """One position: every column tile's sums finished and stored."""
        e, problem = self.emitter, self.problem
        nest = problem.nest
        dtype = nest.write.operand.dtype
        for j in range(columns.block.columns):
            active = columns.active if j == columns.block.columns - 1 else TILE_COLUMNS

            def read(index: int, j: int = j, active: int = active) -> Val:
                number = problem.contraction.extra_reads.index(index)
                if (number, j) in fixed:
                    return fixed[number, j]
                return self._extra(number, extras[number], j, active)

            value = e.load(self.type, e.gep(sums, j * TILE_BYTES_PER_ROW), align_bytes=64)
            if nest.init is not None:
                value = e.fadd(value, emit_expr(e, nest.init, read, lanes=TILE_COLUMNS))
            if nest.finish is not None:
                value = emit_expr(e, nest.finish, read, value, lanes=TILE_COLUMNS)
            pointer = self._pointer("c", e.add(c, j * TILE_COLUMNS), dtype.size_bytes)
            store_lanes(e, dtype, value, pointer, active=active)

    def _extra(self, number: int, start: Int, j: int, active: int) -> Val:
        e, problem = self.emitter, self.problem
        operand = problem.nest.reads[problem.contraction.extra_reads[number]].operand
        step = problem.columns_extras[number]
        elements = e.add(start, j * TILE_COLUMNS * step)
        kind = _INDEX_TYPES[operand.dtype.size_bytes]
        pointer = e.op(f"getelementptr {kind}, ptr {self.extra_pointers[number]}, i64 {elements}", PTR)
        return load_lanes(e, operand.dtype, pointer, TILE_COLUMNS, stride=step, active=active)

    def _fixed_reads(self, columns: _Columns) -> dict[tuple[int, int], Val]:
        """Epilogue operands that do not vary with the position, by number and column tile: a bias."""
        e, problem = self.emitter, self.problem
        fixed: dict[tuple[int, int], Val] = {}
        for number, (start, step) in enumerate(
            zip(problem.extra_offsets, problem.columns_extras, strict=True)
        ):
            if any(x.extras[number] for x in problem.axes if x.extent > 1):
                continue
            for j in range(columns.block.columns):
                active = columns.active if j == columns.block.columns - 1 else TILE_COLUMNS
                at = e.add(start, e.mul(columns.first, step))
                fixed[number, j] = self._extra(number, at, j, active)
        return fixed

    def _pointer(self, name: str, elements: Int, element_bytes: int) -> Val:
        e, base = self.emitter, self.pointers[name]
        if isinstance(elements, int) and elements == 0:
            return base
        return e.op(f"getelementptr {_INDEX_TYPES[element_bytes]}, ptr {base}, i64 {elements}", PTR)
