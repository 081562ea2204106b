"""Compilations kept between runs: a model is not compiled again where the request is the same.

What is kept is an artifact without weights, signed with the user's key, under a digest of all that decides
what a compilation gives: the model's bytes, the options, this package, the machine, and what tuning found. A
request that names more than that (a planner with options, which may name files, a plugin, a budget) is not
kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from tilewright.api.compilation import compilation_request
from tilewright.api.models import Model
from tilewright.api.open_compilation import compile_open
from tilewright.api.static_compilation import compile_static
from tilewright.arrays import Array
from tilewright.artifact import read_kept, verify_artifact
from tilewright.artifact.write import kept_artifact
from tilewright.compiled import CompiledModel
from tilewright.content_pool import ContentPool
from tilewright.errors import TilewrightError
from tilewright.families import MEMORY_PLANNERS, PARTITIONERS, SCHEDULERS
from tilewright.frontend.onnx import PreparedModel
from tilewright.hardware.probe import host_calibration, probe_host, processor_facts
from tilewright.options import AUTO, Options
from tilewright.private_files import (
    DATABASE_FILES,
    MODELS,
    NotPrivate,
    PrivateFolder,
    default_cache_directory,
    warn_once,
)
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.target_ref import CPU
from tilewright.version import __version__

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20
MAX_KEPT_BYTES = 256 << 20
"""Of all of them: those that were used longest ago go first."""


def compile_or_reuse(model: Model, options: Options, progress: Progress | None = None) -> CompiledModel:
    """`compile_model` of a model as it was loaded, or what that gave before for the same request: of a model
    whose shapes are open, for the same shapes.

    Raises:
        ModelRejected, UnsupportedOp, UsageError, BudgetExceeded: as `compile_model`.
    """
    model, options = compilation_request(model, None, None, options, {})
    if isinstance(model.source, PreparedModel):
        return compile_open(model, model.source, options, progress, _compiled_or_reused)
    if options.first_answer == "quick":
        from tilewright.api.quick_compilation import quick_model

        return quick_model(
            model, options, lambda progress: _compiled_or_reused(model, options, progress=progress)
        )
    return _compiled_or_reused(model, options, progress=progress)


def _compiled_or_reused(
    model: Model, options: Options, pool: ContentPool | None = None, progress: Progress | None = None
) -> CompiledModel:
    place = _place(model, options)
    found = None if place is None else place.find(model, options, pool)
    if found is not None:
        return found
    compiled = compile_static(model, options, pool, progress)
    if place is not None and _is_final(compiled):
        place.keep(compiled)
    return compiled


def _is_final(compiled: CompiledModel) -> bool:
    """Whether it would be made so again: what measurements chose may change with the next ones, and what was
    interrupted is not whole."""
    return compiled.tuning is None and not compiled.program.schedule.provenance.is_interrupted


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the compilation of one request is kept."""

    folder: PrivateFolder
    name: str

    def find(self, model: Model, options: Options, pool: ContentPool | None) -> CompiledModel | None:
        """What is kept of it, if it may be used."""
        start_s = time.monotonic()
        path = self.folder.path(MODELS, self.name)
        try:
            with self.folder.opened_file(MODELS, self.name, max_bytes=MAX_FILE_BYTES) as opened:
                constants = functools.partial(_constants, model, options)
                kept = read_kept(path, opened, options, constants, pool)
                with suppress(OSError):
                    os.utime(opened)
        except FileNotFoundError:
            return None
        except NotPrivate as problem:
            warn_once(problem)
            return None
        except (TilewrightError, OSError) as error:
            logger.info("compiled again: %s", error)
            self.folder.remove(MODELS, self.name)
            return None
        phase_s = {"reuse": time.monotonic() - start_s}
        return CompiledModel(
            kept.facts, kept.body, remarks=kept.remarks, phase_s=phase_s, num_threads=kept.num_threads
        )

    def keep(self, compiled: CompiledModel) -> None:
        """Keep a compilation. A disk that refuses means that the next one takes as long."""
        try:
            self.folder.write(kept_artifact(compiled.content()), MODELS, self.name)
        except (TilewrightError, OSError) as error:
            logger.info("not kept: %s", error)
            return
        prune_kept(self.folder, MAX_KEPT_BYTES)


def kept_sizes(folder: PrivateFolder) -> tuple[int, ...]:
    """Bytes of each compilation that a cache keeps."""
    return tuple(status.st_size for _, status in folder.files(MODELS))


def prune_kept(folder: PrivateFolder, max_bytes: int) -> int:
    """Remove those used least recently until at most `max_bytes` remain; returns the bytes removed."""
    kept_bytes = removed_bytes = 0
    for name, status in sorted(folder.files(MODELS), key=lambda pair: pair[1].st_mtime_ns, reverse=True):
        kept_bytes += status.st_size
        if kept_bytes > max_bytes and folder.remove(MODELS, name):
            removed_bytes += status.st_size
    return removed_bytes


def damaged_kept(folder: PrivateFolder) -> tuple[str, ...]:
    """Read every compilation that is kept, remove those that are not whole, and say which they were."""
    damaged = []
    for name, _ in folder.files(MODELS):
        try:
            with folder.opened_file(MODELS, name, max_bytes=MAX_FILE_BYTES) as opened:
                verify_artifact(folder.path(MODELS, name), opened)
        except FileNotFoundError:  # another process removed it
            continue
        except NotPrivate:  # which is not used, whatever it holds
            continue
        except (TilewrightError, OSError) as error:
            logger.info("%s", error)
            folder.remove(MODELS, name)
            damaged.append(name)
    return tuple(damaged)


def _constants(model: Model, options: Options, named: Mapping[str, str]) -> Mapping[str, Array | bytes]:
    """Those of the graph after the passes, which give the same each time: so the names of values say which is
    which, and their bytes are not hashed again. What has no such name is an attribute's.
    """
    from tilewright.compiler import optimise
    from tilewright.ir.text import attribute_constants

    graph = optimise(model.graph, options)[0]
    values = {value.name: value.data for value in graph.values() if value.data is not None}
    found = {digest: values[name] for digest, name in named.items() if name in values}
    return {**attribute_constants(graph), **found} if len(found) < len(named) else found


def _place(model: Model, options: Options) -> _Place | None:
    """Where the compilation of a request is kept; None for one that says more than a digest can tell."""
    directory = options.cache_dir or default_cache_directory()
    planners = (
        (options.partition, PARTITIONERS),
        (options.schedule, SCHEDULERS),
        (options.memory, MEMORY_PLANNERS),
    )
    is_plain = (
        options.target == CPU
        and options.budget is None
        and not (options.no_cache or options.verify or options.passes or options.dump_after)
        and all(name in (AUTO, *family.built_in_names()) for name, family in planners)
    )
    if directory is None or not is_plain:
        return None
    import llvmlite
    import onnx

    from tilewright.ir.graph import Graph

    host = probe_host()
    request = [
        __version__,
        [np.__version__, onnx.__version__, llvmlite.__version__],
        _package_digest(),
        model.sha256,
        options.to_json(),
        [model.source.row_axes, model.source.past_axes, model.source.shares_constants]
        if isinstance(model.source, Graph)
        else [],
        repr(processor_facts()),
        repr((host.cpu_name, host.num_threads, host.caches, host_calibration())),
        [_stamp(directory / name) for name in DATABASE_FILES],
    ]
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    return _Place(PrivateFolder(directory), f"{digest}.tw")


def _stamp(path: Path) -> list[int]:
    """What changes with a file's content."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns if status.st_size else 0]


@functools.cache
def _package_digest() -> str:
    """Of this package as it is installed: what another version of it compiled is not used."""
    root = Path(__file__).parents[1]
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".yaml"))
    stamps = [(str(path.relative_to(root)), *_stamp(path)) for path in files]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()
