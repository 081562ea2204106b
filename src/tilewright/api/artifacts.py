"""`tw.open`: compiled models that were saved. What compiles is loaded where something is compiled."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright.arguments import checked
from tilewright.artifact.option_check import SERVED
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.options import Options, options_of
from tilewright.progress import Progress
from tilewright.specialise.opened import open_compiled


@checked
def open_artifact(
    path: str | os.PathLike[str],
    threads: int | None = None,
    trust: bool = False,
    *,
    options: Options | None = None,
    **settings: Any,
) -> CompiledModel:
    """Open an artifact that `CompiledModel.save` wrote.

    Its machine code is used if it is for this processor and was signed by this user, or by a signer whom
    `tilewright trust` names, or if `trust` says so; otherwise it is generated again here from the stored
    program, and `remarks` says so. `settings` are fields of `Options`: of the code that it holds, `isa` picks
    one; what the artifact was compiled without cannot be asked of it.

    Raises:
        UsageError: no such file, or a setting that an artifact cannot honour.
        ArtifactCorrupt: not an artifact, damaged, or made by a newer version.
        BudgetExceeded: it needs more memory than `max_memory_bytes`.
    """
    if options is None:
        options = options_of({"threads": threads, "trust": trust, **settings})
    elif settings or trust or threads is not None:
        raise UsageError(f"{path}: give settings in options, or no options.")
    return open_compiled(Path(path), options)


def open_or_compile(
    path: Path, options: Options, progress: Progress | None = None, asked: Collection[str] | None = None
) -> CompiledModel:
    """The compiled model behind a file: an artifact is opened, a model compiled.

    `asked` are the options that were asked for; by default those that differ from the default.

    Raises:
        UsageError: an artifact, and options that only make sense while compiling.
    """
    if is_artifact(path):
        return open_compiled(path, options, asked)
    from tilewright.api.kept import compile_or_reuse
    from tilewright.api.models import load

    return compile_or_reuse(load(path, shapes=options.shapes), options, progress)


def require_asked_of_all(paths: Sequence[Path], options: Options, asked: Collection[str]) -> None:
    """That artifacts can honour the options that were asked for, even those that hold their default; where
    there are models among the files, that is said of those.

    Raises:
        UsageError: naming the options that one cannot honour.
    """
    from tilewright.artifact import require_asked

    if all(map(is_artifact, paths)):
        for path in paths:
            require_asked(path, options, asked)


def for_models(options: Options, paths: Iterable[Path]) -> Options:
    """Options for the models among some files: trust is said of the artifacts beside them."""
    return dataclasses.replace(options, trust=False) if any(map(is_artifact, paths)) else options


def asked_of_artifacts(options: Options, paths: Iterable[Path]) -> frozenset[str]:
    """Which options are asked of the artifacts among some files: where there are models too, how to compile
    is said of those."""
    return options.asked if all(map(is_artifact, paths)) else options.asked & SERVED
