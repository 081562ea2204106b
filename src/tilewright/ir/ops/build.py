"""What nest builders of all families share: operands of a node and what they must be, dims, pointwise nests.

Builders take the extents of their loops from operands and attributes. What these must be of each other and of
the results is said with `require`, `choice_attr`, `require_shape`, `require_result` and `axis_of`, before a
nest is made or the node is left to its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Read, Scalar, cast
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Dim, Index, Indirect, Nest, Nests, Operand, affine


def require(node: Node, holds: bool, problem: str) -> None:
    """Say what is wrong with a node's operands or attributes where something does not hold.

    Raises:
        ModelRejected: it does not; `problem` says what was given and what is taken.
    """
    if not holds:
        raise ModelRejected(f"{node.op_type} {node.name!r}: {problem}; export the model again.")


def choice_attr(
    node: Node, name: str, allowed: Sequence[str], default: str, *, any_case: bool = False
) -> str:
    """A text attribute with a closed set of values, in lower case if `any_case` is taken.

    Raises:
        ModelRejected: it has another value.
    """
    value = node.str_attr(name, default)
    value = value.lower() if any_case else value
    require(node, value in allowed, f"{name} is {value!r}, not one of {', '.join(allowed)}")
    return value


def require_shape(node: Node, position: int, expected: Sequence[int | None], reason: str = "") -> None:
    """Require that an input has this shape, if it is there; None stands for any extent.

    Raises:
        ModelRejected: it has another one; names the operand and both shapes.
    """
    value = node.input(position)
    if value is not None and not _matches(value.shape, expected):
        because = f" ({reason})" if reason else ""
        require(
            node,
            False,
            f"input {position} {value.name!r} has shape {list(value.shape)}, "
            f"but {_shown(expected)} is taken{because}",
        )


def require_rank(node: Node, position: int, least: int, most: int | None = None) -> Shape:
    """The shape of an input that must be there and have between `least` and `most` axes.

    Raises:
        ModelRejected: it has more or fewer.
    """
    shape = node.require(position).shape
    if len(shape) < least or (most is not None and len(shape) > most):
        wanted = f"{least} axes" if most == least else f"at least {least} axes"
        if most is not None and most != least:
            wanted = f"{least} to {most} axes"
        name = node.require(position).name
        require(node, False, f"input {position} {name!r} has shape {list(shape)}, but {wanted} are taken")
    return shape


def require_result(node: Node, expected: Sequence[int | None], position: int = 0) -> None:
    """Require that a result has the shape that operands and attributes give it, if it is there.

    Raises:
        ModelRejected: it has another one; names the result and both shapes.
    """
    value = node.outputs[position] if position < len(node.outputs) else None
    if value is not None and not _matches(value.shape, expected):
        require(
            node,
            False,
            f"result {position} {value.name!r} is declared {list(value.shape)}, but is {_shown(expected)}",
        )


def require_scalar(node: Node, position: int) -> None:
    """Require that an input holds one element, if it is there.

    Raises:
        ModelRejected: it holds none or several.
    """
    value = node.input(position)
    if value is not None and value.num_elements != 1:
        require_shape(node, position, (), "one element")


def require_broadcast(node: Node, position: int, shape: Sequence[int]) -> None:
    """Require that an input, if it is there, broadcasts to a shape and not beyond it.

    Raises:
        ModelRejected: it does not.
    """
    value = node.input(position)
    if value is None:
        return
    aligned = shape[len(shape) - len(value.shape) :]
    fits = len(value.shape) <= len(shape) and all(
        e in (1, full) for e, full in zip(value.shape, aligned, strict=True)
    )
    if not fits:
        require(
            node,
            False,
            f"input {position} {value.name!r} has shape {list(value.shape)}, "
            f"which does not broadcast to {list(shape)}",
        )


def broadcast_shape(node: Node, *shapes: Shape) -> Shape:
    """The shape that shapes broadcast to under numpy's rules.

    Raises:
        ModelRejected: they do not broadcast.
    """
    if not shapes or all(shape == shapes[0] for shape in shapes):
        return shapes[0] if shapes else ()
    rank = max(map(len, shapes))
    result: list[int] = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(extents) > 1:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            require(node, False, f"operands of shapes {listed} do not broadcast")
        result.append(extents.pop() if extents else 1)
    return tuple(result)


def axis_of(node: Node, rank: int, default: int, name: str = "axis") -> int:
    """The axis that an attribute names, counted from the front.

    Raises:
        ModelRejected: a tensor of this rank has no such axis.
    """
    return normalized_axis(node, node.int_attr(name, default), rank, name)


def normalized_axis(node: Node, axis: int, rank: int, name: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        ModelRejected: a tensor of this rank has no such axis.
    """
    if not -rank <= axis < rank:
        require(node, False, f"{name} is {axis}, but the operand has {rank} axes")
    return axis + rank if axis < 0 else axis


def _matches(shape: Shape, expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(
        e is None or e == s for s, e in zip(shape, expected, strict=True)
    )


def _shown(expected: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if e is None else str(e) for e in expected)}]"


def input_operand(node: Node, position: int) -> Operand:
    """The node's `position`-th input, which must be present."""
    value = node.require(position)
    return Operand("input", position, value.dtype, value.shape)


def output_operand(node: Node, position: int = 0) -> Operand:
    """The node's `position`-th output, which must be present."""
    value = node.outputs[position]
    assert value is not None
    return Operand("output", position, value.dtype, value.shape)


def local(position: int, dtype: DType, shape: Sequence[int]) -> Operand:
    """A temporary that lives only inside the node; `position` numbers the node's temporaries."""
    return Operand("local", position, dtype, tuple(shape))


def table(position: int, data: np.ndarray[Any, Any]) -> Operand:
    """A small constant the operator brings along, such as interpolation weights."""
    return Operand("table", position, DType.from_numpy(data.dtype), data.shape, data)


def dims_of(shape: Sequence[int], prefix: str = "d") -> tuple[Dim, ...]:
    """One parallel dim per axis: `d0`, `d1`, ..."""
    return tuple(Dim(f"{prefix}{axis}", extent) for axis, extent in enumerate(shape))


def identity(dims: Sequence[Dim]) -> tuple[Affine, ...]:
    """The index that visits each axis with its own dim."""
    return tuple(affine(d.name) for d in dims)


def broadcast(operand: Operand, dims: Sequence[Dim]) -> Access:
    """Read `operand` under numpy broadcasting, right-aligned with `dims`."""
    aligned = dims[len(dims) - len(operand.shape) :]
    index: tuple[Index, ...] = tuple(
        affine() if extent == 1 else affine(dim.name)
        for extent, dim in zip(operand.shape, aligned, strict=True)
    )
    return Access(operand, index)


def read(position: int, access: Access) -> Expr:
    """The value of read number `position`, widened to the operand's compute type."""
    return Read(position, access.operand.dtype.compute)


def pointwise(node: Node, body: Callable[..., Expr]) -> Nests:
    """One parallel nest over the output; `body` gets one expression per present input, broadcast.

    Constants of one element become literals. The body's value is converted to the output's type.
    """
    out = output_operand(node)
    require_result(node, broadcast_shape(node, *(v.shape for v in node.inputs if v is not None)))
    dims = dims_of(out.shape)
    accesses: list[Access] = []
    arguments: list[Expr] = []
    for position, given in enumerate(node.inputs):
        if given is None:
            continue
        if given.data is not None and given.num_elements == 1:
            arguments.append(Const(given.data.reshape(()).item(), given.dtype.compute))
        else:
            accesses.append(broadcast(input_operand(node, position), dims))
            arguments.append(read(len(accesses) - 1, accesses[-1]))
    value = cast(body(*arguments), out.dtype.compute)
    return (Nest(dims, tuple(accesses), Access(out, identity(dims)), value),)


def copy_nest(dims: Sequence[Dim], source: Access, target: Access) -> Nest:
    """A nest that moves one element per iteration."""
    value = cast(read(0, source), target.operand.dtype.compute)
    return Nest(tuple(dims), (source,), target, value)


def data_index(node: Node, position: int, read: int, extent: int, column: int | None = None) -> Indirect:
    """The index that the `read`-th read of input `position` gives along an axis of `extent` elements.

    With `column`, only what lies there along the input's last axis counts. Constants need no check while the
    model runs.

    Raises:
        ModelRejected: a constant lies outside.
    """
    data = node.constant(position)
    if data is None:
        return Indirect(read)
    require_indices(node, position, data if column is None else data[..., column], extent)
    return Indirect(read, None)


def require_indices(node: Node, position: int, data: np.ndarray[Any, Any], extent: int) -> None:
    """Require that constants (all of an input, or what it holds for one axis) are indices along an axis.

    Raises:
        ModelRejected: one lies outside; negative ones count from the end.
    """
    outside = data[(data < -extent) | (data >= extent)]
    if outside.size:
        value = f"input {position} {node.require(position).name!r}"
        require(node, False, f"{value} holds the index {outside.flat[0]}, but the axis has {extent} elements")


def scalar_like(value: float, dtype: DType) -> Scalar:
    """A Python number as a literal of the type: int for integers, bool for booleans."""
    if dtype is DType.BOOL:
        return bool(value)
    return float(value) if dtype.is_float else int(value)
