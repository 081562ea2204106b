"""Operators that give elements another shape in the same order: reshape, flatten, squeeze and unsqueeze.

They become one copy over the common refinement of both shapes, where there is one, so that both sides keep
affine indices on their real axes: `[N, C, H*W]` to `[N, C, H, W]` reads `W*h + w`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Description, Nests
from tilewright.ir.ops.build import (
    copy_nest,
    dims_of,
    identity,
    input_operand,
    output_operand,
    require,
    require_result,
)
from tilewright.ir.ops.operands import axes_of, optional, present
from tilewright.ir.ops.registry import Sizing, operator
from tilewright.ir.shapes import common_refinement, equal_product_groups, merged_index


def reshape_nests(node: Node) -> Nests:
    """A row-major copy from the first input to the output, whatever their shapes."""
    source, out = input_operand(node, 0), output_operand(node)
    require(
        node,
        source.num_elements == out.num_elements,
        f"it makes {list(out.shape)} of {list(source.shape)}, which has another number of elements",
    )
    if out.num_elements == 0:
        dims = dims_of(out.shape)
        read = Access(source, identity(dims), view=out.shape)
        return (copy_nest(dims, read, Access(out, identity(dims))),)
    extents: list[int] = []
    view: list[int] = []
    viewed = False
    for group in equal_product_groups(source.shape, out.shape):
        left, right = source.shape[slice(*group.left)], out.shape[slice(*group.right)]
        refined = common_refinement(left, right)
        if refined is None:
            # No affine index on both real shapes exists: this group is read under the output's shape.
            refined, left, viewed = right, right, True
        extents += refined
        view += left
    dims = dims_of([e for e in extents if e != 1])
    read = Access(source, merged_index(tuple(view), dims), view=tuple(view) if viewed else None)
    return (copy_nest(dims, read, Access(out, merged_index(out.shape, dims))),)


def _reshaped(node: Node, source: Shape, data: Array) -> Shape:
    extents = [int(v) for v in data.ravel()]
    if not node.int_attr("allowzero", 0):
        if any(extent == 0 for extent in extents[len(source) :]):
            raise ValueError(f"a 0 stands for an extent of the input, which has {len(source)} of them")
        extents = [source[axis] if extent == 0 else extent for axis, extent in enumerate(extents)]
    if extents.count(-1) > 1 or min(extents, default=0) < -1:
        raise ValueError("one extent may be -1, none less")
    if -1 in extents:
        others = -prod(extents)
        extents[extents.index(-1)] = prod(source) // others if others else -1
    if prod(extents) != prod(source) or -1 in extents:
        raise ValueError(f"the input has {prod(source)} elements")
    return tuple(extents)


def _reshape_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    return (x.reshape(_reshaped(node, x.shape, present(inputs, 1))),)


@operator(
    "Reshape", reference=_reshape_reference, sizing=Sizing(1, "shape", _reshaped, lambda _, x, out: out)
)
def reshape(node: Node) -> Description:
    """The same elements under another shape."""
    return reshape_nests(node)


def _flatten_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    axis = node.int_attr("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return (x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),)


@operator("Flatten", reference=_flatten_reference)
def flatten(node: Node) -> Description:
    """The axes before and from `axis` merged into two."""
    shape, axis = node.require(0).shape, node.int_attr("axis", 1)
    require(node, -len(shape) <= axis <= len(shape), f"axis is {axis}, but the operand has {len(shape)} axes")
    axis += len(shape) if axis < 0 else 0
    require_result(node, (prod(shape[:axis]), prod(shape[axis:])))
    return reshape_nests(node)


def _squeeze_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, axes = present(inputs), axes_of(node, optional(inputs, 1))
    return (np.squeeze(x, axis=axes),)


def _inserted(short: Shape, long: Shape) -> tuple[int, ...]:
    """Axes of `long` that are left when those of `short` are found in it, in order."""
    left = []
    position = 0
    for axis, extent in enumerate(long):
        if position < len(short) and short[position] == extent:
            position += 1
        else:
            left.append(axis)
    return tuple(left)


def _axes_within(data: Array, rank: int) -> frozenset[int]:
    axes = [int(v) for v in data.ravel()]
    if any(not -rank <= axis < rank for axis in axes):
        raise ValueError(f"there are {rank} axes")
    if len({axis % rank for axis in axes}) < len(axes):
        raise ValueError("an axis is named twice")
    return frozenset(axis % rank for axis in axes)


def _squeezed(node: Node, source: Shape, data: Array) -> Shape:
    axes = _axes_within(data, len(source))
    if any(source[axis] != 1 for axis in axes):
        raise ValueError(f"only axes of extent 1 can go from {list(source)}")
    return tuple(extent for axis, extent in enumerate(source) if axis not in axes)


def _unsqueezed(node: Node, source: Shape, data: Array) -> Shape:
    rank = len(source) + data.size
    axes = _axes_within(data, rank)
    rest = iter(source)
    return tuple(1 if axis in axes else next(rest) for axis in range(rank))


@operator(
    "Squeeze",
    reference=_squeeze_reference,
    sizing=Sizing(1, "axes", _squeezed, lambda _, x, out: _inserted(out, x)),
)
def squeeze(node: Node) -> Description:
    """Without the given axes of extent 1, or without all of them."""
    return reshape_nests(node)


def _unsqueeze_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, axes = present(inputs), axes_of(node, optional(inputs, 1))
    assert axes is not None
    return (np.expand_dims(x, axes),)


@operator(
    "Unsqueeze",
    reference=_unsqueeze_reference,
    sizing=Sizing(1, "axes", _unsqueezed, lambda _, x, out: _inserted(x, out)),
)
def unsqueeze(node: Node) -> Description:
    """With axes of extent 1 put in."""
    return reshape_nests(node)
