"""Files that are mapped instead of read: their bytes are in memory while they are looked at."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import UsageError


class MappedFile(mmap.mmap):
    """A whole file as read-only memory; `label` is what messages call it, `digests` are those of views that
    were asked for."""

    label: str
    digests: dict[tuple[Any, ...], bytes]
    _descriptor: int
    _stamp: tuple[int, int]

    @classmethod
    def of(cls, descriptor: int, label: str) -> MappedFile | None:
        """The file of a descriptor, which may be closed then; None where it cannot be mapped."""
        own = os.dup(descriptor)
        try:
            made = cls(own, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            os.close(own)
            return None
        weakref.finalize(made, os.close, own)
        made.label, made.digests = label, {}
        made._descriptor, made._stamp = own, _stamp(own)
        return made

    def array(self, offset_bytes: int, num_bytes: int) -> Array:
        """Some of its bytes, where they lie."""
        return np.frombuffer(self, np.uint8, num_bytes, offset_bytes)

    def let_go(self, start: int, stop: int) -> None:
        """Say that these bytes are not needed now."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def require_unchanged(self) -> None:
        """Raise unless the file is as it was: a part that is cut off could not be read at all.

        Raises:
            UsageError: another program wrote to it.
        """
        if _stamp(self._descriptor) != self._stamp:
            raise UsageError(f"{self.label}: was written to since it was loaded; load the model again.")


def mapped_file_of(array: Array) -> MappedFile | None:
    """The file whose bytes an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, MappedFile) else None


def mapped_files(arrays: Iterable[Array]) -> tuple[MappedFile, ...]:
    """The files whose bytes arrays are views of, each once."""
    return tuple(dict.fromkeys(file for file in map(mapped_file_of, arrays) if file is not None))


def let_go(array: Array) -> None:
    """Say that the bytes of an array of a mapped file are not needed now: a later look reads them again."""
    file = mapped_file_of(array)
    if file is not None and array.size:
        low, high = np.lib.array_utils.byte_bounds(array)
        start = np.frombuffer(file, np.uint8, 1).ctypes.data
        file.let_go(low - start, high - start)


def _stamp(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
