"""What the machine did while it was measured: load, time taken by others, how far apart its cores are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.hardware.probe import load_average_1min, probe_host
from tilewright.targets.cpu.topology import probe_latency

BUSY_SHARE = 0.7
STEAL_SHARE = 0.02
LATENCY_CHANGE = 2.0
_CPU_STAT = Path("/proc/stat")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_STEAL_FIELD = 7


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the machine."""

    load: float | None
    core_latency_ns: float | None
    steal_ticks: int | None
    total_ticks: int | None

    @classmethod
    def take(cls) -> Snapshot:
        """Look now; takes about a tenth of a second."""
        latency = probe_latency()
        steal, total = _ticks()
        return cls(load_average_1min(), None if latency is None else latency.median_ns, steal, total)


@dataclass(frozen=True, slots=True)
class MachineState:
    """What else went on, before and after. `steal_share` is time that the hypervisor gave to others."""

    cpu_name: str
    num_cores: int
    governor: str | None
    load_before: float | None
    load_after: float | None
    core_latency_before_ns: float | None
    core_latency_after_ns: float | None
    steal_share: float | None

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> MachineState:
        """The state over the time between two looks."""
        facts = probe_host()
        return cls(
            cpu_name=facts.cpu_name,
            num_cores=facts.num_affinity_cores,
            governor=_governor(),
            load_before=before.load,
            load_after=after.load,
            core_latency_before_ns=before.core_latency_ns,
            core_latency_after_ns=after.core_latency_ns,
            steal_share=_share(before, after),
        )

    def __str__(self) -> str:
        parts = [f"{self.cpu_name}, {self.num_cores} cores"]
        if self.load_before is not None:
            parts.append(f"load {self.load_before:.1f}")
        if self.core_latency_before_ns is not None:
            parts.append(f"core to core {self.core_latency_before_ns:.0f} ns")
        if self.steal_share is not None:
            parts.append(f"{100 * self.steal_share:.0f} % stolen")
        if self.governor is not None:
            parts.append(f"governor {self.governor}")
        return ", ".join(parts)

    def warnings(self) -> tuple[str, ...]:
        """Why the figures should not be believed as they stand."""
        found: list[str] = []
        if self.load_before is not None and self.load_before > BUSY_SHARE * self.num_cores:
            found.append(
                f"the machine was busy (load {self.load_before:.1f}): close other programs and repeat."
            )
        if self.steal_share is not None and self.steal_share > STEAL_SHARE:
            found.append(
                f"other virtual machines took {100 * self.steal_share:.0f} % of the time: "
                "compare ratios, not times."
            )
        latencies = [x for x in (self.core_latency_before_ns, self.core_latency_after_ns) if x]
        if len(latencies) == 2 and max(latencies) > LATENCY_CHANGE * min(latencies):
            found.append(
                f"the way between cores went from {latencies[0]:.0f} to {latencies[1]:.0f} ns during the "
                "run: compare ratios, not times."
            )
        if self.governor not in (None, "performance"):
            found.append(f"the cores' clock follows the load (governor {self.governor}): repeat to be sure.")
        return tuple(found)


def _share(before: Snapshot, after: Snapshot) -> float | None:
    if None in (before.steal_ticks, before.total_ticks, after.steal_ticks, after.total_ticks):
        return None
    steal = (after.steal_ticks or 0) - (before.steal_ticks or 0)
    total = (after.total_ticks or 0) - (before.total_ticks or 0)
    return steal / total if total > 0 else 0.0


def _ticks(path: Path = _CPU_STAT) -> tuple[int | None, int | None]:
    """Clock ticks stolen and in total since the start; None where the system does not count them."""
    try:
        fields = path.read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None, None
    ticks = [int(f) for f in fields if f.isdigit()]
    if len(ticks) <= _STEAL_FIELD:
        return None, None
    return ticks[_STEAL_FIELD], sum(ticks[: _STEAL_FIELD + 1])


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip() or None
    except OSError:
        return None
