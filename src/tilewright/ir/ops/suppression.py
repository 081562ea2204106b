"""Boxes that overlap better ones are left out: NonMaxSuppression, whose result is as long as data say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import require_rank
from tilewright.ir.ops.operands import present
from tilewright.ir.ops.registry import operator
from tilewright.ir.work import HostWork, number_of
from tilewright.records import dataclass

# So many pairs are compared in the time of a step that is interpreted, of which each box that is kept is one.
_PAIRS_PER_STEP = 64
_HELD_PER_PAIR = 8
_BLOCK = 128
"""Candidates that are compared at once: with all better boxes, and with each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operands ask: so many boxes of a class at the `most`, which no better one overlaps by more
    than `overlap` of their union, with scores above `least` if that is given."""

    most: int
    overlap: float
    least: float | None

    @classmethod
    def of(cls, inputs: Sequence[Array | None]) -> Limits:
        """Those of the operands of a node."""
        most, overlap, least = (_number(inputs, position) for position in (2, 3, 4))
        return cls(max(int(most or 0), 0), 0.0 if overlap is None else overlap, least)


def _number(inputs: Sequence[Array | None], position: int) -> float | None:
    array = inputs[position] if position < len(inputs) else None
    return None if array is None or not array.size else float(array.reshape(-1)[0])


def _suppressed(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Batch, class and box of each that is kept: class by class, the best score first, of equal scores the
    first box."""
    boxes, scores = present(inputs, 0), present(inputs, 1)
    limits = Limits.of(inputs)
    overlap = scores.dtype.type(limits.overlap)
    kept: list[tuple[int, int, int]] = []
    for batch, classes in enumerate(scores):
        sides = corners(boxes[batch], is_center=bool(node.int_attr("center_point_box", 0)))
        for number, row in enumerate(classes):
            candidates = np.arange(len(row)) if limits.least is None else np.flatnonzero(row > limits.least)
            ranked = candidates[np.argsort(-row[candidates], kind="stable")]
            kept += [(batch, number, int(box)) for box in _best(sides, ranked, limits.most, overlap)]
    return (np.array(kept, np.int64).reshape(-1, 3),)


def corners(boxes: Array, *, is_center: bool) -> Array:
    """Lowest and highest coordinate along both axes, and the area: five rows."""
    if is_center:
        half = boxes[:, 2:] / 2
        low, high = boxes[:, :2] - half, boxes[:, :2] + half
    else:
        low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    sides = high - low
    return np.stack([low[:, 0], low[:, 1], high[:, 0], high[:, 1], sides[:, 0] * sides[:, 1]])


def _best(sides: Array, ranked: Array, most: int, overlap: Any) -> Array:
    """Of ranked boxes those that no better one overlaps by more than is allowed, `most` of them."""
    if not len(ranked):
        return ranked
    sides = sides[:, ranked]
    order, begins = apart(sides[0], sides[2])
    groups = map(np.sort, np.split(order, begins[1:]))
    kept = [places[_kept(sides[:, places], most, overlap)] for places in groups]
    first: Array = np.sort(np.concatenate(kept))[:most]
    return ranked[first]


def apart(low: Array, high: Array) -> tuple[Array, Array]:
    """Boxes in an order in which groups of them follow each other, and where in it each group begins: boxes
    of different groups do not meet along the axis of which their lowest and highest coordinates are given.

    Detectors of many classes move the boxes of each to where no other class has any.
    """
    order = np.argsort(low, kind="stable")
    reached = np.fmax.accumulate(high[order])
    begins = np.flatnonzero(low[order[1:]] >= reached[:-1]) + 1
    return order, np.concatenate([[0], begins])


def _kept(sides: Array, most: int, overlap: Any) -> list[int]:
    """Places of the boxes that no better one, which is before them, overlaps by more than is allowed."""
    best: list[int] = []
    for start in range(0, sides.shape[1], _BLOCK):
        block, better = sides[:, start : start + _BLOCK], sides[:, best]
        is_hidden: Array = np.any(_hide(better[:, :, None], block[:, None], overlap), axis=0)
        hides = _hide(block[:, :, None], block[:, None], overlap)
        for place in range(block.shape[1]):
            if len(best) == most:
                return best
            if not is_hidden[place]:
                best.append(start + place)
                is_hidden |= hides[place]
    return best


def _hide(a: Array, b: Array, overlap: Any) -> Array:
    """Whether boxes overlap by more than is allowed, as shares of their union."""
    sides_0 = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    sides_1 = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = sides_0 * sides_1
    union = a[4] + b[4] - shared
    have_area = (sides_0 > 0) & (sides_1 > 0) & (shared > 0) & (a[4] > 0) & (b[4] > 0) & (union > 0)
    with np.errstate(all="ignore"):
        hides: Array = have_area & (shared / union > overlap)
    return hides


def _work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """Each candidate beside each that was taken, of those whose score is high enough where it is known."""
    scores, least = data[1] if len(data) > 1 else None, data[4] if len(data) > 4 else None
    batches, classes, num_boxes = node.require(1).shape
    most = max(number_of(data, 2, 0 if node.input(2) is None else num_boxes), 0)
    looked_at = batches * classes * num_boxes
    if scores is None:
        return HostWork(steps=looked_at // _PAIRS_PER_STEP)
    taken = scores > least.reshape(-1)[0] if least is not None and least.size else np.isfinite(scores)
    candidates = taken.sum(axis=-1, dtype=np.int64)
    kept = np.minimum(candidates, most)
    pairs = int((candidates * kept).sum())
    held = _HELD_PER_PAIR * _BLOCK * int(kept.max(initial=0))
    return HostWork(held, int(kept.sum()) + (looked_at + pairs) // _PAIRS_PER_STEP)


@operator("NonMaxSuppression", reference=_suppressed, host_work=_work)
def non_max_suppression(node: Node) -> Description:
    """The best of boxes that overlap: how many is data."""
    require_rank(node, 0, 3, 3)
    require_rank(node, 1, 3, 3)
    return Opaque("the output size of NonMaxSuppression depends on data")
