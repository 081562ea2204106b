"""Constants of several executables in memory, equal ones once: what one adds lies together, in huge pages.

Arguments of a main are offsets from bases, which a run resolves. Those of constants become offsets from
address zero here, so that constants may lie anywhere, and neither kernels nor main are others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from tilewright.arrays import Array
from tilewright.content_pool import MIN_SHARED_BYTES, ContentPool
from tilewright.memory.base import DEFAULT_ALIGNMENT_BYTES, aligned
from tilewright.parallel import map_on_cores
from tilewright.records import dataclass
from tilewright.targets.cpu.runtime.executable import ConstantPlaces, Constants, HostStep, Piece, bytes_at
from tilewright.targets.cpu.runtime.main_code import ArgRef, MainCode
from tilewright.targets.cpu.runtime.pool import AlignedBuffer

SLAB_BYTES = 16 << 20
"""Of constants that lie together, and go when none of them is used. Each in pages of its own has no huge
pages: runs of a ResNet-18 took 1.05 times as long on an EPYC."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Place:
    """Where a constant lies, and what must not be collected."""

    address: int
    slab: AlignedBuffer


class _Slabs:
    """Memory for so many bytes of constants, of which none has to come."""

    def __init__(self, size_bytes: int, slab_bytes: int) -> None:
        self._left_bytes, self._slab_bytes = size_bytes, slab_bytes
        self._slab: AlignedBuffer | None = None
        self._used_bytes = 0

    def place(self, num_bytes: int) -> _Place:
        """Zeros for a constant behind those that are there."""
        size_bytes = aligned(max(1, num_bytes), DEFAULT_ALIGNMENT_BYTES)
        slab = self._slab
        if slab is None or slab.size_bytes - self._used_bytes < size_bytes:
            most_bytes = max(size_bytes, min(self._slab_bytes, self._left_bytes))
            slab = self._slab = AlignedBuffer(most_bytes, "the model's constants")
            self._used_bytes = 0
        address = slab.address + self._used_bytes
        self._used_bytes += size_bytes
        self._left_bytes -= size_bytes
        return _Place(address, slab)


class SharedConstants:
    """The constants of one image, placed in what a pool has and what it lacks."""

    def __init__(
        self,
        constants: Constants,
        pool: ContentPool | None,
        base_index: int,
        placed: Callable[[int, Array], None] = lambda *_: None,
    ) -> None:
        """Without a pool nothing is looked for, and all lies together. `placed` is told the offset and the
        bytes of each constant, once they are there."""
        self._base_index = base_index
        self._pieces = sorted(constants.pieces(), key=lambda piece: piece.offset)
        self._offsets = [piece.offset for piece in self._pieces]

        def key_of(piece: Piece) -> Hashable:
            return None if pool is None or piece.size_bytes < MIN_SHARED_BYTES else piece.key()

        keys = map_on_cores(key_of, self._pieces)
        self._places: list[_Place] = []
        missing: dict[Hashable, int] = {}  # by their number, as the model may have two that are equal
        slabs = _Slabs(constants.size_bytes, constants.size_bytes if pool is None else SLAB_BYTES)
        for number, (piece, key) in enumerate(zip(self._pieces, keys, strict=True)):
            kept = None if key is None or pool is None else pool.find(key)
            if kept is None and key in missing:
                kept = self._places[missing[key]]
            elif kept is None:
                missing[number if key is None else key] = number
            self._places.append(kept or slabs.place(piece.size_bytes))

        done: set[int] = set()

        def write(number: int) -> None:
            if number not in done:  # or this is the second time
                self._pieces[number].write(self._bytes(number))
                placed(self._offsets[number], self._bytes(number))
                done.add(number)

        map_on_cores(write, missing.values())
        for number in set(range(len(keys))) - set(missing.values()):
            placed(self._offsets[number], self._bytes(number))
        for key, number in missing.items():
            if pool is not None and keys[number] is not None:
                pool.keep(key, self._places[number])
        self.places = ConstantPlaces(0, tuple(self._places))

    def _bytes(self, number: int) -> Array:
        return bytes_at(self._places[number].address, self._pieces[number].size_bytes)

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
        within = ref.byte_offset - self._offsets[number] if number >= 0 else 0
        if number < 0 or within >= max(1, self._pieces[number].size_bytes):
            return ref  # an argument of no bytes, which nothing reads
        return ArgRef(ref.base_index, self._places[number].address + within)
