"""Energy, always with where it comes from: measured by a counter, modelled with a table, or unavailable.

Energies add up, power does not: mean power is an energy over a time. What two counters measured, or a counter
and a table said, is never added to one another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

from tilewright.errors import MachineError, UsageError
from tilewright.hardware.machine import Level, Machine
from tilewright.hardware.machine_file import load_machine
from tilewright.records import dataclass
from tilewright.results import about, in_json

RAPL = "measured:rapl"
UNAVAILABLE = "unavailable"

POWERCAP = Path("/sys/class/powercap")
"""Where Linux keeps the energy counters of processors."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules and their source: `measured:rapl`, `model:<table>` or `unavailable`.

    >>> (Energy(1.0, "model:a") + Energy(2.0, "model:a")).joules
    3.0
    """

    joules: float | None = field(metadata=about("Null where no counter and no table says."))
    source: str = field(metadata=about("measured:rapl, model:<table>, or unavailable."))
    why: str = field(default="", metadata=about("Why it is unavailable."))

    def __post_init__(self) -> None:
        if (self.joules is None) != (self.source == UNAVAILABLE):
            raise ValueError(f"energy {self.joules} J with source {self.source!r}")

    def __add__(self, other: Energy) -> Energy:
        """Of both. What is unavailable stays so.

        Raises:
            UsageError: they have different sources.
        """
        if self.joules is None or other.joules is None:
            return self if self.joules is None else other
        if self.source != other.source:
            raise UsageError(
                f"energies of different sources are never added: {self.source} and {other.source}; "
                "compare plans by one source."
            )
        return Energy(self.joules + other.joules, self.source)

    def per_run(self, num_runs: int) -> Energy:
        """Of one run out of equal ones."""
        return self if self.joules is None else Energy(self.joules / num_runs, self.source)

    def mean_power_w(self, time_s: float) -> float | None:
        """Energy over time; None where either says nothing."""
        return None if self.joules is None or time_s <= 0 else self.joules / time_s

    @in_json
    def is_measured(self) -> bool:
        """Whether a counter was read."""
        return self.source.startswith("measured:")

    def __str__(self) -> str:
        return f"unavailable: {self.why}" if self.joules is None else f"{self.joules:.3g} J ({self.source})"


def unavailable(why: str) -> Energy:
    """No energy, and why."""
    return Energy(None, UNAVAILABLE, why)


def modelled(energy_pj: float | None, table: str) -> Energy:
    """What a table of energies says in pJ; unavailable where it knows none."""
    if energy_pj is None:
        return unavailable(f"{table} gives no energies")
    return Energy(energy_pj * 1e-12, f"model:{table}")


# Counters ----------------------------------------------------------------------------------------------


class EnergyMeter(Protocol):
    """Counters of one machine. `start` and `stop` enclose what is measured."""

    @property
    def source(self) -> str:
        """Of the energies."""
        ...

    def start(self) -> None:
        """Read the counters."""
        ...

    def stop(self) -> Energy:
        """The energy since `start`."""
        ...


@dataclass(slots=True)
class _Domain:
    """One counter of RAPL: µJ that start again from 0 behind their range."""

    file: Path
    range_uj: int

    def read_uj(self) -> int:
        return int(self.file.read_text())


@dataclass(slots=True)
class RaplMeter:
    """The counters of a processor's packages and memories, as Linux's powercap shows them.

    A counter that started again from 0 once is seen; read them more often than that, which takes minutes.
    """

    domains: Sequence[_Domain]
    source: str = RAPL
    _last_uj: list[int] | None = None

    @classmethod
    def open(cls, root: Path = POWERCAP) -> RaplMeter | Energy:
        """The meter of this host; an unavailable energy that says why where there is none."""
        domains = []
        try:
            for folder in sorted(root.glob("intel-rapl:*")):
                name = (folder / "name").read_text().strip()
                # Cores and graphics are part of their package; memory is not.
                if name.startswith("package") or name == "dram":
                    domain = _Domain(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()))
                    domain.read_uj()
                    domains.append(domain)
        except PermissionError as error:
            return unavailable(f"{error.filename} may not be read; ask for the right to read it")
        except (OSError, ValueError) as error:
            return unavailable(f"the counters below {root} cannot be read: {error}")
        return cls(domains) if domains else unavailable(f"this host has no energy counters below {root}")

    def start(self) -> None:
        """Read the counters."""
        self._last_uj = self._read_uj()

    def stop(self) -> Energy:
        """The energy since `start`."""
        now_uj = self._read_uj()
        if now_uj is None or self._last_uj is None:
            return unavailable("the processor's counters cannot be read any more")
        total_uj = 0
        for domain, now, last in zip(self.domains, now_uj, self._last_uj, strict=True):
            total_uj += now - last if now >= last else now - last + domain.range_uj
        return Energy(total_uj * 1e-6, self.source)

    def _read_uj(self) -> list[int] | None:
        try:
            return [domain.read_uj() for domain in self.domains]
        except (OSError, ValueError):
            return None


LEAST_MEASURED_S = 5.0
"""Counters that are refreshed every 100 ms, some of them sampled in a quarter of the time, need as long."""


def measured(
    run: Callable[[], object],
    meter: EnergyMeter | Energy,
    *,
    duration_s: float = LEAST_MEASURED_S,
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> Energy:
    """Energy of one run, less what the machine takes while idle for as long; `meter` may be unavailable.

    It is idle for a fifth of the time first, then runs again and again.
    """
    if isinstance(meter, Energy):
        return meter
    idle_start = clock()
    meter.start()
    rest(duration_s / 5)
    idle, idle_s = meter.stop(), clock() - idle_start
    num_runs, start = 0, clock()
    meter.start()
    while num_runs == 0 or clock() - start < duration_s:
        run()
        num_runs += 1
    busy, busy_s = meter.stop(), clock() - start
    idle_w = idle.mean_power_w(idle_s)
    if busy.joules is None or idle_w is None:
        return busy if busy.joules is None else idle
    return Energy(max(0.0, busy.joules - idle_w * busy_s), busy.source).per_run(num_runs)


# Tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnergyTable:
    """Energies of a described machine's actions, in pJ; None: it gives none of them.

    `outer_pj_per_byte` is of main memory, `inner_pj_per_byte` of the largest level on the chip.
    """

    name: str
    mac_pj: float | None = None
    op_pj: float | None = None
    outer_pj_per_byte: float | None = None
    inner_pj_per_byte: float | None = None
    static_w: float = 0.0

    @classmethod
    def of(cls, machine: Machine) -> EnergyTable:
        """What a machine's file says."""
        level = machine.shared or machine.local or machine.innermost
        return cls(
            machine.name,
            next((u.mac_pj for u in machine.units if u.mac_pj is not None), None),
            next((u.op_pj for u in machine.units if u.op_pj is not None), None),
            _pj_per_byte(machine.outermost),
            _pj_per_byte(level),
            (machine.static_power_w or 0.0) / machine.num_clusters,
        )

    @classmethod
    def read(cls, path: str) -> EnergyTable:
        """The table of a machine's file.

        Raises:
            MachineError: the file describes no machine, or lacks an energy that pricing needs.
        """
        table = cls.of(load_machine(path))
        if table.missing is not None:
            raise MachineError(f"{path}: machine {table.name!r} has no energies: it lacks {table.missing}.")
        return table

    @property
    def missing(self) -> str | None:
        """What it lacks to price work, as a key of a machine's file; None where it can."""
        if self.mac_pj is None:
            return "units[].mac_pj"
        return "levels[].read_pj of the outermost level" if self.outer_pj_per_byte is None else None

    def energy(
        self, macs: float, other_flop: float, outer_bytes: float, inner_bytes: float, time_ns: float
    ) -> Energy:
        """Arithmetic, accesses and static power meanwhile; unavailable where the table lacks an energy."""
        if self.missing is not None:
            return unavailable(f"machine {self.name!r} gives no {self.missing}")
        dynamic_pj = (
            macs * (self.mac_pj or 0.0)
            + other_flop * (self.op_pj or 0.0)
            + outer_bytes * (self.outer_pj_per_byte or 0.0)
            + inner_bytes * (self.inner_pj_per_byte or 0.0)
        )
        return modelled(dynamic_pj + self.static_w * time_ns * 1e3, self.name)


def _pj_per_byte(level: Level) -> float | None:
    if level.read_pj is None:
        return None
    return level.read_pj * 8 / (level.word_bits * level.words_per_access)


def source_of(machine: Machine) -> str:
    """Where energies come from that a machine's description gives, and where it has them from; that they are
    unavailable, and what is missing, where it gives none."""
    missing = EnergyTable.of(machine).missing
    if missing is not None:
        return f"{UNAVAILABLE}: machine {machine.name!r} gives no {missing}"
    return f"model:{machine.name} ({machine.energy_source or 'see the citations of its numbers'})"
