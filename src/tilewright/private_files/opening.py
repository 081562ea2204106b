"""Descriptors of folders and files, each step of the way checked; nothing waits."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tilewright.private_files.checks import (
    ELSEWHERE,
    NotPrivate,
    Place,
    check_above,
    check_file,
    check_folder,
    kind_of,
)

_MAX_LINKS = 40
OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PASS = os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Passing through a folder takes no right to list it."""
_MAX_ANY_BYTES = 1 << 40


def opened_root(root: Path, create: bool) -> int:
    """A descriptor of a private folder, each step of the way checked.

    Links above it are followed if they are the user's or root's: no other user can have made or changed them,
    as they lie in folders that were checked.
    """
    waiting = deque(root.parts[1:])
    at = Path(root.parts[0])
    descriptor = os.open(at, _PASS | os.O_DIRECTORY)
    num_links = 0
    try:
        while waiting:
            check_above(os.fstat(descriptor), at)
            part = waiting.popleft()
            at, above = at / part, at
            target = None if part == ".." else _link_target(descriptor, part, at)
            if target is None:
                inner = step(descriptor, part, at, create, listable=not waiting)
                os.close(descriptor)
                descriptor = inner
                continue
            num_links += 1
            if not waiting:
                raise NotPrivate(at, "is a symbolic link", "name the folder that it leads to, or remove it")
            if num_links > _MAX_LINKS:
                raise NotPrivate(at, "is one of too many symbolic links", ELSEWHERE)
            waiting.extendleft(reversed([p for p in target.parts if p != "/"]))
            at = above
            if target.is_absolute():
                at = Path("/")
                other = os.open(at, _PASS | os.O_DIRECTORY)
                os.close(descriptor)
                descriptor = other
        check_folder(os.fstat(descriptor), at)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _link_target(folder: int, name: str, at: Path) -> Path | None:
    """Where a link leads that is the user's or root's; None for what is no link."""
    try:
        status = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivate(at, f"is a symbolic link of another user (uid {status.st_uid})", ELSEWHERE)
    return Path(os.readlink(name, dir_fd=folder))


def step(folder: int, name: str, at: Place, create: bool, *, listable: bool = True) -> int:
    """A descriptor of a folder in another one. `create` makes it, mode 0700."""
    flags = (OPEN | os.O_RDONLY if listable else _PASS) | os.O_DIRECTORY
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):  # another process was first
            os.mkdir(name, 0o700, dir_fd=folder)
            os.chmod(name, 0o700, dir_fd=folder)  # whatever the umask took
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        status = os.lstat(name, dir_fd=folder)
        if not stat.S_ISDIR(status.st_mode):
            raise NotPrivate(at, f"is {kind_of(status.st_mode)}, no folder", "remove it") from error
        raise
    return descriptor


@contextlib.contextmanager
def opened_file(folder: int, name: str, path: Place) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of a file and its status; what cannot be opened for what it is raises as such."""
    try:
        file = os.open(name, OPEN | os.O_RDONLY, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        check_file(os.lstat(name, dir_fd=folder), path, _MAX_ANY_BYTES)
        raise
    try:
        yield file, os.fstat(file)
    finally:
        os.close(file)


def read_all(file: int, size_bytes: int) -> bytes:
    """So many bytes of a file, or all that it has."""
    data = os.read(file, size_bytes)
    while len(data) < size_bytes:  # a signal, or a file that was cut off meanwhile
        more = os.read(file, size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def link(source: str, name: str, folder: int) -> None:
    """Give a whole file its name, unless the name is taken."""
    try:
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the last rename wins, and all read that one
        os.replace(source, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    unlink(source, folder)


def unlink(name: str, folder: int) -> bool:
    """Remove a file; whether it is gone by that."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
