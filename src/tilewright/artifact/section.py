"""A folder of an archive that is an artifact itself, but for its constants, which all folders share."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.artifact.container import MANIFEST, Archive, Decoding
from tilewright.artifact.members import WEIGHTS
from tilewright.artifact.signature import Signature
from tilewright.artifact.tensors import decode_tensors
from tilewright.content_pool import ContentPool
from tilewright.errors import ArtifactCorrupt
from tilewright.fields import field_of
from tilewright.files import Bytes
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
    """What sections have in common: constants of the file, and those that were arranged for kernels."""

    constants: ArchiveConstants
    pool: ContentPool


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """See the module; what it does is said of `Archive`."""

    archive: Archive
    folder: str
    manifest: Any

    @classmethod
    def of(cls, archive: Archive, folder: str) -> Section:
        """The section in a folder, whose manifest is read."""
        return cls(archive, folder, archive.json(folder + MANIFEST))

    @property
    def path(self) -> Any:  # noqa: D102
        return self.archive.path

    @property
    def format_version(self) -> int:  # noqa: D102
        return self.archive.format_version

    @property
    def signature(self) -> Signature | None:  # noqa: D102
        return self.archive.signature

    @property
    def names(self) -> tuple[str, ...]:  # noqa: D102
        names = self.archive.names
        return tuple(n.removeprefix(self.folder) for n in names if n.startswith(self.folder))

    def size_of(self, name: str) -> int:  # noqa: D102
        return self.archive.size_of(self.folder + name)

    def read(self, name: str) -> bytes:  # noqa: D102
        return self.archive.read(self.folder + name)

    def read_into(self, name: str, target: Bytes) -> None:  # noqa: D102
        self.archive.read_into(self.folder + name, target)

    def json(self, name: str) -> Any:  # noqa: D102
        return self.archive.json(self.folder + name)

    def verify_signature(self) -> None:  # noqa: D102
        self.archive.verify_signature()

    def corrupt(self, reason: str) -> ArtifactCorrupt:  # noqa: D102
        return self.archive.corrupt(reason)

    def decoding(self, member: str = "") -> Decoding:  # noqa: D102
        return self.archive.decoding(self.folder + member)


AnyArchive = Archive | Section
"""A whole artifact, or one of several in a file."""
