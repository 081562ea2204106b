"""What a folder, a file and those above them must be, so that no other user can have written them."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

from tilewright.private_files.places import CACHE_ENV
from tilewright.system.forks import ForkSafeLock
from tilewright.text.printable import printable

logger = logging.getLogger(__name__)

_WRITABLE_BY_OTHERS = 0o022
_READABLE_BY_OTHERS = 0o077

ELSEWHERE = f"keep the cache elsewhere ({CACHE_ENV} or --cache)"

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
        """The same without the frames of its callers, which would stay alive with it."""
        return NotPrivate(self.path, self.reason, self.advice)


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


def check_above(status: os.stat_result, path: Path) -> None:
    """A folder above a cache: only the user and root may rename or replace what lies in it."""
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivate(path, f"belongs to another user (uid {status.st_uid})", ELSEWHERE)
    if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise NotPrivate(
            path, f"lets others replace what lies in it (mode {mode:04o})", f"chmod go-w it, or {ELSEWHERE}"
        )


def check_folder(status: os.stat_result, path: Place) -> None:
    """A cache's folder, or one below it."""
    if status.st_uid != os.geteuid():
        raise NotPrivate(path, f"belongs to another user (uid {status.st_uid})", f"remove it, or {ELSEWHERE}")
    _check_mode(status, path)


def check_file(status: os.stat_result, path: Place, max_bytes: int, *, secret: bool = False) -> None:
    """A file of a cache; `secret`: others may not even read it."""
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivate(path, f"is {kind_of(status.st_mode)}, no file", "remove it")
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


def kind_of(mode: int) -> str:
    """What a mode is of, for messages."""
    return next((text for test, text in _KINDS if test(mode)), "a device")
