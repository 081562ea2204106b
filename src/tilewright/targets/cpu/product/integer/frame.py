"""What integer kernels share: arguments, chunks, offsets, and what happens to the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tilewright.ir.expr import Expr
from tilewright.records import dataclass
from tilewright.targets.cpu.emit.emitter import Emitter, Param
from tilewright.targets.cpu.emit.exprgen import emit_expr
from tilewright.targets.cpu.emit.values import I64, PTR, Int, Val, vec
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import (
    SYMBOL_PLACEHOLDER,
    Kernel,
    KernelArg,
    name_by_content,
    rows_operand,
)
from tilewright.targets.cpu.product.contraction.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.contraction.match import Loop
from tilewright.targets.cpu.product.contraction.row_units import row_loop
from tilewright.targets.cpu.product.contraction.tiling import Cut, Panels
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.integer.pack import pack_factor


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets of one tile's first row: bytes of A and B, elements of the result, the sums, the extras."""

    a: Int
    b: Int
    c: Int
    sums: Int
    extras: tuple[Int, ...]

    def moved(self, a: Int) -> Position:
        """The same with another place in A."""
        return replace(self, a=a)


@dataclass(frozen=True, slots=True)
class Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int


class IntegerGenerator(ABC):
    """Emits one kernel; the attributes are the fixed facts of the problem."""

    template: str

    def __init__(self, problem: IntegerProblem, panels: Panels, isa: Isa, *, widened: bool = False) -> None:
        self.problem = problem
        self.contraction = problem.contraction
        self.panels = panels
        self.isa = isa
        self.factor = pack_factor(problem, panels, widened=widened)
        self.type = vec("i32", panels.lanes)
        self.emitter = Emitter(attributes=isa.function_attributes)
        self.pointers: dict[str, Val] = {}
        self.extra_pointers: tuple[Val, ...] = ()

    @property
    @abstractmethod
    def cut(self) -> Cut:
        """How the kernel is cut into chunks."""

    @property
    @abstractmethod
    def tile_note(self) -> str:
        """What a tile holds."""

    @property
    def sums_rows(self) -> bool:
        """Whether the sums of A's rows are needed, for B's zero point."""
        return False

    @property
    def scratch_bytes(self) -> int:
        """Scratch area of a thread."""
        return 0

    @abstractmethod
    def units(self, index: Int, panel: Panel, first: Int, last: Int) -> None:
        """One panel of columns for the units of rows in `[first, last)`."""

    @property
    @abstractmethod
    def num_units(self) -> int:
        """Independent pieces of rows."""

    @property
    def row_loop(self) -> Loop | None:
        """The outermost loop of these pieces, if it is one over rows of which a run may have fewer."""
        return row_loop(self.contraction.outer, self.contraction.row)

    @abstractmethod
    def asked_units(self, loop: Loop, num_rows: Int) -> Int:
        """Pieces of as many rows as a run has, over which this is the loop."""

    def prologue(self) -> None:  # noqa: B027 - most kernels need none
        """What a chunk begins with."""

    def closing(self) -> None:  # noqa: B027 - most kernels need none
        """What a chunk ends with."""

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
        if self.sums_rows:
            named["ones"] = self.factor.ones
        args = (*named.values(), *extras)
        loop = self.row_loop
        params = (Param("args", PTR), Param("chunk", I64), Param("scratch", PTR))
        with e.function(SYMBOL_PLACEHOLDER.removeprefix("@"), params) as (block, chunk, scratch):
            loaded = [e.load(PTR, e.gep(block, 8 * i)) for i in range(len(args))]
            num_rows = None if loop is None else e.load(I64, e.gep(block, 8 * len(args)))
            self.pointers = {**dict(zip(named, loaded, strict=False)), "scratch": scratch}
            self.extra_pointers = tuple(loaded[len(named) :])
            self.prologue()
            units = self.num_units if loop is None or num_rows is None else self.asked_units(loop, num_rows)
            self._chunk(chunk, units)
            self.closing()
        symbol, text = name_by_content(e.text(), "integer")
        return Kernel(
            symbol=symbol,
            text=text,
            num_chunks=self.cut.num_chunks,
            args=args if loop is None else (*args, rows_operand()),
            scratch_bytes=self.scratch_bytes,
            template=self.template,
            macs=contraction.num_macs,
            notes=(
                self.tile_note,
                f"{self.cut.num_row_parts}x{self.cut.num_panel_parts} chunks",
                "A in place" if self.problem.staging is None else "A copied with its padding",
            ),
        )

    # From the chunk number down to one register tile.

    def _chunk(self, chunk: Val, num_units: Int) -> None:
        e, cut = self.emitter, self.cut
        panel_part: Int = e.urem(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else chunk
        row_part: Int = e.udiv(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else 0
        first_panel, last_panel = self.part(panel_part, cut.num_panel_parts, self.panels.num_panels)
        first_unit, last_unit = self.part(row_part, cut.num_row_parts, num_units)
        lanes, tail = self.panels.lanes, self.panels.tail
        ranges: list[tuple[Int, Int, Panel]] = []
        if self.panels.num_full:
            full = Panel(self.panels.num_vectors, lanes)
            ranges.append((first_panel, e.min(last_panel, self.panels.num_full), full))
        if tail:
            last = Panel(self.panels.tail_vectors, (tail - 1) % lanes + 1)
            # The tail belongs to the part that ends last.
            ranges.append((e.max(first_panel, self.panels.num_full), last_panel, last))
        self.panels_of(ranges, first_unit, last_unit)

    def panels_of(self, panels: Sequence[tuple[Int, Int, Panel]], first: Int, last: Int) -> None:
        """Ranges of panels, each with its shape, for the units of rows in `[first, last)`."""
        for low, high, panel in panels:

            def one(index: Int, _: Sequence[Val], panel: Panel = panel) -> None:
                self.units(index, panel, first, last)

            self.emitter.loop(low, high, 1, one)

    def part(self, part: Int, num_parts: int, extent: Int) -> tuple[Int, Int]:
        """Bounds of the `part`-th of `num_parts` nearly equal pieces of `extent`."""
        e = self.emitter
        if num_parts == 1:
            return 0, extent
        low = e.udiv(e.mul(part, extent), num_parts)
        return low, e.udiv(e.mul(e.add(part, 1), extent), num_parts)

    def at_outer(self, number: Int, b: Int, column: Int) -> Position:
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
        return Position(a, b, c, sums, tuple(extras))

    def at_row(self, position: Position, row: Int) -> Position:
        """Offsets `row` rows further."""
        e, x = self.emitter, self.contraction.row
        return Position(
            e.add(position.a, e.mul(row, x.a)),
            position.b,
            e.add(position.c, e.mul(row, x.c)),
            position.sums,
            tuple(e.add(o, e.mul(row, s)) for o, s in zip(position.extras, x.extras, strict=True)),
        )

    # Initial values, and what happens to the sums.

    def initial(self, num_rows: int, at: Position, panel: Panel) -> list[Val]:
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

    def finish(self, num_rows: int, at: Position, panel: Panel, sums: list[Val]) -> None:
        """Apply the nest's last expression and store."""
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

    def _active(self, panel: Panel, vector: int) -> int:
        return panel.active if vector == panel.num_vectors - 1 else self.panels.lanes

    def _elementwise(
        self, expression: Expr, num_rows: int, at: Position, panel: Panel, sums: list[Val] | None
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
                total = sums[r * panel.num_vectors + j] if sums else None
                reads = partial(read, row=r, vector=j)
                result.append(emit_expr(e, expression, reads, total, lanes=lanes))
        return result
