"""`tilewright inspect`: what a file holds."""

from __future__ import annotations

from pathlib import Path

from tilewright.cli.flags import MODEL, SHAPES, flag, parsed_shapes
from tilewright.cli.output import as_argument, hint, show


def inspect(
    model: Path = MODEL,
    target: str | None = flag(
        "target", default=None, about="For which target memory is planned, cpu by default: a name, or a file."
    ),
    shapes: str | None = SHAPES,
) -> None:
    """Show operators, shapes, parameters, work and memory of a model or an artifact.

    Example: `tilewright inspect model.onnx`.
    """
    from tilewright.api.inspection import inspect_file

    found = inspect_file(model, target, shapes=parsed_shapes(shapes))
    if not show("inspect", found, of=found):
        return
    for remark in found.remarks:
        hint(remark)
    if found.format == "onnx":
        typed = as_argument(model)
        hint(f"next: tilewright check {typed}, tilewright compile {typed}")
