"""What a machine is: levels of memory from the inside out, compute units, networks, clocks, overheads.

One schema describes a processor, a GPU and an accelerator. Bandwidths may be given per second or per
cycle; every energy must say where its number comes from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from tilewright.errors import MachineError
from tilewright.hardware.parts import (
    ALL_KINDS,
    Densities,
    Instructions,
    Launches,
    Level,
    MachinePart,
    Name,
    Network,
    Overheads,
    Share,
    TensorKind,
    Threads,
    Unit,
    Work,
)
from tilewright.hardware.quantity import MAX_COUNT, Count, Hertz, Watts
from tilewright.text.suggestions import closest, likely

__all__ = [
    "ALL_KINDS",
    "Instructions",
    "Launches",
    "Level",
    "Machine",
    "Network",
    "Overheads",
    "Share",
    "TensorKind",
    "Threads",
    "Unit",
    "Work",
]


_PATH = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


class Machine(MachinePart):
    """A whole machine: what it computes with, what it stores in, what that costs.

    `sources` cites numbers by their path in the description (`levels[0].read_pj`); a citation of a part
    (`levels[0]`) covers every number in it that has none of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, title="tilewright machine")
    schema_version: ClassVar[int] = 1

    name: Name
    """Name of the machine, shown in reports."""
    description: str = ""
    """What the machine is, for people."""
    levels: tuple[Level, ...] = Field(min_length=1)
    """Levels of memory from the inside out."""
    units: tuple[Unit, ...]
    """Compute units and DMA engines; empty where no rate is known."""
    networks: tuple[Network, ...] = ()
    """What carries data between levels, where it matters."""
    num_clusters: Count = 1
    """Groups of cores that work alone."""
    num_cores_per_cluster: Count = 1
    """Cores of one group."""
    clock_hz: Hertz | None = None
    """Clock that every rate per cycle counts in."""
    densities: Densities = Field(default_factory=dict)
    """Share of the elements of weights and inputs that are not zero, for all layers; left out: all."""
    technology_nm: Annotated[float, Field(ge=3, le=180)] | None = None
    """Technology node. Where it is given, energies and leakage that the file leaves out come from the library
    of components."""
    static_power_w: Watts | None = None
    """Power of the whole machine while it does nothing; charged for the time of a run."""
    max_power_w: Watts | None = None
    """Power that the whole machine is built for (TDP)."""
    launches: Launches = "once"
    """How a network runs: as one program, whose parts pass values to each other on the chip (`once`), or as
    kernels that are launched separately and pass them through the outermost level (`each subgraph`)."""
    overheads: Overheads = Overheads()
    """Fixed costs of the runtime."""
    threads: Threads | None = None
    """Limits of thread blocks, for a GPU."""
    instructions: Instructions | None = None
    """What processors execute, for a machine that code is generated for."""
    energy_source: str | None = None
    """Where all energies without a citation of their own come from."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Citations by path; a preset's begin with `public:`, `derived:` or `assumed:`."""

    @model_validator(mode="after")
    def _consistent(self) -> Machine:
        self._check_names()
        self._check_sizes()
        self._check_scopes()
        self._check_operators()
        self._check_zeros()
        self._check_sources()
        return self

    def _check_names(self) -> None:
        names = [level.name for level in self.levels]
        for what in ("levels", "units", "networks"):
            listed = [part.name for part in getattr(self, what)]
            for i, name in enumerate(listed):
                if name in listed[:i]:
                    first = listed.index(name)
                    raise ValueError(
                        f"{what}[{i}].name: {name!r} is the name of {what}[{first}] too; give each its own"
                    )
        for path, name in self._names_of_levels():
            if name not in names:
                raise ValueError(f"{path}: there is no level {name!r}; {closest(name, names)}")
        neighbours = [*pairwise(names), *((n, n) for n in names)]
        for i, network in enumerate(self.networks):
            if (network.inner, network.outer) not in neighbours:
                raise ValueError(
                    f"networks[{i}]: {network.inner!r} and {network.outer!r} are not neighbouring levels, "
                    f"the inner one first; the order is {', '.join(names)}"
                )

    def _names_of_levels(self) -> Iterator[tuple[str, str]]:
        for i, unit in enumerate(self.units):
            if unit.level is not None:
                yield f"units[{i}].level", unit.level
            for end, name in enumerate(unit.between or ()):
                yield f"units[{i}].between[{end}]", name
        for i, network in enumerate(self.networks):
            yield f"networks[{i}].inner", network.inner
            yield f"networks[{i}].outer", network.outer
        if self.threads is not None:
            yield "threads.registers", self.threads.registers
            yield "threads.shared", self.threads.shared

    def _check_sizes(self) -> None:
        for i, level in enumerate(self.levels[:-1]):
            if level.capacity_bytes is None:
                raise ValueError(
                    f"levels[{i}].capacity_bytes: is missing; only the outermost level may be unlimited"
                )
        for i, level in enumerate(self.levels):
            if self.num_instances(level) > MAX_COUNT:
                raise ValueError(
                    f"levels[{i}].num_instances_per_parent: makes {self.num_instances(level):.3g} of "
                    f"{level.name!r} together with the levels around it; at most {MAX_COUNT:.0e} are taken"
                )
            if level.axes and i == 0:
                raise ValueError(
                    "levels[0].axes: is of levels that feed others; give it to the unit that reads it"
                )
            asked, there = prod(axis.size for axis in level.axes), self.fan_out(i)
            if level.axes and asked != there:
                raise ValueError(
                    f"levels[{i}].axes: sizes multiply to {asked}, but one {level.name!r} feeds {there} "
                    f"{self.levels[i - 1].name!r}; change size, or num_instances_per_parent of the latter"
                )
        for what in ("levels", "units") if self.threads is not None else ():
            for i, part in enumerate(getattr(self, what)):
                if part.axes:
                    raise ValueError(
                        f"{what}[{i}].axes: blocks of threads have none; leave it out, or threads"
                    )

    def _check_scopes(self) -> None:
        expected = {"machine": 1, "cluster": self.num_clusters, "core": self.num_cores}
        for i, level in enumerate(self.levels):
            if level.per is not None and self.num_instances(level) != expected[level.per]:
                raise ValueError(
                    f"levels[{i}].per: there are {self.num_instances(level)} of {level.name!r}, "
                    f"but {expected[level.per]} for one per {level.per}; change per, or "
                    "num_instances_per_parent of this level or an outer one"
                )

    def _check_operators(self) -> None:
        for i, unit in enumerate(self.units):
            for name in unit.ops_per_element:
                # Only here, because the names of operators take a moment to load.
                from tilewright.ir.ops.registry import operators

                known = sorted({operator.op_type for operator in operators()})
                if name not in known:
                    hint = likely(name, known) or "write it as ONNX does, such as Softmax"
                    raise ValueError(f"units[{i}].ops_per_element: there is no operator {name!r}; {hint}")

    def _check_zeros(self) -> None:
        if self.densities and self.threads is not None:
            raise ValueError(
                "densities: blocks of threads are counted with all words; leave it out, or threads"
            )
        for i, unit in enumerate(self.units):
            read = (
                self.levels
                if unit.level is None
                else self.levels[self.levels.index(self.level(unit.level)) :]
            )
            for kind in (kind for kind, way in unit.zeros.items() if way == "skip"):
                level = next((x for x in read if kind in x.holds), self.outermost)
                if level.format_of(kind) is None:
                    raise ValueError(
                        f"units[{i}].zeros: skips those of {kind}, whose places level {level.name!r} does "
                        f"not keep; give that formats: [{{holds: [{kind}], kind: bitmask}}], or gate"
                    )

    def _check_sources(self) -> None:
        for path in self.sources:
            if not self._exists(path):
                raise ValueError(
                    f"sources: there is nothing at {path!r}; write the path of a number or of a part, "
                    "such as clock_hz or levels[0]"
                )
        for path in self._energy_paths():
            if not self.source_of(path):
                raise ValueError(
                    f"{path}: an energy needs a source; write {{value: ..., source: ...}}, "
                    "or give the part a source or the machine an energy_source"
                )

    def _exists(self, path: str) -> bool:
        value: Any = self
        for key, index in _PATH.findall(path):
            if index:
                value = value[int(index)] if isinstance(value, tuple) and int(index) < len(value) else None
            elif isinstance(value, MachinePart):
                value = getattr(value, key) if key in type(value).model_fields else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return False
        return "".join(m.group() for m in _PATH.finditer(path)) == path and bool(path)

    def _energy_paths(self) -> Iterator[str]:
        for listed in ("levels", "units", "networks"):
            for i, part in enumerate(getattr(self, listed)):
                for key in type(part).model_fields:
                    if "pj" in key.split("_") and getattr(part, key) is not None:
                        yield f"{listed}[{i}].{key}"

    def source_of(self, path: str) -> str | None:
        """The citation of a number: its own, an energy's, or that of the nearest part around it."""
        key = path.rsplit(".", 1)[-1]
        citation = self.sources.get(path)
        if citation is None and "pj" in key.split("_") and self.energy_source:
            return self.energy_source
        while citation is None and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
            citation = self.sources.get(path)
        return citation

    @property
    def num_cores(self) -> int:
        """Cores of the whole machine."""
        return self.num_clusters * self.num_cores_per_cluster

    @property
    def innermost(self) -> Level:
        """The level next to the compute units."""
        return self.levels[0]

    @property
    def outermost(self) -> Level:
        """The level that holds everything."""
        return self.levels[-1]

    @property
    def local(self) -> Level | None:
        """The largest level that each core has of its own and that schedules fill; None if there is none."""
        scratchpads = [x for x in self.levels[:-1] if x.per == "core" and x.managed_by == "software"]
        return scratchpads[-1] if scratchpads else None

    @property
    def shared(self) -> Level | None:
        """The largest on-chip level that the cores of a cluster share and that schedules fill, or None."""
        on_chip = (x for x in self.levels[:-1] if x.managed_by == "software")
        shared_levels = [x for x in on_chip if x.per in ("cluster", "machine")]
        return shared_levels[-1] if shared_levels else None

    def level(self, name: str) -> Level:
        """The level of that name.

        Raises:
            MachineError: there is none.
        """
        level_of_name = next((level for level in self.levels if level.name == name), None)
        if level_of_name is None:
            known = closest(name, (level.name for level in self.levels))
            raise MachineError(f"machine {self.name!r} has no level {name!r}; {known}.")
        return level_of_name

    def fan_out(self, number: int) -> int:
        """Instances of the next inner level that one instance of a level feeds, counted from the innermost 0.

        The innermost level feeds compute units: those that multiply, or one where none is described.
        """
        if number > 0:
            return self.levels[number - 1].num_instances_per_parent
        return max(1, sum(u.num_per_instance for u in self.units if u.kind in ("mac", "matrix")))

    @property
    def mac_pj(self) -> float:
        """Energy of one multiply-accumulate; 0 where none is given."""
        return next((u.mac_pj for u in self.units if u.mac_pj is not None), 0.0)

    def num_instances(self, level: Level) -> int:
        """Instances of a level in the whole machine."""
        # Names are unique, and compared sooner than descriptions.
        place = [x.name for x in self.levels].index(level.name)
        return prod(outer.num_instances_per_parent for outer in self.levels[place:])

    def num_instances_per_cluster(self, level: Level) -> Fraction:
        """Instances of a level for one cluster: less than 1 where clusters share it, in equal parts."""
        return Fraction(self.num_instances(level), self.num_clusters)

    def num_units(self, unit: Unit) -> int:
        """Units of a sort in the whole machine."""
        level = self.innermost if unit.level is None else self.level(unit.level)
        return unit.num_per_instance * self.num_instances(level)

    def read_bytes_per_cycle(self, level: Level) -> float | None:
        """Read bandwidth of one instance, None where the description does not say."""
        return self._per_cycle(level.read_bytes_per_cycle, level.read_bytes_per_s, f"level {level.name!r}")

    def write_bytes_per_cycle(self, level: Level) -> float | None:
        """Write bandwidth of one instance, None where the description does not say."""
        return self._per_cycle(level.write_bytes_per_cycle, level.write_bytes_per_s, f"level {level.name!r}")

    def read_bytes_per_s(self, level: Level) -> float | None:
        """Read bandwidth of one instance, None where the description does not say."""
        return self._per_second(level.read_bytes_per_cycle, level.read_bytes_per_s, f"level {level.name!r}")

    def write_bytes_per_s(self, level: Level) -> float | None:
        """Write bandwidth of one instance, None where the description does not say."""
        return self._per_second(level.write_bytes_per_cycle, level.write_bytes_per_s, f"level {level.name!r}")

    def link_bytes_per_cycle(self, network: Network) -> float | None:
        """Bandwidth of a network, None where the description does not say."""
        return self._per_cycle(network.bytes_per_cycle, network.bytes_per_s, f"network {network.name!r}")

    def num_cycles(self, duration_ns: float, what: str) -> int:
        """Whole cycles that a time takes; `what` names it in errors."""
        return ceil(duration_ns * 1e-9 * self._clock(what) - 1e-9)

    def dma_bytes_per_s(self, unit: Unit) -> float | None:
        """Rate of one DMA engine, None where the description does not say."""
        return self._per_second(unit.bytes_per_cycle, unit.bytes_per_s, f"unit {unit.name!r}")

    def _per_cycle(self, per_cycle: float | None, per_s: float | None, what: str) -> float | None:
        if per_cycle is not None or per_s is None:
            return per_cycle
        return per_s / self._clock(what)

    def _per_second(self, per_cycle: float | None, per_s: float | None, what: str) -> float | None:
        if per_s is not None or per_cycle is None:
            return per_s
        return per_cycle * self._clock(what)

    def _clock(self, what: str) -> float:
        if self.clock_hz is None:
            raise MachineError(f"machine {self.name!r}: {what} needs clock_hz, which the description lacks.")
        return self.clock_hz

    def fingerprint(self) -> str:
        """Digest of everything that can change a result; citations and the description cannot."""
        document = self.model_dump(mode="json", exclude={"sources", "description", "energy_source"})
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class SameMachine:
    """A machine that equals itself alone: to compare descriptions takes longer than what is known of them."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameMachine) and other.machine is self.machine

    def __hash__(self) -> int:
        return id(self.machine)
