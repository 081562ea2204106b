"""One SQLite file of rows that only this user can have written: no reason to fail, shared by processes.

Each row ends with a digest with the key of the cache (`private_files`): a row that was not written here
counts as absent. A file that SQLite cannot read, or whose tables are others, is set aside with one warning
and begun again; one of a later version is left alone. A file that other users may have written is not opened.
What is written in one call is there as a whole or not at all, whatever becomes of the process; a folder that
cannot be written still serves readers.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from tilewright.private_files import NotPrivate, PrivateFolder, key_mark, keyed_digest, record_key, warn_once
from tilewright.text.printable import printable
from tilewright.tuning.schema import INDEXES, TABLES, VERSION

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 << 20
MAX_GROWN_BYTES = 224 << 20
"""A larger file takes no more rows, so that it stays small enough to be opened and pruned."""
_BUSY_TIMEOUT_S = 20.0
_STEPS_BETWEEN_LOOKS = 100_000
_MAX_LOOKS = 10_000
"""A query takes at most 10⁹ of SQLite's steps: a damaged index may be a ring."""
_VERSIONS_END = 1000
"""A file that claims to be of this version is no later one, but damaged."""
_SIDE_FILES = ("-wal", "-shm")

Row = tuple[object, ...]
Change = tuple[str, Sequence[Row]]
"""A statement, and the values of each of its executions."""


class LaterVersion(sqlite3.OperationalError):
    """The file was written by a later version: it is left as it is."""


class Store:
    """Rows of a file; `path=None` remembers nothing.

    Every call opens its own connection, so that threads, forks and other processes need no care.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder = None if path is None else PrivateFolder(path.parent)
        self._has_warned = False

    @property
    def size_bytes(self) -> int:
        """Of the file and SQLite's two beside it."""
        total = 0
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(OSError):
                total += 0 if self.path is None else _beside(self.path, suffix).stat().st_size
        return total

    def read(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """The rows that a query gives; none where nothing can be read."""
        if self.path is None or not self._is_usable(self.path, create=False):
            return []
        with self._guarded(self.path), self._connected(self.path, writes=False) as connection:
            return connection.execute(query, tuple(values)).fetchall()
        return []

    def write(self, *changes: Change, grows: bool = True) -> bool:
        """Make some changes, all or none; True if they are kept, which nothing but a loss of power undoes.

        `grows`: changes that add rows, which a file that is too large takes no more of.
        """
        changes = tuple(change for change in changes if change[1])
        if self.path is None or not changes:
            return False
        for _ in range(2):  # again after a damaged file was set aside
            if not self._is_usable(self.path, create=True):
                return False
            if grows and self.size_bytes > MAX_GROWN_BYTES:
                self._warn(
                    f"the tuning database {self.path} is full; tilewright cache prune makes it smaller"
                )
                return False
            with self._guarded(self.path), self._connected(self.path, writes=True) as connection:
                with _transaction(connection):
                    for statement, rows in changes:
                        connection.executemany(statement, rows)
                return True
        return False

    def check(self) -> None:
        """Look at all of the file, and set it aside if SQLite cannot make sense of it."""
        if self.path is not None and self._is_usable(self.path, create=False):
            with self._guarded(self.path), self._connected(self.path, writes=False) as connection:
                verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
                if verdict != "ok":
                    raise sqlite3.DatabaseError(verdict)

    def compact(self) -> None:
        """Give what removed rows took back to the disk."""
        if self.path is not None and self._is_usable(self.path, create=False):
            with self._guarded(self.path), self._connected(self.path, writes=True) as connection:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def sealed(self, table: str, *columns: str) -> Row:
        """A row of a table with its keyed digest; without a key that is empty, and the row is never read."""
        return *columns, self._digest(table, *columns)

    def is_intact(self, table: str, row: Row) -> bool:
        """Whether the row is as it was written here."""
        *columns, digest = (str(x) for x in row)
        expected = self._digest(table, *columns)
        return bool(expected) and hmac.compare_digest(expected.encode(), digest.encode())

    def is_damaged(self, row: Row) -> bool:
        """Of a row that is not intact: whether that is more than being written with another key."""
        mark, digest = self._digest().partition(":")[0], str(row[-1])
        return digest.startswith(mark) or not re.fullmatch("[0-9a-f]{16}:[0-9a-f]{64}", digest)

    def _digest(self, *parts: str) -> str:
        key = None if self._folder is None else record_key(self._folder, create=True)
        if key is None:
            return ""
        digest = keyed_digest(key, b"tuning", *(part.encode() for part in parts))
        return f"{key_mark(key).hex()}:{digest.hex()}"

    @contextlib.contextmanager
    def _connected(self, path: Path, *, writes: bool) -> Iterator[sqlite3.Connection]:
        is_writable = writes or os.access(path.parent, os.W_OK)
        connection = _opened(path) if is_writable else _opened_read_only(path)
        looks = iter(range(_MAX_LOOKS))
        connection.set_progress_handler(lambda: next(looks, None) is None, _STEPS_BETWEEN_LOOKS)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA schema_version")  # which opens the file
            if (
                self._folder is not None
            ):  # SQLite follows links: one that came after `_is_usable` is still there
                self._folder.check(path.name, max_bytes=MAX_FILE_BYTES)
            if is_writable and connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                with contextlib.suppress(sqlite3.OperationalError):  # another process is just doing it
                    connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if not _has_tables(connection):
                with _transaction(connection):
                    self._make_tables(connection)
            yield connection
        finally:
            connection.close()

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        """The tables of this version, in an empty file."""
        if _has_tables(connection):  # another process was first
            return
        if _schema_of(connection):
            raise sqlite3.DatabaseError("its tables are not those of this version")
        for statement in (*TABLES, *INDEXES):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")

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
        aside = _beside(path, ".damaged")
        self._warn(f"the tuning database {path} is damaged ({error}): moved to {aside.name} and begun anew")
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        for suffix in _SIDE_FILES:
            with contextlib.suppress(OSError):
                _beside(path, suffix).unlink()

    def _is_usable(self, path: Path, *, create: bool) -> bool:
        """Whether the file, with SQLite's two beside it, is there and only this user can have written it.

        As nobody else may change the folder either, it is still so when SQLite opens it by name. `create`
        makes it, empty, so that its mode does not depend on the umask; SQLite gives that mode to the others.
        """
        assert self._folder is not None
        try:
            is_there = self._folder.check(path.name, max_bytes=MAX_FILE_BYTES)
            for suffix in _SIDE_FILES:
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

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", printable(message))


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def _opened_read_only(path: Path) -> sqlite3.Connection:
    """SQLite wants to write beside a file even to read it, unless told that the file does not change."""
    log = _beside(path, "-wal")
    is_settled = not log.exists() or log.stat().st_size == 0
    how = "immutable=1" if is_settled else "mode=ro"
    address = f"file:{quote(str(path))}?{how}"
    return sqlite3.connect(address, timeout=_BUSY_TIMEOUT_S, isolation_level=None, uri=True)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; it waits for its turn at the start, where nothing was read yet that could be stale."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether the tables of this version are there; a file that says so and has others is a damaged one."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if VERSION < version < _VERSIONS_END:
        raise LaterVersion(f"it was written by a later version of tilewright: format {version}")
    if version < VERSION:
        return False
    if _schema_of(connection) != sorted((*TABLES, *INDEXES)):
        raise sqlite3.DatabaseError("its tables are not those of this version")
    return True


def _schema_of(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchmany(16)
    return sorted(str(sql) for (sql,) in rows)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _file_number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
