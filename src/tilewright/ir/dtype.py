"""Element types, named as in ONNX, with their numpy and ONNX equivalents."""

from __future__ import annotations

import functools
from enum import Enum

import numpy as np


class DType(Enum):
    """One element type. The value is the ONNX `TensorProto.DataType` number.

    >>> DType.FLOAT32.size_bytes, DType.from_numpy(np.dtype("int64")).name
    (4, 'INT64')
    """

    FLOAT32 = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    FLOAT64 = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type that holds one element (bfloat16 comes from ml_dtypes)."""
        return _numpy_type(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type of any width."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type (bool is not)."""
        return self in _SIGNED or self in _UNSIGNED

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self in _FLOATS or self in _SIGNED

    @property
    def compute(self) -> DType:
        """The type in which scalar bodies compute: half types are widened to float32 on load."""
        return DType.FLOAT32 if self in (DType.FLOAT16, DType.BFLOAT16) else self

    @classmethod
    def from_numpy(cls, dtype: np.dtype[np.generic]) -> DType:
        """The DType of a numpy type.

        Raises:
            TypeError: the type has no ONNX equivalent here.
        """
        if dtype == np.dtype(object) or dtype.kind in "US":
            return cls.STRING
        name = dtype.name.upper()
        if name in cls.__members__:
            return cls[name]
        raise TypeError(
            f"numpy type {dtype} has no tilewright equivalent; use one of float16/32/64, ints, bool."
        )

    def __str__(self) -> str:
        return self._name_.lower()


@functools.cache
def _numpy_type(dtype: DType) -> np.dtype[np.generic]:
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if dtype is DType.STRING:
        return np.dtype(object)
    return np.dtype(dtype.name.lower())


_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
_UNSIGNED = frozenset({DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64})
