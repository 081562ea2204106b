"""`tilewright tune`: measure how to make each kernel of a model, and keep what is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from tilewright.cli.compile_verb import end_if_interrupted
from tilewright.cli.flags import MODEL, CompileFlags
from tilewright.cli.output import hint, progress, show

if TYPE_CHECKING:
    from tilewright.steps import SearchName


def tune(
    flags: CompileFlags,
    model: Path = MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", help="Also write the artifact here."),
    afresh: bool = typer.Option(
        False, "--afresh", help="Forget earlier measurements of this model, and measure everything again."
    ),
    search: str | None = typer.Option(
        None,
        "--search",
        metavar="NAME",
        help="What is varied: how subgraphs become kernels, parts first (reformer), as wholes "
        "(evolutionary), or with at most one complex operator in a kernel (conventional); or only how "
        "products are computed (flat). Default: reformer.",
    ),
    workers: str = typer.Option(
        "",
        "--workers",
        metavar="ray|ray://HOST:PORT",
        help="Measure on those machines of a Ray cluster that are like this one, or run --isa; default: on "
        "this one.",
    ),
    runners: list[str] = typer.Option(
        [],
        "--runner",
        metavar="COMMAND",
        help="Measure in a process that this command starts, such as 'ssh board tilewright worker'; may be "
        "given several times, for machines of one kind.",
    ),
) -> None:
    """Measure other ways to compute each kernel, in the running model, and keep what is faster.

    The search continues where the last one for this model ended, for the time in `--budget` (default: 60s),
    and changes nothing that does not make whole runs faster. Later compilations of the model use what it
    found.

    Example: `tilewright tune resnet50.onnx --budget 2m`.
    """
    from tilewright.api.tuning import tune_model

    options = flags.options()
    with progress(f"tuning {model.name}") as update:
        result = tune_model(  # which checks the name
            model,
            options=options,
            afresh=afresh,
            search=cast("SearchName | None", search),
            workers=workers,
            runners=runners,
            output=output,
            progress=update,
        )
    if show("tune", result, of=result.model) and output is not None:
        hint(f"written to {output}")
    end_if_interrupted(result.model)
