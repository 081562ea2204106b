"""What is made of large arrays, once for equal contents, and kept for as long as it is used."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tilewright.system.forks import ForkSafeLock

T = TypeVar("T")

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
        self._kept: weakref.WeakValueDictionary[tuple[str, bytes], Any] = weakref.WeakValueDictionary()
        self._lock = ForkSafeLock()

    def obtain(self, kind: str, data: np.ndarray[Any, Any], make: Callable[[], T]) -> T:
        """What was made of equal bytes in this kind of use, made now if there is none."""
        content = np.ascontiguousarray(data)
        digest = hashlib.sha256(f"{content.dtype}{content.shape}".encode())
        digest.update(content.reshape(-1).view(np.uint8).data)
        key = (kind, digest.digest())
        with self._lock:
            found: T | None = self._kept.get(key)
            if found is None:
                found = make()
                self._kept[key] = found
            return found

    def array(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array equal to this one, the same for all callers; a small one, or one of objects, itself."""
        if data.nbytes < MIN_SHARED_BYTES or data.dtype.hasobject:
            return data
        return self.obtain("array", data, lambda: data)
