"""Compiled objects on disk: content-addressed, checksummed, size-capped, never a reason to fail.

One file per entry under `objects/<first two digits>/<key>`: a magic, the SHA-256 of key and payload, the
payload. Writers create a temporary file and rename it, so readers in other processes see a whole entry or
none. Everything that goes wrong with the disk is a miss and one warning. Entries are machine code that will
be executed: the directory must belong to the user, and `import_from` is for archives the user trusts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UsageError

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 1 << 30
CACHE_ENV = "TILEWRIGHT_CACHE"

_MAGIC = b"TILEWRIGHT-OBJ1\n"
_DIGEST_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
_KEY = re.compile(r"[0-9a-f]{64}")
_TEMPORARY_PREFIX = ".put-"
_STALE_TEMPORARY_S = 3600.0
_CLOCK_SLACK_NS = 60_000_000_000
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One stored object: its key, its size on disk, when it was last read or written."""

    key: str
    size_bytes: int
    last_used_ns: int


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """What `verify` found: how many entries are whole, and the keys of the damaged ones (now removed)."""

    num_whole: int
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheImport:
    """What `import_from` did: entries stored, and names of archive members it refused."""

    num_imported: int
    refused: tuple[str, ...]


def default_cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """`TILEWRIGHT_CACHE`, else `XDG_CACHE_HOME/tilewright`, else `~/.cache/tilewright`.

    Read when called, never at import. None when no home directory can be found. A relative XDG path is
    ignored, as its specification asks.

    >>> default_cache_directory({"TILEWRIGHT_CACHE": "/var/tmp/tw"}).as_posix()
    '/var/tmp/tw'
    """
    environment = os.environ if environment is None else environment
    if own := environment.get(CACHE_ENV):
        return Path(own)
    xdg = environment.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "tilewright"
    try:
        home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "tilewright" if home.is_absolute() else None


class ObjectCache:
    """A directory of compiled objects, safe to share between threads and processes.

    `directory=None` is a cache that never hits: callers need no second path for machines without a home.
    """

    def __init__(self, directory: Path | str | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if max_bytes < 0:
            raise UsageError(f"Cache size limit is {max_bytes} bytes; give 0 (store nothing) or more.")
        self.directory = None if directory is None else Path(directory)
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._writable = self.directory is not None and max_bytes > 0
        self._scanned_bytes: int | None = None  # total at the last scan of the directory
        self._written_bytes = 0  # by this process since that scan

    def get(self, key: str) -> bytes | None:
        """The stored bytes, or None. A damaged entry counts as absent and is removed."""
        path = self._path(key)
        if path is None:
            return None
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("read", "cannot read the object cache %s (%s); going on without it", error)
            return None
        payload = _unwrap(key, raw)
        if payload is None:
            logger.warning("object cache entry %s is damaged: removed, compiling again", path)
            _remove(path)
            return None
        with contextlib.suppress(OSError):  # a read-only cache still serves; its order of use just stays
            os.utime(path)
        return payload

    def put(self, key: str, data: bytes) -> bool:
        """Store `data`; True if it is on disk now. Never raises for a full, read-only or missing disk."""
        path = self._path(key)
        if path is None or not self._writable or len(data) + _HEADER_BYTES > self.max_bytes:
            return False
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_whole(path, _wrap(key, data))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
                self._writable = False  # the disk will not change its mind within one compilation
            self._warn_once("write", "cannot write the object cache %s (%s); going on without it", error)
            return False
        self._account(len(data) + _HEADER_BYTES)
        return True

    def entries(self) -> tuple[CacheEntry, ...]:
        """Every entry, least recently used first (ties by key)."""
        found = []
        for path in self._files():
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                status = path.stat()
                found.append(CacheEntry(path.name, status.st_size, status.st_mtime_ns))
        return tuple(sorted(found, key=lambda entry: (entry.last_used_ns, entry.key)))

    def verify(self) -> CacheCheck:
        """Read every entry, remove the damaged ones, and say which they were."""
        num_whole, damaged = 0, []
        for entry in self.entries():
            path = self._path(entry.key)
            assert path is not None
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError:
                raw = b""
            if _unwrap(entry.key, raw) is None:
                damaged.append(entry.key)
                _remove(path)
            else:
                num_whole += 1
        return CacheCheck(num_whole, tuple(sorted(damaged)))

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
            path = self._path(entry.key)
            if path is not None and _remove(path):
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
        path = Path(path)
        temporary = path.with_name(path.name + ".part")
        count = 0
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                for key in sorted(entry.key for entry in self.entries()):
                    payload = self.get(key)
                    if payload is None:
                        continue
                    member = zipfile.ZipInfo(f"objects/{key}", date_time=_ZIP_EPOCH)
                    member.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(member, _wrap(key, payload))
                    count += 1
            os.replace(temporary, path)
        except OSError as error:
            raise UsageError(f"Cannot write cache archive {path}: {error.strerror}.") from error
        finally:
            _remove(temporary)
        return count

    def import_from(self, path: Path | str) -> CacheImport:
        """Store the entries of an archive made by `export_to`.

        Only members named `objects/<key>` whose checksum holds are taken; nothing is ever extracted by the
        name it carries, and no member larger than this cache's limit is read.
        """
        num_imported, refused = 0, []
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    key = member.filename.removeprefix("objects/")
                    if not member.filename.startswith("objects/") or not _KEY.fullmatch(key):
                        refused.append(member.filename)
                        continue
                    payload = _unwrap(key, _read_member(archive, member, self.max_bytes))
                    if payload is None:
                        refused.append(member.filename)
                    elif self.put(key, payload):
                        num_imported += 1
        except (OSError, zipfile.BadZipFile) as error:
            raise UsageError(f"Cannot read cache archive {path}: {error}.") from error
        return CacheImport(num_imported, tuple(refused))

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise UsageError(f"Cache key {key!r} is not a SHA-256 in lower-case hex.")
        return None if self.directory is None else self.directory / "objects" / key[:2] / key

    def _files(self) -> Iterator[Path]:
        if self.directory is None:
            return
        for folder in _listing(self.directory / "objects"):
            for path in _listing(folder):
                if _KEY.fullmatch(path.name):
                    yield path

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
        if self.directory is None:
            return
        now = time.time()
        for folder in _listing(self.directory / "objects"):
            for path in _listing(folder):
                if path.name.startswith(_TEMPORARY_PREFIX):
                    with contextlib.suppress(OSError):
                        if abs(now - path.stat().st_mtime) > _STALE_TEMPORARY_S:
                            path.unlink()

    def _warn_once(self, kind: str, message: str, error: OSError) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        logger.warning(message, self.directory, error.strerror or error)


def _wrap(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + payload).digest()
    return b"".join((_MAGIC, digest, payload))


def _unwrap(key: str, raw: bytes) -> bytes | None:
    if len(raw) < _HEADER_BYTES or not raw.startswith(_MAGIC):
        return None
    payload = raw[_HEADER_BYTES:]
    digest = hashlib.sha256(key.encode() + payload).digest()
    return payload if digest == raw[len(_MAGIC) : _HEADER_BYTES] else None


def _write_whole(path: Path, raw: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit_bytes: int) -> bytes:
    with archive.open(member) as file:
        raw = file.read(limit_bytes + _HEADER_BYTES + 1)
    return raw if len(raw) <= limit_bytes + _HEADER_BYTES else b""


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # absent, not a folder, or removed meanwhile: nothing to list
        return []


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
