"""The constants of an artifact, which code for several sets of shapes shares."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.artifact.container import MANIFEST, Archive
from tilewright.artifact.members import WEIGHTS
from tilewright.artifact.tensors import decode_tensors
from tilewright.content_pool import ContentPool
from tilewright.fields import field_of
from tilewright.system.forks import ForkSafeLock
from tilewright.targets.named_constants import resolved_constants


class ArchiveConstants:
    """The constants of an archive by their digests: read when they are asked for, and again when nothing held
    them in between."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = ForkSafeLock()
        self._held: weakref.ref[Array] | None = None

    def __call__(self) -> Mapping[str, Array | bytes]:
        """Views of one buffer, which was verified."""
        archive = self._archive
        with self._lock:
            data = None if self._held is None else self._held()
            if data is None:
                data = np.empty(archive.size_of(WEIGHTS), np.uint8)
                archive.read_into(WEIGHTS, data.data)
                data.flags.writeable = False
                self._held = weakref.ref(data)
        with archive.decoding(WEIGHTS):
            tensors = decode_tensors(data.data)
        with archive.decoding(MANIFEST):
            return resolved_constants(tensors, field_of(archive.manifest, "constants", dict[str, Any]))


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What sets of shapes have in common: constants of the file, and those that were arranged for kernels."""

    constants: ArchiveConstants
    pool: ContentPool
