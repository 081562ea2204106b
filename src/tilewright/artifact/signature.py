"""Which artifacts this machine made: one record per manifest digest, beside the kernel cache.

Machine code from a file is as dangerous as a program from it. The records are kept as compiled kernels are:
nobody else can make one, as each carries a digest with a key that only the user can read.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tilewright.private_files import (
    TRUSTED,
    NotPrivate,
    PrivateFolder,
    Records,
    cache_place,
    keeps_nothing,
)

logger = logging.getLogger(__name__)

MAX_RECORDS = 20_000


def remember(manifest_sha256: str, cache_dir: Path | None) -> None:
    """Record an artifact that was just written. A disk that refuses means that its code is made again."""
    records = _records(cache_dir)
    if records is None or keeps_nothing():
        return
    try:
        records.put(manifest_sha256, b"")
        records.forget_oldest(MAX_RECORDS)
    except OSError as error:
        reason = error if isinstance(error, NotPrivate) else error.strerror
        logger.warning("cannot record the artifact as ours in %s (%s)", records.folder.path(TRUSTED), reason)


def is_ours(manifest_sha256: str, cache_dir: Path | None) -> bool:
    """Whether this machine, under this user, wrote the artifact. A record of others says no."""
    records = _records(cache_dir)
    if records is None:
        return False
    try:
        return records.get(manifest_sha256) is not None
    except OSError:
        return False


def _records(cache_dir: Path | None) -> Records | None:
    """The records; None where there is no home."""
    folder = cache_dir or cache_place()
    return None if folder is None else Records(PrivateFolder(folder), TRUSTED)
