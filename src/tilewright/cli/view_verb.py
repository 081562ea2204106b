"""`tilewright view`: the graph of a model as a page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import typer

from tilewright.cli.flags import INPUTS, MODEL, CompileFlags
from tilewright.cli.output import progress, show
from tilewright.requests import FILES


def view(
    flags: CompileFlags,
    model: Path = MODEL,
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="The page to write; default: MODEL.html beside the model.",
        rich_help_panel=FILES,
    ),
    duration: float = typer.Option(
        0.0, "--duration", min=0, help="Measure for this many seconds, and colour by measured times."
    ),
    inputs: Path | None = INPUTS,
    is_opened: bool = typer.Option(False, "--open", help="Show it in the browser."),
) -> None:
    """Write the graph of a model as one HTML page: a box for each kernel, redder the longer it takes.

    The page zooms, finds nodes by name, says why each edge was fused or cut, and works offline. Example:
    `tilewright view model.onnx --duration 2 --open`.
    """
    from tilewright.api.artifacts import require_asked_of_all
    from tilewright.api.view import view_model

    options = flags.options()
    require_asked_of_all([model], options, flags.asked)
    path = output or model.with_suffix(".html")
    with progress(f"drawing {model.name}") as update:
        found = view_model(model, path, measure_s=duration, feed=inputs, options=options, progress=update)
    show("view", found, of=found)
    if is_opened:
        webbrowser.open(path.resolve().as_uri())
