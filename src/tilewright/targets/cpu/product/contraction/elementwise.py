"""Expressions over a register tile of sums: where they begin, and how they are finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.records import dataclass
from tilewright.targets.cpu.product.contraction.lanes import load_lanes
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.values import Int, Val


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows of a register tile, its vectors, and how many lanes of the last of these exist."""

    num_rows: int
    num_vectors: int
    lanes: int
    active: int

    def active_in(self, vector: int) -> int:
        """Lanes of a vector that exist."""
        return self.active if vector == self.num_vectors - 1 else self.lanes


@dataclass(frozen=True, slots=True)
class EpilogueOperands:
    """Operands that an epilogue reads: by the number of their read their place here, their types, and the
    elements that a step of the rows and one of the columns moves in each."""

    numbers: Mapping[int, int]
    dtypes: tuple[DType, ...]
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...]


def elementwise(
    e: Emitter,
    operands: EpilogueOperands,
    expression: Expr,
    shape: TileShape,
    extras: Sequence[Int],
    address: Callable[[int, Int], Val],
    sums: Sequence[Val] | None = None,
) -> list[Val]:
    """The expression for every vector of a tile, row by row; operands that do not vary by row are read once.

    `extras` are the elements from the start of each of the epilogue's operands to the tile's first row and
    column, `address(number, elements)` is where an element of one lies.
    """
    loaded: dict[tuple[int, int, int], Val] = {}

    def read(index: int, row: int, vector: int) -> Val:
        number = operands.numbers[index]
        row_step, column_step = operands.row_steps[number], operands.column_steps[number]
        key = (number, row if row_step else 0, vector if column_step else 0)
        if key not in loaded:
            elements = e.add(extras[number], key[1] * row_step + key[2] * shape.lanes * column_step)
            loaded[key] = load_lanes(
                e,
                operands.dtypes[number],
                address(number, elements),
                shape.lanes,
                stride=column_step,
                active=shape.active_in(vector),
            )
        return loaded[key]

    result: list[Val] = []
    for number in range(shape.num_rows * shape.num_vectors):
        row, vector = divmod(number, shape.num_vectors)
        reads = partial(read, row=row, vector=vector)
        result.append(emit_expr(e, expression, reads, sums[number] if sums else None, lanes=shape.lanes))
    return result
