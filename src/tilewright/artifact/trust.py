"""Which artifacts this machine made: one empty file per manifest digest, beside the kernel cache.

Machine code from a file is as dangerous as a program from it. Whoever can write this folder can already put
code into the kernel cache, so the record gives nobody new power.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tilewright.targets.cpu.cache import default_cache_directory

logger = logging.getLogger(__name__)

MAX_RECORDS = 20_000


def trust_directory(cache_dir: Path | None) -> Path | None:
    """The folder of the record; None where there is no home."""
    folder = cache_dir or default_cache_directory()
    return None if folder is None else folder / "trusted"


def remember(manifest_sha256: str, cache_dir: Path | None) -> None:
    """Record an artifact that was just written. A disk that refuses means that its code is made again."""
    folder = trust_directory(cache_dir)
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / manifest_sha256).touch(mode=0o600)
        _forget_oldest(folder)
    except OSError as error:
        logger.warning("cannot record the artifact as ours in %s (%s)", folder, error.strerror or error)


def is_ours(manifest_sha256: str, cache_dir: Path | None) -> bool:
    """Whether this machine, under this user, wrote the artifact. A folder that others may write says no."""
    folder = trust_directory(cache_dir)
    if folder is None:
        return False
    try:
        status = folder.stat()
        is_private = not status.st_mode & 0o022 and status.st_uid == os.getuid()
        return is_private and (folder / manifest_sha256).exists()
    except OSError:
        return False


def _forget_oldest(folder: Path) -> None:
    records = list(folder.iterdir())
    if len(records) <= MAX_RECORDS:
        return
    records.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in records[: len(records) - MAX_RECORDS]:
        path.unlink(missing_ok=True)
