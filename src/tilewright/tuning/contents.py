"""What a tuning database holds, by model, site and machine; and what of it is removed on request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field

from tilewright.records import dataclass
from tilewright.results import about
from tilewright.tuning.database import FAILURES, OBSERVATIONS, PLANS, TuningDatabase
from tilewright.tuning.observation import PlanContext
from tilewright.tuning.schema import removal
from tilewright.tuning.store import Row


@dataclass(frozen=True, slots=True)
class TunedMachine:
    """A context: the machine, compiler and options that measurements hold for."""

    key: str
    processor: str
    num_threads: int | None
    accuracy: str
    version: str = field(metadata=about("Of tilewright."))
    num_plans: int
    num_observations: int
    num_failures: int
    size_bytes: int
    age_s: float | None = field(metadata=about("Since the last measurement; null where unknown."))


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The plan of a model for a context."""

    key: str
    name: str
    context: str
    search: str
    num_changed: int = field(metadata=about("Sites that are not made as the estimates have it."))
    plain_ns: float
    tuned_ns: float
    size_bytes: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class TunedSite:
    """What is known of a site in a context. `best_ratio` is the least time over the baseline's."""

    key: str
    name: str
    context: str
    num_observations: int
    num_hints: int = field(metadata=about("Of them, those that must be measured here before they count."))
    num_failures: int
    best_ratio: float | None
    size_bytes: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class TuningContents:
    """Everything in a database, each list in order of its keys."""

    machines: tuple[TunedMachine, ...]
    models: tuple[TunedModel, ...]
    sites: tuple[TunedSite, ...]


@dataclass(frozen=True, slots=True)
class Unwanted:
    """What to remove: all that any of these name.

    `older_than_s`: findings that were measured longer ago, or at an unknown time. `usable`: those of contexts
    with other fingerprints than these, of other machines, compilers or versions. `imported`: hints. `model`:
    the plans of a model, by its name or the start of its key. `site`: what is known of sites whose keys begin
    so.
    """

    older_than_s: float | None = None
    usable: frozenset[str] | None = None
    imported: bool = False
    failures: bool = False
    model: str = ""
    site: str = ""


@dataclass(slots=True)
class _Tally:
    """Sums over the rows of a context or a site."""

    num_plans: int = 0
    num_observations: int = 0
    num_hints: int = 0
    num_failures: int = 0
    best_ratio: float | None = None
    size_bytes: int = 0
    last_s: float = 0.0

    def note(self, size_bytes: int, at_s: float) -> None:
        """Another row."""
        self.size_bytes += size_bytes
        self.last_s = max(self.last_s, at_s)


def contents(database: TuningDatabase, now_s: float | None = None) -> TuningContents:
    """What is stored; rows that are damaged or of another version are left out."""
    now_s = time.time() if now_s is None else now_s
    by_context: dict[str, _Tally] = {}
    by_site: dict[tuple[str, str], _Tally] = {}
    models: list[TunedModel] = []
    for row, seen in database.found(OBSERVATIONS):
        key, size_bytes = str(row[0]), row_bytes(row)
        site = by_site.setdefault((seen.site, key), _Tally())
        for tally in (site, by_context.setdefault(key, _Tally())):
            tally.note(size_bytes, seen.measured_at_s)
            tally.num_observations += 1
        site.num_hints += seen.is_hint
        if not seen.is_hint and (site.best_ratio is None or seen.ratio < site.best_ratio):
            site.best_ratio = seen.ratio
    for row, failure in database.found(FAILURES):
        key, size_bytes = str(row[0]), row_bytes(row)
        for tally in (
            by_site.setdefault((failure.site, key), _Tally()),
            by_context.setdefault(key, _Tally()),
        ):
            tally.note(size_bytes, failure.failed_at_s)
            tally.num_failures += 1
    for row, plan in database.found(PLANS):
        key, size_bytes = str(row[0]), row_bytes(row)
        tally = by_context.setdefault(key, _Tally())
        tally.note(size_bytes, plan.tuned_at_s)
        tally.num_plans += 1
        models.append(
            TunedModel(
                key=str(row[1]),
                name=plan.model,
                context=key,
                search=plan.search,
                num_changed=len(plan.forms),
                plain_ns=plan.plain_ns,
                tuned_ns=plan.tuned_ns,
                size_bytes=size_bytes,
                age_s=_age_s(plan.tuned_at_s, now_s),
            )
        )
    names, known = database.subjects("site"), database.contexts()
    return TuningContents(
        tuple(_machine(key, tally, known, now_s) for key, tally in sorted(by_context.items())),
        tuple(models),
        tuple(_site(site, names.get(site, ""), key, t, now_s) for (site, key), t in sorted(by_site.items())),
    )


def prune(database: TuningDatabase, unwanted: Unwanted, now_s: float | None = None) -> int:
    """Remove findings; returns how many: none where the file cannot be written."""
    now_s = time.time() if now_s is None else now_s
    removed = {
        "observations": [
            row
            for row, seen in database.found(OBSERVATIONS)
            if (unwanted.imported and seen.is_hint)
            or _is_old(seen.measured_at_s, unwanted, now_s)
            or (unwanted.site and seen.site.startswith(unwanted.site))
        ],
        "failures": [
            row
            for row, failure in database.found(FAILURES)
            if unwanted.failures
            or _is_old(failure.failed_at_s, unwanted, now_s)
            or (unwanted.site and failure.site.startswith(unwanted.site))
        ],
        "plans": [
            row
            for row, plan in database.found(PLANS)
            if _is_old(plan.tuned_at_s, unwanted, now_s)
            or (unwanted.model and (plan.model == unwanted.model or str(row[1]).startswith(unwanted.model)))
        ],
    }
    if unwanted.usable is not None:
        usable = {k for k, c in database.contexts().items() if c.fingerprint in unwanted.usable}
        for table, rows in removed.items():
            named = set(rows)
            rows += [r for r in database.rows(table) if str(r[0]) not in usable and r not in named]
    changes = [removal(table, rows) for table, rows in removed.items()]
    if not database.store.write(*changes, grows=False):
        return 0
    _forget_names(database)
    database.store.compact()
    return sum(map(len, removed.values()))


def row_bytes(row: Row) -> int:
    """What a row holds, without what SQLite adds."""
    return sum(len(str(column)) for column in row)


def _forget_names(database: TuningDatabase) -> None:
    """Remove what contexts and sites are called that hold nothing any more."""
    kept = contents(database)
    names = {"context": {m.key for m in kept.machines}, "site": {s.key for s in kept.sites}}
    gone = [row for row in database.rows("subjects") if str(row[1]) not in names.get(str(row[0]), set())]
    database.store.write(removal("subjects", gone), grows=False)


def _is_old(at_s: float, unwanted: Unwanted, now_s: float) -> bool:
    return unwanted.older_than_s is not None and now_s - at_s > unwanted.older_than_s


def _age_s(at_s: float, now_s: float) -> float | None:
    return max(0.0, now_s - at_s) if at_s > 0 else None


def _machine(key: str, tally: _Tally, known: Mapping[str, PlanContext], now_s: float) -> TunedMachine:
    context = known.get(key)
    return TunedMachine(
        key=key,
        processor=context.processor if context is not None else "",
        num_threads=context.num_threads if context is not None else None,
        accuracy=context.accuracy if context is not None else "",
        version=context.version if context is not None else "",
        num_plans=tally.num_plans,
        num_observations=tally.num_observations,
        num_failures=tally.num_failures,
        size_bytes=tally.size_bytes,
        age_s=_age_s(tally.last_s, now_s),
    )


def _site(site: str, name: str, context: str, tally: _Tally, now_s: float) -> TunedSite:
    return TunedSite(
        key=site,
        name=name,
        context=context,
        num_observations=tally.num_observations,
        num_hints=tally.num_hints,
        num_failures=tally.num_failures,
        best_ratio=tally.best_ratio,
        size_bytes=tally.size_bytes,
        age_s=_age_s(tally.last_s, now_s),
    )
