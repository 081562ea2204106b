"""CoupledProbabilities: the probabilities of classes that agree best with those of all pairs.

An operator of our own domain: the second method of T.-F. Wu, C.-J. Lin, R. C. Weng, Probability Estimates
for Multi-class Classification by Pairwise Coupling, JMLR 5 (2004), as support vector machines use it. It goes
on until nothing changes by more than a tolerance. Input: `[N, P]`, for each pair of classes `(0, 1), (0, 2),
..., (1, 2), ...` the probability of the first. Result: `[N, num_classes]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Final

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.build import require, require_rank, require_result
from tilewright.ir.ops.operands import present
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, operator
from tilewright.ir.work import HostWork

COUPLED_PROBABILITIES: Final = "CoupledProbabilities"
_MOST_PASSES = 100
_TOLERANCE = 0.005  # over the number of classes
_NUMBERS_PER_STEP = 64


def _reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    pairs = present(inputs)
    count, num_rows = node.int_attr("num_classes", 2), len(pairs)
    r = np.zeros((num_rows, count, count), pairs.dtype)
    for number, (i, j) in enumerate(combinations(range(count), 2)):
        r[:, i, j], r[:, j, i] = pairs[:, number], 1 - pairs[:, number]
    q = -np.swapaxes(r, 1, 2) * r
    own = np.arange(count)
    q[:, own, own] = np.square(r).sum(axis=1)
    p = np.full((num_rows, count), 1 / count, pairs.dtype)
    left = np.arange(num_rows)
    for _ in range(_MOST_PASSES):
        moved = np.einsum("ntj,nj->nt", q[left], p[left])
        total = (p[left] * moved).sum(axis=1)
        going = np.abs(moved - total[:, None]).max(axis=1, initial=0) >= _TOLERANCE / count
        left, moved, total = left[going], moved[going], total[going]
        if not len(left):
            break
        part, some = p[left], q[left]
        for t in range(count):
            change = (total - moved[:, t]) / some[:, t, t]
            part[:, t] += change
            scale = (1 + change)[:, None]
            total = (total + change * (change * some[:, t, t] + 2 * moved[:, t])) / np.square(scale[:, 0])
            moved = (moved + change[:, None] * some[:, t]) / scale
            part /= scale
        p[left] = part
    return [p]


def _shapes(node: Node) -> Sequence[tuple[int, ...]]:
    return [(require_rank(node, 0, 2, 2)[0], node.int_attr("num_classes", 2))]


def _work(node: Node, data: Sequence[Array | None]) -> HostWork:
    count = node.int_attr("num_classes", 2)
    num_numbers = prod((node.require(0).shape[0], count, count))
    return HostWork(elements=4 * num_numbers, steps=_MOST_PASSES * num_numbers // _NUMBERS_PER_STEP)


@operator(
    COUPLED_PROBABILITIES, reference=_reference, domain=INTERNAL_DOMAIN, shapes=_shapes, host_work=_work
)
def coupled_probabilities(node: Node) -> Description:
    """Passes until nothing changes: how many is data."""
    (num_rows, count), num_pairs = _shapes(node)[0], require_rank(node, 0, 2, 2)[1]
    require(node, num_pairs == count * (count - 1) // 2, f"it has {num_pairs} pairs of {count} classes")
    require_result(node, (num_rows, count))
    return Opaque("CoupledProbabilities: it goes on until it converges")
