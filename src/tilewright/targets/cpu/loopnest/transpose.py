"""Blocks that are turned in registers: reads contiguous along one loop, writes along another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.targets.cpu.loopnest.plan import LoopNestPlan
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.frame import Frame
from tilewright.targets.llvm.loads import MAX_THINNED_STRIDE
from tilewright.targets.llvm.refs import Ref
from tilewright.targets.llvm.values import Int, Val


def emit_transposed(frame: Frame, plan: LoopNestPlan) -> None:
    """The row and vector loops in blocks of `lanes` x `lanes`.

    The last block of a loop is moved back to end with it: it repeats a few elements of the one before.
    """
    assert plan.vector is not None
    assert plan.row is not None
    e, lanes = frame.emitter, plan.lanes
    extents = frame.nest.extents
    row, num_rows = plan.row, extents[plan.row]
    vector, num_columns = plan.vector, extents[plan.vector]
    active_rows, active = min(lanes, num_rows), min(lanes, num_columns)

    def block(row_start: Int, column_start: Int) -> None:
        inner = frame.inner().vectorised(vector, lanes, active)
        inner = inner.bind(row, row_start).bind(vector, column_start)
        _block(inner, plan, active_rows)

    def over_rows(row_start: Int) -> None:
        _blocks(e, num_columns, lanes, lambda column_start: block(row_start, column_start))

    _blocks(e, num_rows, lanes, over_rows)


def _blocks(e: Emitter, extent: int, lanes: int, emit: Callable[[Int], None]) -> None:
    """Call `emit` with the start of each block of `lanes`; the last one ends at `extent`."""
    if extent <= lanes:
        emit(0)
        return

    def body(index: Int, _: Sequence[Val]) -> None:
        emit(index if extent % lanes == 0 else e.min(index, extent - lanes))

    e.loop(0, extent, lanes, body)


def is_turned(ref: Ref, plan: LoopNestPlan) -> bool:
    """Whether vectors of a read run along the row loop."""
    assert plan.row is not None
    assert plan.vector is not None
    return 1 <= ref.coefficient(plan.row) <= MAX_THINNED_STRIDE and abs(ref.coefficient(plan.vector)) > 1


def _block(frame: Frame, plan: LoopNestPlan, num_rows: int) -> None:
    nest, e = frame.nest, frame.emitter
    assert frame.vector is not None
    assert plan.row is not None
    assert plan.vector is not None
    places = [frame.shift(plan.row, r) for r in range(num_rows)]
    for read, ref in enumerate(nest.refs):
        if not is_turned(ref, plan):
            continue
        across = frame.vectorised(plan.row, plan.lanes, num_rows)
        columns = [across.shift(plan.vector, c).load(read) for c in range(frame.vector.active)]
        columns += [columns[-1]] * (plan.lanes - len(columns))
        for place, turned in zip(places, transpose(e, columns), strict=False):
            place.preset(read, turned)
    for place in places:
        place.store(place.value(nest.body))


def combine_lanes(e: Emitter, rows: Sequence[Val], combine: Callable[[Val, Val], Val]) -> Val:
    """In each lane all lanes of the row of that number, of as many rows as lanes: half a transpose."""
    made = list(rows)
    step = len(rows) // 2
    while step:
        low, high = _halves(len(rows), step)
        made = [
            combine(e.shuffle(a, b, low), e.shuffle(a, b, high))
            for a, b in zip(made[:step], made[step : 2 * step], strict=True)
        ]
        step //= 2
    (last,) = made
    return last


def _halves(size: int, step: int) -> tuple[list[int], list[int]]:
    """The lanes of two rows, `step` apart, that become the one's and the other's of their transpose."""
    low = [lane if not lane & step else size + lane - step for lane in range(size)]
    high = [lane + step if not lane & step else size + lane for lane in range(size)]
    return low, high


def transpose(e: Emitter, rows: Sequence[Val]) -> list[Val]:
    """The transpose of a square of lanes: off-diagonal blocks change places, halving at each step."""
    size = len(rows)
    made = list(rows)
    step = size // 2
    while step:
        low, high = _halves(size, step)
        for i in range(size):
            if not i & step:
                a, b = made[i], made[i + step]
                made[i], made[i + step] = e.shuffle(a, b, low), e.shuffle(a, b, high)
        step //= 2
    return made
