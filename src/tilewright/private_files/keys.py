"""The key of a cache's records, and what it seals: what a record is, and that no other user made it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path

from tilewright.private_files.checks import NotPrivate, warn_once
from tilewright.private_files.folder import PrivateFolder
from tilewright.private_files.places import KEY_NAME, SIGNING_KEY_NAME, key_directory

logger = logging.getLogger(__name__)

KEY_BYTES = 32

_MAGIC = b"TILEWRIGHT-REC2\n"
_OLDER_MAGIC = b"TILEWRIGHT-OBJ1\n"  # without a key: not damaged, but not used
_KEY_MARK_BYTES = 8
_DIGEST_BYTES = 32
HEADER_BYTES = len(_MAGIC) + _KEY_MARK_BYTES + _DIGEST_BYTES


class BadRecord(Exception):
    """Bytes that are no record of this kind and name. `is_stale`: of another key or version."""

    def __init__(self, *, is_stale: bool) -> None:
        super().__init__("made with another key" if is_stale else "damaged")
        self.is_stale = is_stale


def signing_seed(*, create: bool = False) -> bytes | None:
    """The secret from which the user's signing key is made; None where there is no place for one."""
    state = state_folder()
    return None if state is None else _key_in(state, create, SIGNING_KEY_NAME)


def record_key(folder: PrivateFolder, *, create: bool = False) -> bytes | None:
    """The key of a cache's records: the user's; where there is no place for one, the folder's own.

    Without either, None: nothing is kept then. A key that others may read is not used.
    """
    for place in key_places(folder):
        key = _key_in(place, create)
        if key is not None:
            return key
    return None


def key_places(folder: PrivateFolder) -> tuple[PrivateFolder, ...]:
    """Where the key of a folder's records may lie, the first choice first."""
    state = state_folder()
    return (folder,) if state is None else (state, folder)


def state_folder() -> PrivateFolder | None:
    """The folder of the user's keys; None where there is no home."""
    return _state_folder(os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", ""))


@functools.lru_cache(maxsize=8)
def _state_folder(xdg_state_home: str, home: str) -> PrivateFolder | None:
    directory = key_directory({"XDG_STATE_HOME": xdg_state_home, "HOME": home})
    return None if directory is None else PrivateFolder(directory)


_keys: dict[Path, tuple[tuple[int, ...], bytes]] = {}
"""Keys that were read, with what tells whether the file is still the same."""


def _key_in(place: PrivateFolder, create: bool, name: str = KEY_NAME) -> bytes | None:
    path = place.path(name)
    known = _keys.get(path)
    if known is not None and known[0] == _stamp(path):
        return known[1]
    stamp = _stamp(path)
    key = _read_key(place, name)
    if key is None and create:
        key = _new_key(place, name)
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


def _read_key(place: PrivateFolder, name: str) -> bytes | None:
    try:
        key = place.read(name, max_bytes=KEY_BYTES, secret=True)
    except NotPrivate as problem:
        warn_once(problem)
        return None
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _new_key(place: PrivateFolder, name: str) -> bytes | None:
    """A key made now, or by another process that was first. A bad one goes."""
    try:
        present = _key_at(place, name)
        if present is not None and len(present) == KEY_BYTES:
            return present
        if present is not None:
            place.remove(name)
        with contextlib.suppress(FileExistsError):
            place.write(secrets.token_bytes(KEY_BYTES), name, replace=False)
    except NotPrivate as problem:
        warn_once(problem)
        return None
    except OSError as error:
        logger.debug("no key in %s (%s)", place.root, error)
        return None
    return _read_key(place, name)


def _key_at(place: PrivateFolder, name: str) -> bytes | None:
    """What lies in the key's place, nothing for what may not be used there."""
    try:
        return place.read(name, max_bytes=KEY_BYTES, secret=True)
    except FileNotFoundError:
        return None
    except NotPrivate as problem:
        if problem.path != place.path(name):
            raise
        warn_once(problem)
        return b""


def sealed(content: bytes, key: bytes, kind: str, name: str) -> bytes:
    """A record: its content behind the key's mark and the keyed digest."""
    return b"".join((_MAGIC, key_mark(key), _digest(content, key, kind, name), content))


def opened_record(raw: bytes, key: bytes, kind: str, name: str) -> bytes:
    """The content of a record.

    Raises:
        BadRecord: it is damaged, or not of this name, kind or key.
    """
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
