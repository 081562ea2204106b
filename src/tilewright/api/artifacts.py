"""`tw.open` and `tw.export`: compiled models that were saved, and models written for C programs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.api.compilation import compilation_request, compile_model
from tilewright.api.models import Model, Shapes
from tilewright.arguments import checked
from tilewright.artifact.honour import SERVED
from tilewright.compiled import CompiledModel
from tilewright.compiler import plan
from tilewright.errors import UsageError
from tilewright.files import is_artifact
from tilewright.frontend.onnx import Source
from tilewright.options import Options
from tilewright.progress import PhaseClock, Progress
from tilewright.tuning import NO_CHOICES

if TYPE_CHECKING:
    from tilewright.embed import ExportedModel


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

    Its machine code is used if it is for this processor and was signed by this user, or by somebody whom
    `tilewright trust` names, or if `trust` says so; otherwise it is generated again here from the stored
    program, and `remarks` says so. `settings` are fields of `Options`: of the code that it holds, `isa` picks
    one; what the artifact was compiled without cannot be asked of it.

    Raises:
        UsageError: no such file, or a setting that an artifact cannot honour.
        ArtifactCorrupt: not an artifact, damaged, or made by a newer version.
        BudgetExceeded: it needs more memory than `max_memory_bytes`.
    """
    if options is None:
        options = Options(threads=threads, trust=trust, **settings)
    elif settings or trust or threads is not None:
        raise UsageError(f"{path}: give settings in options, or no options.")
    return CompiledModel.open(Path(path), options)


def open_or_compile(
    path: Path,
    options: Options,
    progress: Progress | None = None,
    asked: Collection[str] | None = None,
) -> CompiledModel:
    """The compiled model behind a file: an artifact is opened, a model compiled.

    `asked` are the options that were asked for; by default those that differ from the default.

    Raises:
        UsageError: an artifact, and options that only make sense while compiling.
    """
    if is_artifact(path):
        return CompiledModel.open(path, options, asked)
    if options.trust:
        raise UsageError(f"{path}: --trust is for artifacts, and this is a model; leave it out.")
    return compile_model(path, options=options, progress=progress)


def asked_of_artifacts(options: Options, paths: Iterable[Path]) -> frozenset[str]:
    """Which options are asked of the artifacts among some files: where there are models too, how to compile
    is said of those."""
    return options.asked if all(map(is_artifact, paths)) else options.asked & SERVED


@checked
def export_model(
    model: CompiledModel | Model | Source,
    folder: str | os.PathLike[str],
    isa: str = "host",
    *,
    name: str | None = None,
    force: bool = False,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> ExportedModel:
    """Write a model as an object file, a C header, a file of weights and an example into a folder.

    `isa` is host, avx2, avx512 or neon (aarch64): any machine's code can be written on any. `name` is that of
    the files and of the C function; the model's by default. Files of an earlier export are replaced, all or
    none; others, and those that were edited since, only with `force`. The rest is as for `compile`.

    Raises:
        UsageError: an unknown instruction set, no such folder, a name that is too long, or a file in the way.
        UnsupportedOp: an operator without generated code.
    """
    from tilewright.embed import EmittingTarget, export_object, isa_for_export

    record = isa_for_export(isa)
    if isinstance(model, CompiledModel):
        program, digest, stem = model.program, model.model_sha256, "model"
    else:
        model, options = compilation_request(model, "cpu", shapes, options, settings)
        clock = PhaseClock(options.timeout_s, progress)
        program = plan(model.graph, options, clock, target=EmittingTarget(record=record)).program
        digest = model.sha256
        stem = Path(model.name).stem
    # Measured choices are another machine's.
    program = dataclasses.replace(program, choices=NO_CHOICES)
    return export_object(
        program,
        record,
        Path(folder),
        name=name or stem,
        model_sha256=digest,
        force=force,
        progress=progress,
    )
