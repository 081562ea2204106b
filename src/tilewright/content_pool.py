"""What is made of large arrays, once for equal contents, and kept for as long as it is used."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np

from tilewright.system.forks import ForkSafeLock
from tilewright.system.mapped_file import let_go, mapped_file_of

MIN_SHARED_BYTES = 1 << 16
"""Smaller arrays are not worth the time to compare them."""


class ContentPool:
    """Any number of threads may ask. What is kept must not be changed.

    >>> pool, ones = ContentPool(), np.ones(1 << 16)
    >>> kept = pool.array(ones)
    >>> pool.array(ones.copy()) is kept
    True
    """

    def __init__(self) -> None:
        self._kept: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        self._lock = ForkSafeLock()

    def find(self, key: Hashable) -> Any | None:
        """What was kept under a key and is used still."""
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: Hashable, made: Any) -> None:
        """Find something from now on, for as long as others use it."""
        with self._lock:
            self._kept[key] = made

    def array(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array equal to this one, the same for all callers; a small one, or one of objects, itself."""
        if data.nbytes < MIN_SHARED_BYTES or data.dtype.hasobject or mapped_file_of(data) is not None:
            return data
        key = "array", content_key(data)
        with self._lock:
            kept: np.ndarray[Any, Any] = self._kept.setdefault(key, data)
            return kept


def content_key(data: np.ndarray[Any, Any]) -> Hashable:
    """What arrays of equal bytes have in common, by their digest; of a mapped file it is made once."""
    kind = str(data.dtype), data.shape
    file = mapped_file_of(data)
    view = data.ctypes.data, data.strides, *kind
    digest = None if file is None else file.digests.get(view)
    if digest is None:
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(content.data).digest()
        if file is not None:
            file.digests[view] = digest
            let_go(data)
    return digest, *kind
