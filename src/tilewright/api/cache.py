"""The cache between runs: what is stored, whether it is whole and private, and what is removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.formatting import format_bytes
from tilewright.private_files import default_cache_directory, hazards_of, verified_records
from tilewright.results import Result, Table, about
from tilewright.targets.cpu.cache import CacheEntry, CacheImport, ObjectCache
from tilewright.tuning import TuningDatabase
from tilewright.tuning.database import DatabaseSummary

_MAX_SHOWN = 20
_KEY_DIGITS = 16


@dataclass(frozen=True, slots=True)
class CacheContents(Result):
    """The kernels stored."""

    directory: Path
    total_bytes: int
    entries: tuple[CacheEntry, ...]
    tuning: DatabaseSummary

    def tables(self) -> Sequence[Table]:
        """The entries used last."""
        rows = tuple((e.key[:_KEY_DIGITS], format_bytes(e.size_bytes)) for e in self.entries[:_MAX_SHOWN])
        return (Table(("key", "size"), rows, right=(1,)),)

    def lines(self) -> Sequence[str]:
        """Sums."""
        count, tuning = len(self.entries), self.tuning
        more = f" ({count - _MAX_SHOWN} more not shown)" if count > _MAX_SHOWN else ""
        return (
            f"{self.directory}: {count} entries, {format_bytes(self.total_bytes)}{more}",
            f"tuning: {tuning.num_plans} models, {tuning.num_trials} measurements of kernels",
        )


@dataclass(frozen=True, slots=True)
class UnsafeFile:
    """A file or folder that is not used, why, and what to do about it."""

    path: Path
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}; {self.advice}"


@dataclass(frozen=True, slots=True)
class CacheVerification(Result):
    """Entries that are whole, and the keys of those that were damaged and are now removed."""

    num_whole: int
    damaged: tuple[str, ...]
    stale: tuple[str, ...] = field(metadata=about("Of another key or version; now removed."))
    num_damaged_findings: int = field(metadata=about("Of tuning; now removed."))
    unsafe: tuple[UnsafeFile, ...] = field(metadata=about("Not used, as others may have written it."))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; what is of another key or version is nobody's fault."""
        return not (self.damaged or self.num_damaged_findings or self.unsafe)

    def lines(self) -> Sequence[str]:
        """What was removed, and what is not used."""
        lines = [f"{self.num_whole} whole, {len(self.damaged)} damaged and removed"]
        if self.stale:
            lines.append(f"{len(self.stale)} of another key or version removed")
        if self.num_damaged_findings:
            lines.append(f"tuning: {self.num_damaged_findings} damaged findings removed")
        shown = self.unsafe[:_MAX_SHOWN]
        lines += [f"not used, as others may have written it: {file}" for file in shown]
        if len(self.unsafe) > _MAX_SHOWN:
            lines.append(f"and {len(self.unsafe) - _MAX_SHOWN} more")
        return lines


@dataclass(frozen=True, slots=True)
class PrunedCache(Result):
    """Bytes that were removed."""

    removed_bytes: int

    def lines(self) -> Sequence[str]:
        """How much was removed."""
        return (f"{format_bytes(self.removed_bytes)} removed",)


@dataclass(frozen=True, slots=True)
class ForgottenFindings(Result):
    """Findings of tuning that were removed."""

    num_removed: int

    def lines(self) -> Sequence[str]:
        """How many were removed."""
        return (f"{self.num_removed} findings of tuning removed",)


@dataclass(frozen=True, slots=True)
class ExportedCache(Result):
    """Entries written to an archive."""

    path: Path
    num_entries: int

    def lines(self) -> Sequence[str]:
        """Where and how many."""
        return (f"{self.path}: {self.num_entries} entries",)


def contents(folder: Path | None = None) -> CacheContents:
    """What is stored in a cache's folder, or in the user's own cache.

    Raises:
        UsageError: no such folder, as with the functions below.
    """
    store = _open(folder)
    entries = tuple(store.entries())
    total_bytes = sum(entry.size_bytes for entry in entries)
    return CacheContents(_folder_of(store), total_bytes, entries, _tuning(store).summary())


def verify(folder: Path | None = None) -> CacheVerification:
    """Check owner, mode and digest of all that is stored, and remove what is damaged."""
    store = _open(folder)
    directory = _folder_of(store)
    hazards = hazards_of(directory)
    records = verified_records(directory)
    num_damaged_findings = _tuning(store).verify()
    unsafe = tuple(UnsafeFile(hazard.path, hazard.reason, hazard.advice) for hazard in hazards)
    return CacheVerification(records.num_whole, records.damaged, records.stale, num_damaged_findings, unsafe)


def prune(max_bytes: int, folder: Path | None = None) -> PrunedCache:
    """Remove entries, the least recently used first, until no more than `max_bytes` are left."""
    return PrunedCache(_open(folder).prune(max_bytes))


def forget(folder: Path | None = None) -> ForgottenFindings:
    """Forget what tuning measured; kernels stay."""
    return ForgottenFindings(_tuning(_open(folder)).clear())


def export_to(path: Path, folder: Path | None = None) -> ExportedCache:
    """Write all entries to one archive."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name.")
    return ExportedCache(path, _open(folder).export_to(path))


def import_from(path: Path, folder: Path | None = None) -> CacheImport:
    """Add the entries of an archive; damaged or foreign members are refused."""
    if not path.is_file():
        raise UsageError(f"{path}: no such archive; check the path.")
    store = _open(None) if folder is None else ObjectCache(folder)  # which need not exist yet
    return store.import_from(path)


def _open(folder: Path | None) -> ObjectCache:
    directory = folder or default_cache_directory()
    if directory is None:
        raise UsageError("there is no cache: no home directory; give one with --cache.")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such cache folder; check the path.")
    return ObjectCache(directory)


def _folder_of(store: ObjectCache) -> Path:
    assert store.directory is not None, "it was opened at a folder"
    return store.directory


def _tuning(store: ObjectCache) -> TuningDatabase:
    return TuningDatabase.in_folder(store.directory)
