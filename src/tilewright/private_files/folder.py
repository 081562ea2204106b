"""A folder that only its user can write, and what lies in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from tilewright.files import Bytes
from tilewright.private_files.checks import NotPrivate, Place, check_file, check_folder
from tilewright.private_files.opening import OPEN, link, opened_file, opened_root, read_all, step, unlink
from tilewright.private_files.places import DATABASE_FILES, KEY_NAME, KINDS, MODELS, OBJECTS

MAX_RECORD_BYTES = 256 << 20
"""Of one record: a larger file was not made here."""
MAX_LOOKED_AT = 200_000
"""Files that `PrivateFolder.hazards` looks at."""
TEMPORARY_PREFIX = ".put-"


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
                inner = step(descriptor, part, (self.root, *parts[:depth]), create)
                if descriptor != held.descriptor:
                    os.close(descriptor)
                descriptor = inner
                check_folder(os.fstat(descriptor), (self.root, *parts[:depth]))
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
                check_folder(status, self.root)
                return held
        self._held = held = _Held(opened_root(self.root, create))
        return held

    def is_private(self, *, create: bool = True) -> bool:
        """Whether it is there, or can be made and is, and only its user can write it."""
        try:
            with self.opened(create=create):
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
        with self.opened(*parts[:-1]) as folder, opened_file(folder, parts[-1], path) as (file, status):
            check_file(status, path, max_bytes, secret=secret)
            if touch:
                with contextlib.suppress(OSError):  # a read-only cache still serves; its order of use stays
                    os.utime(file)
            return read_all(file, status.st_size)

    @contextlib.contextmanager
    def opened_file(self, *parts: str, max_bytes: int) -> Iterator[int]:
        """A descriptor of a file that may be used: what is looked at is what is read.

        Raises:
            NotPrivate: it, or a folder on the way, is not the user's alone, or it is no plain file.
            OSError: it is missing or cannot be read.
        """
        path: Place = (self.root, *parts)
        with self.opened(*parts[:-1]) as folder, opened_file(folder, parts[-1], path) as (file, status):
            check_file(status, path, max_bytes)
            yield file

    def write(self, data: Bytes | Iterable[Bytes], *parts: str, replace: bool = True) -> None:
        """Write a whole file, of bytes or of pieces in order. Its mode is 0600 whatever the umask.

        Without `replace` an existing one stays.

        Raises:
            NotPrivate: a folder on the way is not the user's alone.
            OSError: it cannot be written.
        """
        temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with self.opened(*parts[:-1], create=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN
            handle = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o600)
                    file.writelines([data] if isinstance(data, Bytes) else data)
                if replace:
                    os.replace(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    link(temporary, parts[-1], folder)
            except BaseException:
                unlink(temporary, folder)
                raise

    def remove(self, *parts: str) -> bool:
        """Remove a file, or what lies in its place other than a folder; True if it is gone by that."""
        try:
            with self.opened(*parts[:-1]) as folder:
                return unlink(parts[-1], folder)
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
        check_file(status, path, max_bytes)
        return True

    def listing(self, *parts: str) -> tuple[tuple[str, os.stat_result], ...]:
        """Name and status of what a folder holds, in order of name; nothing for one that is not private."""
        listed = []
        try:
            with self.opened(*parts) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # removed meanwhile
                        listed.append((entry.name, entry.stat(follow_symlinks=False)))
        except OSError:
            return ()
        return tuple(sorted(listed, key=lambda pair: pair[0]))

    def files(self, *parts: str) -> tuple[tuple[str, os.stat_result], ...]:
        """The plain files among them."""
        return tuple((name, status) for name, status in self.listing(*parts) if stat.S_ISREG(status.st_mode))

    def hazards(self) -> tuple[NotPrivate, ...]:
        """Everything of a cache in this folder that is not used, and why."""
        hazards: list[NotPrivate] = []
        waiting: deque[tuple[str, ...]] = deque(
            [*((kind,) for kind in (*KINDS, MODELS)), *((name,) for name in (KEY_NAME, *DATABASE_FILES))]
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
                return (*hazards, NotPrivate(self.root, reason, "not all were looked at; remove it"))
            is_folder = parts[0] in (*KINDS, MODELS) and len(parts) < (3 if parts[0] == OBJECTS else 2)
            try:
                if not is_folder:
                    self.check(*parts, max_bytes=MAX_RECORD_BYTES)
                    continue
                with self.opened(*parts):
                    waiting.extend((*parts, name) for name, _ in self.listing(*parts))
            except NotPrivate as problem:
                hazards.append(problem.told())
            except OSError:  # absent
                continue
        return tuple(hazards)
