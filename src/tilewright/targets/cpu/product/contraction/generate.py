"""The contraction micro-kernel: one register tile of accumulators over nested summed loops.

GEMM, pointwise and k×k convolution, grouped convolution, the stem that reads channels-first, the two
products of attention: all are this kernel with other strides. Padding
is never copied and never multiplied: taps outside the input are skipped, by loop bounds where the
output position is a loop, by straight code for the rows of the register tile that touch an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, substitute
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    BLOCK_STEPS,
    MAX_CHAIN_STEPS,
    Declined,
    Kernel,
    Layout,
)
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product.contraction.blocks import StepBlocks, best_block_parts, step_blocks
from tilewright.targets.cpu.product.contraction.choose import (
    ELEMENT,
    TEMPLATE,
    Design,
)
from tilewright.targets.cpu.product.contraction.edges import tap_runs, touches_edge
from tilewright.targets.cpu.product.contraction.epilogue import (
    finish_in_memory,
    finishes_in_memory,
    initial_values,
    store_tile,
)
from tilewright.targets.cpu.product.contraction.frame import Frame, Panel, Position
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.contraction.pack import factor_of, run_time_packing
from tilewright.targets.cpu.product.contraction.plan import KernelPlan, Packing, Strided
from tilewright.targets.cpu.product.contraction.row_units import asked_units
from tilewright.targets.cpu.product.contraction.sums import Sums
from tilewright.targets.cpu.product.contraction.tiling import RowTile
from tilewright.targets.cpu.product.loops import StridedLoop, digits
from tilewright.targets.cpu.template import Context
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec

# A panel of this size is worth fetching while the one before it is multiplied: weights come from memory
# that is too slow to keep up with the FMAs (196 x 1152 over 384 sums, weights from the last cache: 210 → 235
# GFLOP/s, one thread). Smaller ones that the processor fetches by itself are not worth an instruction a step.
_MIN_PREFETCH_BYTES = 12 * 1024
# With more rows than this, widening compact weights takes longer than reading whole ones; fewer bytes of them
# stay in the L2 cache from run to run.
MAX_COMPACT_ROWS = 4
_MIN_COMPACT_BYTES = 64 * 1024


def generate_contraction(design: Design, context: Context) -> tuple[Kernel, ...] | Declined:
    """Kernels of a design: the packing of B where it must happen at run time, then the product.

    A packed B is a new local operand that appears in the kernels' arguments.
    """
    problem = design.problem
    plan = plan_kernel(design, context)
    if plan.packing != "in panels":
        return (generate_kernel(plan, context.isa),)
    names = {d.name for d in problem.nest.dims}
    if any(x.name not in names for x in (*problem.outer, *plan.summed) if x.b):
        return Declined("collapsed loops of a factor that must be packed at run time")
    if not any(x.extent > 1 and not x.b for x in (problem.row, *problem.outer)):
        return Declined("each element of the factor to pack is used once")
    pack = run_time_packing(problem, design.tile.panels, plan.summed, context.next_local)
    packed = pack.write.operand
    from tilewright.targets.cpu.loopnest import lower_nests

    layouts = {**context.layouts, packed.key: Layout.row_major(len(packed.shape))}
    kernel = generate_kernel(replace(plan, b=Strided(packed)), context.isa)
    return (*lower_nests((pack,), layouts, context.isa), kernel)


def plan_kernel(design: Design, context: Context) -> KernelPlan:
    """The plan of a design. Weights have 24 bits where they may be rounded and reading them takes longer than
    multiplying."""
    problem, nest = design.problem, design.problem.nest
    numbers = {read: number for number, read in enumerate(problem.extra_reads)}

    def renumbered(expression: Expr | None) -> Expr | None:
        if expression is None:
            return None
        return substitute(expression, lambda read: replace(read, index=numbers[read.index]))

    packing: Packing = "in panels"
    if problem.b.operand.key in context.constants:
        is_compact = context.may_round(nest) and _is_bound_by_weights(problem)
        packing = "in constant panels of 24 bits" if is_compact else "in constant panels"
    elif problem.vector.b == 1 and all(x.b for x in problem.inner):
        packing = "in place"
    plan = KernelPlan(
        dtype=problem.dtype,
        a=Strided(problem.a.operand, problem.a_offset),
        b=Strided(problem.b.operand, problem.b_offset),
        c=Strided(nest.write.operand, problem.c_offset),
        extras=tuple(
            Strided(nest.reads[read].operand, offset)
            for read, offset in zip(problem.extra_reads, problem.extra_offsets, strict=True)
        ),
        packing=packing,
        vector=problem.vector,
        row=problem.row,
        outer=problem.outer,
        summed=_summed_order(problem),
        windows=problem.windows,
        spread=problem.spread,
        max_rows=design.tile.max_rows,
        panels=design.tile.panels,
        cut=design.cut,
        cuts_tiles=design.cuts_tiles,
        block_parts=None,
        fetches_ahead=False,
        init=renumbered(nest.init),
        finish=renumbered(nest.finish),
    )
    plan = replace(plan, block_parts=best_block_parts(plan, context.isa))
    return replace(plan, fetches_ahead=_fetches_ahead(plan, context.isa))


def _fetches_ahead(plan: KernelPlan, isa: Isa) -> bool:
    """Whether the next panel is fetched while one is multiplied."""
    panels, blocks = plan.panels, step_blocks(plan)
    steps = prod(x.extent for x in plan.summed) if blocks is None else blocks.num_steps
    num_tiles = sum(t.count for t in plan.row_tiles)
    return (
        plan.packing == "in constant panels"
        and panels.num_panels > 1
        and plan.num_units * num_tiles >= 2 * panels.num_vectors
        and _MIN_PREFETCH_BYTES <= steps * panels.width * plan.dtype.size_bytes <= isa.caches.l2_bytes // 2
    )


def _is_bound_by_weights(problem: Contraction) -> bool:
    """Whether few rows share constants that do not stay in a private cache."""
    rows = prod(x.extent for x in (problem.row, *problem.outer) if not x.b)
    size_bytes = problem.b.operand.num_elements * problem.dtype.size_bytes
    is_plain = problem.dtype is DType.FLOAT32 and problem.spread is None
    return is_plain and rows <= MAX_COMPACT_ROWS and size_bytes >= _MIN_COMPACT_BYTES


def _summed_order(problem: Contraction) -> tuple[StridedLoop, ...]:
    """Summed loops, outermost first: taps bounded by loops, the tap along the row, then A's strides down."""
    clamped = [w.tap for w in problem.windows if w.position != problem.row.name]
    along_row = [w.tap for w in problem.windows if w.position == problem.row.name]
    first = [*clamped, *along_row]
    by_name = {x.name: x for x in problem.inner}
    rest = sorted((x for x in problem.inner if x.name not in first), key=lambda x: (-abs(x.a), x.name))
    return (*(by_name[n] for n in first if n in by_name), *rest)


def generate_kernel(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan."""
    panels, factor, blocks = plan.panels, factor_of(plan), step_blocks(plan)
    most_rows = max(t.rows for t in plan.row_tiles)
    element = vec(ELEMENT[plan.dtype.size_bytes], panels.lanes)
    operands = (plan.a.operand, factor.arg, plan.c.operand, *(extra.operand for extra in plan.extras))
    e = Emitter(attributes=isa.function_attributes)
    with kernel_function(e, operands, has_rows=plan.row_loop is not None) as function:
        num_rows = function.num_rows()
        pointers = dict(zip(("a", "b", "c"), function.pointers[:3], strict=True))
        frame = Frame(e, plan, factor, element, pointers, function.pointers[3:])
        is_blocked = prod(x.extent for x in plan.summed) > MAX_CHAIN_STEPS
        in_memory = finishes_in_memory(plan)
        memory = None
        if blocks is not None:
            memory = function.scratch
        elif is_blocked or in_memory:
            memory = e.alloca(element, most_rows * panels.num_vectors)
        sums = Sums(frame, memory if is_blocked else None)
        _Tiles(sums, memory if in_memory else None, blocks).chunk(function.chunk, num_rows)
    kind = "of 24 bits" if factor.is_compact else "packed" if factor.is_packed else "in place"
    return function.kernel(
        "contract",
        num_chunks=plan.cut.num_chunks,
        template=TEMPLATE,
        macs=plan.num_macs,
        notes=(
            f"tile {most_rows}x{panels.num_vectors * panels.lanes}",
            f"{plan.cut.num_row_parts}x{plan.cut.num_panel_parts} chunks",
            f"B {kind}",
            *([f"{blocks.num_steps} steps at a time"] if blocks else []),
        ),
        scratch_bytes=blocks.scratch_bytes if blocks else 0,
        plan=plan,
    )


class _Tiles:
    """Emits the loops from a chunk down to its register tiles; the attributes are fixed facts."""

    def __init__(self, sums: Sums, finished_from: Val | None, blocks: StepBlocks | None) -> None:
        frame = sums.frame
        plan = frame.plan
        self.frame, self.sums, self.emitter = frame, sums, frame.emitter
        self.plan, self.panels, self.factor = plan, plan.panels, frame.factor
        self.finished_from = finished_from
        self.blocks = blocks
        self.block: Int = 0
        self.memory = sums.totals
        self.row_tiles = plan.row_tiles
        self.row_window = plan.window_of(plan.row.name)
        self.num_tiles = sum(t.count for t in plan.row_tiles)

    # From the chunk number down to one register tile.

    def chunk(self, chunk: Val, num_rows: Val | None) -> None:
        """All tiles of a chunk, of as many rows as a run has."""
        e, cut = self.emitter, self.plan.cut
        panel_part = e.urem(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else chunk
        row_part = e.udiv(chunk, cut.num_panel_parts)
        if cut.num_panel_parts == 1:
            panel_part, row_part = 0, chunk
        if cut.num_row_parts == 1:
            row_part = 0
        first_panel, last_panel = e.piece(panel_part, cut.num_panel_parts, self.panels.num_panels)
        first_unit, last_unit = e.piece(row_part, cut.num_row_parts, self._asked_units(num_rows))
        blocks = self.blocks
        if blocks is None:
            self._panels(first_panel, last_panel, first_unit, last_unit)
            return
        num_parts = -(-self.plan.summed[0].extent // BLOCK_STEPS)

        def block(number: Int, _: Sequence[Val]) -> None:
            first = e.mul(number, blocks.num_parts)
            self.block = number
            self.sums.part_range = first, e.min(e.add(first, blocks.num_parts), num_parts)
            self._panels(first_panel, last_panel, first_unit, last_unit)

        e.loop(0, blocks.count, 1, block)

    def _asked_units(self, num_rows: Val | None) -> Int:
        """Pieces that rows are cut into, of as many as a run has."""
        plan = self.plan
        loop = plan.row_loop
        if num_rows is None or loop is None:
            return plan.num_units
        return asked_units(self.emitter, loop, num_rows, plan.outer, self.row_tiles, plan.num_units)

    def _panels(self, first_panel: Int, last_panel: Int, first_unit: Int, last_unit: Int) -> None:
        e, bounds = self.emitter, (first_panel, last_panel)
        lanes, tail = self.panels.lanes, self.panels.tail
        if self.panels.num_full:
            full = Panel(self.panels.num_vectors, lanes, self.factor.step_strides)
            e.loop(
                first_panel,
                e.min(last_panel, self.panels.num_full),
                1,
                lambda panel, _: self._units(panel, full, bounds, first_unit, last_unit),
            )
        if tail:
            last = Panel(self.panels.tail_vectors, (tail - 1) % lanes + 1, self.factor.tail_step_strides)
            e.if_(
                e.compare("eq", last_panel, self.panels.num_panels),
                lambda: self._units(self.panels.num_full, last, bounds, first_unit, last_unit),
            )

    def _units(self, index: Int, panel: Panel, panels: tuple[Int, Int], first: Int, last: Int) -> None:
        e, blocks, to_next = self.emitter, self.blocks, self._to_next(index, panels)
        b = e.add(e.mul(index, self.factor.panel_stride), self.factor.offset)
        column = e.mul(index, self.panels.width)

        def unit(number: Int, _: Sequence[Val]) -> None:
            if self.plan.fetches_ahead:
                # Each unit fetches one of the vectors of every step, so that a few units fetch them all.
                vector = e.urem(number, self.panels.num_vectors)
                shift = e.add(e.mul(vector, self.panels.lanes), to_next)
                self.sums.next_panel = self.frame.pointer("b", shift, self.plan.dtype.size_bytes)
            if blocks is not None and self.memory is not None:
                tile = e.add(e.mul(e.sub(index, panels[0]), blocks.most_units), e.sub(number, first))
                self.sums.totals = e.gep(self.memory, e.mul(tile, blocks.tile_bytes))
            outer = e.udiv(number, self.num_tiles) if self.plan.cuts_tiles else number
            position = self._at_outer(outer, b, column)
            if self.plan.cuts_tiles:
                self._tile_number(e.urem(number, self.num_tiles), position, panel)
            else:
                self._all_tiles(position, panel)

        e.loop(first, last, 1, unit)

    def _to_next(self, index: Int, panels: tuple[Int, Int]) -> Int:
        """Elements of B from a step of this panel to the same step of what is multiplied after it.

        Behind a chunk's last panel comes its first in the next block of steps, and in the end another chunk.
        """
        e, blocks, stride = self.emitter, self.blocks, self.factor.panel_stride
        if blocks is None:
            return stride
        first, last = panels
        block_size = blocks.num_steps * self.panels.width
        to_block = e.add(e.mul(e.sub(first, index), stride), block_size)
        to_chunk = e.sub(stride, e.mul(self.block, block_size))
        behind = e.select_index(e.compare("eq", self.block, blocks.count - 1), to_chunk, to_block)
        return e.select_index(e.compare("eq", e.add(index, 1), last), behind, stride)

    def _at_outer(self, number: Int, b: Int, column: Int) -> Position:
        """Offsets at one combination of the outer loops, at the panel's first column."""
        e, plan = self.emitter, self.plan
        # Groups side by side lie in A as in the output; otherwise columns do not move A.
        a: Int = e.add(plan.a.offset, 0 if plan.spread is None else column)
        c: Int = e.add(column, plan.c.offset)
        extras: list[Int] = [
            e.add(e.mul(column, s), extra.offset)
            for s, extra in zip(plan.vector.extras, plan.extras, strict=True)
        ]
        indices: dict[str, Int] = {}
        for x, index in digits(e, number, plan.outer):
            indices[x.name] = index
            a = e.add(a, e.mul(index, x.a))
            b = e.add(b, e.mul(index, self.factor.outer_strides.get(x.name, 0)))
            c = e.add(c, e.mul(index, x.c))
            extras = [e.add(o, e.mul(index, s)) for o, s in zip(extras, x.extras, strict=True)]
        return Position(a, b, c, tuple(extras), indices)

    def _tile_number(self, number: Int, position: Position, panel: Panel) -> None:
        """The `number`-th row tile, whose size depends on where it lies."""
        e = self.emitter
        first = self.row_tiles[0]

        def at(tile: RowTile, number: Int) -> None:
            row = e.add(e.mul(number, tile.rows), tile.start)
            self._tile(tile.rows, self._at_row(position, row), panel, None)

        if len(self.row_tiles) == 1:
            at(first, number)
        else:
            second = self.row_tiles[1]
            e.if_(
                e.compare("slt", number, first.count),
                lambda: at(first, number),
                lambda: at(second, e.sub(number, first.count)),
            )

    def _all_tiles(self, position: Position, panel: Panel) -> None:
        """All row tiles: those whose rows all have every tap in loops, those at an edge one by one."""
        e = self.emitter
        for tile in self.row_tiles:
            start = 0
            while start < tile.count:
                if self._touches_edge(tile, start):
                    row = tile.start + start * tile.rows
                    self._tile(tile.rows, self._at_row(position, row), panel, row)
                    start += 1
                    continue
                stop = start
                while stop < tile.count and not self._touches_edge(tile, stop):
                    stop += 1

                def inside(number: Int, _: Sequence[Val], tile: RowTile = tile) -> None:
                    row = e.add(e.mul(number, tile.rows), tile.start)
                    self._tile(tile.rows, self._at_row(position, row), panel, None)

                e.loop(start, stop, 1, inside)
                start = stop

    def _touches_edge(self, tile: RowTile, number: int) -> bool:
        window = self.row_window
        return window is not None and touches_edge(window, tile, number, self._extent(window.tap))

    def _extent(self, tap: str) -> int:
        return next((x.extent for x in self.plan.summed if x.name == tap), 1)

    def _at_row(self, position: Position, row: Int) -> Position:
        e, step = self.emitter, self.plan.row
        return replace(
            position,
            a=e.add(position.a, e.mul(row, step.a)),
            c=e.add(position.c, e.mul(row, step.c)),
            extras=tuple(e.add(o, e.mul(row, s)) for o, s in zip(position.extras, step.extras, strict=True)),
        )

    # One register tile.

    def _tile(self, num_rows: int, at: Position, panel: Panel, edge_row: int | None) -> None:
        if not self.sums.is_blocked:
            accumulators = initial_values(self.frame, num_rows, at, panel)
            accumulators = self._bounded_taps(0, num_rows, at.a, at.b, at, panel, edge_row, accumulators)
            if self.finished_from is None:
                store_tile(self.frame, num_rows, at, panel, accumulators)
                return
            for number, value in enumerate(accumulators):
                pointer = self.emitter.gep(self.finished_from, number * self.frame.type.size_bytes)
                self.emitter.store(value, pointer)
            finish_in_memory(self.frame, num_rows, at, panel, self.finished_from)
            return
        self._in_block(0, lambda: self._start_totals(num_rows, at, panel))
        self._bounded_taps(0, num_rows, at.a, at.b, at, panel, edge_row, [])
        self._in_block(-1, lambda: self._finish_totals(num_rows, at, panel))

    def _in_block(self, number: int, emit: Callable[[], None]) -> None:
        """Emit what happens in the first (0) or the last (-1) block of steps alone."""
        if self.blocks is None:
            emit()
        else:
            at = range(self.blocks.count)[number]
            self.emitter.if_(self.emitter.compare("eq", self.block, at), emit)

    def _start_totals(self, num_rows: int, at: Position, panel: Panel) -> None:
        for number, value in enumerate(initial_values(self.frame, num_rows, at, panel)):
            self.emitter.store(value, self.sums.total(number))

    def _finish_totals(self, num_rows: int, at: Position, panel: Panel) -> None:
        if self.finished_from is not None and self.sums.totals is not None:
            finish_in_memory(self.frame, num_rows, at, panel, self.sums.totals)
            return
        numbers = range(num_rows * panel.num_vectors)
        totals = [self.emitter.load(self.frame.type, self.sums.total(i)) for i in numbers]
        store_tile(self.frame, num_rows, at, panel, totals)

    def _bounded_taps(
        self,
        depth: int,
        num_rows: int,
        a: Int,
        b: Int,
        at: Position,
        panel: Panel,
        edge_row: int | None,
        accumulators: list[Val],
    ) -> list[Val]:
        """Loops over the taps of windows along outer dims, bounded to what lies inside; then the rest."""
        e = self.emitter
        windows = [w for w in self.plan.windows if w.position != self.plan.row.name]
        bounded = [w for w in windows if w.tap in panel.step_strides]
        if depth == len(bounded):
            return self._row_taps(num_rows, a, b, panel, edge_row, accumulators)
        window = bounded[depth]
        loop = next(x for x in self.plan.summed if x.name == window.tap)
        origin = e.add(e.mul(at.outer.get(window.position, 0), window.position_step), window.offset)
        low = self._ceil_div(e.sub(0, origin), window.tap_step)
        high = self._ceil_div(e.sub(window.size, origin), window.tap_step)

        def body(tap: Int, carried: Sequence[Val]) -> Sequence[Val]:
            return self._bounded_taps(
                depth + 1,
                num_rows,
                e.add(a, e.mul(tap, loop.a)),
                e.add(b, e.mul(tap, panel.step_strides[loop.name])),
                at,
                panel,
                edge_row,
                list(carried),
            )

        return e.loop(
            e.max(low, 0), e.min(high, loop.extent), 1, body, [(self.frame.type, v) for v in accumulators]
        )

    def _ceil_div(self, value: Int, divisor: int) -> Int:
        """Ceiling for non-negative values; negative ones give at most 0, which bounds alike."""
        e = self.emitter
        return value if divisor == 1 else e.sdiv(e.add(value, divisor - 1), divisor)

    def _row_taps(
        self,
        num_rows: int,
        a: Int,
        b: Int,
        panel: Panel,
        edge_row: int | None,
        accumulators: list[Val],
    ) -> list[Val]:
        """The tap along the row: merged with the inner loops, or straight code with the rows it reaches."""
        e, window = self.emitter, self.row_window
        outer_taps = {w.tap for w in self.plan.windows if w.position != self.plan.row.name}
        within = self.plan.spread.loop.name if self.plan.spread else None
        inner = [x for x in self.plan.summed if x.name not in outer_taps and x.name != within]
        if window is None or edge_row is None:
            return self.sums.steps(inner, range(num_rows), a, b, panel, accumulators)
        tap_loop = next((x for x in inner if x.name == window.tap), None)
        free = [x for x in inner if x.name != window.tap]
        num_vectors = panel.num_vectors
        for run in tap_runs(window, edge_row, num_rows, self._extent(window.tap)):
            for taps in run.pieces():
                loops = free if tap_loop is None else [replace(tap_loop, extent=len(taps)), *free]
                a_step = tap_loop.a if tap_loop else 0
                b_step = panel.step_strides[tap_loop.name] if tap_loop else 0
                at_a, at_b = e.add(a, taps.start * a_step), e.add(b, taps.start * b_step)
                if self.sums.is_blocked:
                    self.sums.steps(loops, run.rows, at_a, at_b, panel, [])
                    continue
                picked = [accumulators[r * num_vectors + j] for r in run.rows for j in range(num_vectors)]
                summed = self.sums.steps(loops, run.rows, at_a, at_b, panel, picked)
                for number, r in enumerate(run.rows):
                    for j in range(num_vectors):
                        accumulators[r * num_vectors + j] = summed[number * num_vectors + j]
        return accumulators
