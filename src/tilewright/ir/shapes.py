"""How two shapes of the same elements relate: equal-product groups, and the refinement both share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from tilewright.ir.graph import Shape
from tilewright.ir.nest import Affine, Dim, affine
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class EqualProductGroup:
    """Axes `[start, stop)` of two shapes that hold the same elements, as few as possible."""

    left: tuple[int, int]
    right: tuple[int, int]


def equal_product_groups(left: Shape, right: Shape) -> tuple[EqualProductGroup, ...]:
    """Cut two shapes of equal, non-zero size into minimal groups of equal products, in order.

    Axes of extent 1 that no group needs stand alone, facing nothing.

    >>> equal_product_groups((2, 3, 20), (2, 3, 4, 5))[-1]
    EqualProductGroup(left=(2, 3), right=(2, 4))
    """
    groups: list[EqualProductGroup] = []
    i = j = 0
    while i < len(left) or j < len(right):
        if i < len(left) and left[i] == 1:
            groups.append(EqualProductGroup((i, i + 1), (j, j)))
            i += 1
            continue
        if j < len(right) and right[j] == 1:
            groups.append(EqualProductGroup((i, i), (j, j + 1)))
            j += 1
            continue
        i0, j0 = i, j
        a, b = left[i], right[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * left[i], i + 1
            else:
                b, j = b * right[j], j + 1
        groups.append(EqualProductGroup((i0, i), (j0, j)))
    return tuple(groups)


def common_refinement(left: Shape, right: Shape) -> Shape | None:
    """The coarsest shape of which both shapes merge neighbouring axes, or None if there is none.

    >>> common_refinement((4, 6), (8, 3)), common_refinement((2, 3), (3, 2))
    ((4, 2, 3), None)
    """
    strides = sorted(_suffix_products(left) | _suffix_products(right), reverse=True)
    extents = []
    for outer, inner in pairwise(strides):
        if outer % inner:
            return None
        extents.append(outer // inner)
    return tuple(extents)


def _suffix_products(shape: Shape) -> set[int]:
    return {prod(shape[axis:]) for axis in range(len(shape) + 1)}


def merged_index(shape: Shape, dims: Sequence[Dim]) -> tuple[Affine, ...]:
    """Index of a shape whose axes each merge some neighbouring `dims`, outermost first."""
    index = []
    remaining = list(dims)
    for extent in shape:
        terms: list[tuple[str, int]] = []
        size = 1
        taken: list[Dim] = []
        while size < extent:
            dim = remaining.pop(0)
            taken.append(dim)
            size *= dim.extent
        stride = 1
        for dim in reversed(taken):
            terms.append((dim.name, stride))
            stride *= dim.extent
        index.append(affine(*terms))
    return tuple(index)
