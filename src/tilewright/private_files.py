"""What the project keeps on disk between runs: files that only their user can have written.

Among them is machine code that will run, so a file is used only if nobody else can have made or changed it:

* Every folder from `/` down is opened from the one before, and looked at through its descriptor. Above the
  cache's folder it belongs to the user or to root, and no other user may rename what lies in it. The cache's
  folder and all below it belong to the user, and nobody else may write there; links are not followed.
* A file is regular, the user's own, written by nobody else, not too large, and read through the descriptor
  that was checked. Opening never waits, as it would for a pipe.
* Each record carries a keyed digest (HMAC-SHA256) of its kind, name and content. The key lies elsewhere, in
  the user's state folder: who can place files in the cache, but cannot read the key, can make no record.

What fails a check is not used: one warning names it and says what to do, and the work is done anew.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.forks import ForkSafeLock
from tilewright.printable import printable

logger = logging.getLogger(__name__)

CACHE_ENV = "TILEWRIGHT_CACHE"
OBJECTS, LOOPS, TRUSTED = "objects", "loops", "trusted"
"""Kinds of records: compiled kernels (in folders by their first digits), loops of the cost models, digests of
artifacts made here."""
KINDS = (OBJECTS, LOOPS, TRUSTED)
DATABASE = "tuning.db"
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
KEY_NAME = "cache.key"
KEY_BYTES = 32
MAX_RECORD_BYTES = 256 << 20
"""Of one record: a larger file was not made here."""
MAX_LOOKED_AT = 200_000
"""Files that `hazards_below` looks at."""
TEMPORARY_PREFIX = ".put-"

_MAGIC = b"TILEWRIGHT-REC2\n"
_OLDER_MAGIC = b"TILEWRIGHT-OBJ1\n"  # without a key: not damaged, but not used
_KEY_MARK_BYTES = 8
_DIGEST_BYTES = 32
HEADER_BYTES = len(_MAGIC) + _KEY_MARK_BYTES + _DIGEST_BYTES
_MAX_LINKS = 40
_WRITABLE_BY_OTHERS = 0o022
_READABLE_BY_OTHERS = 0o077
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PASS = os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Passing through a folder takes no right to list it."""


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
    return _user_folder(environment, "XDG_CACHE_HOME", Path(".cache"))


def key_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the key of the digests lies: `XDG_STATE_HOME/tilewright`, else `~/.local/state/tilewright`.

    >>> key_directory({"HOME": "/home/me"}).as_posix()
    '/home/me/.local/state/tilewright'
    """
    return _user_folder(
        os.environ if environment is None else environment, "XDG_STATE_HOME", Path(".local", "state")
    )


def _user_folder(environment: Mapping[str, str], variable: str, below_home: Path) -> Path | None:
    xdg = environment.get(variable, "")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "tilewright"
    try:
        home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    except RuntimeError:
        return None
    return home / below_home / "tilewright" if home.is_absolute() else None


Place = Path | tuple[Path | str, ...]
"""A path, or its parts, which are joined only for a message."""


class NotPrivate(OSError):
    """A file or folder that others may have written, or that is no plain one: it is not used."""

    def __init__(self, path: Place, reason: str, advice: str) -> None:
        self.path = path if isinstance(path, Path) else Path(*path)
        self.reason, self.advice = reason, advice
        super().__init__(errno.EPERM, f"{reason}; {advice}", str(self.path))

    def __str__(self) -> str:
        return printable(f"{self.path} {self.reason}; {self.advice}")

    def told(self) -> NotPrivate:
        """The same without the frames of whom it was raised to, which would stay alive with it."""
        return NotPrivate(self.path, self.reason, self.advice)


class BadRecord(Exception):
    """Bytes that are no record of this kind and name. `is_stale`: of another key or version."""

    def __init__(self, *, is_stale: bool) -> None:
        super().__init__("made with another key" if is_stale else "damaged")
        self.is_stale = is_stale


_warned: set[str] = set()
_warned_lock = ForkSafeLock()


def warn_once(problem: NotPrivate) -> None:
    """Log a problem, unless this process already has."""
    text = str(problem)
    with _warned_lock:
        if text in _warned:
            return
        _warned.add(text)
    logger.warning("not used, as others may have written it: %s", text)


class _Held:
    """A descriptor that is closed with the last reader."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class PrivateFolder:
    """A folder that only its user can write, and what lies in it. Paths are given as parts below `root`.

    It is held open once it was found private, and opened again when another one lies at its path.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(os.path.abspath(root))
        self._held: _Held | None = None

    def path(self, *parts: str) -> Path:
        """The path of a part, for messages."""
        return self.root.joinpath(*parts)

    @contextlib.contextmanager
    def opened(self, *parts: str, create: bool = False) -> Iterator[int]:
        """A descriptor of a folder that was found private; `create` makes what is missing.

        Raises:
            NotPrivate: it, or a folder above it, is not.
            OSError: it is missing, or cannot be opened or made.
        """
        held = self._opened_root(create)
        descriptor = held.descriptor
        try:
            for depth, part in enumerate(parts, start=1):
                inner = _step(descriptor, part, (self.root, *parts[:depth]), create)
                if descriptor != held.descriptor:
                    os.close(descriptor)
                descriptor = inner
                _check_folder(os.fstat(descriptor), (self.root, *parts[:depth]))
            yield descriptor
        finally:
            if descriptor != held.descriptor:
                os.close(descriptor)

    def _opened_root(self, create: bool) -> _Held:
        """The folder itself. What is held cannot be moved from under us; its own mode is looked at again."""
        held = self._held
        with contextlib.suppress(OSError):
            if held is not None and os.path.samestat(
                os.lstat(self.root), status := os.fstat(held.descriptor)
            ):
                _check_folder(status, self.root)
                return held
        self._held = held = _Held(_opened_root(self.root, create))
        return held

    def is_private(self) -> bool:
        """Whether it is there, or can be made, and only its user can write it."""
        try:
            with self.opened(create=True):
                return True
        except OSError:
            return False

    def read(
        self, *parts: str, max_bytes: int = MAX_RECORD_BYTES, secret: bool = False, touch: bool = False
    ) -> bytes:
        """A file's bytes. `secret`: others may not even read it. `touch`: note that it was used now.

        Raises:
            NotPrivate: the file or a folder on the way is not the user's alone, or is no plain file.
            OSError: it is missing or cannot be read.
        """
        path: Place = (self.root, *parts)
        with self.opened(*parts[:-1]) as folder, _opened_file(folder, parts[-1], path) as (file, status):
            _check_file(status, path, max_bytes, secret=secret)
            if touch:
                with contextlib.suppress(OSError):  # a read-only cache still serves; its order of use stays
                    os.utime(file)
            return _read_all(file, status.st_size)

    def write(self, data: bytes, *parts: str, replace: bool = True) -> None:
        """Write a whole file, mode 0600 whatever the umask; without `replace` an existing one stays.

        Raises:
            NotPrivate: a folder on the way is not the user's alone.
            OSError: it cannot be written.
        """
        temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with self.opened(*parts[:-1], create=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
            handle = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o600)
                    file.write(data)
                if replace:
                    os.replace(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    _link(temporary, parts[-1], folder)
            except BaseException:
                _unlink(temporary, folder)
                raise

    def remove(self, *parts: str) -> bool:
        """Remove a file, or what lies in its place other than a folder; True if it is gone by that."""
        try:
            with self.opened(*parts[:-1]) as folder:
                return _unlink(parts[-1], folder)
        except OSError:
            return False

    def check(self, *parts: str, max_bytes: int) -> bool:
        """Whether a file is there; one that may be used, or it raises.

        Raises:
            NotPrivate: it, or a folder on the way, is not the user's alone, or it is no plain file.
        """
        path = self.path(*parts)
        try:
            with self.opened(*parts[:-1]) as folder:
                status = os.lstat(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            return False
        _check_file(status, path, max_bytes)
        return True

    def listing(self, *parts: str) -> tuple[tuple[str, os.stat_result], ...]:
        """Name and status of what a folder holds, in order of name; nothing for one that is not private."""
        found = []
        try:
            with self.opened(*parts) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # removed meanwhile
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
        except OSError:
            return ()
        return tuple(sorted(found, key=lambda pair: pair[0]))

    def files(self, *parts: str) -> tuple[tuple[str, os.stat_result], ...]:
        """The plain files among them."""
        return tuple((name, status) for name, status in self.listing(*parts) if stat.S_ISREG(status.st_mode))

    def hazards(self) -> tuple[NotPrivate, ...]:
        """Everything of a cache in this folder that is not used, and why."""
        found: list[NotPrivate] = []
        waiting: deque[tuple[str, ...]] = deque(
            [*((kind,) for kind in KINDS), *((name,) for name in (KEY_NAME, *DATABASE_FILES))]
        )
        try:
            with self.opened():
                pass
        except NotPrivate as problem:
            return (problem.told(),)
        except OSError:
            return ()
        num_seen = 0
        while waiting:
            parts = waiting.popleft()
            num_seen += 1
            if num_seen > MAX_LOOKED_AT:
                reason = f"holds more than MAX_LOOKED_AT = {MAX_LOOKED_AT} files"
                return (*found, NotPrivate(self.root, reason, "not all were looked at; remove it"))
            is_folder = parts[0] in KINDS and len(parts) < (3 if parts[0] == OBJECTS else 2)
            try:
                if not is_folder:
                    self.check(*parts, max_bytes=MAX_RECORD_BYTES)
                    continue
                with self.opened(*parts):
                    waiting.extend((*parts, name) for name, _ in self.listing(*parts))
            except NotPrivate as problem:
                found.append(problem.told())
            except OSError:  # absent
                continue
        return tuple(found)


_MAX_ANY_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """What `verify` found: how many records are whole, and the names of those that were removed.

    `damaged` are not what was written; `stale` are of another key or version, which is nobody's fault.
    """

    num_whole: int
    damaged: tuple[str, ...]
    stale: tuple[str, ...] = ()


class Records:
    """Records of one kind in a private folder, each with a keyed digest of kind, name and content."""

    def __init__(self, folder: PrivateFolder, kind: str) -> None:
        self.folder = folder
        self.kind = kind

    def get(self, name: str, *below: str) -> bytes | None:
        """The content; None if there is none, or none that may be used (which was said in a warning).

        A damaged record is removed, as is one of another key.

        Raises:
            OSError: it cannot be read.
        """
        path = (self.kind, *below, name)
        try:
            return self.verified(name, *below, touch=True)
        except FileNotFoundError:
            return None
        except NotPrivate as problem:
            warn_once(problem)
            return None
        except BadRecord as problem:
            if not problem.is_stale:
                damaged = printable(str(self.folder.path(*path)))
                logger.warning("%s is damaged: removed, and made anew", damaged)
            self.folder.remove(*path)
            return None

    def verified(self, name: str, *below: str, touch: bool = False) -> bytes:
        """The content. `touch` as of `PrivateFolder.read`.

        Raises:
            BadRecord: it is damaged, or not of this name, kind or key.
            OSError: as `PrivateFolder.read`.
        """
        raw = self.folder.read(self.kind, *below, name, touch=touch)
        key = record_key(self.folder)
        if key is None:  # out of reach, perhaps for now: the record stays
            raise FileNotFoundError(errno.ENOENT, "no key for its records", str(self.folder.root))
        return _opened_record(raw, key, self.kind, name)

    def put(self, name: str, content: bytes, *below: str) -> None:
        """Keep a record.

        Raises:
            OSError: it cannot be kept.
        """
        key = record_key(self.folder, create=True)
        if key is None:
            reason = "has no key for its records"
            raise NotPrivate(self.folder.root, reason, f"see the warning about {KEY_NAME}")
        self.folder.write(_sealed(content, key, self.kind, name), self.kind, *below, name)

    def verify(self) -> CacheCheck:
        """Read every record that lies in the kind's folder, or in one of its folders; remove the bad ones.

        What others may have written is not read, and stays: `hazards_of` tells.
        """
        num_whole = 0
        damaged: list[str] = []
        stale: list[str] = []
        for below, name in self._names():
            try:
                self.verified(name, *below)
                num_whole += 1
            except BadRecord as problem:
                (stale if problem.is_stale else damaged).append(name)
                self.folder.remove(self.kind, *below, name)
            except NotPrivate:  # told by `hazards_of`
                continue
            except FileNotFoundError:  # another process removed it
                continue
            except OSError:
                damaged.append(name)
                self.folder.remove(self.kind, *below, name)
        return CacheCheck(num_whole, tuple(sorted(damaged)), tuple(sorted(stale)))

    def _names(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every file, temporary ones excepted: the folders below the kind's, and its name."""
        for name, status in self.folder.listing(self.kind):
            is_folder = stat.S_ISDIR(status.st_mode)
            below = (name,) if is_folder else ()
            files = self.folder.files(self.kind, name) if is_folder else ((name, status),)
            for file, file_status in files:
                if stat.S_ISREG(file_status.st_mode) and not file.startswith(TEMPORARY_PREFIX):
                    yield below, file

    def forget_oldest(self, max_records: int) -> None:
        """Keep at most `max_records` of those that lie directly in the kind's folder: the latest ones."""
        records = self.folder.files(self.kind)
        if len(records) > max_records:
            oldest_first = sorted(records, key=lambda pair: (pair[1].st_mtime_ns, pair[0]))
            for name, _ in oldest_first[: len(records) - max_records]:
                self.folder.remove(self.kind, name)


def record_key(folder: PrivateFolder, *, create: bool = False) -> bytes | None:
    """The key of a cache's records: the user's; where there is no place for one, the folder's own.

    Without either, None: nothing is kept then. A key that others may read is not used.
    """
    for place in _key_places(folder):
        key = _key_in(place, create)
        if key is not None:
            return key
    return None


def hazards_of(root: Path | str) -> tuple[NotPrivate, ...]:
    """Everything of a cache, its key included, that is not used because others may have written it."""
    folder = PrivateFolder(root)
    found = list(folder.hazards())
    for place in _key_places(folder):
        try:
            place.read(KEY_NAME, max_bytes=KEY_BYTES, secret=True)
        except NotPrivate as problem:
            if str(problem) not in map(str, found):
                found.append(problem.told())
        except OSError:
            continue
    return tuple(found)


def verified_records(root: Path | str) -> CacheCheck:
    """Read every record of a cache and remove the bad ones; of the whole ones, kernels are counted."""
    checks = [Records(PrivateFolder(root), kind).verify() for kind in KINDS]
    return CacheCheck(
        checks[KINDS.index(OBJECTS)].num_whole,
        tuple(name for check in checks for name in check.damaged),
        tuple(name for check in checks for name in check.stale),
    )


def _key_places(folder: PrivateFolder) -> tuple[PrivateFolder, ...]:
    state = _state_folder(os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", ""))
    return (folder,) if state is None else (state, folder)


@functools.lru_cache(maxsize=8)
def _state_folder(xdg_state_home: str, home: str) -> PrivateFolder | None:
    found = key_directory({"XDG_STATE_HOME": xdg_state_home, "HOME": home})
    return None if found is None else PrivateFolder(found)


_keys: dict[Path, tuple[tuple[int, ...], bytes]] = {}
"""Keys that were read, with what tells whether the file is still the same."""


def _key_in(place: PrivateFolder, create: bool) -> bytes | None:
    path = place.path(KEY_NAME)
    known = _keys.get(path)
    if known is not None and known[0] == _stamp(path):
        return known[1]
    stamp = _stamp(path)
    key = _read_key(place)
    if key is None and create:
        key = _new_key(place)
        stamp = _stamp(path)
    if key is not None:
        _keys[path] = stamp, key
    return key


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns


def _read_key(place: PrivateFolder) -> bytes | None:
    try:
        key = place.read(KEY_NAME, max_bytes=KEY_BYTES, secret=True)
    except NotPrivate as problem:
        warn_once(problem)
        return None
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _new_key(place: PrivateFolder) -> bytes | None:
    """A key made now, or by another process that was first. A bad one goes."""
    try:
        found = _key_at(place)
        if found is not None and len(found) == KEY_BYTES:
            return found
        if found is not None:
            place.remove(KEY_NAME)
        with contextlib.suppress(FileExistsError):
            place.write(secrets.token_bytes(KEY_BYTES), KEY_NAME, replace=False)
    except NotPrivate as problem:
        warn_once(problem)
        return None
    except OSError as error:
        logger.debug("no key in %s (%s)", place.root, error)
        return None
    return _read_key(place)


def _key_at(place: PrivateFolder) -> bytes | None:
    """What lies in the key's place, nothing for what may not be used there."""
    try:
        return place.read(KEY_NAME, max_bytes=KEY_BYTES, secret=True)
    except FileNotFoundError:
        return None
    except NotPrivate as problem:
        if problem.path != place.path(KEY_NAME):
            raise
        warn_once(problem)
        return b""


def _sealed(content: bytes, key: bytes, kind: str, name: str) -> bytes:
    return b"".join((_MAGIC, key_mark(key), _digest(content, key, kind, name), content))


def _opened_record(raw: bytes, key: bytes, kind: str, name: str) -> bytes:
    marked = len(_MAGIC) + _KEY_MARK_BYTES
    if len(raw) >= marked and raw.startswith(_MAGIC) and raw[len(_MAGIC) : marked] != key_mark(key):
        raise BadRecord(is_stale=True)
    if raw.startswith(_OLDER_MAGIC):
        raise BadRecord(is_stale=True)
    content = raw[HEADER_BYTES:]
    is_whole = len(raw) >= HEADER_BYTES and raw.startswith(_MAGIC)
    if not is_whole or not hmac.compare_digest(_digest(content, key, kind, name), raw[marked:HEADER_BYTES]):
        raise BadRecord(is_stale=False)
    return content


def keyed_digest(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 of some byte strings, each with its length, so that no two lists give the same bytes."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _digest(content: bytes, key: bytes, kind: str, name: str) -> bytes:
    return keyed_digest(key, kind.encode(), name.encode(), content)


@functools.lru_cache(maxsize=8)
def key_mark(key: bytes) -> bytes:
    """A few bytes that say which key sealed a record, and nothing about the key."""
    return keyed_digest(key, b"mark")[:_KEY_MARK_BYTES]


def _opened_root(root: Path, create: bool) -> int:
    """A descriptor of a private folder, each step of the way checked.

    Links above it are followed if they are the user's or root's: nobody else can have made or changed them,
    as they lie in folders that were checked.
    """
    waiting = deque(root.parts[1:])
    at = Path(root.parts[0])
    descriptor = os.open(at, _PASS | os.O_DIRECTORY)
    num_links = 0
    try:
        while waiting:
            _check_above(os.fstat(descriptor), at)
            part = waiting.popleft()
            at, above = at / part, at
            target = None if part == ".." else _link_target(descriptor, part, at)
            if target is None:
                inner = _step(descriptor, part, at, create, listable=not waiting)
                os.close(descriptor)
                descriptor = inner
                continue
            num_links += 1
            if not waiting:
                raise NotPrivate(at, "is a symbolic link", "name the folder that it leads to, or remove it")
            if num_links > _MAX_LINKS:
                raise NotPrivate(at, "is one of too many symbolic links", _ELSEWHERE)
            waiting.extendleft(reversed([p for p in target.parts if p != "/"]))
            at = above
            if target.is_absolute():
                at = Path("/")
                other = os.open(at, _PASS | os.O_DIRECTORY)
                os.close(descriptor)
                descriptor = other
        _check_folder(os.fstat(descriptor), at)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_ELSEWHERE = f"keep the cache elsewhere ({CACHE_ENV} or --cache)"


def _link_target(folder: int, name: str, at: Path) -> Path | None:
    """Where a link leads that is the user's or root's; None for what is no link."""
    try:
        status = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivate(at, f"is a symbolic link of another user (uid {status.st_uid})", _ELSEWHERE)
    return Path(os.readlink(name, dir_fd=folder))


def _step(folder: int, name: str, at: Place, create: bool, *, listable: bool = True) -> int:
    """A descriptor of a folder in another one. `create` makes it, mode 0700."""
    flags = (_OPEN | os.O_RDONLY if listable else _PASS) | os.O_DIRECTORY
    try:
        found = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):  # another process was first
            os.mkdir(name, 0o700, dir_fd=folder)
            os.chmod(name, 0o700, dir_fd=folder)  # whatever the umask took
        found = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        status = os.lstat(name, dir_fd=folder)
        if not stat.S_ISDIR(status.st_mode):
            raise NotPrivate(at, f"is {_kind(status.st_mode)}, no folder", "remove it") from error
        raise
    return found


def _check_above(status: os.stat_result, path: Path) -> None:
    """A folder above a cache: nobody but the user and root may rename or replace what lies in it."""
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivate(path, f"belongs to another user (uid {status.st_uid})", _ELSEWHERE)
    if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivate(
            path, f"lets others replace what lies in it (mode {mode:04o})", f"chmod go-w it, or {_ELSEWHERE}"
        )


def _check_folder(status: os.stat_result, path: Place) -> None:
    """A cache's folder, or one below it."""
    if status.st_uid != os.geteuid():
        raise NotPrivate(
            path, f"belongs to another user (uid {status.st_uid})", f"remove it, or {_ELSEWHERE}"
        )
    _check_mode(status, path)


def _check_file(status: os.stat_result, path: Place, max_bytes: int, *, secret: bool = False) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivate(path, f"is {_kind(status.st_mode)}, no file", "remove it")
    if status.st_uid != os.geteuid():
        raise NotPrivate(path, f"belongs to another user (uid {status.st_uid})", "remove it")
    _check_mode(status, path)
    if secret and status.st_mode & _READABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivate(path, f"may be read by others (mode {mode:04o})", "remove it; a new one is made")
    if status.st_size > max_bytes:
        reason = f"is too large ({status.st_size} bytes, at most {max_bytes} are taken)"
        raise NotPrivate(path, reason, "remove it")


def _check_mode(status: os.stat_result, path: Place) -> None:
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivate(path, f"may be written by others (mode {mode:04o})", "chmod go-w it, or remove it")


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def _kind(mode: int) -> str:
    return next((text for test, text in _KINDS if test(mode)), "a device")


@contextlib.contextmanager
def _opened_file(folder: int, name: str, path: Place) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a file and its status; what cannot be opened for what it is raises as such."""
    try:
        file = os.open(name, _OPEN | os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        _check_file(os.lstat(name, dir_fd=folder), path, _MAX_ANY_BYTES)
        raise
    try:
        yield file, os.fstat(file)
    finally:
        os.close(file)


def _read_all(file: int, size_bytes: int) -> bytes:
    data = os.read(file, size_bytes)
    while len(data) < size_bytes:  # a signal, or a file that was cut off meanwhile
        more = os.read(file, size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def _link(source: str, name: str, folder: int) -> None:
    """Give a whole file its name, unless the name is taken."""
    try:
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: who renames last wins, and all read that one
        os.replace(source, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    _unlink(source, folder)


def _unlink(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
