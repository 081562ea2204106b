"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing import get_context
from typing import ClassVar

from tilewright.options import Options
from tilewright.planning import Spec
from tilewright.reproduce.base import Effort, Exhibit, Printed, Update
from tilewright.reproduce.ios.processor import Measured, measured
from tilewright.reproduce.kept import Kept
from tilewright.reproduce.pcgc import exhibits, learned
from tilewright.reproduce.pcgc.examples import Example, examples
from tilewright.reproduce.pcgc.paper import BOARDS, PRINTED, Board, Row
from tilewright.reproduce.pcgc.runs import Job, Outcome, outcome
from tilewright.worker_process import end_with_parent

_HERE = {
    name: Options(partition=text)
    for name, text in (
        ("Relay's rule", "layerwise"),
        ("static fusion", "pcgc{recut=none}"),
        ("PCGC", "pcgc"),
    )
}
_NETWORKS_HERE = ("resnet34", "resnet50", "yolov4_tiny", "yolox_nano")


@dataclass(frozen=True, slots=True)
class Pcgc:
    """The reproduction; a share of the effort is one of each table's networks."""

    resumes: ClassVar[bool] = True
    exhibits: ClassVar[tuple[str, ...]] = ()
    printed: ClassVar[tuple[Printed, ...]] = PRINTED

    @property
    def title(self) -> str:
        """The paper, for people."""
        return "PCGC: A performance compact graph compiler based on multilevel fusion-splitting rules (2022)"

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit."""
        boards = [replace(b, rows=b.rows[: ceil(effort.share * len(b.rows))]) for b in BOARDS]
        kept = effort.kept
        found = _outcomes(boards, effort.num_processes, kept, update)
        tables = [exhibits.table(board, found[board.name]) for board in boards]
        frontiers = [exhibits.frontiers(board, found[board.name]) for board in boards]
        # Alone on the processor, so that nothing disturbs what is measured.
        times = {}
        for network in _NETWORKS_HERE[: ceil(effort.share * len(_NETWORKS_HERE))]:
            update(f"{network} on this processor", 0, 1)
            times[network] = kept.made(
                f"{network} here", dict[str, Measured], functools.partial(measured, network, 1, _HERE)
            )
        drawn = kept.made("examples", tuple[Example, ...], lambda: tuple(examples()))
        costs = kept.made(
            f"learned costs at share {effort.share:g}",
            tuple[Exhibit, ...],
            lambda: learned.exhibits(effort, update),
        )
        planned = (*tables, exhibits.rules(), exhibits.drawn(drawn), *frontiers)
        return (*planned, exhibits.here(times), *costs)


def _outcomes(
    boards: Sequence[Board], num_processes: int, kept: Kept, update: Update
) -> dict[str, dict[str, Outcome]]:
    jobs = {f"{row.name} on {board.name}": _job(board, row) for board in boards for row in board.rows}
    known = {key: kept.value(key, Outcome) for key in jobs}
    found = {key: value for key, value in known.items() if value is not None}
    with ProcessPoolExecutor(max(1, num_processes), get_context("spawn"), end_with_parent) as pool:
        tasks = {pool.submit(outcome, job): key for key, job in jobs.items() if key not in found}
        for task in as_completed(tasks):
            key = tasks[task]
            update(key, len(found), len(jobs))
            found[key] = task.result()
            kept.keep(key, found[key])
    return {b.name: {row.name: found[f"{row.name} on {b.name}"] for row in b.rows} for b in boards}


def _job(board: Board, row: Row) -> Job:
    machine = Spec.parse(board.machine)
    for key, value in Spec.parse(f"m{{{row.execution}}}").options if row.execution else ():
        machine = machine.with_options(**{key: value})
    return Job(row.name, row.network, str(machine), row.size)
