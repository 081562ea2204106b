"""Mappings that earlier runs found, kept in the user's cache.

A search that no time limits answers the same question in the same way, so its answer is named by all that
decides it: the question, the machine, the sources of the mappers and of what they count with, and the solver
of integer programs. What a kept mapping costs is counted anew.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.private_files import MAPPINGS, PrivateFolder, Records, default_cache_directory

logger = logging.getLogger(__name__)

_MOST_KEPT = 20_000
"""Records, of some 300 bytes each; the latest stay."""
_PUTS_PER_CLEANING = 256
_PUTS = itertools.count(1)
_SOURCES = ("mapping", "cost", "loops", "hardware")


def kept_mapping(question: str, search: Callable[[], Mapping | None]) -> Mapping | None:
    """The answer of an earlier run to a question, else the search's, which is kept from then on; None: there
    is no mapping."""
    records, sources = _records(), _sources()
    if records is None or sources is None:
        return search()
    name = hashlib.sha256(f"{sources}\n{question}".encode()).hexdigest()
    try:
        content = records.get(name)
    except OSError as error:
        logger.debug("cannot read %s (%s)", records.folder.root, error)
        content = None
    if content is not None:
        return _read(content)
    found = search()
    try:
        records.put(name, _written(found))
        if next(_PUTS) % _PUTS_PER_CLEANING == 0:
            records.forget_oldest(_MOST_KEPT)
    except OSError as error:
        logger.debug("cannot write %s (%s)", records.folder.root, error)
    return found


def _records() -> Records | None:
    folder = default_cache_directory()
    return None if folder is None else Records(PrivateFolder(folder), MAPPINGS)


@functools.cache
def _sources() -> str | None:
    """Digest of what searches follow from; None where there are no sources, as in a frozen program."""
    root = Path(__file__).parents[2]
    paths = sorted(path for name in _SOURCES for path in (root / name).rglob("*.py"))
    digest = hashlib.sha256(_solver_version().encode())
    try:
        for path in paths:
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest() if paths else None


def _solver_version() -> str:
    try:
        return metadata.version("highspy")
    except metadata.PackageNotFoundError:
        return ""


def _written(mapping: Mapping | None) -> bytes:
    levels = (
        None
        if mapping is None
        else [
            [level.level, *([[x.dim, x.factor] for x in loops] for loops in (level.temporal, level.spatial))]
            for level in mapping.levels
        ]
    )
    return json.dumps(levels).encode()


def _read(content: bytes) -> Mapping | None:
    levels = json.loads(content)
    if levels is None:
        return None
    return Mapping(
        tuple(
            LevelLoops(name, *(tuple(Loop(dim, factor) for dim, factor in loops) for loops in both))
            for name, *both in levels
        )
    )
