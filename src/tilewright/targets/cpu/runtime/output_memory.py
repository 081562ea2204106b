"""Memory of large outputs, written again by a later run when nothing holds what was in it.

The C library gives memory of some size back to the system when it is freed, and the system clears each
page of what it hands out next: .6 ms for one of 1.6 MB on an EPYC, in which 20 MB of weights can be read.
A decoder with 24 such outputs spent half of a run on that.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.targets.cpu.runtime.pool import AlignedBuffer

LARGE_BYTES = 256 << 10
"""Smaller outputs come from numpy, which is as fast for them."""

_KEPT_FREE = 2
"""Free buffers kept for each output: a caller may hold one result while the next run writes another."""


class OutputMemory:
    """Gives new arrays for outputs; what they lie in comes back when an array and all its views are gone.

    Any number of threads may ask at a time, and arrays may outlive this.
    """

    def __init__(self, sizes_bytes: Iterable[int]) -> None:
        """For outputs of these sizes; others are given as well, and their memory is not kept."""
        self._most_free: defaultdict[int, int] = defaultdict(int)
        for size_bytes in sizes_bytes:
            if size_bytes >= LARGE_BYTES:
                self._most_free[size_bytes] += _KEPT_FREE
        self._free: dict[int, list[AlignedBuffer]] = {size_bytes: [] for size_bytes in self._most_free}
        self._weak = weakref.ref(self)

    @property
    def free_bytes(self) -> int:
        """What is kept, and held by no array."""
        return sum(size_bytes * len(buffers) for size_bytes, buffers in self._free.items())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array whose elements are whatever was there.

        Raises:
            BudgetExceeded, MemoryError: the system does not give so much.
        """
        if not self._free:
            return np.empty(shape, dtype)
        size_bytes = math.prod(shape) * dtype.itemsize
        free = self._free.get(size_bytes)
        if free is None:
            return np.empty(shape, dtype)
        try:
            buffer = free.pop()
        except IndexError:  # asked for by another thread in between, or none was there
            buffer = AlignedBuffer(size_bytes, "an output of a run")
        return np.asarray(_Lent(buffer, self._weak)).view(dtype).reshape(shape)

    def take_back(self, buffer: AlignedBuffer) -> None:
        """Keep a buffer for a later run, unless there are enough (threads at a time may add one each)."""
        free = self._free.get(buffer.size_bytes)
        if free is not None and len(free) < self._most_free[buffer.size_bytes]:
            free.append(buffer)

    def clear(self) -> None:
        """Keep nothing from now on."""
        self._free.clear()


class _Lent:
    """What numpy calls the base of an array: it goes when no array refers to the memory any more.

    An array that outlives its model does not keep what lies free for other results.
    """

    __slots__ = ("__array_interface__", "_buffer", "_memory")

    def __init__(self, buffer: AlignedBuffer, memory: weakref.ref[OutputMemory]) -> None:
        self._buffer, self._memory = buffer, memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (buffer.size_bytes,),
            "typestr": "|u1",
            "data": (buffer.address, False),
        }

    def __del__(self) -> None:
        memory = self._memory()
        if memory is not None:
            memory.take_back(self._buffer)
