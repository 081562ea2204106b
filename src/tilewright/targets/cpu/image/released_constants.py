"""Constants of a graph that are held as the code has them alone, and given back on request.

A kernel reads most constants in an order of its own. The graph's arrays are wanted again only where the
program is looked at or saved, so what an arrangement holds bit by bit is not kept a second time: a model
takes half of the memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.content_pool import ContentPool
from tilewright.ir.graph import Value
from tilewright.parallel import map_on_cores
from tilewright.records import dataclass
from tilewright.system.forks import ForkSafeLock
from tilewright.system.mapped_file import mapped_file_of
from tilewright.targets.cpu.arrangements import Reversible
from tilewright.targets.cpu.image.shared_constants import SharedConstants
from tilewright.targets.cpu.lower.lowered import PackedTensor, Storage
from tilewright.targets.cpu.lower.storage import Weights
from tilewright.targets.cpu.runtime.main_code import WEIGHTS_BASE

MIN_RELEASED_BYTES = 1 << 16
"""Smaller constants are not worth the time to write them back."""


@dataclass(frozen=True, slots=True, eq=False)
class _Released:
    """A constant without its data: its type there, and the bytes of the code's, in which order."""

    value: Value
    dtype: np.dtype[Any]
    storage: Storage
    part: Array

    def data(self) -> Array:
        """The array that it had."""
        result = np.empty(self.value.shape, self.dtype)
        if isinstance(self.storage, PackedTensor):
            arrangement = self.storage.packed.arrangement
            assert isinstance(arrangement, Reversible)
            arrangement.restore(self.part, result)
        else:
            result.reshape(-1).view(np.uint8)[...] = self.part
        result.flags.writeable = False
        return result


class ReleasedConstants:
    """Constants placed in what a pool has and what it lacks, from a graph that lets go of each one once it is
    there. `shared` says where they lie."""

    def __init__(self, weights: Weights, kept: Collection[Value], pool: ContentPool | None = None) -> None:
        """`kept` are constants whose arrays others read."""
        self._released: list[_Released] = []
        self._storages = dict(weights.sources)
        self._waiting: dict[Value, set[int]] = {}
        self._holders: dict[Value, int] = {}
        self._parts: dict[Value, Array] = {}
        self._lock, self._pool = ForkSafeLock(), pool
        for offset, storage in weights.sources:
            value = _value_of(storage)
            if value is None:
                continue
            self._waiting.setdefault(value, set()).add(offset)
            if value not in kept and _holds(storage, value):
                self._holders.setdefault(value, offset)
        try:
            self.shared = SharedConstants(weights, pool, WEIGHTS_BASE, self._placed)
        except BaseException:
            self.restore()
            raise

    def _placed(self, offset: int, part: Array) -> None:
        value = _value_of(self._storages[offset])
        if value is None:
            return
        with self._lock:
            holder, waiting = self._holders.get(value), self._waiting[value]
            if holder == offset:
                self._parts[value] = part
            waiting.discard(offset)
            if holder is not None and not waiting and value.data is not None:
                storage, held = self._storages[holder], self._parts[value]
                self._released.append(_Released(value, value.data.dtype, storage, held))
                value.data = None

    def restore(self) -> None:
        """Give the graph its constants back."""
        released, self._released = self._released, []

        def give_back(one: _Released) -> None:
            data = one.data()
            one.value.data = data if self._pool is None else self._pool.array(data)

        map_on_cores(give_back, released)


def _value_of(storage: Storage) -> Value | None:
    """The constant of the graph that lies there, if it is one."""
    if isinstance(storage, PackedTensor):
        return storage.value
    return storage if isinstance(storage, Value) else None


def _holds(storage: Storage, value: Value) -> bool:
    """Whether what the code has says all of a constant that is worth it, as one of a mapped file is not."""
    data = value.stored
    if (
        not isinstance(data, np.ndarray)
        or data.dtype.hasobject
        or data.shape != value.shape
        or data.nbytes < MIN_RELEASED_BYTES
    ):
        return False
    if mapped_file_of(data) is not None:
        return False
    if not isinstance(storage, PackedTensor):
        return True
    arrangement = storage.packed.arrangement
    return isinstance(arrangement, Reversible) and arrangement.holds(data)
