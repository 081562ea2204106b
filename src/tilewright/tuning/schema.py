"""The tables of the tuning database: their SQL, their version, and what becomes of rows of the oldest.

`observations` and `failures` are filed under a context and a site, `candidate` is a digest of what `body`
holds. `plans` are the candidates that made a whole model faster; `subjects` says what contexts, sites and
models are called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tilewright.cost.base import Measurement
from tilewright.tuning.observation import Observation, candidate_key, is_candidate, parsed

VERSION = 3
"""Of the tables, as SQLite's `user_version`. Files of the oldest version say 0 there."""

_PLANS = (
    "CREATE TABLE plans (context TEXT NOT NULL, model TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, model)) WITHOUT ROWID"
)
TABLES = (
    "CREATE TABLE observations (context TEXT NOT NULL, site TEXT NOT NULL, candidate TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, candidate)) WITHOUT ROWID",
    "CREATE TABLE failures (context TEXT NOT NULL, site TEXT NOT NULL, candidate TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, candidate)) WITHOUT ROWID",
    _PLANS,
    "CREATE TABLE subjects (kind TEXT NOT NULL, name TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID",
)
INDEXES = ("CREATE INDEX observations_by_site ON observations (site)",)
OLDEST_TABLES = (
    "CREATE TABLE trials (context TEXT NOT NULL, site TEXT NOT NULL, choice TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, choice)) WITHOUT ROWID",
    _PLANS,
)
KEYS = {
    "observations": ("context", "site", "candidate"),
    "failures": ("context", "site", "candidate"),
    "plans": ("context", "model"),
    "subjects": ("kind", "name"),
}
"""Columns that name a row; each table has `body` and `digest` beside them."""


def removal(table: str, rows: Sequence[tuple[object, ...]]) -> tuple[str, list[tuple[object, ...]]]:
    """The change that removes rows, digests included, unless they were written anew meanwhile."""
    keys = KEYS[table]
    where = " AND ".join(f"{key} = ?" for key in (*keys, "digest"))
    return f"DELETE FROM {table} WHERE {where}", [(*row[: len(keys)], row[-1]) for row in rows]


def converted_trial(context: str, site: str, choice: str, body: str) -> tuple[str, str, str, str] | None:
    """A row of the oldest version's `trials`, without its digest, as one of `observations`; None for none."""
    candidate, times = parsed(choice), parsed(body)
    if not is_candidate(candidate) or not isinstance(times, dict):
        return None
    time_ns, plain_ns = times.get("time_ns"), times.get("plain_ns")
    measured = {
        "median_ns": time_ns,
        "low_ns": time_ns,
        "high_ns": time_ns,
        "count": 1,
        "context": WHOLE_RUNS,
    }
    observation = Observation.from_json(
        site,
        {
            "candidate": candidate,
            "measured": measured,
            "baseline_ns": plain_ns,
            "measured_at_s": 0,
            "features": {},
            "feature_set": "",
            "source": "measured",
            "host": "",
            "calibrated_at_s": None,
        },
    )
    if observation is None:
        return None
    return context, site, candidate_key(candidate), json.dumps(observation.to_json())


WHOLE_RUNS = "a site's times in whole runs"


def measurement_of(time_ns: float) -> Measurement:
    """A site's time of which only the lower quartile was kept."""
    return Measurement(time_ns, time_ns, time_ns, 1, WHOLE_RUNS)
