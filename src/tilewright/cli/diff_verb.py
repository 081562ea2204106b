"""`tilewright diff`: what was decided otherwise in two compiled models?"""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CompileFlags
from tilewright.cli.output import progress, show


def diff(
    flags: CompileFlags,
    a: Path = typer.Argument(metavar="A", help="An ONNX file, which is compiled, or an artifact."),
    b: Path = typer.Argument(metavar="B", help="The other."),
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
    show("diff", found)
