"""`tilewright reproduce`: a paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import typer

from tilewright.cli.flags import add_verb
from tilewright.cli.output import JSON_OPTION, print_json, print_table, progress, say
from tilewright.errors import UsageError


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "reproduce", reproduce, panel)


def reproduce(
    paper: str = typer.Argument(help="Which paper: cosa, graphturbo."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file; default PAPER.html."),
    share: float = typer.Option(1.0, "--share", help="Share of the layers: 0.1 for a first look."),
    samples: int = typer.Option(4000, "--samples", help="Random mappings where a distribution is shown."),
    processes: int | None = typer.Option(None, "--processes", help="Processes; default: one for each core."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a paper's tables and figures again, and write them beside the paper's numbers into one HTML file.

    Example: `tilewright reproduce cosa --share 0.2`.
    """
    from tilewright.reproduce import REPRODUCTIONS
    from tilewright.reproduce.base import Effort, report_page

    if not 0 < share <= 1:
        raise UsageError(f"--share {share}: expected more than 0 and at most 1.")
    if samples < 1:
        raise UsageError(f"--samples {samples}: expected at least 1.")
    reproduction = REPRODUCTIONS.get(paper)
    cores = len(os.sched_getaffinity(0))
    effort = Effort(share, samples, max(1, cores if processes is None else processes))
    with progress(f"reproducing {paper}") as update:
        exhibits = reproduction.run(effort, update)
    path = output or Path(f"{paper}.html")
    conditions = (
        f"{reproduction.title}. All figures of ours are estimates by cost models and simulators; "
        f"{'all layers' if share == 1 else f'one layer in {round(1 / share)}'}."
    )
    path.write_text(report_page(f"Reproducing {paper}", exhibits, conditions), "utf-8")
    if as_json:
        print_json("reproduce", {"paper": paper, "file": path, "exhibits": [_to_json(x) for x in exhibits]})
        return
    print_table(
        ("exhibit", "figure", "ours", "the paper's"),
        [
            (exhibit.name, figure.what, _text(figure.ours), _text(figure.paper))
            for exhibit in exhibits
            for figure in exhibit.figures
        ],
        right=(2, 3),
    )
    say(f"with pictures in {path}")


def _to_json(exhibit: object) -> dict[str, object]:
    found = asdict(exhibit)  # type: ignore[call-overload]  # it is a dataclass
    del found["picture"]
    return dict(found)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
