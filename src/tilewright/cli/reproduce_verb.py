"""`tilewright reproduce`: a paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.output import progress, show


def reproduce(
    paper: str = typer.Argument(help="Which paper: ago, cosa, graphturbo, ios, pcgc."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file; default PAPER.html."),
    share: float = typer.Option(1.0, "--share", help="Share of the layers to compute; 0.1 for a first look."),
    samples: int = typer.Option(
        4000, "--samples", help="Random mappings where a distribution is shown.", hidden=True
    ),
    processes: int | None = typer.Option(
        None, "--processes", help="Processes; default: one for each core.", hidden=True
    ),
    resume: Path | None = typer.Option(
        None, "--resume", help="File that keeps finished parts; a later run continues from it (ago, pcgc)."
    ),
    only: str | None = typer.Option(
        None, "--only", help="Only these exhibits, such as Figure 10,Figure 13 (ago)."
    ),
    budget: str | None = typer.Option(
        None,
        "--budget",
        help="Time for tuning and measuring, such as 5m; what does not fit is left out (ago).",
    ),
    device: str | None = typer.Option(
        None,
        "--device",
        help="A GPU to measure on, too: cuda; cuda{device=emulated} estimates, without one (not cosa).",
    ),
) -> None:
    """Reproduce a paper's tables and figures beside the paper's own numbers, as one HTML file.

    Example: `tilewright reproduce cosa --share 0.2`.
    """
    from tilewright.api.reproduction import reproduce_paper

    with progress(f"reproducing {paper}") as update:
        reproduction = reproduce_paper(
            paper,
            output,
            share=share,
            samples=samples,
            processes=processes,
            resume=resume,
            only=[name.strip() for name in only.split(",")] if only else (),
            budget=budget,
            device=device,
            progress=update,
        )
    show("reproduce", reproduction)
