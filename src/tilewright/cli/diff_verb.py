"""`tilewright diff`: what was decided otherwise in two compiled models?"""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CompileFlags, add_verb
from tilewright.cli.output import JSON_OPTION, print_document, print_result, progress


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "diff", diff, panel)


def diff(
    flags: CompileFlags,
    a: Path = typer.Argument(metavar="A", help="An ONNX file, which is compiled, or an artifact."),
    b: Path = typer.Argument(metavar="B", help="The other."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Show what differs between two compiled models: options, figures, nodes, kernels; nothing runs.

    `compare` says whether their results agree, `bench` which is faster. Example: `tilewright diff before.tw
    after.tw`.
    """
    from tilewright.api.artifacts import require_asked_of_all
    from tilewright.api.difference import diff_models

    options = flags.options()
    require_asked_of_all([a, b], options, flags.asked)
    with progress(f"comparing {a.name} and {b.name}") as update:
        found = diff_models(a, b, options=options, progress=update)
    if as_json:
        print_document("diff", found)
    else:
        print_result(found)
