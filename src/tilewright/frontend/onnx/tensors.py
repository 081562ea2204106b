"""`TensorProto` and `TypeProto` to shapes, types and arrays, with every size checked before any use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper, numpy_helper

from tilewright.arrays import Array
from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.limits import MAX_RANK, MAX_VALUE_BYTES
from tilewright.ir.dtype import DType

_WORDS = {
    TensorProto.FLOAT: ("float_data", 1),
    TensorProto.COMPLEX64: ("float_data", 2),
    TensorProto.DOUBLE: ("double_data", 1),
    TensorProto.COMPLEX128: ("double_data", 2),
    TensorProto.INT64: ("int64_data", 1),
    TensorProto.UINT32: ("uint64_data", 1),
    TensorProto.UINT64: ("uint64_data", 1),
    TensorProto.STRING: ("string_data", 1),
}


def supported_dtype(number: int, what: str) -> DType:
    """The DType of an ONNX element type number.

    Raises:
        UnsupportedOp: a type this version does not compute with (8-bit floats, 4-bit types).
        ModelRejected: no such type.
    """
    try:
        return DType(number)
    except ValueError:
        pass
    if number not in TensorProto.DataType.values() or number == TensorProto.UNDEFINED:
        raise ModelRejected(f"{what} has element type {number}, which ONNX does not define; export it again.")
    name = TensorProto.DataType.Name(number).lower()
    raise UnsupportedOp(
        f"{what} has element type {name}, which tilewright does not compute with; "
        "convert it to float32, float16, bfloat16 or int8."
    )


def checked_shape(dims: Any, dtype: DType, what: str) -> tuple[int, ...]:
    """Dimensions as integers, all from 0 and together of a size that can exist.

    Raises:
        ModelRejected: otherwise.
    """
    shape = tuple(int(d) for d in dims)
    if len(shape) > MAX_RANK:
        raise ModelRejected(
            f"{what} has {len(shape)} dimensions, more than {MAX_RANK}; export the model again."
        )
    if any(d < 0 for d in shape):
        raise ModelRejected(f"{what} has a negative dimension in {list(shape)}; export the model again.")
    # Each dimension counts as one at least: [2**62, 0] is as absurd as [2**62, 1].
    if math.prod(max(d, 1) for d in shape) * dtype.size_bytes > MAX_VALUE_BYTES:
        raise ModelRejected(
            f"{what} of shape {list(shape)} and type {dtype} needs more than {MAX_VALUE_BYTES >> 30} GiB, "
            "which no machine could run; check its dimensions."
        )
    return shape


def tensor_dtype(tensor: TensorProto) -> DType:
    """Element type of a tensor."""
    return supported_dtype(tensor.data_type, f"tensor {tensor.name!r}")


def tensor_shape(tensor: TensorProto) -> tuple[int, ...]:
    """Checked dimensions of a tensor."""
    return checked_shape(tensor.dims, tensor_dtype(tensor), f"tensor {tensor.name!r}")


def tensor_size_bytes(tensor: TensorProto) -> int:
    """Bytes of the tensor's dense data."""
    return math.prod(tensor_shape(tensor)) * tensor_dtype(tensor).size_bytes


def checked_raw_data(tensor: TensorProto, apart: Array | None = None) -> bytes | Array | None:
    """The raw data of a tensor, None if it has others, checked to be exactly as many as the shape needs.

    Raw data count before those in the field of the tensor's type, and fields of other types not at all.
    `apart` are its raw data if the message does not hold them. Every look at those of a message copies them:
    there is one.

    Raises:
        ModelRejected: too few or too many.
    """
    what = f"tensor {tensor.name!r}"
    dtype, count = tensor_dtype(tensor), math.prod(tensor_shape(tensor))
    if tensor.HasField("segment"):
        raise UnsupportedOp(f"{what} is stored in segments, which no exporter writes; save the model again.")
    field, words = _WORDS.get(tensor.data_type, ("int32_data", 1))
    is_raw = apart is not None or tensor.HasField("raw_data")
    raw: bytes | Array | None = None
    if is_raw and dtype is not DType.STRING:
        raw = tensor.raw_data if apart is None else apart
    if raw is not None:
        needed, found, unit = count * dtype.size_bytes, len(raw), "bytes"
    else:
        needed, found, unit = count * words, len(getattr(tensor, field)), "values"
    if found != needed:
        raise ModelRejected(
            f"{what} of shape {list(tensor.dims)} and type {dtype} needs {needed} {unit}, but has {found}; "
            "the file is damaged, get it again."
        )
    return raw


def embedded_array(tensor: TensorProto, apart: Array | None = None) -> Array:
    """Data of a tensor that carries them itself, but for raw data that are `apart`.

    Raises:
        ModelRejected: the data do not fit shape and type.
    """
    raw, dtype = checked_raw_data(tensor, apart), tensor_dtype(tensor)
    if raw is not None:
        return np.frombuffer(raw, dtype.numpy.newbyteorder("<")).reshape(tensor_shape(tensor))
    if dtype is DType.STRING:
        try:
            text = [item.decode("utf-8") for item in tensor.string_data]
        except UnicodeDecodeError:
            raise ModelRejected(f"tensor {tensor.name!r} holds text that is not UTF-8.") from None
        return np.array(text, dtype=object).reshape(tensor_shape(tensor))
    array: Array = numpy_helper.to_array(tensor)
    return array


def type_proto(dtype: DType, shape: tuple[int, ...]) -> TypeProto:
    """The ONNX type of a static tensor."""
    return helper.make_tensor_type_proto(dtype.value, shape)
