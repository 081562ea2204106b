"""Bytes that levels of memory deliver and take in, and the energy of these accesses."""

from __future__ import annotations

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
        self._counted = {name for name in self._bytes if self._levels.get(name.partition("_")[0]) is not None}

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

    def energy_pj(self) -> dict[str, float]:
        """Energy of the accesses, by level."""
        found: dict[str, float] = {}
        for name, size_bytes in self._bytes.items():
            where, _, way = name.partition("_")
            level = self._levels.get(where)
            if level is None or not size_bytes:
                continue
            access_pj = level.read_pj if way == "read" else level.write_pj
            if access_pj:
                access_bytes = level.word_bits * level.words_per_access / 8
                found[level.name] = found.get(level.name, 0.0) + size_bytes / access_bytes * access_pj
        return found

    def _count(self, size_bytes: int, *names: str) -> None:
        for name in names:
            if name in self._counted:
                self._bytes[name] += size_bytes
