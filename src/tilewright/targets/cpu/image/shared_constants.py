"""Constants of several executables in memory, equal ones once: what one adds lies together, in huge pages.

Arguments of a main are offsets from bases, which a run resolves. Those of constants become offsets from
address zero here, so that constants may lie anywhere, and neither kernels nor main are others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tilewright.content_pool import MIN_SHARED_BYTES, ContentPool
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, aligned
from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.executable import ConstantPlaces, HostStep, bytes_at
from tilewright.targets.cpu.runtime.main_code import ArgRef, MainCode
from tilewright.targets.cpu.runtime.pool import AlignedBuffer

Array = np.ndarray[Any, Any]

SLAB_BYTES = 16 << 20
"""Of constants that lie together, and go when none of them is used. Each in pages of its own has no huge
pages: runs of a ResNet-18 took 1.05 times as long on an EPYC."""


class Pieces(Protocol):
    """Constants, one after another."""

    @property
    def size_bytes(self) -> int:
        """What they take together, each aligned."""
        ...

    def each(self, visit: Callable[[int, Array], None]) -> None:
        """Call with the offset and the bytes of each, from several threads."""
        ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Piece:
    """Where a constant lies, and what must not be collected."""

    address: int
    slab: AlignedBuffer


class _Slabs:
    """Memory for so many bytes of constants, of which none has to come."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._slab: AlignedBuffer | None = None
        self._used_bytes = 0

    def placed(self, data: Array) -> _Piece:
        """A constant behind those that are there."""
        size_bytes = aligned(max(1, data.nbytes), DEFAULT_ALIGNMENT_BYTES)
        slab = self._slab
        if slab is None or slab.size_bytes - self._used_bytes < size_bytes:
            most_bytes = max(size_bytes, min(SLAB_BYTES, self._left_bytes))
            slab = self._slab = AlignedBuffer(most_bytes, "the model's constants")
            self._used_bytes = 0
        address = slab.address + self._used_bytes
        bytes_at(address, data.nbytes)[...] = data
        self._used_bytes += size_bytes
        self._left_bytes -= size_bytes
        return _Piece(address, slab)


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size_bytes: int
    address: int


class SharedConstants:
    """The constants of one image, placed in what a pool has and what it lacks."""

    def __init__(self, constants: Pieces, pool: ContentPool, base_index: int) -> None:
        self._base_index = base_index
        slabs = _Slabs(constants.size_bytes)
        pieces: list[tuple[int, _Piece, int]] = []
        small: list[tuple[int, Array]] = []

        def visit(offset: int, data: Array) -> None:
            if data.nbytes < MIN_SHARED_BYTES:
                small.append((offset, data))
            else:
                # One at a time makes what the pool lacks.
                piece = pool.obtain("constant", data, lambda: slabs.placed(data))
                pieces.append((offset, piece, data.nbytes))

        constants.each(visit)
        pieces += ((offset, slabs.placed(data), data.nbytes) for offset, data in small)
        places = [_Place(offset, size, piece.address) for offset, piece, size in pieces]
        self._places = sorted(places, key=lambda place: place.offset)
        self._offsets = [place.offset for place in self._places]
        self.places = ConstantPlaces(0, tuple(piece for _, piece, _ in pieces))

    def main(self, main: MainCode) -> MainCode:
        """The same main on these places."""
        return replace(main, arg_table=tuple(map(self._placed, main.arg_table)))

    def host_steps(self, steps: Sequence[HostStep]) -> tuple[HostStep, ...]:
        """The same steps on these places."""

        def placed(refs: tuple[ArgRef | None, ...]) -> tuple[ArgRef | None, ...]:
            return tuple(None if ref is None else self._placed(ref) for ref in refs)

        return tuple(replace(s, inputs=placed(s.inputs), outputs=placed(s.outputs)) for s in steps)

    def _placed(self, ref: ArgRef) -> ArgRef:
        if ref.base_index != self._base_index:
            return ref
        number = bisect_right(self._offsets, ref.byte_offset) - 1
        place = self._places[number] if number >= 0 else None
        if place is None or ref.byte_offset - place.offset >= max(1, place.size_bytes):
            return ref  # an argument of no bytes, which nothing reads
        return ArgRef(ref.base_index, place.address + ref.byte_offset - place.offset)
