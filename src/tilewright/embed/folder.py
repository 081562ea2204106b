"""Several files appear in a folder together: all of them or none, over nothing that is not ours.

A file is prepared without a name, or under a hidden one where the file system knows no nameless files,
and gets its name when all are on the disk. Everything is done relative to the folder as it was opened, and
no link in it is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UsageError

Bytes = bytes | bytearray | memoryview

LOCK_WAIT_S = 10.0
"""How long an export waits for others in the same folder."""

_LOCK_POLL_S = 0.01
_HIDDEN = ".tilewright-export-"
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """One file: its name, its content in pieces, and whether one that is there is ours, by its descriptor."""

    name: str
    chunks: tuple[Bytes, ...]
    is_ours: Callable[[int], bool]


def write_together(folder: Path, files: Sequence[FileToWrite], *, force: bool = False) -> None:
    """Write all files or none; those that replace something replace it whole.

    `force` replaces regular files that are not ours, too.

    Raises:
        UsageError: no such folder, something in the way that is not ours, or the disk refuses.
    """
    directory = _opened(folder)
    try:
        for file in files:
            _require_replaceable(directory, folder, file, force)
        with contextlib.ExitStack() as stack:
            staged = {file.name: stack.enter_context(_staged(directory, file)) for file in files}
            with _alone(directory, folder):
                for file in files:  # again: staging may have taken minutes
                    _require_replaceable(directory, folder, file, force)
                _publish(directory, staged)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror or error}).") from error
    finally:
        os.close(directory)


def require_folder(folder: Path) -> None:
    """That there is such a folder.

    Raises:
        UsageError: there is none, or it cannot be opened.
    """
    os.close(_opened(folder))


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{folder}: is not a folder ({reason}); create it, or give another with -o."
        ) from error


def _require_replaceable(directory: int, folder: Path, file: FileToWrite, force: bool) -> None:
    path = folder / file.name
    try:
        descriptor = os.open(file.name, _READ_ONLY, dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UsageError(
                f"{path}: is a link, which export does not follow; remove it or give another folder."
            ) from error
        if error.errno == errno.EACCES and force:
            return
        raise UsageError(f"{path}: cannot be looked at ({error.strerror}); remove it.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path}: is no regular file; remove it or give another folder.")
        if not force and not file.is_ours(descriptor):
            raise UsageError(
                f"{path}: export did not write this file, or it was changed since; remove it, give another "
                "folder, or overwrite it with --force (force=True)."
            )
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file that is complete: under a hidden name, or without one and known by its descriptor."""

    descriptor: int
    hidden: str | None


@contextlib.contextmanager
def _staged(directory: int, file: FileToWrite) -> Iterator[_Staged]:
    descriptor, hidden = _unnamed(directory)
    try:
        for chunk in file.chunks:
            view = memoryview(chunk).cast("B")
            while view:
                view = view[os.write(descriptor, view[: 1 << 30]) :]
        os.fsync(descriptor)
        yield _Staged(descriptor, hidden)
    finally:
        os.close(descriptor)
        if hidden is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(hidden, dir_fd=directory)


def _unnamed(directory: int) -> tuple[int, str | None]:
    """A new file to write to: nameless, so that a killed process leaves nothing, or under a hidden name."""
    flags = getattr(os, "O_TMPFILE", 0)
    if flags and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            return os.open(".", flags | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=directory), None
    hidden = _hidden_name()
    created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(hidden, created, 0o666, dir_fd=directory), hidden


def _hidden_name() -> str:
    return f"{_HIDDEN}{secrets.token_hex(16)}"


@contextlib.contextmanager
def _alone(directory: int, folder: Path) -> Iterator[None]:
    """Wait for another export that is giving its files their names here: it takes milliseconds.

    Any process that can open the folder can hold its lock for ever, so the wait is bounded.
    """
    end_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end_s:
                time.sleep(_LOCK_POLL_S)
                continue
            raise UsageError(
                f"{folder}: another process has had it locked for {LOCK_WAIT_S:g} s; end it, or give another "
                "folder."
            ) from None
        except OSError:  # some network file systems have no locks
            pass
        break
    yield


def _publish(directory: int, staged: Mapping[str, _Staged]) -> None:
    """Give every file its name; if one cannot be had, all that were there before come back."""
    done: list[tuple[str, str | None]] = []
    try:
        for name, file in staged.items():
            old = _kept(directory, name)
            done.append((name, old))
            _named(directory, file, name, is_new=old is None)
        os.fsync(directory)
    except BaseException:
        for name, old in reversed(done):
            with contextlib.suppress(OSError):
                if old is not None:
                    os.replace(old, name, src_dir_fd=directory, dst_dir_fd=directory)
                    os.unlink(old, dir_fd=directory)  # two names of one file are both left by `replace`
                elif _is_staged(directory, name, staged[name]):
                    os.unlink(name, dir_fd=directory)
        raise
    for _, old in done:
        if old is not None:
            with contextlib.suppress(OSError):
                os.unlink(old, dir_fd=directory)


def _kept(directory: int, name: str) -> str | None:
    """A second, hidden name for the file that is there; None if none is."""
    hidden = _hidden_name()
    try:
        os.link(name, hidden, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        os.rename(name, hidden, src_dir_fd=directory, dst_dir_fd=directory)  # a file system without links
    return hidden


def _named(directory: int, file: _Staged, name: str, *, is_new: bool) -> None:
    source = file.hidden
    if source is None:
        source = name if is_new else _hidden_name()
        # By way of /proc, a descriptor's file gets a name; it fails if the name is taken.
        os.link(f"/proc/self/fd/{file.descriptor}", source, dst_dir_fd=directory, follow_symlinks=True)
    if source == name:
        return
    try:
        os.replace(source, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(source, dir_fd=directory)
        raise


def _is_staged(directory: int, name: str, file: _Staged) -> bool:
    found, ours = os.stat(name, dir_fd=directory, follow_symlinks=False), os.fstat(file.descriptor)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
