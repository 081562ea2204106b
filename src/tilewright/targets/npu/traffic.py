"""Bytes that levels of memory deliver and take in, and the energy of these accesses.

What a mapping counts is charged there: of such accesses only the bytes are counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.hardware.machine import Level, Machine
from tilewright.targets.npu.ports import ports_of


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that levels of memory deliver and take in, for one run of one cluster."""

    main_read: int
    main_written: int
    shared_read: int
    shared_written: int
    local_read: int
    local_written: int
    between_cores: int


class Account:
    """What moves, counted as it moves. Of levels that a machine does not have nothing counts."""

    def __init__(self, machine: Machine) -> None:
        ports = ports_of(machine)
        self._levels: dict[str, Level | None] = {
            "main": ports.main,
            "shared": ports.shared,
            "local": ports.local,
        }
        self._bytes = dict.fromkeys(Traffic.__slots__, 0)
        self._charged = dict.fromkeys(Traffic.__slots__, 0)
        self.charges = True  # whether the accesses that are counted are charged here
        places = [level.name for level in machine.levels]
        inside = places.index((ports.local if ports.shared is None else ports.shared).name)
        # Levels that what comes from main memory or goes there passes, such as caches.
        self._passed = machine.levels[inside + 1 : -1]
        self._counted = {name for name in self._bytes if self._levels.get(name.partition("_")[0]) is not None}

    def charged(self) -> tuple[int, ...]:
        """Bytes so far whose accesses are charged here, as `energy_of` takes them."""
        return tuple(self._charged.values())

    @property
    def traffic(self) -> Traffic:
        """All bytes so far."""
        return Traffic(**self._bytes)

    def from_main(self, size_bytes: int) -> None:
        """Main memory delivers, to the shared buffer if there is one."""
        self._count(size_bytes, "main_read", "shared_written")

    def weight_to_cores(self, size_bytes: int, num_copies: int, is_local: bool = False) -> None:
        """A weight reaches the cores at once, as many as hold it; from other cores if it `is_local`."""
        if is_local:
            self.between_cores(size_bytes)
        else:
            self._count(size_bytes, "shared_read")
        self._count(size_bytes * num_copies, "local_written")

    def to_cores(self, size_bytes: int) -> None:
        """An operand reaches the cores; what it makes there is counted where it is written."""
        self._count(size_bytes, "shared_read")

    def from_cores(self, size_bytes: int, outer_bytes: int) -> None:
        """A result leaves the cores, for the shared buffer, and some of it on to main memory."""
        self._count(size_bytes, "local_read", "shared_written")
        self._count(outer_bytes, "shared_read", "main_written")

    def between_cores(self, size_bytes: int) -> None:
        """What lies in some cores is read for others."""
        self._bytes["between_cores"] += size_bytes
        self._count(size_bytes, "local_read")

    def local(self, read_bytes: int, written_bytes: int) -> None:
        """Units read the cores' buffers and write them."""
        self._count(read_bytes, "local_read")
        self._count(written_bytes, "local_written")

    def mapped(self, read_bytes: int, written_bytes: int) -> None:
        """Units read the cores' buffers and write them, as a mapping counts and charges it."""
        self._bytes["local_read"] += read_bytes
        self._bytes["local_written"] += written_bytes

    def energy_pj(self) -> dict[str, float]:
        """Energy of the accesses, by level."""
        return self.energy_of(self.charged())

    def energy_of(self, charged: Sequence[int]) -> dict[str, float]:
        """Energy of accesses to so many bytes, by level."""
        found: dict[str, float] = {}
        sizes_bytes = dict(zip(self._charged, charged, strict=True))
        for name, size_bytes in sizes_bytes.items():
            where, _, way = name.partition("_")
            level = self._levels.get(where)
            if level is None or not size_bytes:
                continue
            access_pj = level.read_access_pj if way == "read" else level.write_access_pj
            if access_pj:
                found[level.name] = found.get(level.name, 0.0) + _accesses(size_bytes, level) * access_pj
        passing_bytes = sizes_bytes["main_read"] + sizes_bytes["main_written"]
        for level in self._passed:
            both_pj = level.read_access_pj + level.write_access_pj
            if both_pj and passing_bytes:
                found[level.name] = found.get(level.name, 0.0) + _accesses(passing_bytes, level) * both_pj
        return found

    def _count(self, size_bytes: int, *names: str) -> None:
        for name in names:
            if name in self._counted:
                self._bytes[name] += size_bytes
                self._charged[name] += size_bytes if self.charges else 0


def _accesses(size_bytes: int, level: Level) -> float:
    return size_bytes * 8 / (level.word_bits * level.words_per_access)
