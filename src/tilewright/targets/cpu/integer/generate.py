"""The kernel of an integer product: a register tile of int32 sums over words of four summed steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tilewright.ir.expr import Expr
from tilewright.targets.cpu.contraction.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.contraction.tiling import Panels, Tile, choose_cut, split_rows
from tilewright.targets.cpu.emitter import Emitter, Param
from tilewright.targets.cpu.exprgen import emit_expr
from tilewright.targets.cpu.integer.dot import dot_of
from tilewright.targets.cpu.integer.match import STEPS_PER_WORD, IntegerProblem
from tilewright.targets.cpu.integer.pack import pack_factor
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import SYMBOL_PLACEHOLDER, Kernel, KernelArg, name_by_content
from tilewright.targets.cpu.values import I32, I64, PTR, Int, Val, vec

# Byte products of one instruction per product of floats: what a chunk must hold to be worth a region.
_PRODUCTS_PER_OPERATION = 4
_FLIP = -0x7F7F7F80  # 0x80808080: the top bit of each byte


@dataclass(frozen=True, slots=True)
class _Position:
    """Offsets of one tile's first row: bytes of A and B, elements of the result, the sums, the extras."""

    a: Int
    b: Int
    c: Int
    sums: Int
    extras: tuple[Int, ...]


@dataclass(frozen=True, slots=True)
class _Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int


@dataclass(frozen=True, slots=True)
class _Steps:
    """A loop over words: bytes that one step moves in A; in B every step moves one row of the panel."""

    extent: int
    a: int


class Generator:
    """Emits one kernel; the attributes are the fixed facts of the problem."""

    def __init__(self, problem: IntegerProblem, tile: Tile, isa: Isa) -> None:
        self.problem = problem
        self.contraction = problem.contraction
        self.panels: Panels = tile.panels
        self.isa = isa
        self.dot = dot_of(isa)
        self.factor = pack_factor(problem, tile.panels)
        self.type = vec("i32", tile.panels.lanes)
        self.row_tiles = split_rows(self.contraction.row.extent, tile.max_rows)
        self.num_tiles = sum(t.count for t in self.row_tiles)
        self.num_outer = prod(x.extent for x in self.contraction.outer)
        self.num_units = self.num_outer * self.num_tiles
        self.cut = choose_cut(
            self.num_units,
            tile.panels.num_panels,
            self.contraction.a.operand.num_elements,
            self.contraction.b.operand.num_elements,
            self.contraction.num_macs // _PRODUCTS_PER_OPERATION,
        )
        self.loops = _word_loops(problem)
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.pointers: dict[str, Val] = {}
        self.extra_pointers: tuple[Val, ...] = ()

    def kernel(self) -> Kernel:
        """The whole kernel."""
        e, contraction, zero = self.emitter, self.contraction, self.problem.a_zero_operand
        extras = tuple(contraction.nest.reads[i].operand for i in contraction.extra_reads)
        named: dict[str, KernelArg] = {
            "a": contraction.a.operand,
            "b": self.factor.bytes,
            "c": contraction.nest.write.operand,
            "sums": self.factor.sums,
        }
        if zero is not None:
            named["zero"] = zero
        if self.problem.b_zero:
            named["ones"] = self.factor.ones
        args = (*named.values(), *extras)
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, _):
            loaded = [e.load(PTR, e.gep(block, 8 * i)) for i in range(len(args))]
            self.pointers = dict(zip(named, loaded, strict=False))
            self.extra_pointers = tuple(loaded[len(named) :])
            self._chunk(chunk)
        symbol, text = name_by_content(e.text(), "integer")
        rows = max(t.rows for t in self.row_tiles)
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=self.cut.num_chunks,
            args=args,
            template=f"integer-{self.dot.name}",
            macs=contraction.num_macs,
            notes=(
                f"tile {rows}x{self.panels.num_vectors * self.panels.lanes}",
                f"{self.cut.num_row_parts}x{self.cut.num_panel_parts} chunks",
                "A in place" if self.problem.staging is None else "A copied with its padding",
            ),
        )

    # From the chunk number down to one register tile.

    def _chunk(self, chunk: Val) -> None:
        e, cut = self.emitter, self.cut
        panel_part: Int = e.urem(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else chunk
        row_part: Int = e.udiv(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else 0
        first_panel, last_panel = self._part(panel_part, cut.num_panel_parts, self.panels.num_panels)
        first_unit, last_unit = self._part(row_part, cut.num_row_parts, self.num_units)
        lanes, tail = self.panels.lanes, self.panels.tail
        if self.panels.num_full:
            full = _Panel(self.panels.num_vectors, lanes)
            stop = e.min(last_panel, self.panels.num_full)
            e.loop(first_panel, stop, 1, lambda panel, _: self._units(panel, full, first_unit, last_unit))
        if tail:
            last = _Panel(self.panels.tail_vectors, (tail - 1) % lanes + 1)
            e.if_(
                e.compare("eq", last_panel, self.panels.num_panels),
                lambda: self._units(self.panels.num_full, last, first_unit, last_unit),
            )

    def _part(self, part: Int, num_parts: int, extent: int) -> tuple[Int, Int]:
        """Bounds of the `part`-th of `num_parts` nearly equal pieces of `extent`."""
        e = self.emitter
        if num_parts == 1:
            return 0, extent
        low = e.udiv(e.mul(part, extent), num_parts)
        return low, e.udiv(e.mul(e.add(part, 1), extent), num_parts)

    def _units(self, index: Int, panel: _Panel, first: Int, last: Int) -> None:
        e = self.emitter
        b, column = e.mul(index, self.factor.panel_stride), e.mul(index, self.panels.width)

        def unit(number: Int, _: Sequence[Val]) -> None:
            position = self._at_outer(e.udiv(number, self.num_tiles), b, column)
            self._tile_number(e.urem(number, self.num_tiles), position, panel)

        e.loop(first, last, 1, unit)

    def _at_outer(self, number: Int, b: Int, column: Int) -> _Position:
        """Offsets at one combination of the outer loops, at the panel's first column."""
        e, contraction, factor = self.emitter, self.contraction, self.factor
        a: Int = contraction.a_offset
        c: Int = e.add(column, contraction.c_offset)
        sums: Int = column
        extras: list[Int] = [
            e.add(e.mul(column, s), o)
            for s, o in zip(contraction.vector.extras, contraction.extra_offsets, strict=True)
        ]
        rest = number
        for position, x in enumerate(reversed(contraction.outer)):
            is_outermost = position == len(contraction.outer) - 1
            index = rest if is_outermost else e.urem(rest, x.extent)
            rest = rest if is_outermost else e.udiv(rest, x.extent)
            a = e.add(a, e.mul(index, x.a))
            b = e.add(b, e.mul(index, factor.outer_strides.get(x.name, 0)))
            sums = e.add(sums, e.mul(index, factor.outer_columns.get(x.name, 0)))
            c = e.add(c, e.mul(index, x.c))
            extras = [e.add(o, e.mul(index, s)) for o, s in zip(extras, x.extras, strict=True)]
        return _Position(a, b, c, sums, tuple(extras))

    def _tile_number(self, number: Int, position: _Position, panel: _Panel) -> None:
        """The `number`-th row tile, whose size depends on where it lies."""
        e, first = self.emitter, self.row_tiles[0]
        if len(self.row_tiles) == 1:
            self._tile(first.rows, self._at_row(position, e.mul(number, first.rows)), panel)
            return
        second = self.row_tiles[1]
        at = e.add(e.mul(e.sub(number, first.count), second.rows), second.start)
        e.if_(
            e.compare("slt", number, first.count),
            lambda: self._tile(first.rows, self._at_row(position, e.mul(number, first.rows)), panel),
            lambda: self._tile(second.rows, self._at_row(position, at), panel),
        )

    def _at_row(self, position: _Position, row: Int) -> _Position:
        e, x = self.emitter, self.contraction.row
        return _Position(
            e.add(position.a, e.mul(row, x.a)),
            position.b,
            e.add(position.c, e.mul(row, x.c)),
            position.sums,
            tuple(e.add(o, e.mul(row, s)) for o, s in zip(position.extras, x.extras, strict=True)),
        )

    # One register tile.

    def _tile(self, num_rows: int, at: _Position, panel: _Panel) -> None:
        e = self.emitter
        vectors = panel.num_vectors
        sums = self._initial(num_rows, at, panel)
        if self.problem.b_zero:
            sums += [e.zero(self.type)] * num_rows
        sums = self._words(0, at.a, at.b, 0, num_rows, panel, sums)
        if self.problem.b_zero:
            of_rows = sums[num_rows * vectors :]
            sums = [
                e.isub(total, e.imul(of_rows[number // vectors], self.problem.b_zero))
                for number, total in enumerate(sums[: num_rows * vectors])
            ]
        self._finish(num_rows, at, panel, sums)

    def _initial(self, num_rows: int, at: _Position, panel: _Panel) -> list[Val]:
        """The correction for A's zero point, and the nest's own initial value."""
        e, contraction, lanes = self.emitter, self.contraction, self.panels.lanes
        base = e.gep(self.pointers["sums"], at.sums, "i32")
        start = [e.load(self.type, e.gep(base, 4 * lanes * j)) for j in range(panel.num_vectors)]
        if self.problem.a_zero_operand is not None:
            zero = e.isub(-self.problem.a_zero, self._runtime_zero())
            constant = e.imul(zero, -self.problem.num_steps * self.problem.b_zero)
            factor = e.splat(zero, lanes)
            start = [e.iadd(e.imul(s, factor), e.splat(constant, lanes)) for s in start]
        if contraction.nest.init is None:
            return start * num_rows
        inits = self._elementwise(contraction.nest.init, num_rows, at, panel, None)
        return [e.iadd(value, start[n % panel.num_vectors]) for n, value in enumerate(inits)]

    def _runtime_zero(self) -> Val:
        """A's zero point, read when the kernel runs, as i32."""
        e, operand = self.emitter, self.problem.a_zero_operand
        assert operand is not None
        value = e.load(vec("i8"), self.pointers["zero"])
        return e.cast("sext" if operand.dtype.is_signed else "zext", value, "i32")

    def _words(
        self, depth: int, a: Int, b: Int, word: Int, num_rows: int, panel: _Panel, sums: Sequence[Val]
    ) -> list[Val]:
        """The loops over words from `depth` on; `word` counts them all."""
        e = self.emitter
        if depth == len(self.loops):
            return self._multiply(a, b, word, num_rows, panel, sums)
        loop = self.loops[depth]
        inner = prod(x.extent for x in self.loops[depth + 1 :])
        row_bytes = STEPS_PER_WORD * panel.num_vectors * self.panels.lanes
        is_innermost = depth == len(self.loops) - 1
        unroll = self._unroll(loop.extent, len(sums)) if is_innermost else 1

        def body(index: Int, values: Sequence[Val]) -> Sequence[Val]:
            for step in range(unroll):
                at = e.add(index, step)
                values = self._words(
                    depth + 1,
                    e.add(a, e.mul(at, loop.a)),
                    e.add(b, e.mul(at, inner * row_bytes)),
                    e.add(word, e.mul(at, inner)),
                    num_rows,
                    panel,
                    values,
                )
            return values

        return e.loop(0, loop.extent, unroll, body, [(self.type, v) for v in sums], nonempty=True)

    def _unroll(self, extent: int, num_sums: int) -> int:
        for unroll in (4, 2):
            if num_sums * unroll <= 64 and extent % unroll == 0:
                return unroll
        return 1

    def _multiply(
        self, a: Int, b: Int, word: Int, num_rows: int, panel: _Panel, sums: Sequence[Val]
    ) -> list[Val]:
        """One word: the panel's vectors of B, and for each row one word of A times them."""
        e, lanes, problem = self.emitter, self.panels.lanes, self.problem
        at_b = e.gep(self.pointers["b"], b)
        vectors = [e.load(self.type, e.gep(at_b, 4 * lanes * j)) for j in range(panel.num_vectors)]
        at_a = e.gep(self.pointers["a"], a)
        ones = None
        if problem.b_zero:
            ones = e.splat(e.load(I32, e.gep(self.pointers["ones"], word, "i32")), lanes)
        result = list(sums)
        for r in range(num_rows):
            loaded = e.load(I32, e.gep(at_a, r * self.contraction.row.a), align_bytes=1)
            spread = e.splat(loaded, lanes)
            if problem.flips_a:
                spread = e.xor(spread, _FLIP)
            for j, vector in enumerate(vectors):
                at = r * len(vectors) + j
                result[at] = self.dot.step(e, spread, vector, result[at])
            if ones is not None:
                at = num_rows * len(vectors) + r
                result[at] = self.dot.step(e, spread, ones, result[at])
        return result

    # What happens to the sums.

    def _finish(self, num_rows: int, at: _Position, panel: _Panel, sums: list[Val]) -> None:
        e, nest = self.emitter, self.contraction.nest
        if nest.finish is not None:
            sums = self._elementwise(nest.finish, num_rows, at, panel, sums)
        dtype = nest.write.operand.dtype
        base = e.gep(self.pointers["c"], e.mul(at.c, dtype.size_bytes))
        for number, value in enumerate(sums):
            row, vector = divmod(number, panel.num_vectors)
            offset = row * self.contraction.row.c + vector * self.panels.lanes
            pointer = e.gep(base, offset * dtype.size_bytes)
            store_lanes(e, dtype, value, pointer, active=self._active(panel, vector))

    def _active(self, panel: _Panel, vector: int) -> int:
        return panel.active if vector == panel.num_vectors - 1 else self.panels.lanes

    def _elementwise(
        self, expression: Expr, num_rows: int, at: _Position, panel: _Panel, sums: list[Val] | None
    ) -> list[Val]:
        """The expression for every vector of the tile; operands that do not vary by row are read once."""
        e, contraction = self.emitter, self.contraction
        lanes = self.panels.lanes
        loaded: dict[tuple[int, int, int], Val] = {}

        def read(index: int, row: int, vector: int) -> Val:
            position = contraction.extra_reads.index(index)
            operand = contraction.nest.reads[index].operand
            row_step = contraction.row.extras[position]
            column_step = contraction.vector.extras[position]
            key = (position, row if row_step else 0, vector if column_step else 0)
            if key not in loaded:
                elements = e.add(at.extras[position], key[1] * row_step + key[2] * lanes * column_step)
                pointer = e.gep(self.extra_pointers[position], e.mul(elements, operand.dtype.size_bytes))
                loaded[key] = load_lanes(
                    e, operand.dtype, pointer, lanes, stride=column_step, active=self._active(panel, vector)
                )
            return loaded[key]

        result: list[Val] = []
        for r in range(num_rows):
            for j in range(panel.num_vectors):
                reads: Mapping[str, int] = {"row": r, "vector": j}
                total = sums[r * panel.num_vectors + j] if sums else None
                result.append(emit_expr(e, expression, partial(read, **reads), total, lanes=lanes))
        return result


def _word_loops(problem: IntegerProblem) -> tuple[_Steps, ...]:
    """Loops over all words, neighbours merged where A walks on evenly."""
    loops = [_Steps(x.extent, x.a) for x in problem.outer_steps]
    loops.append(_Steps(problem.run_words, STEPS_PER_WORD))
    merged: list[_Steps] = []
    for x in loops:
        if merged and merged[-1].a == x.a * x.extent:
            merged[-1] = _Steps(merged[-1].extent * x.extent, x.a)
        elif x.extent > 1 or not merged:
            merged.append(x)
    return tuple(merged)
