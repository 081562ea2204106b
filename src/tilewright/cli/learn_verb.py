"""`tilewright learn`: a cost model from measured kernels, which `--partition "pcgc{cost=FILE}"` prices by."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import THREADS, flag
from tilewright.cli.output import hint, progress, show
from tilewright.planning.budget import Budget


def learn(
    models: list[Path] = typer.Argument(metavar="MODEL", help="ONNX files whose kernels are learned from."),
    output: Path = typer.Option(..., "--output", "-o", help="Write the cost model here, as JSON."),
    target: str = flag("target"),
    samples: Path | None = typer.Option(
        None,
        "--samples",
        help="Keep measurements in this file; those that it already holds are not repeated.",
    ),
    budget: str = typer.Option("5m", "--budget", help="Begin no measurement after this long: 60s, 5m."),
    share: float = typer.Option(
        1.0, "--share", help="Share of the kernels that training may see.", hidden=True
    ),
    method: str = typer.Option(
        "trees",
        "--method",
        metavar="NAME",
        help="How costs are predicted: trees, coreg, boosting, linear.",
        hidden=True,
    ),
    start: Path | None = typer.Option(
        None, "--start", metavar="FILE", help="Start from the cost model of another machine."
    ),
    threads: int | None = THREADS,
) -> None:
    """Learn how far a target's cost estimates are off, from kernels that are measured here or simulated.

    The error is measured on each model in turn, held out of the training, so give several models of different
    kinds. Training needs scikit-learn (`pip install 'tilewright[learn]'`); using the file does not.

    Example: `tilewright learn resnet18.onnx bert.onnx -o costs.json --samples kernels.jsonl`, then
    `tilewright compile model.onnx --partition "pcgc{cost=costs.json}"`.
    """
    from tilewright.api.learning import learn_costs

    with progress("learning costs") as update:
        result = learn_costs(
            models,
            target,
            output=output,
            samples=samples,
            share=share,
            method=method,
            start=start,
            budget=Budget.parse(budget),
            threads=threads,
            progress=update,
        )
    if show("learn", result):
        hint(f"written to {output}")
