"""Compiled objects on disk: content-addressed, size-capped, never a reason to fail.

One record per entry, `objects/<first two digits>/<key>`. Entries are machine code that will be executed, so
they are kept as `private_files` says: no other user may write them, and each has a digest with a key that
only the user can read. Writers create a temporary file and rename it, so readers in other processes see a
whole entry or none. Everything that goes wrong with the disk is a miss and one warning.

An archive of entries has plain checksums, which say that it is whole and not who made it: `import_from` is
for archives that the user trusts. What it takes is sealed with the key of this user.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import re
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.files import regular_file, replacing
from tilewright.private_files import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    OBJECTS,
    TEMPORARY_PREFIX,
    CacheCheck,
    NotPrivate,
    PrivateFolder,
    Records,
    warn_once,
)
from tilewright.records import dataclass
from tilewright.results import Result, about
from tilewright.system.forks import ForkSafeLock
from tilewright.text.printable import printable

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 1 << 30
MAX_ARCHIVE_MEMBERS = 200_000

_ARCHIVE_MAGIC = b"TILEWRIGHT-OBJ1\n"
_ARCHIVE_HEADER_BYTES = len(_ARCHIVE_MAGIC) + 32
_KEY = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_STALE_TEMPORARY_S = 3600.0
_CLOCK_SLACK_NS = 60_000_000_000
_NOT_READABLE = (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError)
"""What zipfile raises for archives that are damaged, encrypted, or packed in a way that it does not know."""
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One stored object: its key, its size on disk, when it was last read or written."""

    key: str
    size_bytes: int
    last_used_ns: int = field(metadata=about(hidden=True))


@dataclass(frozen=True, slots=True)
class CacheImport(Result):
    """Entries taken from an archive, and names of members that were refused."""

    num_imported: int
    refused: tuple[str, ...]


class ObjectCache:
    """A directory of compiled objects, safe to share between threads and processes.

    `directory=None` is a cache that never hits: callers need no second path for machines without a home.
    """

    def __init__(self, directory: Path | str | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if max_bytes < 0:
            raise UsageError(f"Cache size limit is {max_bytes} bytes; give 0 (store nothing) or more.")
        self.directory = None if directory is None else Path(directory)
        self.max_bytes = max_bytes
        self._records = None if directory is None else Records(PrivateFolder(directory), OBJECTS)
        self._lock = ForkSafeLock()
        self._warned: set[str] = set()
        self._writable = self.directory is not None and max_bytes > 0
        self._scanned_bytes: int | None = None  # total at the last scan of the directory
        self._written_bytes = 0  # by this process since that scan

    def get(self, key: str) -> bytes | None:
        """The stored bytes, or None. A damaged entry counts as absent and is removed."""
        shard = _shard(key)
        if self._records is None:
            return None
        try:
            return self._records.get(key, shard)
        except OSError as error:
            self._warn_once("read", "cannot read the object cache %s (%s); going on without it", error)
            return None

    def put(self, key: str, data: bytes) -> bool:
        """Store `data`; True if it is on disk now. Never raises for a full, read-only or missing disk."""
        shard = _shard(key)
        size_bytes = len(data) + HEADER_BYTES
        if self._records is None or not self._writable or size_bytes > min(self.max_bytes, MAX_RECORD_BYTES):
            return False
        try:
            self._records.put(key, data, shard)
        except NotPrivate as problem:
            warn_once(problem)
            return False
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
                self._writable = False  # the disk will not change its mind within one compilation
            self._warn_once("write", "cannot write the object cache %s (%s); going on without it", error)
            return False
        self._account(size_bytes)
        return True

    def entries(self) -> tuple[CacheEntry, ...]:
        """Every entry, least recently used first (ties by key)."""
        found = [CacheEntry(name, size, ns) for _, name, size, ns in self._files() if _KEY.fullmatch(name)]
        return tuple(sorted(found, key=lambda entry: (entry.last_used_ns, entry.key)))

    def verify(self) -> CacheCheck:
        """Read every entry, remove those that are not whole, and say which they were."""
        return CacheCheck(0, ()) if self._records is None else self._records.verify()

    def prune(self, max_bytes: int | None = None) -> int:
        """Remove least recently used entries until at most `max_bytes` remain; returns the bytes removed."""
        limit = self.max_bytes if max_bytes is None else max_bytes
        now_ns = time.time_ns()
        # A time in the future comes from a clock that jumped: such an entry would otherwise never be oldest.
        oldest_first = sorted(
            self.entries(),
            key=lambda e: (0 if e.last_used_ns > now_ns + _CLOCK_SLACK_NS else e.last_used_ns, e.key),
        )
        total = sum(entry.size_bytes for entry in oldest_first)
        removed = 0
        for entry in oldest_first:
            if total - removed <= limit:
                break
            if self._remove(entry.key):
                removed += entry.size_bytes
        self._remove_stale_temporaries()
        with self._lock:
            self._scanned_bytes, self._written_bytes = total - removed, 0
        return removed

    def clear(self) -> int:
        """Remove every entry; returns the bytes removed."""
        return self.prune(0)

    def export_to(self, path: Path | str) -> int:
        """Write all whole entries to a zip archive (same entries, same bytes); returns how many."""
        count = 0
        try:
            with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for key in sorted(entry.key for entry in self.entries()):
                    payload = self.get(key)
                    if payload is None:
                        continue
                    member = zipfile.ZipInfo(f"objects/{key}", date_time=_ZIP_EPOCH)
                    member.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(member, _wrap(key, payload))
                    count += 1
        except OSError as error:
            raise UsageError(f"Cannot write cache archive {path}: {error.strerror}.") from error
        return count

    def import_from(self, path: Path | str) -> CacheImport:
        """Store the entries of an archive made by `export_to`, sealed with this user's key.

        Only members named `objects/<key>` whose checksum holds are taken; nothing is ever extracted by the
        name it carries, and no member larger than this cache's limit is read.
        """
        num_imported, refused = 0, []
        try:
            with regular_file(path) as file, zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if len(members) > MAX_ARCHIVE_MEMBERS:
                    raise UsageError(
                        f"Cannot read cache archive {path}: {len(members)} members, at most "
                        f"MAX_ARCHIVE_MEMBERS = {MAX_ARCHIVE_MEMBERS} are taken."
                    )
                limit_bytes = min(self.max_bytes, MAX_RECORD_BYTES)
                for member in members:
                    key = member.filename.removeprefix("objects/")
                    if not member.filename.startswith("objects/") or not _KEY.fullmatch(key):
                        refused.append(member.filename)
                        continue
                    payload = _unwrap(key, _read_member(archive, member, limit_bytes))
                    if payload is None:
                        refused.append(member.filename)
                    elif self.put(key, payload):
                        num_imported += 1
        except _NOT_READABLE as error:
            raise UsageError(f"Cannot read cache archive {path}: {error}.") from error
        return CacheImport(num_imported, tuple(refused))

    def _path(self, key: str) -> Path | None:
        shard = _shard(key)
        return None if self.directory is None else self.directory / OBJECTS / shard / key

    def _files(self) -> Iterator[tuple[str, str, int, int]]:
        """Shard, name, size and time of last use of every file, temporary ones included."""
        if self._records is None:
            return
        folder = self._records.folder
        for shard, _ in folder.listing(OBJECTS):
            if _SHARD.fullmatch(shard):
                for name, status in folder.files(OBJECTS, shard):
                    yield shard, name, status.st_size, status.st_mtime_ns

    def _remove(self, key: str) -> bool:
        return self._records is not None and self._records.folder.remove(OBJECTS, _shard(key), key)

    def _account(self, size_bytes: int) -> None:
        """Prune when the cap may be passed. Near the cap the directory is scanned more often, because other
        processes write to it too."""
        with self._lock:
            self._written_bytes += size_bytes
            scanned, written = self._scanned_bytes, self._written_bytes
        if scanned is not None and written * 8 <= self.max_bytes - scanned:
            return
        total = sum(entry.size_bytes for entry in self.entries())
        if total > self.max_bytes:
            self.prune(self.max_bytes - self.max_bytes // 8)
            return
        with self._lock:
            self._scanned_bytes, self._written_bytes = total, 0

    def _remove_stale_temporaries(self) -> None:
        if self._records is None:
            return
        now = time.time()
        for shard, name, _, last_ns in self._files():
            if name.startswith(TEMPORARY_PREFIX) and abs(now - last_ns / 1e9) > _STALE_TEMPORARY_S:
                self._records.folder.remove(OBJECTS, shard, name)

    def _warn_once(self, kind: str, message: str, error: OSError) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        logger.warning(message, printable(str(self.directory)), error.strerror or error)


def _shard(key: str) -> str:
    """The folder of an entry, for a key that is one."""
    if not _KEY.fullmatch(key):
        raise UsageError(f"Cache key {key!r} is not a SHA-256 in lower-case hex.")
    return key[:2]


def _wrap(key: str, payload: bytes) -> bytes:
    """An entry as archives hold it: with a checksum that anyone can check."""
    digest = hashlib.sha256(key.encode() + payload).digest()
    return b"".join((_ARCHIVE_MAGIC, digest, payload))


def _unwrap(key: str, raw: bytes) -> bytes | None:
    if len(raw) < _ARCHIVE_HEADER_BYTES or not raw.startswith(_ARCHIVE_MAGIC):
        return None
    payload = raw[_ARCHIVE_HEADER_BYTES:]
    digest = hashlib.sha256(key.encode() + payload).digest()
    is_whole = hmac.compare_digest(digest, raw[len(_ARCHIVE_MAGIC) : _ARCHIVE_HEADER_BYTES])
    return payload if is_whole else None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit_bytes: int) -> bytes:
    with archive.open(member) as file:
        raw = file.read(limit_bytes + _ARCHIVE_HEADER_BYTES + 1)
    return raw if len(raw) <= limit_bytes + _ARCHIVE_HEADER_BYTES else b""
