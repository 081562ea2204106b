"""What integer kernels share: arguments, chunks, offsets, and what happens to the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tilewright.ir.expr import Expr
from tilewright.records import dataclass
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Kernel, KernelArg
from tilewright.targets.cpu.kernel_function import kernel_function
from tilewright.targets.cpu.product.contraction.elementwise import EpilogueOperands, elementwise
from tilewright.targets.cpu.product.contraction.frame import Panel
from tilewright.targets.cpu.product.contraction.lanes import store_lanes
from tilewright.targets.cpu.product.contraction.row_units import asked_units, row_loop
from tilewright.targets.cpu.product.contraction.tiling import Cut, Panels, RowTile, choose_cut
from tilewright.targets.cpu.product.integer.match import IntegerProblem
from tilewright.targets.cpu.product.integer.pack import pack_factor
from tilewright.targets.cpu.product.loops import StridedLoop, digits
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Val, vec


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


class IntegerGenerator(ABC):
    """Emits one kernel; the attributes are the fixed facts of the problem."""

    template: str
    # Byte products of one instruction per product of floats: what a chunk must hold to be worth a region.
    products_per_operation: ClassVar[int]
    row_tiles: Sequence[RowTile]

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
    def cut(self) -> Cut:
        """How the kernel is cut into chunks."""
        contraction = self.contraction
        return choose_cut(
            self.num_units,
            self.panels.num_panels,
            contraction.a.operand.num_elements,
            contraction.b.operand.num_elements,
            contraction.num_macs // self.products_per_operation,
        )

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
    def row_loop(self) -> StridedLoop | None:
        """The outermost loop of these pieces, if it is one over rows of which a run may have fewer."""
        return row_loop(self.contraction.outer, self.contraction.row)

    def asked_units(self, loop: StridedLoop, num_rows: Int) -> Int:
        """Pieces of as many rows as a run has, over which this is the loop."""
        outer = self.contraction.outer
        return asked_units(self.emitter, loop, num_rows, outer, self.row_tiles, self.num_units)

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
        with kernel_function(e, args, has_rows=loop is not None) as function:
            num_rows = function.num_rows()
            self.pointers = dict(zip(named, function.pointers, strict=False))
            self.pointers["scratch"] = function.scratch
            self.extra_pointers = function.pointers[len(named) :]
            self.prologue()
            units = self.num_units if loop is None or num_rows is None else self.asked_units(loop, num_rows)
            self._chunk(function.chunk, units)
            self.closing()
        return function.kernel(
            "integer",
            num_chunks=self.cut.num_chunks,
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
        if cut.num_panel_parts == 1:
            panel_part = 0
        row_part: Int = e.udiv(chunk, cut.num_panel_parts) if cut.num_row_parts > 1 else 0
        first_panel, last_panel = e.piece(panel_part, cut.num_panel_parts, self.panels.num_panels)
        first_unit, last_unit = e.piece(row_part, cut.num_row_parts, num_units)
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
        for x, index in digits(e, number, contraction.outer):
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
        inits = self._elementwise(contraction.nest.init, num_rows, at, panel)
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
        shape = panel.tile(num_rows, self.panels.lanes)
        for number, value in enumerate(sums):
            row, vector = divmod(number, panel.num_vectors)
            offset = row * self.contraction.row.c + vector * self.panels.lanes
            pointer = e.gep(base, offset * dtype.size_bytes)
            store_lanes(e, dtype, value, pointer, active=shape.active_in(vector))

    def _elementwise(
        self, expression: Expr, num_rows: int, at: Position, panel: Panel, sums: Sequence[Val] | None = None
    ) -> list[Val]:
        e, contraction = self.emitter, self.contraction
        numbers = {read: number for number, read in enumerate(contraction.extra_reads)}
        dtypes = tuple(contraction.nest.reads[read].operand.dtype for read in numbers)

        def address(number: int, elements: Int) -> Val:
            return e.gep(self.extra_pointers[number], e.mul(elements, dtypes[number].size_bytes))

        operands = EpilogueOperands(numbers, dtypes, contraction.row.extras, contraction.vector.extras)

        shape = panel.tile(num_rows, self.panels.lanes)
        return elementwise(e, operands, expression, shape, at.extras, address, sums)
