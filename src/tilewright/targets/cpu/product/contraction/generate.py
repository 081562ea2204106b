"""The contraction micro-kernel: one register tile of accumulators over nested summed loops.

GEMM, pointwise and k×k convolution, grouped convolution, the stem that reads channels-first, the two
products of attention: all are this kernel with other strides. Padding
is never copied and never multiplied: taps outside the input are skipped, by loop bounds where the
output position is a loop, by straight code for the rows of the register tile that touch an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import BLOCK_STEPS, MAX_CHAIN_STEPS, Declined, Kernel, Layout
from tilewright.targets.cpu.product.contraction.blocks import StepBlocks, step_blocks
from tilewright.targets.cpu.product.contraction.choose import ELEMENT, TEMPLATE
from tilewright.targets.cpu.product.contraction.edges import tap_runs, touches_edge
from tilewright.targets.cpu.product.contraction.match import Contraction
from tilewright.targets.cpu.product.contraction.pack import FactorB, factor_of, run_time_packing, widened
from tilewright.targets.cpu.product.contraction.sums import Sums, widen_half, widen_panel
from tilewright.targets.cpu.product.epilogue import (
    finish_in_memory,
    finishes_in_memory,
    initial_values,
    store_tile,
)
from tilewright.targets.cpu.product.frame import Frame, Panel, Position, product_function
from tilewright.targets.cpu.product.plan import KernelPlan, Strided
from tilewright.targets.cpu.product.tiling import RowTile
from tilewright.targets.cpu.product.walk import Range, TileWalk
from tilewright.targets.cpu.template import Context
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec


def generate_contraction(
    problem: Contraction, plan: KernelPlan, context: Context
) -> tuple[Kernel, ...] | Declined:
    """Kernels of a plan: the packing of B where it must happen at run time, then the product.

    A packed B is a new local operand that appears in the kernels' arguments.
    """
    if plan.packing != "in panels":
        return (generate_kernel(plan, context.isa),)
    names = {d.name for d in problem.nest.dims}
    if any(x.name not in names for x in (*problem.outer, *plan.summed) if x.b):
        return Declined("collapsed loops of a factor that must be packed at run time")
    if not any(x.extent > 1 and not x.b for x in (problem.row, *problem.outer)):
        return Declined("each element of the factor to pack is used once")
    pack = run_time_packing(problem, plan.panels, plan.summed, context.next_local)
    packed = pack.write.operand
    from tilewright.targets.cpu.loopnest import lower_nests

    layouts = {**context.layouts, packed.key: Layout.row_major(len(packed.shape))}
    kernel = generate_kernel(replace(plan, b=Strided(packed)), context.isa)
    return (*lower_nests((pack,), layouts, context.isa), kernel)


def generate_kernel(plan: KernelPlan, isa: Isa) -> Kernel:
    """The kernel of a plan."""
    panels, factor, blocks = plan.panels, factor_of(plan), step_blocks(plan)
    most_rows = max(t.rows for t in plan.row_tiles)
    element = vec(ELEMENT[plan.dtype.size_bytes], panels.lanes)
    e, has_rows = Emitter(attributes=isa.function_attributes), plan.row_loop is not None
    with product_function(e, plan, element, factor.arg, {}, has_rows=has_rows) as frame:
        function = frame.function
        num_rows = function.num_rows()
        is_blocked = prod(x.extent for x in plan.summed) > MAX_CHAIN_STEPS
        in_memory = finishes_in_memory(plan)
        memory = None
        if blocks is not None:
            memory = function.scratch
        elif is_blocked or in_memory:
            memory = e.alloca(element, most_rows * panels.num_vectors)
        stored = (frame, factor) if _widens_panels(plan, factor) else None
        if stored is not None:
            frame = replace(frame, pointers={**frame.pointers, "b": function.scratch})
            factor = widened(factor, plan)
        sums = Sums(frame, factor, memory if is_blocked else None)
        _Tiles(sums, memory if in_memory else None, blocks, stored).chunk(function.chunk, num_rows)
    factor, scratch_bytes = factor_of(plan), blocks.scratch_bytes if blocks else 0
    if _widens_panels(plan, factor):
        scratch_bytes = plan.summed[0].extent * panels.width * plan.dtype.size_bytes
    kind = "packed" if factor.is_packed else "in place"
    if factor.is_compact:
        kind = "of 24 bits"
    elif factor.few_bits is not None or factor.half is not None:
        kind = plan.packing.removeprefix("in constant panels ")
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
        scratch_bytes=scratch_bytes,
        plan=plan,
    )


def _widens_panels(plan: KernelPlan, factor: FactorB) -> bool:
    """Whether a chunk widens a panel once for all of its tiles, in the thread's scratch."""
    num_tiles = sum(t.count for t in plan.row_tiles) * prod(x.extent for x in plan.outer)
    is_narrow = factor.few_bits is not None or factor.half is not None
    return is_narrow and num_tiles >= 2 * plan.cut.num_row_parts


class _Tiles(TileWalk):
    """Emits the loops from a chunk down to its register tiles; the attributes are fixed facts."""

    def __init__(
        self,
        sums: Sums,
        finished_from: Val | None,
        blocks: StepBlocks | None,
        stored: tuple[Frame, FactorB] | None,
    ) -> None:
        """`stored` is B as it is stored, where it is widened panel by panel."""
        super().__init__(sums.frame, sums.factor)
        plan, self.stored = self.plan, stored
        self.sums = sums
        self.finished_from = finished_from
        self.blocks = blocks
        self.block: Int = 0
        self.memory = sums.totals
        self.row_window = plan.window_of(plan.row.name)
        self.num_tiles = sum(t.count for t in plan.row_tiles)

    def products(self, panels: Range, units: Range) -> None:
        """All panels of a chunk for one block of steps after the other, where sums are cut into blocks."""
        e, blocks = self.emitter, self.blocks
        if blocks is None:
            super().products(panels, units)
            return
        num_parts = -(-self.plan.summed[0].extent // BLOCK_STEPS)

        def block(number: Int, _: Sequence[Val]) -> None:
            first = e.mul(number, blocks.num_parts)
            self.block = number
            self.sums.part_range = first, e.min(e.add(first, blocks.num_parts), num_parts)
            super(_Tiles, self).products(panels, units)

        e.loop(0, blocks.count, 1, block)

    def step_strides(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Elements of B moved by summed loops in a full panel, and in a narrower one."""
        return self.sums.factor.step_strides, self.sums.factor.tail_step_strides

    def units(self, index: Int, panel: Panel, panels: Range, units: Range) -> None:
        """One panel for all units of a chunk's rows."""
        e, blocks, to_next = self.emitter, self.blocks, self._to_next(index, panels)
        first, last = units
        b, column = self.panel_start(index)
        if self.stored is not None:
            frame, factor = self.stored
            begin, num_steps = e.mul(index, factor.panel_stride), self.plan.summed[0].extent
            if factor.few_bits is not None:
                widen_panel(frame, factor.few_bits, num_steps, begin, panel, frame.function.scratch)
            elif factor.half is not None:
                widen_half(frame, factor.half, num_steps, begin, panel, frame.function.scratch)

        def unit(number: Int, _: Sequence[Val]) -> None:
            if self.plan.fetches_ahead:
                # Each unit fetches one of the vectors of every step, so that a few units fetch them all.
                vector = e.urem(number, self.panels.num_vectors)
                shift = e.add(e.mul(vector, self.panels.lanes), to_next)
                self.sums.next_panel = self.frame.pointer("b", shift, self.plan.dtype.size_bytes)
            if blocks is not None and self.memory is not None:
                total = e.add(e.mul(e.sub(index, panels[0]), blocks.most_units), e.sub(number, first))
                self.sums.totals = e.gep(self.memory, e.mul(total, blocks.tile_bytes))
            outer = e.udiv(number, self.num_tiles) if self.plan.cuts_tiles else number
            position = self.at_outer(outer, b, column)
            if self.plan.cuts_tiles:
                tile = e.urem(number, self.num_tiles)
                self.tile_number(tile, position, lambda rows, at: self._tile(rows, at, panel, None))
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

    def _all_tiles(self, position: Position, panel: Panel) -> None:
        """All row tiles: those whose rows all have every tap in loops, those at an edge one by one."""
        e = self.emitter
        for tile in self.row_tiles:
            start = 0
            while start < tile.count:
                if self._touches_edge(tile, start):
                    row = tile.start + start * tile.rows
                    self._tile(tile.rows, self.at_row(position, row), panel, row)
                    start += 1
                    continue
                stop = start
                while stop < tile.count and not self._touches_edge(tile, stop):
                    stop += 1

                def inside(number: Int, _: Sequence[Val], tile: RowTile = tile) -> None:
                    row = e.add(e.mul(number, tile.rows), tile.start)
                    self._tile(tile.rows, self.at_row(position, row), panel, None)

                e.loop(start, stop, 1, inside)
                start = stop

    def _touches_edge(self, tile: RowTile, number: int) -> bool:
        window = self.row_window
        return window is not None and touches_edge(window, tile, number, self._extent(window.tap))

    def _extent(self, tap: str) -> int:
        return next((x.extent for x in self.plan.summed if x.name == tap), 1)

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
        self, num_rows: int, a: Int, b: Int, panel: Panel, edge_row: int | None, accumulators: list[Val]
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
