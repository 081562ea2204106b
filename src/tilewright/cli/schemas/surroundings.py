"""Documents on what is around a model: networks to try, targets, machines, this host, the cache."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.cli.schemas.base import Host, Part, Report


class Network(Part):
    """One network of the zoo."""

    name: str
    family: str
    description: str
    paper: str
    input_shapes: dict[str, list[int]]


class ZooReport(Report):
    """The networks that can be built."""

    kind: Literal["zoo"]
    networks: list[Network]


class ZooBuildReport(Report):
    """A network written to a file."""

    kind: Literal["zoo-build"]
    name: str
    path: str
    size_bytes: int
    num_nodes: int


class NamedTarget(Part):
    """A target and what it is."""

    name: str
    about: str


class TargetsReport(Report):
    """The targets and the machines that can be named."""

    kind: Literal["targets"]
    targets: list[NamedTarget]
    machines: list[NamedTarget] = Field(
        description="Described machines; empty where one target was asked for."
    )


class MachineNumber(Part):
    """One number of a machine, where it stands and where it comes from."""

    path: str
    value: float
    source: str | None


class MachineDescriptionReport(Report):
    """A described machine in the words of `schema machine`, and the source of each of its numbers."""

    kind: Literal["machine-description"]
    machine: dict[str, Any]
    numbers: list[MachineNumber]


class HostReport(Report):
    """This machine in the words of `schema machine`."""

    kind: Literal["host"]
    machine: dict[str, Any]


class Finding(Part):
    """One thing that doctor looked at."""

    name: str
    ok: bool
    found: str
    advice: str


class DoctorReport(Report):
    """The state of this installation and machine."""

    kind: Literal["doctor"]
    ok: bool
    checks: list[Finding]
    versions: dict[str, str | None]
    host: Host


class CacheEntry(Part):
    """One stored kernel."""

    key: str
    size_bytes: int


class TuningDatabase(Part):
    """What tuning found out."""

    path: str
    num_plans: int = Field(description="Models that were tuned.")
    num_trials: int = Field(description="Measurements of single kernels.")
    size_bytes: int


class CacheReport(Report):
    """The kernels stored."""

    kind: Literal["cache"]
    directory: str
    total_bytes: int
    entries: list[CacheEntry]
    tuning: TuningDatabase


class UnsafeFile(Part):
    """A file or folder that is not used, why, and what to do about it."""

    path: str
    reason: str
    advice: str


class CacheVerifyReport(Report):
    """Entries found whole, and the keys of those that were damaged and are now removed."""

    kind: Literal["cache-verify"]
    num_whole: int
    damaged: list[str]
    stale: list[str] = Field(description="Of another key or version; now removed.")
    num_damaged_findings: int = Field(description="Of tuning; now removed.")
    unsafe: list[UnsafeFile] = Field(description="Not used, as others may have written it.")


class CachePruneReport(Report):
    """Bytes that were removed."""

    kind: Literal["cache-prune"]
    removed_bytes: int


class CacheForgetReport(Report):
    """Findings of tuning that were removed."""

    kind: Literal["cache-forget"]
    num_removed: int


class CacheExportReport(Report):
    """Entries written to an archive."""

    kind: Literal["cache-export"]
    path: str
    num_entries: int


class CacheImportReport(Report):
    """Entries taken from an archive, and names of members that were refused."""

    kind: Literal["cache-import"]
    num_imported: int
    refused: list[str]
