"""`tw.compile`: a model becomes something that runs."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from tilewright.api.models import Model, Shapes, as_model
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.errors import UsageError
from tilewright.files import is_artifact, require_other_file
from tilewright.frontend.onnx import PreparedModel, Source
from tilewright.options import Options, options_of, parse_open_shapes
from tilewright.progress import Progress
from tilewright.target_ref import TargetRef


@checked
def compile_model(
    model: Model | Source,
    target: str | TargetRef | None = None,
    *,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a model for a target.

    `settings` are fields of `Options` (`hint="latency"`, `budget="60s"`, `threads=2`, ...); `options` gives
    all of them at once. A model whose shapes are open is compiled for those that `shapes` list now, and for
    others when a run brings them: it is an `OpenCompiledModel`. With `first_answer="quick"` the first run is
    by the reference, and code is compiled beside after it: see `QuickCompiledModel`. `progress` is called
    with what is being done, how much of it is done, and how much there is.

    Raises:
        ModelRejected: the file is malformed, inconsistent or unsafe to read.
        UnsupportedOp: an operator that the target does not run.
        UsageError: an unknown setting or one that makes no sense.
        BudgetExceeded: a limit on time or memory would be passed.
    """
    is_loaded_here = not isinstance(model, Model)
    model, options = compilation_request(model, target, shapes, options, settings)
    if isinstance(model.source, PreparedModel):
        from tilewright.api.open_compilation import compile_open

        return compile_open(model, model.source, options, progress)
    if options.first_answer == "quick":
        from tilewright.api.quick_compilation import quick_model

        return quick_model(model, options, functools.partial(_compiled_beside, model, options))
    from tilewright.api.static_compilation import compile_static

    compiled = compile_static(model, options, progress=progress, releases=is_loaded_here)
    if is_loaded_here:
        # The loaded graph is not seen again. Nodes and values refer to each other, so it would be collected
        # late, and its weights would be in memory while those of the code are arranged.
        for value in model.source.initializers:
            value.data = None
    return compiled


def _compiled_beside(model: Model, options: Options, progress: Progress) -> CompiledModel:
    """A model compiled while it answers already."""
    from tilewright.api.static_compilation import compile_static

    return compile_static(model, options, progress=progress)


def compilation_request(
    model: Model | Source,
    target: str | TargetRef | None,
    shapes: Shapes | str | None,
    options: Options | None,
    settings: dict[str, Any],
) -> tuple[Model, Options]:
    """The model loaded, and the options that it is to be compiled with."""
    if isinstance(shapes, str):
        shapes = parse_open_shapes(shapes)
    if options is None:
        options = options_of(settings)
    elif settings:
        raise UsageError(f"{next(iter(settings))}: give it in options, or no options.")
    if options.trust:
        raise UsageError("--trust is for artifacts, whose code was made before; leave it out for a model.")
    options = options.resolved()
    model = as_model(model, shapes or options.shapes)
    if target is not None:
        options = dataclasses.replace(options, target=TargetRef.parse(target))
    return model, dataclasses.replace(options, shapes=dict(model.shapes))


def artifact_path(model: Path, output: Path | None) -> Path:
    """Where to write the artifact of a model, beside it if nothing is said.

    Raises:
        UsageError: the model is an artifact, nothing can be written there, or the model itself is there.
    """
    if model.is_dir():
        raise UsageError(f"{model}: is a folder; give the ONNX file in it.")
    if is_artifact(model):
        raise UsageError(f"{model}: is compiled already; give the ONNX file.")
    path = output or model.with_suffix(".tw")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give a file name with -o.")
    if output is not None and not path.parent.is_dir():
        raise UsageError(f"{path}: its folder {str(path.parent)!r} does not exist; create it, or change -o.")
    require_other_file(path, model)
    return path
