"""What tuning found out: what each candidate of a site took, which failed, and the plans of whole models.

A *site* is what was measured: a subgraph, several that share steps, or a stage, by its signature. All is
filed under a *context* (`PlanContext`), by its key. Searches write a batch at a time, so that what ends one
loses no more than the batch in flight. An observation that was imported is a *hint*: it says what to measure
first, and is never chosen by itself. A candidate that failed is not chosen either, whatever times it had.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewright.errors import UsageError
from tilewright.planning import Budget
from tilewright.private_files import DATABASE
from tilewright.records import dataclass
from tilewright.results import about
from tilewright.tuning.observation import Failure, JsonObject, Observation, PlanContext, is_candidate, parsed
from tilewright.tuning.schema import KEYS, removal
from tilewright.tuning.store import Change, Row, Store

FoundT = TypeVar("FoundT")

FORMAT_VERSION = 3
"""Of what candidates and sites mean. It is part of every context."""


@dataclass(frozen=True, slots=True, eq=False)
class TunedPlan:
    """The outcome of tuning a model: the forms that won, by site, and both times; none if the plain plan won.

    `is_complete`: all searches settled, so that searching again finds nothing new. `budget` is what the
    search might spend, `search` its name, `model` the model's.
    """

    forms: Mapping[str, JsonObject]
    plain_ns: float
    tuned_ns: float
    is_complete: bool
    budget: Budget = field(default_factory=lambda: Budget(0))
    search: str = "reformer"
    model: str = ""
    tuned_at_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Time of a run over that of the untuned plan: 1 where that stays."""
        return self.tuned_ns / self.plain_ns if self.plain_ns and self.forms else 1.0

    def satisfies(self, budget: Budget) -> bool:
        """Whether a search with this budget has nothing to add: it would spend no more than the last did."""
        last_s = math.inf if self.budget.deadline_s is None else self.budget.deadline_s
        wanted_s = math.inf if budget.deadline_s is None else budget.deadline_s
        return self.is_complete or (
            wanted_s <= last_s and budget.max_evaluations <= self.budget.max_evaluations
        )

    def to_json(self) -> JsonObject:
        """Plain values."""
        return {
            "forms": dict(sorted(self.forms.items())),
            "plain_ns": self.plain_ns,
            "tuned_ns": self.tuned_ns,
            "is_complete": self.is_complete,
            "max_trials": self.budget.max_evaluations,
            "deadline_s": self.budget.deadline_s,
            "search": self.search,
            "model": self.model,
            "tuned_at_s": self.tuned_at_s,
        }

    @classmethod
    def from_json(cls, document: object) -> TunedPlan | None:
        """What `to_json` gave; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        try:
            deadline_s = document["deadline_s"]
            plain_ns, tuned_ns = float(document["plain_ns"]), float(document["tuned_ns"])
            plan = cls(
                {str(site): dict(form) for site, form in document["forms"].items()},
                plain_ns,
                tuned_ns,
                bool(document["is_complete"]),
                Budget(int(document["max_trials"]), None if deadline_s is None else float(deadline_s)),
                str(document["search"]),
                str(document.get("model", "")),
                float(document.get("tuned_at_s", 0.0)),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, UsageError, ValueError):
            return None
        is_whole = all(map(is_candidate, plan.forms.values()))
        numbers = (plain_ns, tuned_ns, plan.tuned_at_s, plan.budget.deadline_s or 0.0)
        return plan if is_whole and all(0 <= number < math.inf for number in numbers) else None


@dataclass(frozen=True, slots=True)
class Table(Generic[FoundT]):
    """A table by its name, and what a row of it says; None where that cannot be read."""

    name: str
    read: Callable[[Row], FoundT | None]


OBSERVATIONS = Table("observations", lambda row: Observation.from_json(str(row[1]), parsed(str(row[3]))))
FAILURES = Table("failures", lambda row: Failure.from_json(str(row[1]), parsed(str(row[3]))))
PLANS = Table("plans", lambda row: TunedPlan.from_json(parsed(str(row[2]))))
SUBJECTS = Table("subjects", lambda row: str(row[2]))


@dataclass(frozen=True, slots=True)
class DatabaseSummary:
    """What a database holds."""

    path: Path | None
    num_plans: int = field(metadata=about("Models that were tuned."))
    num_trials: int = field(metadata=about("Measurements of single kernels or subgraphs."))
    num_failures: int = field(metadata=about("Candidates that crashed, hung, or gave wrong values."))
    size_bytes: int


class TuningDatabase:
    """Findings of earlier searches; `path=None` remembers nothing."""

    def __init__(self, path: Path | None) -> None:
        self.store = Store(path)

    @classmethod
    def in_folder(cls, folder: Path | None) -> TuningDatabase:
        """The database of a cache folder."""
        return cls(None if folder is None else folder / DATABASE)

    @property
    def path(self) -> Path | None:
        """The file; None if nothing is remembered."""
        return self.store.path

    def record(
        self,
        context: PlanContext,
        outcomes: Sequence[Observation | Failure],
        names: Mapping[str, str] | None = None,
    ) -> bool:
        """Keep a batch, whole or not at all; True if it is kept. `names` says what sites are called.

        A later observation of the same candidate replaces the earlier one.
        """
        sites = {outcome.site for outcome in outcomes}
        called = {site: name for site, name in (names or {}).items() if site in sites}
        observations = [o for o in outcomes if isinstance(o, Observation)]
        failures = [o for o in outcomes if isinstance(o, Failure)]
        return self.store.write(
            ("INSERT OR REPLACE INTO observations VALUES (?, ?, ?, ?, ?)", self._rows(context, observations)),
            ("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?)", self._rows(context, failures)),
            self._subjects("site", called),
            self._described(context),
        )

    def add(
        self,
        context: PlanContext,
        outcomes: Sequence[Observation | Failure],
        names: Mapping[str, str],
        replaced: Sequence[Row] = (),
    ) -> bool:
        """Keep outcomes of others as `record`, but none in place of what is there already.

        Rows of observations that are `replaced` go, unless they were written anew meanwhile.
        """
        there = "INSERT OR IGNORE INTO {} VALUES ({})"
        observations = [o for o in outcomes if isinstance(o, Observation)]
        failures = [o for o in outcomes if isinstance(o, Failure)]
        described, called = self._described(context), self._subjects("site", names)
        return self.store.write(
            removal("observations", replaced),
            (there.format("observations", "?, ?, ?, ?, ?"), self._rows(context, observations)),
            (there.format("failures", "?, ?, ?, ?, ?"), self._rows(context, failures)),
            (there.format("subjects", "?, ?, ?, ?"), [*described[1], *called[1]]),
        )

    def observations(self, context: PlanContext, site: str) -> tuple[Observation, ...]:
        """What was measured here of a site, or is trusted, without candidates that failed; fastest first."""
        failed = {failure.candidate_key for failure in self.failures(context, site)}
        there = self.found(OBSERVATIONS, "context = ? AND site = ?", (context.key, site))
        usable = (o for _, o in there if not o.is_hint and o.candidate_key not in failed)
        return tuple(sorted(usable, key=lambda o: (o.ratio, o.candidate_key)))

    def best(self, context: PlanContext, site: str) -> Observation | None:
        """The candidate of a site with the least time over its baseline's."""
        return next(iter(self.observations(context, site)), None)

    def failures(self, context: PlanContext, site: str) -> tuple[Failure, ...]:
        """Candidates of a site that failed here, by digest."""
        there = self.found(FAILURES, "context = ? AND site = ?", (context.key, site))
        return tuple(failure for _, failure in there)

    def hints(self, context: PlanContext, site: str) -> tuple[Observation, ...]:
        """What was seen of a site elsewhere: by others, or in another context here; the most promising first.

        Each candidate once, and none that is measured or failed here.
        """
        known = {o.candidate_key for o in self.observations(context, site)}
        known |= {failure.candidate_key for failure in self.failures(context, site)}
        best: dict[str, Observation] = {}
        for _, seen in self.found(OBSERVATIONS, "site = ?", (site,)):
            key = seen.candidate_key
            if key not in known and (key not in best or seen.ratio < best[key].ratio):
                best[key] = seen
        return tuple(sorted(best.values(), key=lambda o: (o.ratio, o.candidate_key)))

    def all_observations(self, feature_set: str | None = None) -> Iterator[tuple[PlanContext, Observation]]:
        """Everything that was measured, hints too, in a fixed order; only with these features if named."""
        contexts = self.contexts()
        for row, seen in self.found(OBSERVATIONS):
            context = contexts.get(str(row[0]))
            if context is not None and feature_set in (None, seen.feature_set):
                yield context, seen

    def contexts(self) -> Mapping[str, PlanContext]:
        """Every context that is described, by key."""
        described = (PlanContext.from_json(parsed(body)) for body in self.subjects("context").values())
        return {context.key: context for context in described if context is not None}

    def subjects(self, kind: str) -> Mapping[str, str]:
        """What is said of things of a kind, by key: of a context its JSON, of a site its name."""
        return {str(row[1]): body for row, body in self.found(SUBJECTS, "kind = ?", (kind,))}

    def plan(self, context: PlanContext, model: str) -> TunedPlan | None:
        """The plan found for a model, by the digest of its sites."""
        plans = self.found(PLANS, "context = ? AND model = ?", (context.key, model))
        return next((plan for _, plan in plans), None)

    def store_plan(self, context: PlanContext, model: str, plan: TunedPlan) -> bool:
        """Keep the plan of a model, in place of an earlier one; True if it is kept."""
        row = self.store.sealed("plans", context.key, model, json.dumps(plan.to_json()))
        return self.store.write(
            ("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)", [row]), self._described(context)
        )

    def summary(self) -> DatabaseSummary:
        """Counts of what is stored."""
        counts = [
            self.store.read(f"SELECT count(*) FROM {table}")  # names are constants
            for table in ("plans", "observations", "failures")
        ]
        plans, trials, failures = (int(str(rows[0][0])) if rows else 0 for rows in counts)
        return DatabaseSummary(self.path, plans, trials, failures, self.store.size_bytes)

    def verify(self) -> int:
        """Remove damaged rows, and say how many there were; those of another key or version go uncounted."""
        num_damaged = 0
        self.store.check()
        tables: tuple[Table[Any], ...] = (OBSERVATIONS, FAILURES, PLANS, SUBJECTS)
        for table in tables:
            bad = [row for row in self.rows(table.name) if self._read(table, row) is None]
            self.store.write(removal(table.name, bad), grows=False)
            num_damaged += sum(
                self.store.is_damaged(row) for row in bad if not self.store.is_intact(table.name, row)
            )
        return num_damaged

    def clear(self) -> int:
        """Forget everything; returns how many findings that were."""
        held = self.summary()
        if not self.store.write(*((f"DELETE FROM {table}", [()]) for table in KEYS), grows=False):
            return 0
        self.store.compact()
        return held.num_plans + held.num_trials + held.num_failures

    def _rows(self, context: PlanContext, outcomes: Sequence[Observation] | Sequence[Failure]) -> list[Row]:
        key = context.key
        return [
            self.store.sealed(
                "observations" if isinstance(outcome, Observation) else "failures",
                key,
                outcome.site,
                outcome.candidate_key,
                json.dumps(outcome.to_json()),
            )
            for outcome in outcomes
        ]

    def _described(self, context: PlanContext) -> Change:
        return self._subjects("context", {context.key: json.dumps(context.to_json())})

    def _subjects(self, kind: str, bodies: Mapping[str, str]) -> Change:
        rows = [self.store.sealed("subjects", kind, name, body) for name, body in bodies.items()]
        return "INSERT OR REPLACE INTO subjects VALUES (?, ?, ?, ?)", rows

    def rows(self, table: str, condition: str = "1", values: Sequence[str] = ()) -> list[Row]:
        """The rows of a table, digests included, in order of their keys; the condition is a constant."""
        keys = ", ".join(KEYS[table])
        query = f"SELECT {keys}, body, digest FROM {table} WHERE {condition} ORDER BY {keys}"
        return self.store.read(query, values)

    def found(
        self, table: Table[FoundT], condition: str = "1", values: Sequence[str] = ()
    ) -> Iterator[tuple[Row, FoundT]]:
        """What can be read of a table, with its rows: nothing that is damaged or of another version."""
        for row in self.rows(table.name, condition, values):
            found = self._read(table, row)
            if found is not None:
                yield row, found

    def _read(self, table: Table[FoundT], row: Row) -> FoundT | None:
        return table.read(row) if self.store.is_intact(table.name, row) else None
