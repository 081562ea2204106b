"""`tilewright reproduce`: a paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, print_document, print_result, progress


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "reproduce", reproduce, panel)


def reproduce(
    paper: str = typer.Argument(help="Which paper: ago, cosa, graphturbo, ios, pcgc."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file; default PAPER.html."),
    share: float = typer.Option(1.0, "--share", help="Share of the layers: 0.1 for a first look."),
    samples: int = typer.Option(
        4000, "--samples", help="Random mappings where a distribution is shown.", hidden=True
    ),
    processes: int | None = typer.Option(
        None, "--processes", help="Processes; default: one for each core.", hidden=True
    ),
    resume: Path | None = typer.Option(
        None, "--resume", help="A file that keeps finished parts, and from which a run goes on (ago, pcgc)."
    ),
    only: str | None = typer.Option(None, "--only", help="Exhibits: Figure 10,Figure 13 (ago)."),
    budget: str | None = typer.Option(
        None, "--budget", help="Time for what is tuned and raced, such as 5m; the rest is left out (ago)."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a paper's tables and figures again, and write them beside the paper's numbers into one HTML file.

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
            progress=update,
        )
    if as_json:
        print_document("reproduce", reproduction)
    else:
        print_result(reproduction)
