"""Where a tile's sums begin and end: initial values, `finish`, stores."""

from __future__ import annotations

from functools import partial

from tilewright.ir.expr import Expr
from tilewright.targets.cpu.contraction.frame import Frame, Panel, Position
from tilewright.targets.cpu.contraction.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.exprgen import emit_expr
from tilewright.targets.cpu.values import Val


def initial_values(frame: Frame, num_rows: int, at: Position, panel: Panel) -> list[Val]:
    """What the accumulators of a tile start from."""
    e, init = frame.emitter, frame.problem.nest.init
    count = num_rows * panel.num_vectors
    if init is None:
        return [e.constant(frame.type, 0.0)] * count
    return _elementwise(frame, init, num_rows, at, panel, None)


def store_tile(frame: Frame, num_rows: int, at: Position, panel: Panel, accumulators: list[Val]) -> None:
    """Finish the sums of a tile and store them."""
    e, nest = frame.emitter, frame.problem.nest
    if nest.finish is not None:
        accumulators = _elementwise(frame, nest.finish, num_rows, at, panel, accumulators)
    dtype = nest.write.operand.dtype
    base = frame.pointer("c", at.c, dtype.size_bytes)
    for r in range(num_rows):
        for j in range(panel.num_vectors):
            offset = r * frame.problem.row.c + j * frame.panels.lanes
            store_lanes(
                e,
                dtype,
                accumulators[r * panel.num_vectors + j],
                e.gep(base, offset * dtype.size_bytes),
                active=frame.active(panel, j),
            )


def _elementwise(
    frame: Frame, expression: Expr, num_rows: int, at: Position, panel: Panel, accumulators: list[Val] | None
) -> list[Val]:
    """The expression for every vector of the tile; operands that do not vary by row are read once."""
    e, problem = frame.emitter, frame.problem
    lanes = frame.panels.lanes
    loaded: dict[tuple[int, int, int], Val] = {}

    def read(index: int, row: int, vector: int) -> Val:
        position = problem.extra_reads.index(index)
        operand = problem.nest.reads[problem.extra_reads[position]].operand
        row_step, column_step = problem.row.extras[position], problem.vector.extras[position]
        key = (position, row if row_step else 0, vector if column_step else 0)
        if key not in loaded:
            elements = e.add(at.extras[position], key[1] * row_step + key[2] * lanes * column_step)
            pointer = frame.moved(frame.extra_pointers[position], elements, operand.dtype.size_bytes)
            loaded[key] = load_lanes(
                e, operand.dtype, pointer, lanes, stride=column_step, active=frame.active(panel, vector)
            )
        return loaded[key]

    result: list[Val] = []
    for r in range(num_rows):
        for j in range(panel.num_vectors):
            reads = partial(read, row=r, vector=j)
            accumulator = accumulators[r * panel.num_vectors + j] if accumulators else None
            result.append(emit_expr(e, expression, reads, accumulator, lanes=lanes))
    return result
