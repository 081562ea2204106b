"""Tensors in the safetensors layout: an 8-byte length, a JSON header, and the data one after another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.fields import FieldError, decoded, parsed_json
from tilewright.files import Bytes

_ALIGNMENT_BYTES = 64
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _CODES.items()}


def encode_tensors(tensors: Mapping[str, Array]) -> tuple[Bytes, ...]:
    """The file in pieces; the data start at a multiple of 64 bytes. Types without a code go as bytes."""
    header: dict[str, Any] = {}
    pieces: list[Bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor).reshape(tensor.shape)
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
        code = _CODES.get(array.dtype.name)
        header[name] = {
            "dtype": code or "U8",
            "shape": list(array.shape if code else raw.shape),
            "data_offsets": [offset, offset + raw.nbytes],
        }
        if raw.nbytes:
            pieces.append(raw.data)
        offset += raw.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    return (len(text).to_bytes(8, "little") + text, *pieces)


@dataclass(frozen=True, slots=True)
class _TensorFields:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def decode_tensors(data: Bytes) -> dict[str, Array]:
    """Tensors by name, as views of `data` where they are aligned.

    Raises:
        FieldError: naming the tensor whose entry is wrong.
        ValueError: the layout is broken.
    """
    view = memoryview(data).cast("B")
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > len(view) - 8:
        raise ValueError("the header of the tensors is longer than their file")
    header = parsed_json(bytes(view[8 : 8 + size]))
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    entries = decoded(dict[str, _TensorFields], header)
    body = view[8 + size :]
    return {name: _tensor(name, entry, body) for name, entry in entries.items()}


def _tensor(name: str, entry: _TensorFields, body: memoryview) -> Array:
    start, end = entry.data_offsets
    where = f".{name[:40]}"
    if not start <= end <= len(body):
        raise FieldError(f"bytes {start} to {end} are not within {len(body)}", f"{where}.data_offsets")
    if entry.dtype not in _NAMES:
        raise FieldError(f"expected one of {', '.join(_NAMES)}", f"{where}.dtype")
    dtype = _numpy_type(entry.dtype)
    if math.prod(entry.shape) * dtype.itemsize != end - start:
        raise FieldError(f"{list(entry.shape)} does not fit {end - start} bytes", f"{where}.shape")
    return np.frombuffer(body[start:end], np.uint8).view(dtype).reshape(entry.shape)


def _numpy_type(code: str) -> np.dtype[Any]:
    name = _NAMES[code]
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)
