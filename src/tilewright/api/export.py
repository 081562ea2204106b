"""`tw.export`: models written for C programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.api.compilation import compilation_request
from tilewright.api.models import Model, Shapes
from tilewright.arguments import checked
from tilewright.compiled import CompiledModel
from tilewright.compiler import plan
from tilewright.edges import Edges
from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx import Source
from tilewright.options import Options
from tilewright.progress import PhaseClock, Progress

if TYPE_CHECKING:
    from tilewright.embed import ExportedModel


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
        UnsupportedOp: an operator without generated code, or inputs or outputs of texts; maps are exported as
            the matrix of their values.
    """
    from tilewright.embed import EmittingTarget, export_object, isa_for_export, program_for, tuned_for

    record = isa_for_export(isa)
    if isinstance(model, CompiledModel):
        _require_numbers(model.facts.edges)
        program, digest, stem = program_for(record, model.program), model.model_sha256, "model"
    else:
        model, options = compilation_request(model, "cpu", shapes, options, settings)
        _require_numbers(model.edges)
        clock = PhaseClock(options.timeout_s, progress)
        planned = plan(model.graph, options, clock, target=EmittingTarget(record=record))
        program = tuned_for(record, planned.program)
        digest = model.sha256
        stem = Path(model.name).stem
    return export_object(
        program, record, Path(folder), name=name or stem, model_sha256=digest, force=force, progress=progress
    )


def _require_numbers(edges: Edges) -> None:
    """Raise if a C program would have to give or take texts."""
    for name in (*edges.inputs, *edges.outputs):
        raise UnsupportedOp(
            f"{name!r} holds texts, which exported code does not: export the model with labels and "
            "categories that are numbers."
        )
