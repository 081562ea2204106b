"""Arrays on a device, in and out without a copy: DLPack's tensors, as its header lays them out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError
from tilewright.records import dataclass
from tilewright.targets.cuda.device import Device, Memory

CPU, CUDA = 1, 2
"""DLPack's types of devices."""

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("num_axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_python = ctypes.pythonapi
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_new = _python.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _python.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer_of_dying = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)

_lent: dict[int, tuple[object, ...]] = {}
"""What tensors that were handed out keep alive, by their addresses, until their readers give them back."""


def _give_back(address: int) -> None:
    _lent.pop(address, None)


def _forget(capsule: int) -> None:
    """Of a capsule that was never read."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer_of_dying(capsule, _NAME), None)


_DELETER = _Deleter(_give_back)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget)


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory of another library's array; `owner` keeps it while it is used."""

    address: int
    owner: object


def taken(
    name: str, value: Any, shape: Sequence[int], dtype: np.dtype[Any], device: Device, stream: int
) -> Taken:
    """The memory of an array on a device, ready for what runs on a stream from now on.

    Raises:
        UsageError: it lies elsewhere, has another type or shape, or is not contiguous or aligned.
    """
    wanted = device.facts.place
    place = _place(value)
    if place != wanted:
        where = "no array of a device" if place is None else f"on device {place} of DLPack"
        raise UsageError(
            f"{name!r} is {where}, and the model runs on {wanted}: give an array that lies there."
        )
    capsule = value.__dlpack__() if wanted[0] == CPU else value.__dlpack__(stream=stream)
    tensor = _Managed.from_address(_get_pointer(capsule, _NAME)).tensor
    found = tuple(tensor.shape[i] for i in range(tensor.num_axes))
    if found != tuple(shape) or (tensor.code, tensor.bits, tensor.lanes) != _kind(dtype):
        raise UsageError(f"{name!r} has another type or shape than the model's {dtype.name}{list(shape)}.")
    address = (tensor.data or 0) + tensor.byte_offset
    if not _is_contiguous(tensor) or address % 16:
        raise UsageError(f"{name!r} is not contiguous and aligned to 16 bytes: give a copy of it.")
    return Taken(address, capsule)


class DeviceArray:
    """An array in memory of a device. Other libraries take it by DLPack, without a copy."""

    def __init__(self, device: Device, memory: Memory, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self._device = device
        self._memory = memory

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device.facts.place

    def __dlpack__(self, **how: Any) -> Any:
        """A capsule, as DLPack's protocol says; a run on a stream of the caller is ordered by that stream."""
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = _Managed()
        tensor = managed.tensor
        tensor.data = self._memory.address
        tensor.device_type, tensor.device_id = self._device.facts.place
        tensor.num_axes = len(self.shape)
        tensor.code, tensor.bits, tensor.lanes = _kind(self.dtype)
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _DELETER
        address = ctypes.addressof(managed)
        _lent[address] = (managed, shape, self)
        return _new(address, _NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))

    def numpy(self) -> Array:
        """A copy on the host, once all that was launched has run."""
        array: Array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            self._device.read(self._memory.address, array)
        return array

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._memory.address

    def __del__(self) -> None:
        self._memory.close()


def _place(value: Any) -> tuple[int, int] | None:
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None:
        return None
    kind, number = ask()
    return int(kind), int(number)


def _kind(dtype: np.dtype[Any]) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes.

    Raises:
        UsageError: a type that it has no code for.
    """
    code = 4 if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None:
        raise UsageError(
            f"arrays of {dtype.name} have no form in DLPack: use run, which takes those of numpy."
        )
    return code, 8 * dtype.itemsize, 1


def _is_contiguous(tensor: _Tensor) -> bool:
    if not tensor.strides:
        return True
    step = 1
    for axis in reversed(range(tensor.num_axes)):
        if tensor.shape[axis] != 1 and tensor.strides[axis] != step:
            return False
        step *= tensor.shape[axis]
    return True
