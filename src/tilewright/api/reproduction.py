"""`tw.reproduce`: a paper's tables and figures by our code, beside the paper's."""

from __future__ import annotations

from pathlib import Path

from tilewright.arguments import checked
from tilewright.errors import UsageError
from tilewright.files import write_atomically
from tilewright.hardware.probe import affinity_cores
from tilewright.progress import Progress
from tilewright.reproduce import REPRODUCTIONS
from tilewright.reproduce.base import Effort, ReproducedPaper, report_page
from tilewright.reproduce.kept import Kept


@checked
def reproduce_paper(
    paper: str,
    output: str | Path | None = None,
    *,
    share: float = 1.0,
    samples: int = 4000,
    processes: int | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> ReproducedPaper:
    """Make a paper's tables and figures again, and write them with the paper's numbers into one HTML file.

    `share` is that of the layers, 0.1 for a first look; `samples` are random mappings where a distribution is
    shown; `processes` is how many work, by default one for each core. `resume` is
    a file of JSON lines that keeps finished parts: a run that was cut short goes on from there.

    Raises:
        UsageError: an unknown paper, a share or number that makes no sense, or a file of something else.
    """
    reproduction = REPRODUCTIONS.get(paper)
    if resume is not None and not reproduction.resumes:
        raise UsageError(f"reproduce: {paper} keeps no finished parts; leave out the file to resume from.")
    num_processes = max(1, affinity_cores() if processes is None else processes)
    effort = Effort(share, samples, num_processes, Kept(None if resume is None else Path(resume)))
    exhibits = tuple(reproduction.run(effort, progress or (lambda *_: None)))
    path = Path(output or f"{paper}.html")
    layers = "all layers" if share == 1 else f"one layer in {round(1 / share)}"
    conditions = (
        f"{reproduction.title}. Figures of ours are estimates by cost models and simulators, or measured "
        f"where an exhibit says so; {layers}."
    )
    write_atomically(path, report_page(f"Reproducing {paper}", exhibits, conditions).encode())
    return ReproducedPaper(paper, path, exhibits)
