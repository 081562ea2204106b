"""What the machine did while it was measured: load, time taken by others, how far apart its cores are."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.hardware.instruction_sets import widest_in
from tilewright.hardware.probe import load_average_1min, probe_host, processor_facts
from tilewright.results import about
from tilewright.targets.cpu.tune.probes import probe_latency
from tilewright.text.formatting import counted

BUSY_SHARE = 0.1
STEAL_SHARE = 0.02
LATENCY_CHANGE = 2.0
LOOK_S = 0.25
_CPU_STAT = Path("/proc/stat")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_IDLE_FIELDS = (3, 4)  # idle and waiting for input or output
_STEAL_FIELD = 7


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock ticks of the cores this process may use, since the machine started."""

    busy: int
    stolen: int
    total: int

    @classmethod
    def read(cls, path: Path = _CPU_STAT, cores: frozenset[int] | None = None) -> Ticks | None:
        """Ticks now; None where the system does not count them."""
        cores = _allowed_cores() if cores is None else cores
        busy = stolen = total = 0
        try:
            lines = path.read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            name, *fields = line.split()
            if not name.startswith("cpu") or not name[3:].isdigit() or int(name[3:]) not in cores:
                continue
            ticks = [int(f) for f in fields[: _STEAL_FIELD + 1]]
            if len(ticks) <= _STEAL_FIELD:
                return None
            busy += sum(ticks) - sum(ticks[i] for i in _IDLE_FIELDS)
            stolen += ticks[_STEAL_FIELD]
            total += sum(ticks)
        return cls(busy, stolen, total) if total else None


def busy_share(look_s: float = LOOK_S) -> float | None:
    """Share of the cores' time that is used while this process sleeps for a moment: by others, then."""
    before = Ticks.read()
    time.sleep(look_s)
    after = Ticks.read()
    if before is None or after is None or after.total <= before.total:
        return None
    return (after.busy - before.busy) / (after.total - before.total)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the machine."""

    load: float | None
    busy_share: float | None
    core_latency_ns: float | None
    ticks: Ticks | None

    @classmethod
    def take(cls) -> Snapshot:
        """Look now; takes half a second."""
        share = busy_share()
        latency = probe_latency()
        return cls(load_average_1min(), share, None if latency is None else latency.median_ns, Ticks.read())


@dataclass(frozen=True, slots=True)
class MachineState:
    """What else went on, before and after.

    `busy` is the share of the cores' time that others used, `steal` that the hypervisor gave to other
    machines. The load is the average of a minute, and so holds what was measured before, too.
    """

    cpu_name: str
    num_cores: int
    governor: str | None
    load_before: float | None
    load_after: float | None
    busy_share_before: float | None = field(metadata=about("Of the cores, by other programs."))
    busy_share_after: float | None
    core_latency_before_ns: float | None
    core_latency_after_ns: float | None
    steal_share: float | None
    instruction_set: str | None = field(
        default=None, metadata=about("The widest that code is generated for here, with AMX where it is.")
    )

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> MachineState:
        """The state over the time between two looks."""
        facts, widest = probe_host(), widest_in(processor_facts())
        return cls(
            cpu_name=facts.cpu_name,
            num_cores=facts.num_affinity_cores,
            governor=_governor(),
            load_before=before.load,
            load_after=after.load,
            busy_share_before=before.busy_share,
            busy_share_after=after.busy_share,
            core_latency_before_ns=before.core_latency_ns,
            core_latency_after_ns=after.core_latency_ns,
            steal_share=_stolen(before.ticks, after.ticks),
            instruction_set=None if widest is None else widest.name,
        )

    @property
    def is_busy(self) -> bool:
        """Whether others used more of the cores than measuring allows."""
        shares = (self.busy_share_before, self.busy_share_after)
        return any(share is not None and share > BUSY_SHARE for share in shares)

    def __str__(self) -> str:
        parts = [f"{self.cpu_name}, {counted(self.num_cores, 'core')}"]
        if self.instruction_set is not None:
            parts.append(self.instruction_set)
        if self.busy_share_before is not None:
            parts.append(f"others used {100 * self.busy_share_before:.0f} % of them")
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
        if self.is_busy:
            share = max(s for s in (self.busy_share_before, self.busy_share_after) if s is not None)
            found.append(
                f"other programs used {100 * share:.0f} % of the cores: close them and repeat; engines that "
                "spin while they wait suffer more than others."
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


def _stolen(before: Ticks | None, after: Ticks | None) -> float | None:
    if before is None or after is None:
        return None
    passed = after.total - before.total
    return (after.stolen - before.stolen) / passed if passed > 0 else 0.0


def _allowed_cores() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text().strip() or None
    except OSError:
        return None
