"""Arrays of other libraries, in and out without a copy: DLPack, numpy's protocols, tensors of torch.

torch is never imported here: a caller with a tensor of it has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.arrays import Array

_NUMPY_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")


def torch_tensor_type() -> type[Any] | None:
    """`torch.Tensor`, where the process has imported torch."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind if isinstance(kind, type) else None


def is_torch_tensor(value: object) -> bool:
    """Whether it is a tensor of torch."""
    kind = torch_tensor_type()
    return kind is not None and isinstance(value, kind)


def as_numpy(value: Any) -> Array:
    """A value as an array that shares its memory where its library lets it, else as numpy converts it.

    A tensor that records gradients is read as it is: no gradient flows through a compiled model.

    >>> class OnlyDlpack:
    ...     def __init__(self, array): self.array = array
    ...     def __dlpack__(self, **how): return self.array.__dlpack__(**how)
    ...     def __dlpack_device__(self): return self.array.__dlpack_device__()
    >>> array = np.ones(3)
    >>> np.shares_memory(as_numpy(OnlyDlpack(array)), array)
    True
    """
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if is_torch_tensor(value):
        return _of_torch(value)
    if hasattr(value, "__dlpack__") and not any(hasattr(value, name) for name in _NUMPY_PROTOCOLS):
        return np.from_dlpack(value)
    return np.asarray(value)


def as_torch(array: Array) -> Any:
    """An array as a tensor of torch that shares its memory.

    Where torch has no such type, its `from_numpy` says so by a TypeError.
    """
    torch: Any = sys.modules["torch"]
    if array.dtype.name in _TYPES_NUMPY_LACKS:  # numpy has no name for it that torch knows
        bits = torch.from_numpy(array.view(np.dtype(f"u{array.dtype.itemsize}")))
        return bits.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def is_on_gpu(value: object) -> bool:
    """Whether it is a tensor of torch in memory of a GPU."""
    return is_torch_tensor(value) and bool(getattr(value, "is_cuda", False))


def torch_stream(device: object = None) -> int:
    """The handle of the stream that torch uses now on a GPU; its default one is 1, as DLPack has it."""
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream) or 1


def from_dlpack(array: object) -> Any:
    """An array of a device as a tensor of torch that shares its memory."""
    return sys.modules["torch"].from_dlpack(array)


_TYPES_NUMPY_LACKS = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def _of_torch(tensor: Any) -> Array:
    torch: Any = sys.modules["torch"]
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES_NUMPY_LACKS:
        array: Array = tensor.numpy()
        return array
    import ml_dtypes

    bits: Array = tensor.view(getattr(torch, f"uint{8 * tensor.itemsize}")).numpy()
    return bits.view(getattr(ml_dtypes, name))
