"""Operands as references read them: those that must be there, those that may not, shapes and axes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arrays import Array
from tilewright.ir.graph import Node, Shape


def present(inputs: Sequence[Array | None], position: int = 0) -> Array:
    """An input array that must be there."""
    array = inputs[position]
    assert array is not None
    return array


def optional(inputs: Sequence[Array | None], position: int) -> Array | None:
    """An input array, or None if it is omitted."""
    return inputs[position] if position < len(inputs) else None


def integers(array: Array | None) -> tuple[int, ...] | None:
    """The elements of a small integer tensor, None for an omitted one."""
    return None if array is None else tuple(int(v) for v in array.ravel())


def axis_within(axis: int, rank: int) -> int:
    """An axis counted from the start.

    Raises:
        IndexError: there is none.
    """
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of a tensor of {rank} axes does not exist")
    return axis % rank


def axes_of(node: Node, array: Array | None) -> tuple[int, ...] | None:
    """Axes from an input (newer opsets) or the attribute `axes`; None if neither is given."""
    return integers(array) if array is not None else node.ints_attr("axes")


def extents_of(data: Array) -> Shape:
    """A shape given as a tensor.

    Raises:
        ValueError: an extent is negative.
    """
    extents = tuple(int(v) for v in data.ravel())
    if any(extent < 0 for extent in extents):
        raise ValueError("no extent may be negative")
    return extents
