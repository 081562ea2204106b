"""What tuning found out, in one SQLite file: never a reason to fail, and safe to share between processes.

`trials` holds single measurements, `plans` the choices that made a whole model faster. Both are filed under a
*context*, the digest of everything else that decides a measurement (instruction set, toolchain, version,
accuracy, threads). Each row carries a checksum: a damaged row counts as absent, and a file that SQLite cannot
read is set aside with one warning and begun again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.planning import Budget
from tilewright.tuning.choice import Choice, Choices

logger = logging.getLogger(__name__)

FILE_NAME = "tuning.db"
FORMAT_VERSION = 1
_BUSY_TIMEOUT_S = 20.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS trials (context TEXT NOT NULL, site TEXT NOT NULL, choice TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, choice)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS plans (context TEXT NOT NULL, model TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, model)) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to make a kernel, measured in context: its time, and that of the plain way beside it."""

    choice: Choice
    time_ns: float
    plain_ns: float

    @property
    def ratio(self) -> float:
        """Its time over the plain one's: below 1 it is faster."""
        return self.time_ns / self.plain_ns


@dataclass(frozen=True, slots=True, eq=False)
class TunedPlan:
    """The outcome of tuning a model: the choices that won (none if the plain plan did), and both times.

    `is_complete`: every candidate was measured, so that searching again finds nothing new. `budget` is what
    the search might spend.
    """

    choices: Choices
    plain_ns: float
    tuned_ns: float
    is_complete: bool
    budget: Budget = field(default_factory=lambda: Budget(0))

    def satisfies(self, budget: Budget) -> bool:
        """Whether a search with this budget has nothing to add: it would spend no more than the last did."""
        last_s = math.inf if self.budget.deadline_s is None else self.budget.deadline_s
        wanted_s = math.inf if budget.deadline_s is None else budget.deadline_s
        return self.is_complete or (
            wanted_s <= last_s and budget.max_evaluations <= self.budget.max_evaluations
        )


@dataclass(frozen=True, slots=True)
class DatabaseSummary:
    """What a database holds."""

    path: Path | None
    num_plans: int
    num_trials: int
    size_bytes: int


class TuningDatabase:
    """Findings of earlier searches; `path=None` remembers nothing.

    Every call opens its own connection, so that threads, forks and other processes need no care.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._has_warned = False

    @classmethod
    def in_folder(cls, folder: Path | None) -> TuningDatabase:
        """The database of a cache folder."""
        return cls(None if folder is None else folder / FILE_NAME)

    def trials(self, context: str, site: str) -> tuple[Trial, ...]:
        """What was measured for a site, in order of the choices' text."""
        rows = self._read(
            "SELECT context, site, choice, body, digest FROM trials WHERE context = ? AND site = ? "
            "ORDER BY choice",
            (context, site),
        )
        return tuple(trial for row in rows if (trial := _trial(row)) is not None)

    def record(self, context: str, found: Sequence[tuple[str, Trial]]) -> None:
        """Keep measurements: (site, trial). A later one of the same choice replaces the earlier."""
        rows = []
        for site, trial in found:
            choice = json.dumps(trial.choice.to_json())
            body = json.dumps({"time_ns": trial.time_ns, "plain_ns": trial.plain_ns})
            rows.append((context, site, choice, body, _digest(context, site, choice, body)))
        self._write("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?)", rows)

    def plan(self, context: str, model: str) -> TunedPlan | None:
        """The plan found for a model."""
        rows = self._read(
            "SELECT context, model, body, digest FROM plans WHERE context = ? AND model = ?", (context, model)
        )
        return _plan(rows[0]) if rows else None

    def store_plan(self, context: str, model: str, plan: TunedPlan) -> None:
        """Keep the plan of a model, in place of an earlier one."""
        body = json.dumps(
            {
                "choices": {site: choice.to_json() for site, choice in sorted(plan.choices.items())},
                "plain_ns": plan.plain_ns,
                "tuned_ns": plan.tuned_ns,
                "is_complete": plan.is_complete,
                "max_trials": plan.budget.max_evaluations,
                "deadline_s": plan.budget.deadline_s,
            }
        )
        row = (context, model, body, _digest(context, model, body))
        self._write("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)", [row])

    def summary(self) -> DatabaseSummary:
        """Counts of what is stored."""
        counts = [
            self._read(f"SELECT count(*) FROM {table}", ())  # names are constants
            for table in ("plans", "trials")
        ]
        plans, trials = (int(str(rows[0][0])) if rows else 0 for rows in counts)
        size_bytes = 0
        if self.path is not None:
            with contextlib.suppress(OSError):
                size_bytes = self.path.stat().st_size
        return DatabaseSummary(self.path, plans, trials, size_bytes)

    def verify(self) -> int:
        """Remove damaged rows; returns how many there were."""
        bad_trials = [
            row[:3]
            for row in self._read("SELECT context, site, choice, body, digest FROM trials", ())
            if _trial(row) is None
        ]
        bad_plans = [
            row[:2]
            for row in self._read("SELECT context, model, body, digest FROM plans", ())
            if _plan(row) is None
        ]
        self._write("DELETE FROM trials WHERE context = ? AND site = ? AND choice = ?", bad_trials)
        self._write("DELETE FROM plans WHERE context = ? AND model = ?", bad_plans)
        return len(bad_trials) + len(bad_plans)

    def clear(self) -> int:
        """Forget everything; returns how many rows that were."""
        held = self.summary()
        for table in ("plans", "trials"):
            self._write(f"DELETE FROM {table}", [()])  # names are constants
        return held.num_plans + held.num_trials

    def _read(self, query: str, values: tuple[str, ...]) -> list[tuple[object, ...]]:
        if self.path is None or not self.path.exists():
            return []
        with self._guarded(self.path), self._connect(self.path) as connection:
            return connection.execute(query, values).fetchall()
        return []

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if self.path is None or not rows:
            return
        for _ in range(2):  # again after a damaged file was set aside
            with self._guarded(self.path), self._connect(self.path) as connection:
                connection.executemany(statement, rows)
                return

    @contextlib.contextmanager
    def _connect(self, path: Path) -> Iterator[sqlite3.Connection]:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                with contextlib.suppress(sqlite3.OperationalError):  # another process is just doing it
                    connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                for statement in _SCHEMA:
                    connection.execute(statement)
                yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _guarded(self, path: Path) -> Iterator[None]:
        """A file that is none of SQLite's is set aside; a disk that does not play along is gone without."""
        before = _file_number(path)
        try:
            yield
        except sqlite3.OperationalError as error:
            self._warn(f"cannot use the tuning database {path} ({error}); going on without it")
        except sqlite3.DatabaseError as error:
            # Another process may have begun it anew already: only the file that was read is set aside.
            if before is not None and _file_number(path) == before:
                self._set_aside(path, error)
        except OSError as error:
            reason = error.strerror or error
            self._warn(f"cannot use the tuning database {path} ({reason}); going on without it")

    def _set_aside(self, path: Path, error: sqlite3.DatabaseError) -> None:
        aside = path.with_name(path.name + ".damaged")
        self._warn(f"the tuning database {path} is damaged ({error}): moved to {aside.name} and begun anew")
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                path.with_name(path.name + suffix).unlink()

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", message)


def _file_number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _trial(row: tuple[object, ...]) -> Trial | None:
    """A row of `trials`; None if it is damaged."""
    *parts, digest = (str(x) for x in row)
    if _digest(*parts) != digest:
        return None
    choice, body = Choice.from_json(_loads(parts[2])), _loads(parts[3])
    if choice is None or not isinstance(body, dict):
        return None
    times = [body.get(name) for name in ("time_ns", "plain_ns")]
    if not all(isinstance(t, int | float) and t > 0 for t in times):
        return None
    return Trial(choice, *map(float, times))  # type: ignore[arg-type]  # numbers, as just checked


def _plan(row: tuple[object, ...]) -> TunedPlan | None:
    """A row of `plans`; None if it is damaged."""
    *parts, digest = (str(x) for x in row)
    body = _loads(parts[2])
    if _digest(*parts) != digest or not isinstance(body, dict):
        return None
    try:
        found = {site: Choice.from_json(document) for site, document in body["choices"].items()}
        choices = {site: choice for site, choice in found.items() if choice is not None}
        deadline_s = body["deadline_s"]
        plan = TunedPlan(
            choices,
            float(body["plain_ns"]),
            float(body["tuned_ns"]),
            bool(body["is_complete"]),
            Budget(int(body["max_trials"]), None if deadline_s is None else float(deadline_s)),
        )
    except (AttributeError, KeyError, TypeError, UsageError, ValueError):
        return None
    return plan if len(choices) == len(found) else None


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
