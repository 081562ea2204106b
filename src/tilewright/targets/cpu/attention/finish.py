"""What becomes of sums: scores are scaled, capped, masked; weighted sums divided and finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.cpu.attention.plan import AttentionPlan
from tilewright.targets.cpu.product.lanes import load_lanes
from tilewright.targets.llvm.emitter import Emitter
from tilewright.targets.llvm.exprgen import STORAGE_ELEMENTS, emit_expr
from tilewright.targets.llvm.values import Int, Val, vector_literal


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """Finishes vectors of scores whose lanes go along one loop; masks are read once.

    `masks` are addresses, by read, at the first row of the tile and the first key; `places` are the indices
    of all loops at the first row and the first key of the vectors.
    """

    emitter: Emitter
    plan: AttentionPlan
    lanes: int
    along: str
    masks: Mapping[int, Val]
    places: Mapping[str, Int]
    _loaded: dict[tuple[int, int, int], Val] = field(default_factory=dict)

    def score(self, value: Val, row: int, column: int, active: int) -> Val:
        """The scores of sums so many rows and keys further on; only the first `active` lanes exist."""
        if self.plan.scores.finish is None:
            return value
        return emit_expr(
            self.emitter,
            self.plan.scores.finish,
            lambda read: self._mask(read, row, column, active),
            value,
            lambda name: self._index(name, row, column),
            lanes=self.lanes,
        )

    def _mask(self, read: int, row: int, column: int, active: int) -> Val:
        e, scores = self.emitter, self.plan.scores
        down, right = scores.row.extras[read], scores.vector.extras[read]
        key = (read, row if down else 0, column if right else 0)
        if key not in self._loaded:
            dtype = scores.extras[read].operand.dtype
            elements = e.add(e.mul(e.add(self.places[self.plan.column], key[2]), right), key[1] * down)
            pointer = e.gep(self.masks[read], elements, STORAGE_ELEMENTS[dtype])
            stride = right if self.along == self.plan.column else down
            self._loaded[key] = load_lanes(e, dtype, pointer, self.lanes, stride=stride, active=active)
        return self._loaded[key]

    def _index(self, loop: str, row: int, column: int) -> Val:
        """The index of a loop in every lane."""
        e, further = self.emitter, {self.plan.row: row, self.plan.column: column}
        place = e.splat(e.index(e.add(self.places.get(loop, 0), further.get(loop, 0))), self.lanes)
        return e.iadd(place, vector_literal("i64", range(self.lanes))) if loop == self.along else place


def shift_of(e: Emitter, plan: AttentionPlan, top: Val) -> Val:
    """What is taken off the scores of rows, of the largest of each."""
    return emit_expr(e, plan.shift, lambda _: top, lanes=top.lanes)


def scale_of(e: Emitter, plan: AttentionPlan, total: Val) -> Val:
    """What the weighted sums of rows are multiplied with, of the sum of each one's weights."""
    return e.fdiv(1.0, emit_expr(e, plan.divisor, lambda _: total, lanes=total.lanes))


def result_of(e: Emitter, plan: AttentionPlan, total: Val, scale: Val) -> Val:
    """Elements of the result, of weighted sums."""
    value, finish = e.fmul(total, scale), plan.sums.finish
    return value if finish is None else emit_expr(e, finish, _no_read, value, lanes=value.lanes)


def _no_read(number: int) -> Val:
    raise AssertionError(f"read {number} of an expression that reads nothing")
