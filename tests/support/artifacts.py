"""Artifacts taken apart, changed, and put together again with all digests right."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.artifact.container import Archive, Member, write_archive

Change = Callable[[dict[str, Any], dict[str, bytes]], object]
"""Of a manifest and of members, in place."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An artifact taken apart: its manifest without the list of members, and the members."""

    manifest: dict[str, Any]
    members: dict[str, bytes]

    @classmethod
    def of(cls, path: Path) -> Parts:
        """What an artifact holds."""
        archive = Archive(path)
        members = {name: archive.read(name) for name in archive.names if name != "manifest.json"}
        archive.close()
        return cls({k: v for k, v in archive.manifest.items() if k != "members"}, members)

    def copy(self) -> Parts:
        """Parts that can be changed."""
        return Parts(copy.deepcopy(self.manifest), dict(self.members))

    def write(self, path: Path) -> None:
        """The artifact with all digests right."""
        write_archive(path, self.manifest, [Member(n, (data,)) for n, data in self.members.items()])


def rewritten(source: Path, target: Path, change: Change) -> Path:
    """The same artifact after a change, all digests right again; it is not signed."""
    parts = Parts.of(source)
    change(parts.manifest, parts.members)
    parts.write(target)
    return target


def small_artifact(folder: Path) -> Path:
    """`small_net`, compiled once in this process for one thread."""
    path = folder / "m.tw"
    path.write_bytes(_small_artifact())
    return path


@functools.cache
def _small_artifact() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tw.compile(small_net(), threads=1).save(Path(folder) / "m.tw").read_bytes()


def refusal(path: Path, **settings: Any) -> str:
    """The one line by which an artifact is refused, which names it."""

    def use() -> None:
        compiled = tw.open(path, **settings)
        compiled.load()
        _ = compiled.program

    with pytest.raises(tw.ArtifactCorrupt) as caught:
        use()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def same(results: list[np.ndarray[Any, Any]], others: list[np.ndarray[Any, Any]]) -> bool:
    """Whether arrays are equal, one by one."""
    return all(np.array_equal(a, b) for a, b in zip(results, others, strict=True))
