"""What tuning found out, in one SQLite file: never a reason to fail, and safe to share between processes.

`trials` holds measurements of single sites, `plans` the candidates that made a whole model faster. A site is
what was measured: a product in a step of its own, or a group of kernels that share steps. Both are filed
under a *context*, the digest of everything else that decides a measurement (instruction set, toolchain,
version, accuracy, threads, and the version of these rows: those of another are not found). Each row carries
a digest with the key of the cache (`private_files`): a row that was not written here counts as absent, and a
file that SQLite cannot read, or whose tables are others, is set aside with one warning and begun again. A
file that other users may have written is not opened.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.planning import Budget
from tilewright.printable import printable
from tilewright.private_files import (
    DATABASE,
    NotPrivate,
    PrivateFolder,
    key_mark,
    keyed_digest,
    record_key,
    warn_once,
)
from tilewright.results import about
from tilewright.tuning.choice import Candidate, Plan

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Of the rows. It is part of every context."""
MAX_FILE_BYTES = 256 << 20
_BUSY_TIMEOUT_S = 20.0
_STEPS_BETWEEN_LOOKS = 100_000
_MAX_LOOKS = 10_000
"""A query takes at most 10⁹ of SQLite's steps: a damaged index may be a ring."""
_SCHEMA = (
    "CREATE TABLE trials (context TEXT NOT NULL, site TEXT NOT NULL, choice TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, choice)) WITHOUT ROWID",
    "CREATE TABLE plans (context TEXT NOT NULL, model TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, model)) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to do a site's work, measured in context: its time, and that of the plain way beside it."""

    candidate: Candidate
    time_ns: float
    plain_ns: float

    @property
    def ratio(self) -> float:
        """Its time over the plain one's: below 1 it is faster."""
        return self.time_ns / self.plain_ns


@dataclass(frozen=True, slots=True, eq=False)
class TunedPlan:
    """The outcome of tuning a model: the candidates that won (none if the plain plan did), and both times.

    `is_complete`: every candidate was measured, so that searching again finds nothing new. `budget` is what
    the search might spend.
    """

    candidates: Plan
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
    num_plans: int = field(metadata=about("Models that were tuned."))
    num_trials: int = field(metadata=about("Measurements of single kernels."))
    size_bytes: int


class TuningDatabase:
    """Findings of earlier searches; `path=None` remembers nothing.

    Every call opens its own connection, so that threads, forks and other processes need no care.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder = None if path is None else PrivateFolder(path.parent)
        self._has_warned = False

    @classmethod
    def in_folder(cls, folder: Path | None) -> TuningDatabase:
        """The database of a cache folder."""
        return cls(None if folder is None else folder / DATABASE)

    def trials(self, context: str, site: str) -> tuple[Trial, ...]:
        """What was measured for a site, in order of the candidates' text."""
        rows = self._read(
            "SELECT context, site, choice, body, digest FROM trials WHERE context = ? AND site = ? "
            "ORDER BY choice",
            (context, site),
        )
        return tuple(trial for row in rows if (trial := self._trial(row)) is not None)

    def record(self, context: str, found: Sequence[tuple[str, Trial]]) -> None:
        """Keep measurements: (site, trial). A later one of the same candidate replaces the earlier."""
        rows = []
        for site, trial in found:
            candidate = json.dumps(trial.candidate.to_json())
            body = json.dumps({"time_ns": trial.time_ns, "plain_ns": trial.plain_ns})
            digest = self._digest("trials", context, site, candidate, body)
            rows.append((context, site, candidate, body, digest))
        self._write("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?)", rows)

    def plan(self, context: str, model: str) -> TunedPlan | None:
        """The plan found for a model."""
        rows = self._read(
            "SELECT context, model, body, digest FROM plans WHERE context = ? AND model = ?", (context, model)
        )
        return self._plan(rows[0]) if rows else None

    def store_plan(self, context: str, model: str, plan: TunedPlan) -> None:
        """Keep the plan of a model, in place of an earlier one."""
        body = json.dumps(
            {
                "candidates": {
                    site: candidate.to_json() for site, candidate in sorted(plan.candidates.items())
                },
                "plain_ns": plan.plain_ns,
                "tuned_ns": plan.tuned_ns,
                "is_complete": plan.is_complete,
                "max_trials": plan.budget.max_evaluations,
                "deadline_s": plan.budget.deadline_s,
            }
        )
        row = (context, model, body, self._digest("plans", context, model, body))
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
        """Remove damaged rows, and say how many there were; those of another key or version go uncounted."""
        trials = self._read("SELECT context, site, choice, body, digest FROM trials", ())
        plans = self._read("SELECT context, model, body, digest FROM plans", ())
        bad_trials = [row for row in trials if self._trial(row) is None]
        bad_plans = [row for row in plans if self._plan(row) is None]
        self._write(
            "DELETE FROM trials WHERE context = ? AND site = ? AND choice = ?", [r[:3] for r in bad_trials]
        )
        self._write("DELETE FROM plans WHERE context = ? AND model = ?", [r[:2] for r in bad_plans])
        mark, mark_of_another = self._digest().partition(":")[0], re.compile("[0-9a-f]{16}:[0-9a-f]{64}")
        bad_rows = [("trials", row) for row in bad_trials] + [("plans", row) for row in bad_plans]
        digests = [str(row[-1]) for table, row in bad_rows if not self._is_intact(table, row)]
        return sum(d.startswith(mark) or not mark_of_another.fullmatch(d) for d in digests)

    def clear(self) -> int:
        """Forget everything; returns how many rows that were."""
        held = self.summary()
        for table in ("plans", "trials"):
            self._write(f"DELETE FROM {table}", [()])  # names are constants
        return held.num_plans + held.num_trials

    def _read(self, query: str, values: tuple[str, ...]) -> list[tuple[object, ...]]:
        if self.path is None or not self._is_usable(self.path, create=False):
            return []
        with self._guarded(self.path), self._connect(self.path) as connection:
            return connection.execute(query, values).fetchall()
        return []

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if self.path is None or not rows:
            return
        for _ in range(2):  # again after a damaged file was set aside
            if not self._is_usable(self.path, create=True):
                return
            with self._guarded(self.path), self._connect(self.path) as connection:
                connection.executemany(statement, rows)
                return

    @contextlib.contextmanager
    def _connect(self, path: Path) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
        looks = iter(range(_MAX_LOOKS))
        connection.set_progress_handler(lambda: next(looks, None) is None, _STEPS_BETWEEN_LOOKS)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                with contextlib.suppress(sqlite3.OperationalError):  # another process is just doing it
                    connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                found = connection.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchmany(3)
                if not found:
                    for statement in _SCHEMA:
                        connection.execute(statement.replace("TABLE", "TABLE IF NOT EXISTS", 1))
                elif found != [(statement,) for statement in sorted(_SCHEMA)]:
                    raise sqlite3.DatabaseError("its tables are not those of this version")
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

    def _is_usable(self, path: Path, *, create: bool) -> bool:
        """Whether the file, with SQLite's two beside it, is there and only this user can have written it.

        As nobody else may change the folder either, it is still so when SQLite opens it by name. `create`
        makes it, empty, so that its mode does not depend on the umask; SQLite gives that mode to the others.
        """
        assert self._folder is not None
        try:
            is_there = self._folder.check(path.name, max_bytes=MAX_FILE_BYTES)
            for suffix in ("-wal", "-shm"):
                self._folder.check(path.name + suffix, max_bytes=MAX_FILE_BYTES)
            if not is_there and create:
                with contextlib.suppress(FileExistsError):
                    self._folder.write(b"", path.name, replace=False)
            return is_there or create
        except NotPrivate as problem:
            warn_once(problem)
        except OSError as error:
            reason = error.strerror or error
            self._warn(f"cannot use the tuning database {path} ({reason}); going on without it")
        return False

    def _digest(self, *parts: str) -> str:
        """Keyed digest of a row; nothing where there is no key, which no row has."""
        key = None if self._folder is None else record_key(self._folder, create=True)
        if key is None:
            return ""
        digest = keyed_digest(key, b"tuning", *(part.encode() for part in parts))
        return f"{key_mark(key).hex()}:{digest.hex()}"

    def _is_intact(self, table: str, row: tuple[object, ...]) -> bool:
        """Whether the row is as it was written here."""
        *parts, digest = (str(x) for x in row)
        expected = self._digest(table, *parts)
        return bool(expected) and hmac.compare_digest(expected.encode(), digest.encode())

    def _trial(self, row: tuple[object, ...]) -> Trial | None:
        """A row of `trials`; None if it is damaged or of another version."""
        return _trial([str(x) for x in row[:-1]]) if self._is_intact("trials", row) else None

    def _plan(self, row: tuple[object, ...]) -> TunedPlan | None:
        """A row of `plans`; None if it is damaged or of another version."""
        return _plan([str(x) for x in row[:-1]]) if self._is_intact("plans", row) else None

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", printable(message))


def _file_number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _trial(parts: Sequence[str]) -> Trial | None:
    """What the columns of a row of `trials` say."""
    candidate, body = Candidate.from_json(_loads(parts[2])), _loads(parts[3])
    if candidate is None or not isinstance(body, dict):
        return None
    times = [body.get(name) for name in ("time_ns", "plain_ns")]
    if not all(isinstance(t, int | float) and t > 0 for t in times):
        return None
    return Trial(candidate, *map(float, times))  # type: ignore[arg-type]  # numbers, as just checked


def _plan(parts: Sequence[str]) -> TunedPlan | None:
    """What the columns of a row of `plans` say."""
    body = _loads(parts[2])
    if not isinstance(body, dict):
        return None
    try:
        stored = {site: Candidate.from_json(document) for site, document in body["candidates"].items()}
        candidates = {site: candidate for site, candidate in stored.items() if candidate is not None}
        deadline_s = body["deadline_s"]
        plan = TunedPlan(
            candidates,
            float(body["plain_ns"]),
            float(body["tuned_ns"]),
            bool(body["is_complete"]),
            Budget(int(body["max_trials"]), None if deadline_s is None else float(deadline_s)),
        )
    except (AttributeError, KeyError, TypeError, UsageError, ValueError):
        return None
    return plan if len(candidates) == len(stored) else None


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
