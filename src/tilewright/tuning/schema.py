"""The tables of the tuning database: their SQL and their version.

`observations` and `failures` are filed under a context and a site, `candidate` is a digest of what `body`
holds. `plans` are the candidates that made a whole model faster; `subjects` says what contexts, sites and
models are called.
"""

from __future__ import annotations

from collections.abc import Sequence

VERSION = 3
"""Of the tables, as SQLite's `user_version`."""

TABLES = (
    "CREATE TABLE observations (context TEXT NOT NULL, site TEXT NOT NULL, candidate TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, candidate)) WITHOUT ROWID",
    "CREATE TABLE failures (context TEXT NOT NULL, site TEXT NOT NULL, candidate TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, site, candidate)) WITHOUT ROWID",
    "CREATE TABLE plans (context TEXT NOT NULL, model TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (context, model)) WITHOUT ROWID",
    "CREATE TABLE subjects (kind TEXT NOT NULL, name TEXT NOT NULL, "
    "body TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID",
)
INDEXES = ("CREATE INDEX observations_by_site ON observations (site)",)
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


WHOLE_RUNS = "a site's times in whole runs"
