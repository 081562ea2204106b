"""Where the iterations of a nest find an element: the one place where indices become steps in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.nest import Access, Affine, Index
from tilewright.targets.llvm.layout import Declined, Layout, Layouts

Walk = tuple[dict[str, int], int]
"""Elements per step of each dim, and the element of iteration zero."""


def walk(index: Sequence[Index], strides: Sequence[int]) -> Walk | None:
    """The walk of an index over axes with these strides; None where an index is not affine.

    >>> walk((Affine((("h", 2), ("k", 1)), -1), Affine((("w", 1),))), (10, 1))
    ({'h': 20, 'k': 10, 'w': 1}, -10)
    """
    steps: dict[str, int] = {}
    start = 0
    for stride, one in zip(strides, index, strict=True):
        if not isinstance(one, Affine):
            return None
        start += stride * one.offset
        for dim, coefficient in one.terms:
            steps[dim] = steps.get(dim, 0) + stride * coefficient
    return steps, start


def access_walk(access: Access, layouts: Layouts) -> Walk | Declined:
    """The walk of an access under the layouts of the operands, padding not considered."""
    layout = layouts[access.operand.key]
    if access.view is not None:
        if not layout.is_row_major:
            return Declined("a reshaped view of a tensor that is not row-major")
        layout = Layout.row_major(len(access.view))
    found = walk(access.index, layout.strides(access.shape))
    return Declined("an index is not affine") if found is None else found


def matched_walk(access: Access, layouts: Layouts) -> Walk:
    """The walk of an access that has been found to have one."""
    found = access_walk(access, layouts)
    assert not isinstance(found, Declined), found.reason
    return found


def looping(steps: Mapping[str, int], extents: Mapping[str, int]) -> dict[str, int]:
    """The steps of the dims that really loop: equal for accesses that visit the same elements in turn."""
    return {dim: step for dim, step in steps.items() if extents[dim] > 1}


def leaves(access: Access, extents: Mapping[str, int]) -> bool:
    """Whether an access goes outside its tensor in some iteration, along an axis whose index is affine."""
    return any(
        isinstance(i, Affine) and not 0 <= i.bounds(extents)[0] <= i.bounds(extents)[1] < size
        for i, size in zip(access.index, access.shape, strict=True)
    )
