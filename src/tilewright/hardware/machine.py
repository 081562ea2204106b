"""What a machine is: levels of memory from the inside out, compute units, networks, clocks, overheads.

One schema describes a processor, a GPU and an accelerator. Bandwidths may be given per second or per
cycle; every energy must say where its number comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tilewright.errors import MachineError
from tilewright.hardware.quantity import (
    Bytes,
    BytesPerSecond,
    Count,
    Flag,
    Hertz,
    Nanoseconds,
    Number,
    Picojoules,
    Watts,
)
from tilewright.ir.dtype import DType

Name = Annotated[str, Field(min_length=1, max_length=100)]


class TensorKind(StrEnum):
    """What a level may hold, seen from one operator."""

    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"


ALL_KINDS = tuple(TensorKind)


def _known_dtypes(table: dict[str, float]) -> dict[str, float]:
    known = [str(d) for d in DType]
    for name in table:
        if name not in known:
            raise ValueError(f"{name!r} is not an element type; expected one of {', '.join(known)}")
    return table


PerDType = Annotated[dict[str, Number], AfterValidator(_known_dtypes)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Share(_Part):
    """Part of a level's capacity that only some kinds of tensor may use."""

    holds: tuple[TensorKind, ...] = Field(min_length=1)
    capacity_bytes: Bytes


class Level(_Part):
    """One level of the memory hierarchy. All numbers are those of one instance.

    `capacity_bytes` may be left out (unlimited) at the outermost level only. `num_instances_per_parent` is
    how many instances one instance of the next outer level feeds: the spatial fan-out below that level.
    `holds` lists the kinds of tensor that stay here; others pass by. An access moves `word_bits` times
    `words_per_access`; its energy is charged once for `num_instances_per_access` neighbouring instances (a
    bank they share).
    """

    name: Name
    capacity_bytes: Bytes | None = None
    shares: tuple[Share, ...] = ()
    holds: tuple[TensorKind, ...] = Field(default=ALL_KINDS, min_length=1)
    num_instances_per_parent: Count = 1
    per: Literal["core", "cluster", "machine"] | None = None
    managed_by: Literal["software", "hardware"] = "software"
    line_bytes: Bytes | None = None
    word_bits: Count = 8
    words_per_access: Count = 1
    num_instances_per_access: Count = 1
    read_bytes_per_s: BytesPerSecond | None = None
    read_bytes_per_cycle: Number | None = None
    write_bytes_per_s: BytesPerSecond | None = None
    write_bytes_per_cycle: Number | None = None
    latency_ns: Nanoseconds | None = None
    read_pj: Picojoules | None = None
    write_pj: Picojoules | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Level:
        for way in ("read", "write"):
            if getattr(self, f"{way}_bytes_per_s") and getattr(self, f"{way}_bytes_per_cycle"):
                raise ValueError(f"{way} bandwidth is given per second and per cycle; give one of them")
        held = [kind for share in self.shares for kind in share.holds]
        if len(set(held)) != len(held):
            raise ValueError("shares: a kind of tensor has two shares")
        if not set(held) <= set(self.holds):
            raise ValueError("shares: a share is of a kind that the level does not hold")
        shared = sum(share.capacity_bytes for share in self.shares)
        if self.capacity_bytes is not None and shared > self.capacity_bytes:
            raise ValueError(f"shares take {shared} of {self.capacity_bytes} bytes")
        return self

    def capacity_for_bytes(self, kind: TensorKind) -> int | None:
        """Bytes that tensors of this kind may use: None without a limit, 0 where they pass by."""
        if kind not in self.holds:
            return 0
        own = next((s.capacity_bytes for s in self.shares if kind in s.holds), None)
        if own is not None or self.capacity_bytes is None:
            return own
        return self.capacity_bytes - sum(s.capacity_bytes for s in self.shares)


class Unit(_Part):
    """Compute units of one sort. `level` names the level they read from (default: the innermost).

    Rates are those of one unit, by element type: multiply-accumulates, and other scalar operations.
    `efficiency` is the share of them that real kernels reach; `tile` the shape of the operands of one issue.
    """

    name: Name
    kind: Literal["mac", "matrix", "vector", "scalar", "special", "mover"]
    level: Name | None = None
    num_per_instance: Count = 1
    macs_per_cycle: PerDType = Field(default_factory=dict)
    ops_per_cycle: PerDType = Field(default_factory=dict)
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    tile: tuple[Count, ...] = ()
    mac_pj: Picojoules | None = None
    op_pj: Picojoules | None = None

    @model_validator(mode="after")
    def _has_rate(self) -> Unit:
        if self.kind != "mover" and not self.macs_per_cycle and not self.ops_per_cycle:
            raise ValueError("has no rate; give macs_per_cycle or ops_per_cycle by element type")
        return self


class Network(_Part):
    """What carries data between the instances of two neighbouring levels, `inner` and `outer`."""

    name: Name
    inner: Name
    outer: Name
    kind: Literal["bus", "crossbar", "ring", "mesh", "tree"]
    bytes_per_s: BytesPerSecond | None = None
    bytes_per_cycle: Number | None = None
    hop_latency_ns: Nanoseconds | None = None
    hop_pj_per_byte: Picojoules | None = None
    has_multicast: Flag = False

    @model_validator(mode="after")
    def _one_bandwidth(self) -> Network:
        if self.bytes_per_s and self.bytes_per_cycle:
            raise ValueError("bandwidth is given per second and per cycle; give one of them")
        return self


class Overheads(_Part):
    """Fixed costs of the machine's runtime."""

    kernel_launch_ns: Nanoseconds = 0.0
    barrier_ns: Nanoseconds = 0.0
    copy_setup_ns: Nanoseconds = 0.0


class Machine(_Part):
    """A whole machine; see the module's text.

    `units` is empty where no rate is known. `sources` cites numbers by their path in the description.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="tilewright machine")
    schema_version: ClassVar[int] = 1

    name: Name
    description: str = ""
    levels: tuple[Level, ...] = Field(min_length=1)
    units: tuple[Unit, ...]
    networks: tuple[Network, ...] = ()
    num_clusters: Count = 1
    num_cores_per_cluster: Count = 1
    clock_hz: Hertz | None = None
    static_power_w: Watts | None = None
    overheads: Overheads = Overheads()
    energy_source: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Machine:
        names = [level.name for level in self.levels]
        for what, listed in (("levels", names), ("units", [u.name for u in self.units])):
            twice = next((n for i, n in enumerate(listed) if n in listed[:i]), None)
            if twice is not None:
                raise ValueError(f"{what}: the name {twice!r} is given twice")
        for i, level in enumerate(self.levels[:-1]):
            if level.capacity_bytes is None:
                raise ValueError(f"levels[{i}].capacity_bytes: only the outermost level may be unlimited")
        for i, unit in enumerate(self.units):
            if unit.level is not None and unit.level not in names:
                raise ValueError(f"units[{i}].level: there is no level {unit.level!r}")
        for i, network in enumerate(self.networks):
            pair = (network.inner, network.outer)
            if pair not in pairwise(names):
                raise ValueError(f"networks[{i}]: {pair[0]!r} and {pair[1]!r} are not neighbouring levels")
        self._check_scopes()
        self._check_energy_sources()
        return self

    def _check_scopes(self) -> None:
        expected = {"machine": 1, "cluster": self.num_clusters, "core": self.num_cores}
        for i, level in enumerate(self.levels):
            if level.per is not None and self.num_instances(level) != expected[level.per]:
                raise ValueError(
                    f"levels[{i}].per: there are {self.num_instances(level)} of {level.name!r}, "
                    f"but {expected[level.per]} for one per {level.per}"
                )

    def _check_energy_sources(self) -> None:
        if self.energy_source:
            return
        for path in self._energy_paths():
            if path not in self.sources:
                raise ValueError(
                    f"{path}: an energy needs a source; "
                    "write {value: ..., source: ...} or give energy_source"
                )

    def _energy_paths(self) -> Iterator[str]:
        for listed in ("levels", "units", "networks"):
            for i, part in enumerate(getattr(self, listed)):
                for key in type(part).model_fields:
                    if "_pj" in key and getattr(part, key) is not None:
                        yield f"{listed}[{i}].{key}"

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

    def level(self, name: str) -> Level:
        """The level of that name.

        Raises:
            MachineError: there is none.
        """
        found = next((level for level in self.levels if level.name == name), None)
        if found is None:
            known = ", ".join(level.name for level in self.levels)
            raise MachineError(f"machine {self.name!r} has no level {name!r}; it has {known}.")
        return found

    def num_instances(self, level: Level) -> int:
        """Instances of a level in the whole machine."""
        place = self.levels.index(level)
        return prod(outer.num_instances_per_parent for outer in self.levels[place:])

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

    def peak_macs_per_s(self, dtype: DType) -> float:
        """Multiply-accumulates of all units together, without their efficiency; 0 if none takes the type."""
        per_cycle = sum(self.num_units(u) * u.macs_per_cycle.get(str(dtype), 0.0) for u in self.units)
        return per_cycle * self._clock("the peak rate") if per_cycle else 0.0

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


def machine_schema() -> dict[str, Any]:
    """JSON Schema of a machine description, for editors and validators."""
    schema = Machine.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
