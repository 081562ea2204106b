"""`tilewright inspect`: what a file holds."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import MODEL, SHAPES, add_verb, flag, parsed_shapes
from tilewright.cli.output import JSON_OPTION, as_argument, hint, print_model_document, print_result


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "inspect", inspect, panel)


def inspect(
    model: Path = MODEL,
    target: str | None = flag(
        "target", default=None, about="For which target memory is planned, cpu by default: a name, or a file."
    ),
    shapes: str | None = SHAPES,
    as_json: bool = JSON_OPTION,
) -> None:
    """Show operators, shapes, parameters, work and memory of a model or an artifact.

    Example: `tilewright inspect model.onnx`.
    """
    from tilewright.api.inspection import inspect_file

    found = inspect_file(model, target, shapes=parsed_shapes(shapes))
    if as_json:
        print_model_document("inspect", found.model_sha256, found.target, found)
        return
    print_result(found)
    for remark in found.remarks:
        hint(remark)
    if found.format == "onnx":
        typed = as_argument(model)
        hint(f"next: tilewright check {typed}, tilewright compile {typed}")
