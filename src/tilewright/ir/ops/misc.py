"""Operators of no other family: generators of constants, running sums, and what stays opaque."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import Const, Iter, call, cast, select
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Combine, Description, Dim, Nest, Nests, Opaque, affine
from tilewright.ir.ops.build import (
    broadcast,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    output_operand,
    read,
    scalar_like,
    table,
)
from tilewright.ir.ops.movement import present
from tilewright.ir.ops.registry import operator

Array = np.ndarray[Any, Any]

# A running sum as a nest does the square of its work; above this extent the host is faster.
LONGEST_RUNNING_NEST = 256


# Generators ------------------------------------------------------------------------------------------


def _from_table(node: Node, data: Array) -> Nests:
    out = output_operand(node)
    dims = dims_of(out.shape)
    return (copy_nest(dims, Access(table(0, data), identity(dims)), Access(out, identity(dims))),)


def _constant_data(node: Node) -> Array | None:
    """The tensor that a Constant holds, None for kinds of value that have no dense form here."""
    for name, value in node.attributes.items():
        match name, value:
            case "value", np.ndarray():
                return value
            case "value_float" | "value_floats", float() | int() | tuple():
                return np.asarray(value, dtype=np.float32)
            case "value_int" | "value_ints", int() | tuple():
                return np.asarray(value, dtype=np.int64)
            case "value_string" | "value_strings", str() | bytes() | tuple():
                return np.asarray(value, dtype=object)
    return None


def _constant_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    data = _constant_data(node)
    assert data is not None, "Constant without a dense value"
    return (data,)


@operator("Constant", reference=_constant_reference)
def constant(node: Node) -> Description:
    """A tensor that is an attribute."""
    data = _constant_data(node)
    return Opaque("Constant has no dense value") if data is None else _from_table(node, data)


def _shape_slice(node: Node, shape: Sequence[int]) -> Array:
    end = node.attributes.get("end")
    assert end is None or isinstance(end, int)
    return np.asarray(shape[node.int_attr("start", 0) : end], dtype=np.int64)


@operator("Shape", reference=lambda node, inputs: (_shape_slice(node, present(inputs).shape),))
def shape(node: Node) -> Description:
    """The extents of the input, from `start` to before `end`."""
    return _from_table(node, _shape_slice(node, node.require(0).shape))


@operator("Size", reference=lambda node, inputs: (np.asarray(present(inputs).size, dtype=np.int64),))
def size(node: Node) -> Description:
    """The number of elements of the input."""
    return _from_table(node, np.asarray(node.require(0).num_elements, dtype=np.int64))


def _fill_value(node: Node) -> Array:
    value = node.attributes.get("value")
    return value.reshape(()) if isinstance(value, np.ndarray) else np.zeros((), dtype=np.float32)


def _constant_of_shape_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    return (np.full(tuple(int(e) for e in present(inputs)), _fill_value(node)),)


@operator("ConstantOfShape", reference=_constant_of_shape_reference)
def constant_of_shape(node: Node) -> Description:
    """One value everywhere."""
    out = output_operand(node)
    dims = dims_of(out.shape)
    value = Const(scalar_like(_fill_value(node).item(), out.dtype), out.dtype.compute)
    return (Nest(dims, (), Access(out, identity(dims)), value),)


def _range_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    start, limit, delta = (present(inputs, i).reshape(()) for i in range(3))
    # Python and float64 numbers, so that a float16 span cannot overflow before the division.
    count = max(0, int(np.ceil((limit.item() - start.item()) / delta.item())))
    return (start + np.arange(count).astype(start.dtype) * delta,)


@operator("Range", reference=_range_reference)
def range_operator(node: Node) -> Description:
    """`start + i * delta`."""
    out = output_operand(node)
    dims = dims_of(out.shape)
    reads = tuple(broadcast(input_operand(node, i), dims) for i in (0, 2))
    start, delta = read(0, reads[0]), read(1, reads[1])
    value = start + cast(Iter(dims[0].name), start.result) * delta
    return (Nest(dims, reads, Access(out, identity(dims)), value),)


def _eye_like_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    rows, columns = present(inputs).shape
    return (np.eye(rows, columns, node.int_attr("k", 0), dtype=node.output.dtype.numpy),)


@operator("EyeLike", reference=_eye_like_reference)
def eye_like(node: Node) -> Description:
    """Ones on the `k`-th diagonal, zeros elsewhere."""
    out = output_operand(node)
    dims = dims_of(out.shape)
    dtype = out.dtype.compute
    on_diagonal = call("eq", Iter(dims[1].name), Iter(dims[0].name) + node.int_attr("k", 0))
    value = select(on_diagonal, Const(scalar_like(1, dtype), dtype), Const(scalar_like(0, dtype), dtype))
    return (Nest(dims, (), Access(out, identity(dims)), value),)


# Running sums ----------------------------------------------------------------------------------------


def _running_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    axis = int(present(inputs, 1).reshape(())) % x.ndim
    product = node.op_type == "CumProd"
    x = np.flip(x, axis) if node.int_attr("reverse", 0) else x
    if node.int_attr("exclusive", 0):
        first = np.full([1 if a == axis else e for a, e in enumerate(x.shape)], int(product), x.dtype)
        x = np.concatenate([first, np.take(x, range(x.shape[axis] - 1), axis)], axis)
    total = (np.cumprod if product else np.cumsum)(x, axis, dtype=x.dtype)
    return (np.flip(total, axis) if node.int_attr("reverse", 0) else total,)


@operator("CumSum", "CumProd", reference=_running_reference)
def running(node: Node) -> Description:
    """`out[i]` accumulates `x[i - j]` over j; what lies before the start is the neutral element."""
    source, out, axis_data = input_operand(node, 0), output_operand(node), node.constant(1)
    if axis_data is None:
        return Opaque(f"the axis of {node.op_type} is data")
    axis = int(axis_data.reshape(())) % len(out.shape)
    if out.shape[axis] > LONGEST_RUNNING_NEST:
        return Opaque(f"{node.op_type} over {out.shape[axis]} elements is a serial chain")
    combine: Combine = "prod" if node.op_type == "CumProd" else "sum"
    dims = dims_of(out.shape)
    back = Dim("j", out.shape[axis], "reduce")
    direction = 1 if node.int_attr("reverse", 0) else -1
    offset = direction * node.int_attr("exclusive", 0)
    index = tuple(
        affine(d.name, (back.name, direction), offset) if position == axis else affine(d.name)
        for position, d in enumerate(dims)
    )
    access = Access(source, index, scalar_like(combine == "prod", out.dtype.compute))
    return (Nest((*dims, back), (access,), Access(out, identity(dims)), read(0, access), combine),)


# Opaque ----------------------------------------------------------------------------------------------

_REASONS = {
    "Bernoulli": "it is random",
    "BitCast": "it reinterprets bits",
    "BlackmanWindow": "its size is data",
    "Col2Im": "overlapping blocks add into each other",
    "Det": "a determinant is a factorisation",
    "DFT": "transforms are not loop nests of ours",
    "HammingWindow": "its size is data",
    "HannWindow": "its size is data",
    "If": "it is control flow",
    "ImageDecoder": "it decodes a file format",
    "Loop": "it is control flow",
    "MelWeightMatrix": "its size is data",
    "Multinomial": "it is random",
    "RandomNormal": "it is random",
    "RandomNormalLike": "it is random",
    "RandomUniform": "it is random",
    "RandomUniformLike": "it is random",
    "ReverseSequence": "its lengths are data",
    "Scan": "it is control flow",
    "STFT": "transforms are not loop nests of ours",
    "TensorScatter": "it writes where its data says",
    "TfIdfVectorizer": "it looks sequences up in a dictionary",
}


@operator(*_REASONS)
def opaque(node: Node) -> Description:
    """Operators that run whole, on the host."""
    return Opaque(f"{node.op_type}: {_REASONS[node.op_type]}")
