"""Constants of a graph that are held in the arena of the code alone, and given back on request.

A kernel reads most constants in an order of its own. The graph's arrays are wanted again only where the
program is looked at or saved, so what an arrangement holds bit by bit is not kept a second time: a model
takes half of the memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tilewright.ir.graph import Value
from tilewright.parallel import map_on_cores
from tilewright.records import dataclass
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.cpu.arrangements import Reversible
from tilewright.targets.cpu.image.image import arena_of_constants
from tilewright.targets.cpu.lower.lowered import PackedTensor, Storage
from tilewright.targets.cpu.lower.storage import Weights
from tilewright.targets.cpu.runtime.executable import ConstantPlaces, bytes_at

Array = np.ndarray[Any, Any]

MIN_RELEASED_BYTES = 1 << 16
"""Smaller constants are not worth the time to write them back."""


@dataclass(frozen=True, slots=True, eq=False)
class _Released:
    """A constant without its data: its type there, and where and how the arena has it."""

    value: Value
    dtype: np.dtype[Any]
    offset: int
    storage: Storage

    def data(self, arena: Array) -> Array:
        """The array that it had."""
        result = np.empty(self.value.shape, self.dtype)
        packed = self.storage.packed if isinstance(self.storage, PackedTensor) else None
        size_bytes = result.nbytes if packed is None else packed.size_bytes
        part = arena[self.offset : self.offset + size_bytes]
        if packed is None:
            result.reshape(-1).view(np.uint8)[...] = part
        else:
            assert isinstance(packed.arrangement, Reversible)
            packed.arrangement.restore(part, result)
        result.flags.writeable = False
        return result


class ReleasedConstants:
    """The arena of some weights, filled from a graph that lets go of each constant once it is arranged."""

    def __init__(self, weights: Weights, kept: Collection[Value]) -> None:
        """`kept` are constants whose arrays others read."""
        arena = arena_of_constants(weights.size_bytes)
        self.places = ConstantPlaces(arena.address, (arena,))
        self._arena = bytes_at(arena.address, arena.size_bytes)
        self._released: list[_Released] = []
        try:
            self._fill(weights, kept)
        except BaseException:
            self.restore()
            raise

    def _fill(self, weights: Weights, kept: Collection[Value]) -> None:
        waiting: dict[Value, set[int]] = {}
        holders: dict[Value, tuple[int, Storage]] = {}
        for offset, storage in weights.sources:
            value = _value_of(storage)
            if value is None:
                continue
            waiting.setdefault(value, set()).add(offset)
            if value not in kept and _holds(storage, value):
                holders.setdefault(value, (offset, storage))
        lock = ForkSafeLock()

        def place(source: tuple[int, Storage]) -> None:
            value = _value_of(source[1])
            if value is None:
                weights.place(source, self._arena)
            elif value.data is not None:  # or this is the second time
                weights.place(source, self._arena)
                with lock:
                    waiting[value].discard(source[0])
                    if value in holders and not waiting[value]:
                        self._released.append(_Released(value, value.data.dtype, *holders[value]))
                        value.data = None

        map_on_cores(place, weights.sources)

    def restore(self) -> None:
        """Give the graph its constants back."""
        released, self._released = self._released, []

        def give_back(one: _Released) -> None:
            one.value.data = one.data(self._arena)

        map_on_cores(give_back, released)


def _value_of(storage: Storage) -> Value | None:
    """The constant of the graph that lies there, if it is one."""
    if isinstance(storage, PackedTensor):
        return storage.value
    return storage if isinstance(storage, Value) else None


def _holds(storage: Storage, value: Value) -> bool:
    """Whether what lies in the arena says all of a constant that is worth it."""
    data = value.data
    if data is None or data.dtype.hasobject or data.shape != value.shape or data.nbytes < MIN_RELEASED_BYTES:
        return False
    if not isinstance(storage, PackedTensor):
        return True
    arrangement = storage.packed.arrangement
    return isinstance(arrangement, Reversible) and arrangement.holds(data)
