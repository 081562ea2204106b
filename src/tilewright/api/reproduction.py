"""`tw.reproduce`: a paper's tables and figures by our code, beside the paper's."""

from __future__ import annotations

from pathlib import Path

from tilewright.arguments import checked
from tilewright.files import write_atomically
from tilewright.hardware.probe import affinity_cores
from tilewright.progress import Progress
from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.base import Effort, ReproducedPaper, report_page


@checked
def reproduce_paper(
    paper: str,
    output: str | Path | None = None,
    *,
    share: float = 1.0,
    samples: int = 4000,
    processes: int | None = None,
    progress: Progress | None = None,
) -> ReproducedPaper:
    """Make a paper's tables and figures again, and write them with the paper's numbers into one HTML file.

    `share` is that of the layers, 0.1 for a first look; `samples` are random mappings where a distribution is
    shown; `processes` is how many work, by default one for each core.

    Raises:
        UsageError: an unknown paper, or a share or number that makes no sense.
    """
    effort = Effort(share, samples, max(1, affinity_cores() if processes is None else processes))
    reproduction = REPRODUCTIONS.get(paper)
    exhibits = tuple(reproduction.run(effort, progress or (lambda *_: None)))
    path = Path(output or f"{paper}.html")
    layers = "all layers" if share == 1 else f"one layer in {round(1 / share)}"
    conditions = (
        f"{reproduction.title}. Figures of ours are estimates by cost models and simulators, or measured "
        f"where an exhibit says so; {layers}."
    )
    write_atomically(path, report_page(f"Reproducing {paper}", exhibits, conditions).encode())
    return ReproducedPaper(paper, path, exhibits)
