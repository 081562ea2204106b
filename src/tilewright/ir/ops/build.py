"""What nest builders of all families share: operands of a node, dims, broadcasting, pointwise nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Read, Scalar, cast
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Dim, Index, Nest, Nests, Operand, affine


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


def scalar_like(value: float, dtype: DType) -> Scalar:
    """A Python number as a literal of the type: int for integers, bool for booleans."""
    if dtype is DType.BOOL:
        return bool(value)
    return float(value) if dtype.is_float else int(value)
