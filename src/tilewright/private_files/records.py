"""Records of a cache: read if they may be used, kept, verified, forgotten."""

from __future__ import annotations

import errno
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

from tilewright.private_files.checks import NotPrivate, warn_once
from tilewright.private_files.folder import TEMPORARY_PREFIX, PrivateFolder
from tilewright.private_files.keys import (
    KEY_BYTES,
    BadRecord,
    key_places,
    opened_record,
    record_key,
    sealed,
    state_folder,
)
from tilewright.private_files.places import KEY_NAME, KINDS, OBJECTS, SIGNING_KEY_NAME
from tilewright.records import dataclass
from tilewright.text.printable import printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheCheck:
    """What `verify` found: how many records are whole, and the names of those that were removed.

    `damaged` are not what was written; `stale` are of another key or version, which is no fault.
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
        return opened_record(raw, key, self.kind, name)

    def put(self, name: str, content: bytes, *below: str) -> None:
        """Keep a record.

        Raises:
            OSError: it cannot be kept.
        """
        key = record_key(self.folder, create=True)
        if key is None:
            reason = "has no key for its records"
            raise NotPrivate(self.folder.root, reason, f"see the warning about {KEY_NAME}")
        self.folder.write(sealed(content, key, self.kind, name), self.kind, *below, name)

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


def hazards_of(root: Path | str) -> tuple[NotPrivate, ...]:
    """Everything of a cache, the user's keys included, that is not used: others may have written it."""
    folder = PrivateFolder(root)
    hazards = list(folder.hazards())
    keys = [(place, KEY_NAME) for place in key_places(folder)]
    state = state_folder()
    if state is not None:
        keys.append((state, SIGNING_KEY_NAME))
    for place, name in keys:
        try:
            place.read(name, max_bytes=KEY_BYTES, secret=True)
        except NotPrivate as problem:
            if str(problem) not in map(str, hazards):
                hazards.append(problem.told())
        except OSError:
            continue
    return tuple(hazards)


def verified_records(root: Path | str) -> CacheCheck:
    """Read every record of a cache and remove the bad ones; of the whole ones, kernels are counted."""
    checks = [Records(PrivateFolder(root), kind).verify() for kind in KINDS]
    return CacheCheck(
        checks[KINDS.index(OBJECTS)].num_whole,
        tuple(name for check in checks for name in check.damaged),
        tuple(name for check in checks for name in check.stale),
    )
