"""`tilewright check`: what a target will make of each operator, before any work."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli import common
from tilewright.cli.output import JSON_OPTION, note, print_json, print_table
from tilewright.errors import UnsupportedOp


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("check", rich_help_panel=panel)(check)


def check(
    model: Path = common.MODEL,
    target: str = common.TARGET,
    shapes: str | None = common.SHAPES,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say which operators a target runs, and how. Example: `tilewright check model.onnx -t cpu`."""
    import tilewright as tw
    from tilewright.options import parse_shapes

    loaded = tw.load(model, shapes=parse_shapes(shapes) if shapes else None)
    report = tw.check(loaded, target)
    if as_json:
        print_json("check", {**report.to_json(), "model_sha256": loaded.sha256, "host": common.host_facts()})
    else:
        print_table(
            ("operator", "opset", "nodes", "verdict", "why"),
            [(o.op_type, o.opset, len(o.nodes), o.verdict, o.reason) for o in report.operators],
            right=(1, 2),
        )
    if not report.ok:
        first = report.unsupported[0]
        raise UnsupportedOp(
            f"{model}: {target} does not run {first.op_type} {first.nodes[0]!r}: {first.reason}. "
            "Try --target interpreter."
        )
    if report.on_host and not as_json:
        note(f"{sum(len(o.nodes) for o in report.on_host)} operators run on the host, slowly.")
