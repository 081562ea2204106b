"""The contraction micro-kernel: one register tile of accumulators over nested summed loops.

GEMM, pointwise and k×k convolution, grouped convolution, the stem that reads channels-first, the two
products of attention: all are this kernel with other strides (spec/cpu.md section 10, item 3). Padding
is never copied and never multiplied: taps outside the input are skipped, by loop bounds where the
output position is a loop, by straight code for the rows of the register tile that touch an edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.nest import Nest, Operand
from tilewright.targets.cpu.contraction.choose import (
    ELEMENT,
    MAX_CHAIN_STEPS,
    TEMPLATE,
    Design,
    design_contraction,
)
from tilewright.targets.cpu.contraction.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.contraction.match import Contraction, Loop, Spread
from tilewright.targets.cpu.contraction.pack import (
    COMPACT_BYTES,
    FactorB,
    in_place,
    packed_at_run_time,
    packed_constant,
)
from tilewright.targets.cpu.contraction.tiling import Cut, Panels, RowTile, split_rows
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.exprgen import emit_expr
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Declined,
    Kernel,
    KernelArg,
    Layout,
    Layouts,
    OperandKey,
    Packed,
    name_by_content,
)
from tilewright.targets.cpu.values import I64, PTR, Int, Type, Val, vec
from tilewright.tuning import Choice

# Longer sums are cut into blocks whose totals are added up in memory: the error of one chain of float
# additions grows with its length, and a block of this many steps hides what the extra addition costs.
_BLOCK_STEPS = 256
# A panel of this size is worth fetching while the one before it is multiplied: weights come from memory
# that is too slow to keep up with the FMAs (ResNet-50: 57.9 → 55.3 ms, BERT-base: 176 → 166 ms, one thread).
_MIN_PREFETCH_BYTES = 64 * 1024
# With more rows than this, widening compact weights takes longer than reading whole ones; fewer bytes of them
# stay in the L2 cache from run to run.
_MAX_COMPACT_ROWS = 4
_MIN_COMPACT_BYTES = 64 * 1024


def lower_contraction(
    nest: Nest,
    layouts: Layouts,
    isa: Isa,
    *,
    constants: frozenset[OperandKey],
    next_local: int,
    choice: Choice | None = None,
    may_round: bool = False,
) -> tuple[Kernel, ...] | Declined:
    """Kernels of one contraction nest: the packing of B where it must happen at run time, then the product.

    `constants` are the operands whose data are known now. A packed B is a new local operand numbered
    `next_local` that appears in the kernels' arguments. `choice` is one of `contraction_candidates`; what it
    leaves open the estimate decides. `may_round` allows weights of 24 bits where reading them takes longer
    than multiplying.
    """
    design = design_contraction(nest, layouts, isa, constants=constants, choice=choice)
    if isinstance(design, Declined):
        return design
    problem, tile = design.problem, design.tile
    order = _summed_order(problem)
    before: tuple[Kernel, ...] = ()
    if problem.b.operand.key in constants:
        is_compact = may_round and _is_bound_by_weights(problem)
        factor = packed_constant(problem, tile.panels, order, is_compact=is_compact)
    elif problem.vector.b == 1 and all(x.b for x in problem.inner):
        factor = in_place(problem, tile.panels)
    else:
        names = {d.name for d in nest.dims}
        if any(x.name not in names for x in (*problem.outer, *order) if x.b):
            return Declined("collapsed loops of a factor that must be packed at run time")
        if not any(x.extent > 1 and not x.b for x in (problem.row, *problem.outer)):
            return Declined("each element of the factor to pack is used once")
        pack, factor = packed_at_run_time(problem, tile.panels, order, next_local)
        operand = factor.arg
        assert isinstance(operand, Operand)
        from tilewright.targets.cpu.loopnest import lower_nests

        before = lower_nests((pack,), {**layouts, operand.key: _row_major(operand)}, isa)
    generator = _Generator(design, factor, order, isa)
    return (*before, generator.kernel())


def _is_bound_by_weights(problem: Contraction) -> bool:
    """Whether few rows share constants that do not stay in a private cache."""
    rows = prod(x.extent for x in (problem.row, *problem.outer) if not x.b)
    size_bytes = problem.b.operand.num_elements * problem.dtype.size_bytes
    is_plain = problem.dtype is DType.FLOAT32 and problem.spread is None
    return is_plain and rows <= _MAX_COMPACT_ROWS and size_bytes >= _MIN_COMPACT_BYTES


def _row_major(operand: Operand) -> Layout:
    return Layout.row_major(len(operand.shape))


def _summed_order(problem: Contraction) -> tuple[Loop, ...]:
    """Summed loops, outermost first: taps bounded by loops, the tap along the row, then A's strides down."""
    clamped = [w.tap for w in problem.windows if w.position != problem.row.name]
    along_row = [w.tap for w in problem.windows if w.position == problem.row.name]
    first = [*clamped, *along_row]
    by_name = {x.name: x for x in problem.inner}
    rest = sorted((x for x in problem.inner if x.name not in first), key=lambda x: (-abs(x.a), x.name))
    return (*(by_name[n] for n in first if n in by_name), *rest)


@dataclass(frozen=True, slots=True)
class _Position:
    """Element offsets of one tile's first row in every operand, and the output indices that windows need."""

    a: Int
    b: Int
    c: Int
    extras: tuple[Int, ...]
    outer: Mapping[str, Int]


@dataclass(frozen=True, slots=True)
class _Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int
    step_strides: Mapping[str, int]


class _Generator:
    """Emits one kernel; the attributes are the fixed facts of the problem."""

    def __init__(self, design: Design, factor: FactorB, order: tuple[Loop, ...], isa: Isa) -> None:
        problem, panels = design.problem, design.tile.panels
        self.problem = problem
        self.factor = factor
        self.panels: Panels = panels
        self.order = order
        self.isa = isa
        self.type: Type = vec(ELEMENT[problem.dtype.size_bytes], panels.lanes)
        self.row_tiles = split_rows(problem.row.extent, design.tile.max_rows)
        self.row_window = problem.window_of(problem.row.name)
        self.num_tiles = sum(t.count for t in self.row_tiles)
        self.cuts_tiles = design.cuts_tiles
        self.num_units = design.num_units
        self.cut: Cut = design.cut
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.is_blocked = prod(x.extent for x in order) > MAX_CHAIN_STEPS
        self.totals: Val | None = None
        panel_bytes = factor.panel_stride * problem.dtype.size_bytes
        self.prefetches = (
            factor.is_packed
            and not factor.is_compact
            and isinstance(factor.arg, Packed)
            and self.panels.num_panels > 1
            and self.num_units * self.num_tiles >= 2 * self.panels.num_vectors
            and _MIN_PREFETCH_BYTES <= panel_bytes <= isa.caches.l2_bytes // 2
        )
        self.next_panel: Val | None = None
        self.pointers: dict[str, Val] = {}
        self.extra_pointers: tuple[Val, ...] = ()

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, problem = self.emitter, self.problem
        extras = tuple(problem.nest.reads[i].operand for i in problem.extra_reads)
        args: tuple[KernelArg, ...] = (
            problem.a.operand,
            self.factor.arg,
            problem.nest.write.operand,
            *extras,
        )
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, _):
            loaded = [e.load(PTR, e.gep(block, 8 * i)) for i in range(len(args))]
            self.pointers = dict(zip(("a", "b", "c"), loaded[:3], strict=True))
            self.extra_pointers = tuple(loaded[3:])
            if self.is_blocked:
                most_rows = max(t.rows for t in self.row_tiles)
                self.totals = e.alloca(self.type, most_rows * self.panels.num_vectors)
            self._chunk(chunk)
        symbol, text = name_by_content(e.text(), "contract")
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=self.cut.num_chunks,
            args=args,
            template=TEMPLATE,
            macs=problem.num_macs,
            notes=(
                f"tile {max(t.rows for t in self.row_tiles)}x{self.panels.num_vectors * self.panels.lanes}",
                f"{self.cut.num_row_parts}x{self.cut.num_panel_parts} chunks",
                "B of 24 bits"
                if self.factor.is_compact
                else "B packed"
                if self.factor.is_packed
                else "B in place",
            ),
        )

    # From the chunk number down to one register tile.

    def _chunk(self, chunk: Val) -> None:
        e, cut = self.emitter, self.cut
        panel_part = e.urem(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else chunk
        row_part = e.udiv(chunk, cut.num_panel_parts)
        if cut.num_panel_parts == 1:
            panel_part, row_part = 0, chunk
        if cut.num_row_parts == 1:
            row_part = 0
        first_panel, last_panel = self._part(panel_part, cut.num_panel_parts, self.panels.num_panels)
        first_unit, last_unit = self._part(row_part, cut.num_row_parts, self.num_units)
        lanes, tail = self.panels.lanes, self.panels.tail
        if self.panels.num_full:
            full = _Panel(self.panels.num_vectors, lanes, self.factor.step_strides)
            e.loop(
                first_panel,
                e.min(last_panel, self.panels.num_full),
                1,
                lambda panel, _: self._units(panel, full, first_unit, last_unit),
            )
        if tail:
            last = _Panel(self.panels.tail_vectors, (tail - 1) % lanes + 1, self.factor.tail_step_strides)
            e.if_(
                e.compare("eq", last_panel, self.panels.num_panels),
                lambda: self._units(self.panels.num_full, last, first_unit, last_unit),
            )

    def _part(self, part: Int, num_parts: int, extent: int) -> tuple[Int, Int]:
        """Bounds of the `part`-th of `num_parts` nearly equal pieces of `extent`."""
        e = self.emitter
        low = e.udiv(e.mul(part, extent), num_parts)
        high = e.udiv(e.mul(e.add(part, 1), extent), num_parts)
        return low, high

    def _units(self, index: Int, panel: _Panel, first: Int, last: Int) -> None:
        e = self.emitter
        b = e.add(e.mul(index, self.factor.panel_stride), self.factor.offset)
        column = e.mul(index, self.panels.width)

        def unit(number: Int, _: Sequence[Val]) -> None:
            if self.prefetches:
                # Each unit fetches one of the vectors of every step, so that a few units fetch them all.
                vector = e.urem(number, self.panels.num_vectors)
                shift = e.add(e.mul(vector, self.panels.lanes), self.factor.panel_stride)
                self.next_panel = self._pointer("b", shift, self.problem.dtype.size_bytes)
            outer = e.udiv(number, self.num_tiles) if self.cuts_tiles else number
            position = self._at_outer(outer, b, column)
            if self.cuts_tiles:
                self._tile_number(e.urem(number, self.num_tiles), position, panel)
            else:
                self._all_tiles(position, panel)

        e.loop(first, last, 1, unit)

    def _at_outer(self, number: Int, b: Int, column: Int) -> _Position:
        """Offsets at one combination of the outer loops, at the panel's first column."""
        e, problem = self.emitter, self.problem
        # Groups side by side lie in A as in the output; otherwise columns do not move A.
        a: Int = e.add(problem.a_offset, 0 if problem.spread is None else column)
        c: Int = e.add(column, problem.c_offset)
        vector = problem.vector
        extras: list[Int] = [
            e.add(e.mul(column, s), o) for s, o in zip(vector.extras, problem.extra_offsets, strict=True)
        ]
        indices: dict[str, Int] = {}
        rest = number
        for position, x in enumerate(reversed(problem.outer)):
            is_outermost = position == len(problem.outer) - 1
            index = rest if is_outermost else e.urem(rest, x.extent)
            rest = rest if is_outermost else e.udiv(rest, x.extent)
            indices[x.name] = index
            a = e.add(a, e.mul(index, x.a))
            b = e.add(b, e.mul(index, self.factor.outer_strides.get(x.name, 0)))
            c = e.add(c, e.mul(index, x.c))
            extras = [e.add(o, e.mul(index, s)) for o, s in zip(extras, x.extras, strict=True)]
        return _Position(a, b, c, tuple(extras), indices)

    def _tile_number(self, number: Int, position: _Position, panel: _Panel) -> None:
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

    def _all_tiles(self, position: _Position, panel: _Panel) -> None:
        """All row tiles: those whose rows all have every tap in loops, those at an edge one by one."""
        e = self.emitter
        for tile in self.row_tiles:
            start = 0
            while start < tile.count:
                if self._touches_edge(tile.start + start * tile.rows, tile.rows):
                    row = tile.start + start * tile.rows
                    self._tile(tile.rows, self._at_row(position, row), panel, row)
                    start += 1
                    continue
                stop = start
                while stop < tile.count and not self._touches_edge(tile.start + stop * tile.rows, tile.rows):
                    stop += 1

                def inside(number: Int, _: Sequence[Val], tile: RowTile = tile) -> None:
                    row = e.add(e.mul(number, tile.rows), tile.start)
                    self._tile(tile.rows, self._at_row(position, row), panel, None)

                e.loop(start, stop, 1, inside)
                start = stop

    def _touches_edge(self, first_row: int, num_rows: int) -> bool:
        window = self.row_window
        if window is None:
            return False
        taps = self._extent(window.tap)
        return any(
            window.taps_inside(row, taps) != range(taps) for row in range(first_row, first_row + num_rows)
        )

    def _extent(self, tap: str) -> int:
        return next((x.extent for x in self.problem.inner if x.name == tap), 1)

    def _at_row(self, position: _Position, row: Int) -> _Position:
        e, step = self.emitter, self.problem.row
        return replace(
            position,
            a=e.add(position.a, e.mul(row, step.a)),
            c=e.add(position.c, e.mul(row, step.c)),
            extras=tuple(e.add(o, e.mul(row, s)) for o, s in zip(position.extras, step.extras, strict=True)),
        )

    # One register tile.

    def _tile(self, num_rows: int, at: _Position, panel: _Panel, edge_row: int | None) -> None:
        accumulators = self._initial(num_rows, at, panel)
        if self.is_blocked:
            count = len(accumulators)
            for number, value in enumerate(accumulators):
                self.emitter.store(value, self._total(number))
            self._bounded_taps(0, num_rows, at.a, at.b, at, panel, edge_row, [])
            accumulators = [self.emitter.load(self.type, self._total(i)) for i in range(count)]
        else:
            accumulators = self._bounded_taps(0, num_rows, at.a, at.b, at, panel, edge_row, accumulators)
        self._epilogue(num_rows, at, panel, accumulators)

    def _total(self, number: int) -> Val:
        """Where the running total of an accumulator lies between blocks."""
        assert self.totals is not None
        return self.emitter.gep(self.totals, number * self.type.size_bytes)

    def _bounded_taps(
        self,
        depth: int,
        num_rows: int,
        a: Int,
        b: Int,
        at: _Position,
        panel: _Panel,
        edge_row: int | None,
        accumulators: list[Val],
    ) -> list[Val]:
        """Loops over the taps of windows along outer dims, bounded to what lies inside; then the rest."""
        e = self.emitter
        windows = [w for w in self.problem.windows if w.position != self.problem.row.name]
        bounded = [w for w in windows if w.tap in panel.step_strides]
        if depth == len(bounded):
            return self._row_taps(num_rows, a, b, panel, edge_row, accumulators)
        window = bounded[depth]
        loop = next(x for x in self.order if x.name == window.tap)
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
            e.max(low, 0), e.min(high, loop.extent), 1, body, [(self.type, v) for v in accumulators]
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
        panel: _Panel,
        edge_row: int | None,
        accumulators: list[Val],
    ) -> list[Val]:
        """The tap along the row: merged with the inner loops, or straight code with the rows it reaches."""
        e, window = self.emitter, self.row_window
        outer_taps = {w.tap for w in self.problem.windows if w.position != self.problem.row.name}
        within = self.problem.spread.loop.name if self.problem.spread else None
        inner = [x for x in self.order if x.name not in outer_taps and x.name != within]
        if window is None or edge_row is None:
            return self._steps(inner, range(num_rows), a, b, panel, accumulators)
        tap_loop = next((x for x in inner if x.name == window.tap), None)
        free = [x for x in inner if x.name != window.tap]
        num_vectors = panel.num_vectors
        for tap in range(self._extent(window.tap)):
            rows = [r for r in range(num_rows) if tap in window.taps_inside(edge_row + r, tap + 1)]
            if not rows:
                continue
            a_step = tap_loop.a if tap_loop else 0
            b_step = panel.step_strides[tap_loop.name] if tap_loop else 0
            at_a, at_b = e.add(a, tap * a_step), e.add(b, tap * b_step)
            if self.is_blocked:
                self._steps(free, rows, at_a, at_b, panel, [])
                continue
            picked = [accumulators[r * num_vectors + j] for r in rows for j in range(num_vectors)]
            summed = self._steps(free, rows, at_a, at_b, panel, picked)
            for number, r in enumerate(rows):
                for j in range(num_vectors):
                    accumulators[r * num_vectors + j] = summed[number * num_vectors + j]
        return accumulators

    def _steps(
        self,
        loops: Sequence[Loop],
        rows: Sequence[int],
        a: Int,
        b: Int,
        panel: _Panel,
        accumulators: list[Val],
    ) -> list[Val]:
        """The remaining summed loops, neighbours merged where A walks on evenly, around the FMAs."""
        e = self.emitter
        local = [replace(x, b=panel.step_strides[x.name], c=0, extras=()) for x in loops]
        merged: list[Loop] = []
        for x in local:
            if merged and merged[-1].a == x.a * x.extent and merged[-1].b == x.b * x.extent:
                merged[-1] = replace(x, extent=x.extent * merged[-1].extent)
            else:
                merged.append(x)

        def nested(depth: int, a: Int, b: Int, carried: Sequence[Val]) -> list[Val]:
            if depth == len(merged):
                return self._multiply(rows, a, b, panel, carried)
            loop = merged[depth]
            is_innermost = depth == len(merged) - 1
            unroll = self._unroll(loop.extent, len(carried)) if is_innermost else 1
            return counted(depth, a, b, 0, loop.extent, unroll, carried)

        def counted(
            depth: int, a: Int, b: Int, low: Int, high: Int, unroll: int, carried: Sequence[Val]
        ) -> list[Val]:
            loop = merged[depth]

            def body(index: Int, values: Sequence[Val]) -> Sequence[Val]:
                for step in range(unroll):
                    at = e.add(index, step)
                    values = nested(
                        depth + 1, e.add(a, e.mul(at, loop.a)), e.add(b, e.mul(at, loop.b)), values
                    )
                return values

            return e.loop(low, high, unroll, body, [(self.type, v) for v in carried], nonempty=True)

        def blocked(depth: int, a: Int, b: Int) -> None:
            """Run the loops from `depth` on in blocks, each summed from zero and added to the totals."""
            zeros = [e.constant(self.type, 0.0)] * (len(rows) * panel.num_vectors)
            steps = prod(x.extent for x in merged[depth:])
            if steps <= MAX_CHAIN_STEPS:
                self._add_to_totals(rows, panel, nested(depth, a, b, zeros))
                return
            loop = merged[depth]
            inner = steps // loop.extent
            size = 1 if inner >= _BLOCK_STEPS // 2 else -(-_BLOCK_STEPS // inner)
            parts = -(-loop.extent // size)

            def block(part: Int, _: Sequence[Val]) -> None:
                if size == 1:
                    blocked(depth + 1, e.add(a, e.mul(part, loop.a)), e.add(b, e.mul(part, loop.b)))
                    return
                low = e.mul(part, size)
                high = e.min(e.add(low, size), loop.extent)
                unroll = self._unroll(size, len(zeros)) if loop.extent % size == 0 else 1
                unroll = unroll if depth == len(merged) - 1 else 1
                self._add_to_totals(rows, panel, counted(depth, a, b, low, high, unroll, zeros))

            e.loop(0, parts, 1, block)

        if self.is_blocked:
            blocked(0, a, b)
            return []
        return nested(0, a, b, accumulators)

    def _add_to_totals(self, rows: Sequence[int], panel: _Panel, sums: Sequence[Val]) -> None:
        e = self.emitter
        for number, value in enumerate(sums):
            row, vector = divmod(number, panel.num_vectors)
            pointer = self._total(rows[row] * panel.num_vectors + vector)
            e.store(e.fadd(e.load(self.type, pointer), value), pointer)

    def _unroll(self, extent: int, num_accumulators: int) -> int:
        """Steps per iteration: one suffices for full tiles, small ones would pay for the loop each step."""
        for unroll in (4, 2):
            if num_accumulators * unroll <= 16 and extent % unroll == 0:
                return unroll
        return 1

    def _multiply(
        self, rows: Sequence[int], a: Int, b: Int, panel: _Panel, accumulators: Sequence[Val]
    ) -> list[Val]:
        """One step: the panel's vectors of B, and for each row one scalar of A times them."""
        e, problem = self.emitter, self.problem
        if problem.spread is not None:
            return self._multiply_groups(problem.spread, rows, a, b, panel, accumulators)
        b_operand, a_operand = self.problem.b.operand, problem.a.operand
        b_dtype = problem.dtype if self.factor.is_packed else b_operand.dtype
        lanes = self.panels.lanes
        at_b = self._pointer("b", b, b_dtype.size_bytes)
        vectors = self._compact_vectors(b, panel) if self.factor.is_compact else []
        for j in range(panel.num_vectors if not vectors else 0):
            is_last = j == panel.num_vectors - 1
            active = panel.active if is_last and not self.factor.is_packed else lanes
            pointer = e.gep(at_b, j * lanes * b_dtype.size_bytes)
            vectors.append(load_lanes(e, b_dtype, pointer, lanes, active=active))
        if self.next_panel is not None:
            kind = {4: "i32", 8: "i64"}[b_dtype.size_bytes]
            ahead = e.op(f"getelementptr {kind}, ptr {self.next_panel}, i64 {b}", PTR)
            e.prefetch(ahead, locality=2)
        at_a = self._pointer("a", a, a_operand.dtype.size_bytes)
        result: list[Val] = []
        for number, r in enumerate(rows):
            pointer = e.gep(at_a, r * problem.row.a * a_operand.dtype.size_bytes)
            scalar = load_lanes(e, a_operand.dtype, pointer, 1)
            spread = e.splat(scalar, lanes)
            for j, vector in enumerate(vectors):
                result.append(e.fma(spread, vector, accumulators[number * len(vectors) + j]))
        return result

    def _compact_vectors(self, b: Int, panel: _Panel) -> list[Val]:
        """A panel's vectors of B, whose elements lack their lowest byte."""
        e, lanes = self.emitter, self.panels.lanes
        at = e.op(f"getelementptr i8, ptr {self.pointers['b']}, i64 {e.mul(b, COMPACT_BYTES)}", PTR)
        size = 4 * lanes
        zeros = e.zero(vec("i8", size))
        picked = [size if i % 4 == 0 else i // 4 * COMPACT_BYTES + i % 4 - 1 for i in range(size)]
        vectors: list[Val] = []
        for j in range(panel.num_vectors):
            # A whole vector of bytes, of which the last quarter belongs to the next: one instruction then
            # puts all bytes in place.
            loaded = e.load(vec("i8", size), e.gep(at, COMPACT_BYTES * lanes * j))
            vectors.append(e.bitcast(e.shuffle(loaded, zeros, picked), self.type))
        return vectors

    def _multiply_groups(
        self,
        spread: Spread,
        rows: Sequence[int],
        a: Int,
        b: Int,
        panel: _Panel,
        accumulators: Sequence[Val],
    ) -> list[Val]:
        """All steps within a group: each vector of A once, of which every step picks one element a group."""
        e, problem, lanes = self.emitter, self.problem, self.panels.lanes
        dtype, sums = problem.a.operand.dtype, list(accumulators)
        at_a = self._pointer("a", a, dtype.size_bytes)
        for j in range(panel.num_vectors):
            vectors = []
            for step in range(spread.size):
                at = e.add(b, step * panel.step_strides[spread.loop.name] + j * lanes)
                vectors.append(e.load(self.type, self._pointer("b", at, problem.dtype.size_bytes)))
            for number, r in enumerate(rows):
                shift = r * problem.row.a + j * lanes
                loaded = load_lanes(e, dtype, e.gep(at_a, shift * dtype.size_bytes), lanes)
                position = number * panel.num_vectors + j
                for step, vector in enumerate(vectors):
                    own = [lane // spread.size * spread.size + step for lane in range(lanes)]
                    sums[position] = e.fma(e.shuffle(loaded, None, own), vector, sums[position])
        return sums

    def _pointer(self, name: str, elements: Int, element_bytes: int) -> Val:
        # Not `inbounds`: with padding the first row's address may lie before the tensor.
        e = self.emitter
        base = self.pointers[name]
        if isinstance(elements, int) and elements == 0:
            return base
        kind = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[element_bytes]
        return e.op(f"getelementptr {kind}, ptr {base}, i64 {elements}", PTR)

    # Initial values and epilogue.

    def _initial(self, num_rows: int, at: _Position, panel: _Panel) -> list[Val]:
        e, init = self.emitter, self.problem.nest.init
        count = num_rows * panel.num_vectors
        if init is None:
            return [e.constant(self.type, 0.0)] * count
        return self._elementwise(init, num_rows, at, panel, None)

    def _epilogue(self, num_rows: int, at: _Position, panel: _Panel, accumulators: list[Val]) -> None:
        e, nest = self.emitter, self.problem.nest
        if nest.finish is not None:
            accumulators = self._elementwise(nest.finish, num_rows, at, panel, accumulators)
        dtype = nest.write.operand.dtype
        base = self._pointer("c", at.c, dtype.size_bytes)
        for r in range(num_rows):
            for j in range(panel.num_vectors):
                offset = r * self.problem.row.c + j * self.panels.lanes
                store_lanes(
                    e,
                    dtype,
                    accumulators[r * panel.num_vectors + j],
                    e.gep(base, offset * dtype.size_bytes),
                    active=self._active(panel, j),
                )

    def _active(self, panel: _Panel, vector: int) -> int:
        return panel.active if vector == panel.num_vectors - 1 else self.panels.lanes

    def _elementwise(
        self, expression: Expr, num_rows: int, at: _Position, panel: _Panel, accumulators: list[Val] | None
    ) -> list[Val]:
        """The expression for every vector of the tile; operands that do not vary by row are read once."""
        e, problem = self.emitter, self.problem
        lanes = self.panels.lanes
        loaded: dict[tuple[int, int, int], Val] = {}

        def read(index: int, row: int, vector: int) -> Val:
            position = problem.extra_reads.index(index)
            operand = problem.nest.reads[problem.extra_reads[position]].operand
            row_step, column_step = problem.row.extras[position], problem.vector.extras[position]
            key = (position, row if row_step else 0, vector if column_step else 0)
            if key not in loaded:
                element_bytes = operand.dtype.size_bytes
                kind = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[element_bytes]
                elements = e.add(at.extras[position], key[1] * row_step + key[2] * lanes * column_step)
                pointer = e.op(
                    f"getelementptr {kind}, ptr {self.extra_pointers[position]}, i64 {elements}", PTR
                )
                loaded[key] = load_lanes(
                    e, operand.dtype, pointer, lanes, stride=column_step, active=self._active(panel, vector)
                )
            return loaded[key]

        result: list[Val] = []
        for r in range(num_rows):
            for j in range(panel.num_vectors):
                reads = partial(read, row=r, vector=j)
                accumulator = accumulators[r * panel.num_vectors + j] if accumulators else None
                result.append(emit_expr(e, expression, reads, accumulator, lanes=lanes))
        return result
