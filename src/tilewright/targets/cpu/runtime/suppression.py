"""NonMaxSuppression in machine code: the loops of its reference (`ir.ops.suppression`), with equal results.

Candidates of a class come from a heap, the best one first, so that only as many are ranked as are looked at.
Each is compared with the boxes that were kept, a vector of them at a time. Boxes of different groups do not
meet: where there are groups, those that were kept of each lie apart.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import NoGeneratedCode, UsageError
from tilewright.ir.graph import Node
from tilewright.ir.ops.suppression import Limits, apart, corners
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import FLOAT, I1, I64, PTR, Int, Val, vec

MAX_PAIRS = 1 << 34
"""Of boxes that may be compared at the most: seconds. More is left to the reference, which looks at the
scores before it says whether that is too much."""

MAX_TOGETHER = 512
"""Boxes of a class that are kept before it is looked whether boxes fall apart into groups."""

_SUPPRESS, _SIFT = "tw_suppress", "sift"
_SCANNED = 16
_COMPARED = 8
_NUM_SIDES = 5  # lowest and highest along two axes, and the area
_LOW_HALF = 0xFFFFFFFF


def suppressed(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """Batch, class and box of each that is kept; None where the reference is to say."""
    boxes, scores = inputs[0], inputs[1]
    limits = Limits.of(inputs)
    if boxes is None or scores is None or boxes.dtype != np.float32 or scores.dtype != np.float32:
        return None
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
        return None
    num_batches, num_classes, num_boxes = scores.shape
    most = min(limits.most, num_boxes)
    if not 0 < num_batches * num_classes * num_boxes * most <= MAX_PAIRS or num_boxes > _LOW_HALF:
        return None
    kernel = _kernel()
    if kernel is None:
        return None
    boxes, scores = np.ascontiguousarray(boxes), np.ascontiguousarray(scores)
    asked = _Asked(limits, most, bool(node.int_attr("center_point_box", 0)))
    found = []
    for batch in range(num_batches):
        of_batch = (kernel, batch, boxes[batch], scores[batch])
        kept = asked.kept(*of_batch, min(most, MAX_TOGETHER))
        if kept is None:
            kept = asked.kept(*of_batch, most, _groups(boxes[batch], is_center=asked.is_center))
            assert kept is not None
        found.append(kept)
    return found[0].copy() if len(found) == 1 else np.concatenate(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a node asks of each batch; `most` is no more than there are boxes."""

    limits: Limits
    most: int
    is_center: bool

    def kept(
        self,
        kernel: Callable[..., int],
        batch: int,
        boxes: Array,
        scores: Array,
        limit: int,
        groups: Array | None = None,
    ) -> Array | None:
        """Rows of the result; None where there are more than `limit` of a class."""
        (num_classes, num_boxes), least = scores.shape, self.limits.least
        start = _work_words(num_boxes)
        work = np.zeros(start + 3 * num_classes * limit, np.int64)
        if groups is not None:
            work[:num_boxes] = groups
        count = kernel(
            *(boxes.ctypes.data, scores.ctypes.data, work.ctypes.data),
            *(batch, num_classes, num_boxes, self.most, limit),
            *(self.limits.overlap, least or 0.0, least is None, self.is_center),
        )
        return None if count < 0 else work[start : start + 3 * count].reshape(-1, 3)


def _groups(boxes: Array, *, is_center: bool) -> Array:
    """For each box where those that are kept of its group begin: there is room for all of it."""
    sides = corners(boxes, is_center=is_center)
    order, begins = apart(sides[0], sides[2])
    groups = np.empty(len(boxes), np.int64)
    groups[order] = np.repeat(begins, np.diff(begins, append=len(boxes)))
    return groups


def _work_words(num_boxes: int) -> int:
    """Words of eight bytes: groups, how many are kept of each, keys, and sides of all boxes and of those
    that are kept, of which vectors reach beyond the last one."""
    return 3 * num_boxes + _NUM_SIDES * (num_boxes + _COMPARED // 2)


@functools.cache
def _kernel() -> Callable[..., int] | None:
    """The loaded code; None on a system, or a processor, that runs none."""
    try:
        isa = host_isa()
        library = JitLibrary([compile_object(suppression_ir(isa.triple), isa)], [_SUPPRESS])
    except (NoGeneratedCode, UsageError):
        return None
    pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    function = ctypes.CFUNCTYPE(i64, *[pointer] * 3, *[i64] * 5, f32, f32, i64, i64)(library[_SUPPRESS])
    function.library = library  # type: ignore[attr-defined]  # lives as long
    return function


def suppression_ir(triple: str) -> str:
    """The module as text."""
    e = Emitter(triple=triple)
    _define_sift(e)
    pointers = [Param(name, PTR) for name in ("boxes", "scores", "work")]
    numbers = [Param(name, I64) for name in ("batch", "num_classes", "num_boxes", "most", "limit")]
    limits = [Param("overlap", FLOAT), Param("least", FLOAT), Param("all", I64), Param("center", I64)]
    with e.function(_SUPPRESS, [*pointers, *numbers, *limits], result=I64) as arguments:
        boxes, scores, work, batch, num_classes, num_boxes, most, limit, overlap, least, all_, center = (
            arguments
        )
        pass_ = _Pass(e, work, batch, num_boxes, most, limit, overlap, least, e.icmp("ne", all_, 0))
        pass_.find_sides(boxes, e.icmp("ne", center, 0))

        def of_class(carried: list[Val]) -> tuple[Val, list[Val]]:
            number, before, _ = carried
            row = e.gep(scores, e.mul(number, num_boxes), "float")
            count, is_whole = pass_.suppress(number, row, before)
            following = e.index(e.add(number, 1))
            again = e.and_(is_whole, e.icmp("slt", following, num_classes))
            return again, [following, count, is_whole]

        _, count, is_whole = e.do_while(of_class, [(I64, 0), (I64, 0), (I1, 1)])
        e.ret(e.select(is_whole, count, -1))
    return e.text()


def _define_sift(e: Emitter) -> None:
    """`sift(keys, place, count)` moves a key down a heap, the largest of which is first."""
    params = [Param("keys", PTR), Param("place", I64), Param("count", I64)]
    with e.function(_SIFT, params, linkage="internal") as (keys, place, count):
        moved = e.load(I64, e.gep(keys, place, "i64"))

        def step(carried: list[Val]) -> tuple[Val, list[Val]]:
            (at,) = carried
            left = e.index(e.add(e.mul(at, 2), 1))

            def descend() -> list[Val]:
                right = e.min(e.add(left, 1), e.sub(count, 1))
                a, b = (e.load(I64, e.gep(keys, child, "i64")) for child in (left, right))
                child = e.select(e.icmp("ugt", b, a), e.index(right), left)
                larger = e.umax(a, b)
                is_lower = e.icmp("ugt", larger, moved)
                e.if_(is_lower, lambda: e.store(larger, e.gep(keys, at, "i64")))
                return [is_lower, e.select(is_lower, child, at)]

            again, following = e.if_(
                e.icmp("slt", left, count), descend, lambda: [e.constant(I1, 0), at], [I1, I64]
            )
            return again, [following]

        (last,) = e.do_while(step, [(I64, place)])
        e.store(moved, e.gep(keys, last, "i64"))


class _Pass:
    """The code for one batch: sides of its boxes, and which are kept of each class."""

    def __init__(
        self,
        e: Emitter,
        work: Val,
        batch: Val,
        num_boxes: Val,
        most: Val,
        limit: Val,
        overlap: Val,
        least: Val,
        takes_all: Val,
    ) -> None:
        self._e = e
        self._batch, self._num_boxes, self._most, self._limit = batch, num_boxes, most, limit
        self._overlap, self._least, self._takes_all = overlap, least, takes_all
        self._groups = work
        self._counts = e.gep(work, num_boxes, "i64")
        self._keys = e.gep(work, e.mul(num_boxes, 2), "i64")
        sides = e.gep(work, e.mul(num_boxes, 3), "i64")
        self._sides = [e.gep(sides, e.mul(num_boxes, n), "float") for n in range(_NUM_SIDES)]
        kept = e.gep(sides, e.mul(num_boxes, _NUM_SIDES), "float")
        stride = e.add(num_boxes, _COMPARED)
        self._kept = [e.gep(kept, e.mul(stride, n), "float") for n in range(_NUM_SIDES)]
        self._out = e.gep(work, e.add(e.mul(num_boxes, 3 + _NUM_SIDES), _NUM_SIDES * _COMPARED // 2), "i64")

    def find_sides(self, boxes: Val, is_center: Val) -> None:
        """Of every box; those of a box that is no number are none, so that it hides nothing."""
        e = self._e

        def of_box(box: Int, _: list[Val]) -> None:
            at = e.gep(boxes, e.mul(box, 4), "float")
            given = [e.load(FLOAT, e.gep(at, n, "float")) for n in range(4)]

            def around_center() -> list[Val]:
                half = [e.fdiv(given[n], 2.0) for n in (2, 3)]
                low = [e.fsub(given[n], half[n]) for n in (0, 1)]
                return [*low, *(e.fadd(given[n], half[n]) for n in (0, 1))]

            def between_corners() -> list[Val]:
                low = [e.minimum(given[n], given[n + 2]) for n in (0, 1)]
                return [*low, *(e.maximum(given[n], given[n + 2]) for n in (0, 1))]

            sides = e.if_(is_center, around_center, between_corners, [FLOAT] * 4)
            area = e.fmul(e.fsub(sides[2], sides[0]), e.fsub(sides[3], sides[1]))
            for value, place in zip((*sides, area), self._sides, strict=True):
                e.store(value, e.gep(place, box, "float"))

        e.loop(0, self._num_boxes, 1, of_box)

    def suppress(self, number: Int, scores: Val, num_found: Val) -> tuple[Val, Val]:
        """One class: how many were found with it, and whether these are all."""
        e = self._e
        num_candidates = self._candidates(scores)
        half = e.udiv(num_candidates, 2)
        e.loop(0, half, 1, lambda i, _: self._sift(e.sub(e.sub(half, 1), i), num_candidates))

        def take(carried: list[Val]) -> tuple[Val, list[Val]]:
            left, found = carried
            box = e.xor(e.and_(e.load(I64, self._keys), _LOW_HALF), _LOW_HALF)
            rest = e.index(e.sub(left, 1))
            e.store(e.load(I64, e.gep(self._keys, rest, "i64")), self._keys)
            self._sift(0, rest)
            sides = [e.load(FLOAT, e.gep(place, box, "float")) for place in self._sides]
            group = e.load(I64, e.gep(self._groups, box, "i64"))
            place = e.gep(self._counts, group, "i64")
            num_kept = e.load(I64, place)
            is_hidden = self._is_hidden(sides, group, num_kept)

            def keep() -> list[Val]:
                for value, start in zip(sides, self._kept, strict=True):
                    e.store(value, e.gep(start, e.add(group, num_kept), "float"))
                e.store(e.index(e.add(num_kept, 1)), place)
                at = e.gep(self._out, e.mul(found, 3), "i64")
                for position, value in enumerate((self._batch, e.index(number), box)):
                    e.store(value, e.gep(at, position, "i64"))
                return [e.index(e.add(found, 1))]

            (following,) = e.if_(is_hidden, lambda: [found], keep, [I64])
            is_less = e.icmp("slt", e.sub(following, num_found), self._limit)
            return e.and_(e.icmp("sgt", rest, 0), is_less), [rest, following]

        left, found = e.if_(
            e.icmp("sgt", num_candidates, 0),
            lambda: e.do_while(take, [(I64, num_candidates), (I64, num_found)]),
            lambda: [num_candidates, num_found],
            [I64, I64],
        )

        def forget(position: Int, _: list[Val]) -> None:
            box = e.load(I64, e.gep(self._out, e.add(e.mul(position, 3), 2), "i64"))
            group = e.load(I64, e.gep(self._groups, box, "i64"))
            e.store(e.constant(I64, 0), e.gep(self._counts, group, "i64"))

        e.loop(num_found, found, 1, forget)
        is_all = e.or_(e.icmp("eq", left, 0), e.icmp("sge", e.sub(found, num_found), self._most))
        return found, is_all

    def _sift(self, place: Int, count: Int) -> None:
        e = self._e
        e.call(_SIFT, [self._keys, e.index(place), e.index(count)], declare=False)

    def _candidates(self, scores: Val) -> Val:
        """Writes the keys of boxes that score high enough: how many there are."""
        e = self._e
        whole = e.index(e.mul(e.udiv(self._num_boxes, _SCANNED), _SCANNED))
        least = e.splat(self._least, _SCANNED)

        def scan(low: Int, high: Int, count: Val) -> list[Val]:
            def look(box: Int, carried: list[Val]) -> list[Val]:
                score = e.load(FLOAT, e.gep(scores, box, "float"))
                e.store(self._key(score, box), e.gep(self._keys, carried[0], "i64"))
                is_taken = e.or_(e.fcmp("ogt", score, self._least), self._takes_all)
                return [e.index(e.add(carried[0], e.cast("zext", is_taken, "i64")))]

            return e.loop(low, high, 1, look, [(I64, count)])

        def look_at_many(box: Int, carried: list[Val]) -> list[Val]:
            row = e.load(vec("float", _SCANNED), e.gep(scores, box, "float"))
            is_any = e.or_(e.any_lane(e.fcmp("ogt", row, least)), self._takes_all)
            return e.if_(
                is_any, lambda: scan(box, e.add(box, _SCANNED), carried[0]), lambda: [carried[0]], [I64]
            )

        (count,) = e.loop(0, whole, _SCANNED, look_at_many, [(I64, 0)])
        return scan(whole, self._num_boxes, count)[0]

    def _key(self, score: Val, box: Int) -> Val:
        """Larger for what comes first: the higher score, then the first box; no number comes last."""
        e = self._e
        bits = e.bitcast(e.fadd(score, 0.0), vec("i32"))  # zeros of both signs are equal
        ordered = e.xor(bits, e.or_(e.ashr(bits, 31), -(1 << 31)))
        ordered = e.select(e.fcmp("uno", score, score), 0, ordered)
        last = e.xor(e.index(box), _LOW_HALF)
        return e.or_(e.shl(e.cast("zext", ordered, "i64"), 32), last)

    def _is_hidden(self, sides: Sequence[Val], group: Val, num_kept: Val) -> Val:
        """Whether a box of the group that was kept overlaps by more than is allowed."""
        e = self._e
        box = [e.splat(side, _COMPARED) for side in sides]
        overlap = e.splat(self._overlap, _COMPARED)

        def compare(carried: list[Val]) -> tuple[Val, list[Val]]:
            at = carried[0]
            kept = [
                e.load(vec("float", _COMPARED), e.gep(start, e.add(group, at), "float"))
                for start in self._kept
            ]
            # What is no number has no area, whichever of two numbers these pick.
            low = [e.select(e.fcmp("ogt", kept[n], box[n]), kept[n], box[n]) for n in (0, 1)]
            high = [e.select(e.fcmp("olt", kept[n], box[n]), kept[n], box[n]) for n in (2, 3)]
            wide, tall = (e.fsub(high[n], low[n]) for n in (0, 1))
            shared = e.fmul(wide, tall)
            union = e.fsub(e.fadd(kept[4], box[4]), shared)
            hides = e.fcmp("ogt", e.fdiv(shared, union), overlap)
            for positive in (wide, tall, shared, kept[4], box[4], union):
                hides = e.and_(hides, e.fcmp("ogt", positive, 0.0))
            is_any = e.any_lane(e.and_(hides, e.lane_mask(_COMPARED, e.sub(num_kept, at))))
            following = e.index(e.add(at, _COMPARED))
            again = e.and_(e.not_(is_any), e.icmp("slt", following, num_kept))
            return again, [following, is_any]

        return e.if_(
            e.icmp("sgt", num_kept, 0),
            lambda: [e.do_while(compare, [(I64, 0), (I1, 0)])[1]],
            lambda: [e.constant(I1, 0)],
            [I1],
        )[0]
