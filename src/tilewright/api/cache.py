"""The cache between runs: what is stored, whether it is whole and private, and what is removed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from tilewright.api.kept import damaged_kept, kept_sizes, prune_kept
from tilewright.errors import UsageError
from tilewright.private_files import PrivateFolder, cache_place, hazards_of, verified_records
from tilewright.results import Result, Table, about
from tilewright.targets.llvm.cache import CacheEntry, ObjectCache
from tilewright.text.formatting import counted, format_age, format_bytes, format_ms
from tilewright.tuning import TuningDatabase
from tilewright.tuning.contents import TuningContents, Unwanted
from tilewright.tuning.contents import contents as database_contents
from tilewright.tuning.contents import prune as prune_findings
from tilewright.tuning.database import DatabaseSummary
from tilewright.tuning.exchange import export_findings, import_findings, is_findings

_MAX_SHOWN = 20
_KEY_DIGITS = 16
_CONTEXT_DIGITS = 8
_SITE_CHARACTERS = 40


class _Finding(Protocol):
    @property
    def size_bytes(self) -> int: ...
    @property
    def age_s(self) -> float | None: ...


_Row = TypeVar("_Row", bound=_Finding)


def _table(
    title: str,
    findings: Sequence[_Row],
    texts: Mapping[str, Callable[[_Row], object]],
    numbers: Mapping[str, Callable[[_Row], object]],
) -> Table:
    """The first findings of a kind: a column for each text and number, and how large and old they are."""
    cells = (*texts.values(), *numbers.values())
    rows = tuple(
        (*(cell(row) for cell in cells), format_bytes(row.size_bytes), format_age(row.age_s))
        for row in findings[:_MAX_SHOWN]
    )
    heads = (*texts, *numbers, "size", "age")
    figures = tuple(range(len(texts), len(heads)))
    return Table(heads, rows, title=title, right=figures, less=(len(heads) - 2, len(texts)))


@dataclass(frozen=True, slots=True)
class CacheContents(Result):
    """The kernels stored, and what tuning found out about models and sites, by machine."""

    directory: Path
    total_bytes: int
    entries: tuple[CacheEntry, ...]
    tuning: DatabaseSummary
    findings: TuningContents
    num_compilations: int = field(default=0, metadata=about("Kept whole, so that they are not made again."))
    compilations_bytes: int = 0

    def tables(self) -> Sequence[Table]:
        """The entries used last, and the first findings of each kind."""
        rows = tuple((e.key[:_KEY_DIGITS], format_bytes(e.size_bytes)) for e in self.entries[:_MAX_SHOWN])
        kernels = Table(("key", "size"), rows, title="kernels", right=(1,))
        return tuple(t for t in (kernels, self._models(), self._sites(), self._machines()) if t.rows)

    def _models(self) -> Table:
        return _table(
            "tuned models",
            self.findings.models,
            {
                "model": lambda model: model.name or model.key[:_KEY_DIGITS],
                "context": lambda model: model.context[:_CONTEXT_DIGITS],
                "search": lambda model: model.search,
            },
            {
                "changed": lambda model: model.num_changed,
                "untuned": lambda model: format_ms(model.plain_ns / 1e6) if model.plain_ns else "",
                "tuned": lambda model: format_ms(model.tuned_ns / 1e6) if model.tuned_ns else "",
            },
        )

    def _sites(self) -> Table:
        return _table(
            "sites",
            self.findings.sites,
            {
                "site": lambda site: site.name or site.key[:_SITE_CHARACTERS],
                "context": lambda site: site.context[:_CONTEXT_DIGITS],
            },
            {
                "observations": lambda site: site.num_observations,
                "hints": lambda site: site.num_hints,
                "failures": lambda site: site.num_failures,
                "best": lambda site: "" if site.best_ratio is None else f"{site.best_ratio:.3f}",
            },
        )

    def _machines(self) -> Table:
        return _table(
            "machines",
            self.findings.machines,
            {
                "context": lambda machine: machine.key[:_CONTEXT_DIGITS],
                "machine": lambda machine: machine.processor or "not known",
                "accuracy": lambda machine: machine.accuracy,
                "version": lambda machine: machine.version,
            },
            {
                "threads": lambda machine: "" if machine.num_threads is None else machine.num_threads,
                "models": lambda machine: machine.num_plans,
                "observations": lambda machine: machine.num_observations,
            },
        )

    def lines(self) -> Sequence[str]:
        """Sums."""
        count, tuning = len(self.entries), self.tuning
        more = f" ({count - _MAX_SHOWN} more not shown)" if count > _MAX_SHOWN else ""
        return (
            f"{self.directory}: {counted(count, 'entry')}, {format_bytes(self.total_bytes)}{more}",
            f"compilations: {self.num_compilations}, {format_bytes(self.compilations_bytes)}",
            f"tuning: {counted(tuning.num_plans, 'model')}, {counted(tuning.num_trials, 'measurement')} of "
            f"{len(self.findings.sites)} sites, {tuning.num_failures} failures, "
            f"{format_bytes(tuning.size_bytes)}",
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
        """Whether nothing is wrong; what is of another key or version is no fault."""
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
class Pruning:
    """What to remove from a cache: compilations, then kernels, those used least recently first, until
    `max_bytes` are left; and of tuning all findings that anything here names.

    `older_than_s`: measured longer ago. `unusable`: of other machines, compilers or versions, which nothing
    here will ever use. `imported`: hints of others. `failures`: candidates that failed, so that they are
    tried again. `model`: the plans of a model, by its name or the start of its key. `site`: what is known of
    sites whose keys begin so.
    """

    max_bytes: int | None = None
    older_than_s: float | None = None
    unusable: bool = False
    imported: bool = False
    failures: bool = False
    model: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True)
class PrunedCache(Result):
    """Kernels and findings that were removed."""

    removed_bytes: int = field(metadata=about("Of kernels."))
    num_removed_findings: int = field(metadata=about("Of tuning."))
    removed_compilations_bytes: int = 0

    def lines(self) -> Sequence[str]:
        """How much was removed."""
        kernels = f"{format_bytes(self.removed_bytes)} of kernels removed"
        compilations = f"{format_bytes(self.removed_compilations_bytes)} of compilations"
        return (f"{kernels}, {compilations}, {counted(self.num_removed_findings, 'finding')} of tuning",)


@dataclass(frozen=True, slots=True)
class ForgottenFindings(Result):
    """Findings of tuning that were removed."""

    num_removed: int

    def lines(self) -> Sequence[str]:
        """How many were removed."""
        return (f"{counted(self.num_removed, 'finding')} of tuning removed",)


@dataclass(frozen=True, slots=True)
class ExportedCache(Result):
    """Kernels written to an archive, or findings to a file."""

    path: Path
    num_entries: int

    def lines(self) -> Sequence[str]:
        """Where and how many."""
        return (f"{self.path}: {counted(self.num_entries, 'entry')}",)


@dataclass(frozen=True, slots=True)
class ImportedCache(Result):
    """Kernels taken from an archive, or findings from a file, and what was refused."""

    num_imported: int
    refused: tuple[str, ...] = field(metadata=about("Members of an archive, or lines of a file and why."))
    num_hints: int = field(
        default=0, metadata=about("Of findings, those to be measured here before they count.")
    )
    num_known: int = field(default=0, metadata=about("Findings that were there already."))
    num_left_out: int = field(
        default=0,
        metadata=about("Plans and failures that count only with trust, and what could not be kept."),
    )

    def lines(self) -> Sequence[str]:
        """What was taken."""
        lines = [f"{self.num_imported} imported, {len(self.refused)} refused"]
        if self.num_hints:
            lines.append(f"{self.num_hints} of them are hints, which are measured here before they count")
        if self.num_known or self.num_left_out:
            lines.append(f"{self.num_known} were there already, {self.num_left_out} left out")
        return lines


def contents(folder: Path | None = None) -> CacheContents:
    """What is stored in a cache's folder, or in the user's own cache.

    Raises:
        UsageError: no such folder, as with the functions below.
    """
    store = _open(folder)
    entries = tuple(store.entries())
    total_bytes = sum(entry.size_bytes for entry in entries)
    database = _tuning(store)
    kept = kept_sizes(PrivateFolder(_folder_of(store)))
    return CacheContents(
        _folder_of(store),
        total_bytes,
        entries,
        database.summary(),
        database_contents(database),
        len(kept),
        sum(kept),
    )


def verify(folder: Path | None = None) -> CacheVerification:
    """Check owner, mode and digest of all that is stored, and remove what is damaged."""
    store = _open(folder)
    directory = _folder_of(store)
    hazards = hazards_of(directory)
    records = verified_records(directory)
    damaged = (*records.damaged, *damaged_kept(PrivateFolder(directory)))
    num_damaged_findings = _tuning(store).verify()
    unsafe = tuple(UnsafeFile(hazard.path, hazard.reason, hazard.advice) for hazard in hazards)
    return CacheVerification(records.num_whole, damaged, records.stale, num_damaged_findings, unsafe)


def prune(what: Pruning, folder: Path | None = None) -> PrunedCache:
    """Remove what is named, and nothing else.

    Raises:
        UsageError: nothing is named.
    """
    store = _open(folder)
    if what == Pruning():
        raise UsageError(
            "nothing to prune is named; give --max-size for compilations and kernels, or for findings of "
            "tuning --older-than, --unusable, --imported, --failures, --model or --site."
        )
    removed_bytes = removed_compilations_bytes = 0
    if what.max_bytes is not None:
        kernels_bytes = sum(entry.size_bytes for entry in store.entries())
        removed_compilations_bytes = prune_kept(
            PrivateFolder(_folder_of(store)), max(0, what.max_bytes - kernels_bytes)
        )
        removed_bytes = store.prune(what.max_bytes)
    unwanted = Unwanted(
        what.older_than_s,
        _host_fingerprints() if what.unusable else None,
        what.imported,
        what.failures,
        what.model,
        what.site,
    )
    num_removed = 0 if unwanted == Unwanted() else prune_findings(_tuning(store), unwanted)
    return PrunedCache(removed_bytes, num_removed, removed_compilations_bytes)


def forget(folder: Path | None = None) -> ForgottenFindings:
    """Forget what tuning measured; kernels stay."""
    return ForgottenFindings(_tuning(_open(folder)).clear())


def export_to(path: Path, folder: Path | None = None, *, tuning: bool = False) -> ExportedCache:
    """Write all kernels to one archive, or with `tuning` all findings to one file of text."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name.")
    store = _open(folder)
    return ExportedCache(path, export_findings(_tuning(store), path) if tuning else store.export_to(path))


def import_from(path: Path, folder: Path | None = None, *, trust: bool = False) -> ImportedCache:
    """Add the kernels of an archive, or the findings of a file; damaged or foreign ones are refused.

    Findings are hints: what they say is measured here before it counts. With `trust` those of machines and
    versions like this one's count at once.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such archive; check the path.")
    store = _open(None) if folder is None else ObjectCache(folder)  # which need not exist yet
    if not is_findings(path):
        taken = store.import_from(path)
        return ImportedCache(taken.num_imported, taken.refused)
    trusted = _host_fingerprints() if trust else frozenset[str]()
    imported = import_findings(_tuning(store), path, trusted=trusted)
    return ImportedCache(
        imported.num_hints + imported.num_trusted,
        tuple(imported.refused),
        imported.num_hints,
        imported.num_known,
        imported.num_left_out,
    )


def _open(folder: Path | None) -> ObjectCache:
    directory = folder or cache_place()
    if directory is None:
        raise UsageError("there is no cache: no home directory; give one with --cache.")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such cache folder; check the path.")
    return ObjectCache(directory)


def _folder_of(store: ObjectCache) -> Path:
    assert store.directory is not None, "it was opened at a folder"
    return store.directory


def _host_fingerprints() -> frozenset[str]:
    from tilewright.targets.cpu.tune.context import host_fingerprints  # to load LLVM takes a while

    return host_fingerprints()


def _tuning(store: ObjectCache) -> TuningDatabase:
    return TuningDatabase.in_folder(store.directory)
