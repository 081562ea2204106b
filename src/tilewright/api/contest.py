"""`tw.schedule_graph`: a graph of the graph-scheduling contest, scheduled by the joint search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.arguments import checked
from tilewright.planning import Budget
from tilewright.progress import Progress

if TYPE_CHECKING:
    from tilewright.contest.schedule import ContestSchedule

_DEFAULT_BUDGET = "10s"


@checked
def schedule_graph(
    problem: str | Path, *, budget: str | None = None, progress: Progress | None = None
) -> ContestSchedule:
    """Schedule a graph of the MLSys 2026 graph-scheduling contest: subgraphs, tiles, what is retained.

    `problem` is a file in the contest's format. `budget` is a time, or a number of parts of the graph that
    are solved exactly (`200trials`), with which equal calls give equal answers everywhere; 10s if left out.

    Raises:
        UsageError: there is no such file.
        ModelRejected: the file cannot be read, or is no problem of the contest.
    """
    from tilewright.contest.schedule import schedule_problem

    return schedule_problem(Path(problem), Budget.parse(budget or _DEFAULT_BUDGET), progress)
