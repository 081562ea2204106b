"""Arrays between pages that nothing may touch: a kernel that leaves its buffers crashes, it cannot pass."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ALIGNMENT_BYTES = 64
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0


def guarded(array: Array, *, at_end: bool = True) -> Array:
    """A copy whose data start at a multiple of 64 bytes and end, or start, at a page without access.

    Up to 63 bytes behind the data can be read, as in the arenas of a model.
    """
    size = max(array.nbytes, 1)
    padded = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    inside = -(-padded // _PAGE) * _PAGE
    area = mmap.mmap(-1, inside + 2 * _PAGE)
    whole = np.frombuffer(area, np.uint8)  # keeps the mapping for as long as the copy lives
    for page in (whole.ctypes.data, whole.ctypes.data + _PAGE + inside):
        if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = _PAGE + (inside - padded if at_end else 0)
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
