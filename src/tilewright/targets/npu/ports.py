"""What one cluster's ports carry: bytes per second between main memory, the shared buffer and the cores.

All numbers of a level and of a DMA engine are those of one instance. A cluster has as many of them as there
are for each cluster; where clusters share one, each has its part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from tilewright.errors import MachineError
from tilewright.hardware.machine import Level, Machine, SameMachine
from tilewright.hardware.missing_fields import require_networks

DMA, CORE_DMA = "engine of main memory", "engine of the cores"
"""The engines of a cluster: between main memory and what is on the chip, and around the cores' buffers.

Results say what the machine's file calls them: `Names`.
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """Levels of one cluster and bytes per second, both ways together.

    `main_bytes_per_s` is between main memory and the shared buffer, `local_bytes_per_s` between that and the
    cores and among these. Where no buffer is shared, main memory feeds the cores. Each transfer takes
    `setup_s` before its first byte. `pj_per_byte` is what each of the two engines takes, accesses at both
    ends apart.
    """

    local: Level
    shared: Level | None
    main: Level
    main_bytes_per_s: float
    local_bytes_per_s: float
    setup_s: float
    pj_per_byte: Mapping[str, float]

    def main_s(self, size_bytes: int, share: float = 1.0) -> float:
        """Seconds of a transfer from or to main memory, for a share of the cores; none for no bytes."""
        rate = self.main_bytes_per_s
        if self.shared is None:
            rate = min(rate, self.local_bytes_per_s * share)
        return self.setup_s + size_bytes / rate if size_bytes else 0.0

    def local_s(self, size_bytes: int, share: float = 1.0) -> float:
        """Seconds of a transfer from, to or between a share of the cores; none for no bytes."""
        return self.setup_s + size_bytes / (self.local_bytes_per_s * share) if size_bytes else 0.0


def ports_of(machine: Machine) -> Ports:
    """The ports of a machine: each as fast as its levels and the engines that move data over it allow.

    Raises:
        MachineError: the machine lacks buffers of cores, or a rate for what it has to move.
    """
    return _ports_of(SameMachine(machine))


@functools.lru_cache(maxsize=16)
def _ports_of(same: SameMachine) -> Ports:
    machine = same.machine
    require_networks(machine, ())
    assert machine.local is not None, "that is required"
    local, shared, main = machine.local, machine.shared, machine.outermost
    _refuse_others(machine, (local, main) if shared is None else (local, shared, main))
    outer = _Engine.of(machine, local if shared is None else shared, main)
    setup_s = machine.overheads.copy_setup_ns * 1e-9
    main_rate = min(_level_rate(machine, main), outer.bytes_per_s)
    local_rate = _level_rate(machine, local)
    if shared is None:
        # What moves among the cores has no engine of its own.
        energy = {DMA: outer.pj_per_byte}
        return Ports(local, None, main, min(main_rate, local_rate), local_rate, setup_s, energy)
    inner = _Engine.of(machine, local, shared)
    local_rate = min(local_rate, _level_rate(machine, shared), inner.bytes_per_s)
    energy = {DMA: outer.pj_per_byte, CORE_DMA: inner.pj_per_byte}
    return Ports(local, shared, main, main_rate, local_rate, setup_s, energy)


def _refuse_others(machine: Machine, levels: Sequence[Level]) -> None:
    """Raise for a DMA engine that nothing would pass."""
    names = [level.name for level in levels]
    pairs = list(pairwise(names))
    for number, unit in enumerate(machine.units):
        if unit.between is not None and not any(set(unit.between) == set(pair) for pair in pairs):
            known = " or ".join(f"[{inner}, {outer}]" for inner, outer in pairs)
            raise MachineError(
                f"machine {machine.name!r}: units[{number}].between: networks pass nothing directly between "
                f"{unit.between[0]!r} and {unit.between[1]!r}; write {known}, or leave {unit.name!r} out."
            )


@dataclass(frozen=True, slots=True)
class _Engine:
    """All DMA engines of one cluster between two levels as one; without any, only the levels limit."""

    bytes_per_s: float = inf
    pj_per_byte: float = 0.0

    @classmethod
    def of(cls, machine: Machine, inner: Level, outer: Level) -> _Engine:
        own = {inner.name, outer.name}
        rates = [
            (rate * machine.num_units(unit) / machine.num_clusters, unit.pj_per_byte or 0.0)
            for unit in machine.units
            if set(unit.between or ()) == own and (rate := machine.dma_bytes_per_s(unit)) is not None
        ]
        if not rates:
            return cls()
        total = sum(rate for rate, _ in rates)
        # Each of them takes its share of the bytes.
        return cls(total, sum(rate * pj for rate, pj in rates) / total)


def _level_rate(machine: Machine, level: Level) -> float:
    """A level's bytes per second for one cluster, whichever way is slower."""
    rates = [machine.read_bytes_per_s(level), machine.write_bytes_per_s(level)]
    known = [rate for rate in rates if rate is not None]  # at least one, which is required
    return float(min(known) * machine.num_instances_per_cluster(level))
