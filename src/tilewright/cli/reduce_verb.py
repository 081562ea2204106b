"""`tilewright reduce`: a failing model becomes the smallest part of it that fails in the same way."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import ATOL, INPUTS, RTOL, CompileFlags
from tilewright.cli.output import hint, progress, show


def reduce(
    flags: CompileFlags,
    model: Path = typer.Argument(metavar="MODEL", help="An ONNX file that fails."),
    output: Path = typer.Option(
        Path("reduced.onnx"),
        "--output",
        "-o",
        help="The reduced model to write; its inputs are written beside it as .npz.",
    ),
    inputs: Path | None = INPUTS,
    command: str | None = typer.Option(
        None,
        "--command",
        help="A command that fails on such a model, with {} for its file; finds crashes, too.",
    ),
    trials: int = typer.Option(500, "--trials", min=1, help="Try at most this many parts."),
    rtol: float = RTOL,
    atol: float = ATOL,
) -> None:
    """Cut a failing model down to the nodes that fail, and write these as a model.

    Failing means that it cannot be loaded, compiled or run, or differs from the reference. Nodes are left out
    as long as the rest fails in the same way. Example: `tilewright reduce model.onnx -o small.onnx`,
    `tilewright reduce model.onnx --command "tilewright run {}"`.
    """
    from tilewright.api.reduction import reduce_model

    with progress(f"reducing {model.name}") as update:
        found = reduce_model(
            model,
            output,
            feed=inputs,
            command=command,
            trials=trials,
            rtol=rtol,
            atol=atol,
            options=flags.options(),
            progress=update,
        )
    if show("reduce", found):
        hint(f"written to {found.output}, its inputs to {found.inputs}")
