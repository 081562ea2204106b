"""Where a tile's sums begin and end: initial values, `finish`, stores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.ir.expr import FUNCTIONS, Call, Expr, reads_of
from tilewright.targets.cpu.product.frame import Frame, Panel, Position
from tilewright.targets.cpu.product.lanes import load_lanes, store_lanes
from tilewright.targets.cpu.product.plan import KernelPlan
from tilewright.targets.llvm.exprgen import emit_expr
from tilewright.targets.llvm.rounding import PACKED_VECTORS, Rounding, emit_packed, match_bytes
from tilewright.targets.llvm.values import Int, Val, vec

# A function of so many operations is a polynomial: a chain in which each waits for the one before.
_LONG_FUNCTION_FLOP = 12
# Vectors that go through such a chain in step.
_IN_STEP = 2
# Those that x86 alone multiplies bytes with.
_X86_DOTS = ("vnni", "pairs", "byte tiles")


Loaded = dict[tuple[int, int, int], Val]
"""Vectors of epilogue operands by number, row and vector, 0 for what the operand does not vary by."""


def load_operand(frame: Frame, number: int, row: int, vector: int, at: Position, panel: Panel) -> Val:
    """A vector of an operand of the epilogue."""
    e, plan, dtype = frame.emitter, frame.plan, frame.plan.extras[number].operand.dtype
    lanes, column_step = plan.panels.lanes, plan.vector.extras[number]
    ahead = row * plan.row.extras[number] + vector * lanes * column_step
    pointer = e.moved(frame.extra_pointers[number], e.add(at.extras[number], ahead), dtype.size_bytes)
    active = panel.active_in(vector, lanes)
    return load_lanes(e, dtype, pointer, lanes, stride=column_step, active=active)


def elementwise(
    frame: Frame,
    expression: Expr,
    num_rows: int,
    at: Position,
    panel: Panel,
    sums: Sequence[Val] | None = None,
    known: Loaded | None = None,
) -> list[Val]:
    """The expression for every vector of a tile, row by row; what does not vary by row is read once.

    Vectors that are `known` are not read here.
    """
    e, plan = frame.emitter, frame.plan
    loaded: Loaded = dict(known or {})

    def read(number: int, row: int, vector: int) -> Val:
        key = (number, row if plan.row.extras[number] else 0, vector if plan.vector.extras[number] else 0)
        if key not in loaded:
            loaded[key] = load_operand(frame, *key, at, panel)
        return loaded[key]

    result: list[Val] = []
    for number in range(num_rows * panel.num_vectors):
        row, vector = divmod(number, panel.num_vectors)
        reads = partial(read, row=row, vector=vector)
        total = sums[number] if sums else None
        result.append(emit_expr(e, expression, reads, total, lanes=plan.panels.lanes))
    return result


def initial_values(frame: Frame, num_rows: int, at: Position, panel: Panel) -> list[Val]:
    """What the accumulators of a tile start from."""
    init = frame.plan.init
    if init is None:
        return [frame.emitter.constant(frame.type, 0.0)] * (num_rows * panel.num_vectors)
    return elementwise(frame, init, num_rows, at, panel)


def finishes_in_memory(plan: KernelPlan) -> bool:
    """Whether the sums of a tile leave the registers before they are finished.

    A chain of dependent operations for each of the sums, one after the other, waits for every one of them
    where the registers are full of sums: 22 cycles for a vector's GELU, of which the multiplications are 9.
    """
    finish = plan.finish
    parts = finish.walk() if finish is not None else ()
    return any(isinstance(p, Call) and FUNCTIONS[p.function].cost_flop >= _LONG_FUNCTION_FLOP for p in parts)


def finish_in_memory(frame: Frame, num_rows: int, at: Position, panel: Panel, sums: Val) -> None:
    """Finish a tile's sums, which lie in memory row by row, in a loop over the rows, and store them."""
    e, plan = frame.emitter, frame.plan
    lanes, finish, dtype = plan.panels.lanes, plan.finish, plan.c.operand.dtype
    assert finish is not None
    groups = range(0, panel.num_vectors, _IN_STEP)

    def width(first: int) -> int:
        return lanes * (min(first + _IN_STEP, panel.num_vectors) - first)

    def active(first: int) -> int:
        return min(width(first), (panel.num_vectors - 1 - first) * lanes + panel.active)

    def read(index: int, first: int, row: Int) -> Val:
        operand = plan.extras[index].operand
        column_step = plan.vector.extras[index]
        elements = e.add(at.extras[index], e.mul(row, plan.row.extras[index]))
        elements = e.add(elements, first * lanes * column_step)
        pointer = e.moved(frame.extra_pointers[index], elements, operand.dtype.size_bytes)
        return load_lanes(e, operand.dtype, pointer, width(first), stride=column_step, active=active(first))

    of_columns = {
        (index, first): read(index, first, 0)
        for index, step in enumerate(plan.row.extras)
        if step == 0 and index in reads_of(finish)
        for first in groups
    }

    def finish_row(row: Int, _: Sequence[Val]) -> None:
        for first in groups:

            def reads(index: int, first: int = first) -> Val:
                known = of_columns.get((index, first))
                return read(index, first, row) if known is None else known

            number = e.add(e.mul(row, panel.num_vectors), first)
            pointer = e.gep(sums, e.mul(number, frame.type.size_bytes))
            total = e.load(vec(frame.type.element, width(first)), pointer)
            value = emit_expr(e, finish, reads, total, lanes=width(first))
            elements = e.add(e.add(at.c, e.mul(row, plan.row.c)), first * lanes)
            store_lanes(e, dtype, value, frame.pointer("c", elements, dtype.size_bytes), active=active(first))

    e.loop(0, num_rows, 1, finish_row)


def store_tile(
    frame: Frame,
    num_rows: int,
    at: Position,
    panel: Panel,
    accumulators: list[Val],
    known: Loaded | None = None,
) -> None:
    """Finish the sums of a tile and store them."""
    e, plan = frame.emitter, frame.plan
    dtype = plan.c.operand.dtype
    base = frame.pointer("c", at.c, dtype.size_bytes)
    rounding = _packed_rounding(plan)
    if rounding is not None:
        values = elementwise(frame, rounding.value, num_rows, at, panel, accumulators, known)
        _store_packed(frame, rounding, base, panel, values)
        return
    if plan.finish is not None:
        accumulators = elementwise(frame, plan.finish, num_rows, at, panel, accumulators, known)
    for r in range(num_rows):
        for j in range(panel.num_vectors):
            offset = r * plan.row.c + j * plan.panels.lanes
            store_lanes(
                e,
                dtype,
                accumulators[r * panel.num_vectors + j],
                e.gep(base, offset * dtype.size_bytes),
                active=panel.active_in(j, plan.panels.lanes),
            )


def _packed_rounding(plan: KernelPlan) -> Rounding | None:
    """How sums become bytes, if they do in the end and four vectors of them fit one."""
    if plan.finish is None or plan.dot.removesuffix(" by column") not in _X86_DOTS:
        return None
    rounding = match_bytes(plan.finish)
    return rounding if rounding is not None and rounding.zero_expr is None else None


def _store_packed(frame: Frame, rounding: Rounding, base: Val, panel: Panel, values: Sequence[Val]) -> None:
    """Round the values of a tile, row by row, and store their bytes; where four vectors lie side by side in
    the result they are stored as one."""
    e, plan, lanes = frame.emitter, frame.plan, frame.plan.panels.lanes
    dtype, count = plan.c.operand.dtype, panel.num_vectors
    for first in range(0, len(values), PACKED_VECTORS):
        group = values[first : first + PACKED_VECTORS]
        filled = [*group, *[group[-1]] * (PACKED_VECTORS - len(group))]
        packed = emit_packed(e, rounding, filled, dtype)
        places = [divmod(first + number, count) for number in range(len(group))]
        start = 0
        while start < len(group):
            row, vector = places[start]
            # What follows in the same row, as far as whole vectors of a power of two go.
            size = PACKED_VECTORS
            while size > 1 and (
                start % size
                or start + size > len(group)
                or vector + size > count
                or panel.active_in(vector + size - 1, lanes) < lanes
            ):
                size //= 2
            active = lanes * (size - 1) + panel.active_in(vector + size - 1, lanes)
            part = packed
            if size < PACKED_VECTORS:
                part = e.shuffle(packed, None, range(start * lanes, (start + size) * lanes))
            pointer = e.gep(base, (row * plan.row.c + vector * lanes) * dtype.size_bytes)
            store_lanes(e, dtype, part, pointer, active=active)
            start += size
