"""What all parts of a contraction's generator work with: operands, panels, and where a tile lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from tilewright.ir.expr import Expr
from tilewright.records import dataclass
from tilewright.targets.cpu.product.contraction.elementwise import EpilogueOperands, TileShape, elementwise
from tilewright.targets.cpu.product.contraction.pack import FactorB
from tilewright.targets.cpu.product.contraction.plan import KernelPlan
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.values import Int, Type, Val


@dataclass(frozen=True, slots=True)
class Position:
    """Element offsets of one tile's first row in every operand, and the output indices that windows need."""

    a: Int
    b: Int
    c: Int
    extras: tuple[Int, ...]
    outer: Mapping[str, Int]


@dataclass(frozen=True, slots=True)
class Panel:
    """The vectors of one panel; `active` lanes of the last one exist."""

    num_vectors: int
    active: int
    step_strides: Mapping[str, int] = field(default_factory=dict)

    def tile(self, num_rows: int, lanes: int) -> TileShape:
        """A register tile of so many rows of it."""
        return TileShape(num_rows, self.num_vectors, lanes, self.active)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The fixed facts of one kernel; `pointers` are the addresses of a, b and c."""

    emitter: Emitter
    plan: KernelPlan
    factor: FactorB
    type: Type
    pointers: Mapping[str, Val]
    extra_pointers: tuple[Val, ...]

    def pointer(self, name: str, elements: Int, element_bytes: int) -> Val:
        """An operand's address moved by elements."""
        base = self.pointers[name]
        if isinstance(elements, int) and elements == 0:
            return base
        return self.emitter.moved(base, elements, element_bytes)

    def elementwise(
        self,
        expression: Expr,
        num_rows: int,
        at: Position,
        panel: Panel,
        sums: Sequence[Val] | None = None,
    ) -> list[Val]:
        """An expression for every vector of a tile."""
        e, plan = self.emitter, self.plan
        dtypes = tuple(extra.operand.dtype for extra in plan.extras)

        def address(number: int, elements: Int) -> Val:
            return e.moved(self.extra_pointers[number], elements, dtypes[number].size_bytes)

        numbers = dict(enumerate(range(len(dtypes))))
        operands = EpilogueOperands(numbers, dtypes, plan.row.extras, plan.vector.extras)

        shape = panel.tile(num_rows, self.plan.panels.lanes)
        return elementwise(e, operands, expression, shape, at.extras, address, sums)
