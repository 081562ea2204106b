"""`tilewright explain`: what the compiler did, and why."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli import common
from tilewright.cli.output import JSON_OPTION, print_json


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("explain", rich_help_panel=panel)(explain)


def explain(
    model: Path = common.MODEL,
    name: str | None = typer.Argument(None, help="A node, value or kernel; default: everything."),
    shapes: str | None = common.SHAPES,
    as_json: bool = JSON_OPTION,
) -> None:
    """Show which nodes became which kernel, and why edges were fused or cut.

    Example: `tilewright explain resnet50.tw layer1.0.conv1`.
    """
    compiled = common.open_or_compile(model, common.make_options(shapes=shapes), None)
    explanation = compiled.explain(name)
    if as_json:
        print_json("explain", {"model_sha256": compiled.model_sha256, **explanation.to_json()})
    else:
        typer.echo(str(explanation))
