"""Constants of several executables in memory, equal ones once: each large one lies in a buffer of its own.

Arguments of a main are offsets from bases, which a run resolves. Those of constants become offsets from
address zero here, so that constants may lie anywhere, and neither kernels nor main are others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tilewright.content_pool import MIN_SHARED_BYTES, ContentPool
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, aligned
from tilewright.targets.cpu.executable import ConstantPlaces, HostStep, bytes_at
from tilewright.targets.cpu.main_code import ArgRef, MainCode
from tilewright.targets.cpu.pool import AlignedBuffer

Array = np.ndarray[Any, Any]


class Pieces(Protocol):
    """Constants, one after another."""

    def each(self, visit: Callable[[int, Array], None]) -> None:
        """Call with the offset and the bytes of each, from several threads."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size_bytes: int
    address: int


class SharedConstants:
    """The constants of one image, placed in what a pool has and what it lacks."""

    def __init__(self, constants: Pieces, pool: ContentPool, base_index: int) -> None:
        self._base_index = base_index
        large: list[tuple[int, AlignedBuffer, int]] = []
        small: list[tuple[int, Array]] = []

        def visit(offset: int, data: Array) -> None:
            if data.nbytes < MIN_SHARED_BYTES:
                small.append((offset, data))
            else:
                large.append((offset, pool.obtain("constant", data, lambda: _buffer_of(data)), data.nbytes))

        constants.each(visit)
        rest = AlignedBuffer(max(64, _packed_bytes(small)), "the model's constants")
        places = [_Place(offset, size, buffer.address) for offset, buffer, size in large]
        end = rest.address
        for offset, data in small:
            bytes_at(end, data.nbytes)[...] = data
            places.append(_Place(offset, data.nbytes, end))
            end += aligned(data.nbytes, DEFAULT_ALIGNMENT_BYTES)
        self._places = sorted(places, key=lambda place: place.offset)
        self._offsets = [place.offset for place in self._places]
        self.places = ConstantPlaces(0, (rest, *(buffer for _, buffer, _ in large)))

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
            return ref  # an argument of no bytes, which nobody reads
        return ArgRef(ref.base_index, place.address + ref.byte_offset - place.offset)


def _packed_bytes(pieces: Sequence[tuple[int, Array]]) -> int:
    return sum(aligned(data.nbytes, DEFAULT_ALIGNMENT_BYTES) for _, data in pieces)


def _buffer_of(data: Array) -> AlignedBuffer:
    buffer = AlignedBuffer(data.nbytes, "the model's constants")
    bytes_at(buffer.address, data.nbytes)[...] = data
    return buffer
