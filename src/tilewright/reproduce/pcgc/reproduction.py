"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing import get_context

from tilewright.options import Options
from tilewright.planning import Spec
from tilewright.reproduce.base import Effort, Exhibit, Update
from tilewright.reproduce.ios.processor import measured
from tilewright.reproduce.pcgc import exhibits, learned
from tilewright.reproduce.pcgc.examples import examples
from tilewright.reproduce.pcgc.paper import BOARDS, Board, Row
from tilewright.reproduce.pcgc.runs import Job, Outcome, outcome

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

    @property
    def title(self) -> str:
        """The paper, for people."""
        return "PCGC: A performance compact graph compiler based on multilevel fusion-splitting rules (2022)"

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit."""
        boards = [replace(b, rows=b.rows[: ceil(effort.share * len(b.rows))]) for b in BOARDS]
        found = _outcomes(boards, effort.num_processes, update)
        tables = [exhibits.table(board, found[board.name]) for board in boards]
        frontiers = [exhibits.frontiers(board, found[board.name]) for board in boards]
        # Alone on the processor, so that nothing disturbs what is measured.
        times = {}
        for network in _NETWORKS_HERE[: ceil(effort.share * len(_NETWORKS_HERE))]:
            update(f"{network} on this processor", 0, 1)
            times[network] = measured(network, 1, _HERE)
        return (
            *(*tables, exhibits.rules(), exhibits.drawn(list(examples())), *frontiers, exhibits.here(times)),
            *learned.exhibits(effort, update),
        )


def _outcomes(boards: Sequence[Board], num_processes: int, update: Update) -> dict[str, dict[str, Outcome]]:
    jobs = {(board.name, row.name): _job(board, row) for board in boards for row in board.rows}
    found: dict[str, dict[str, Outcome]] = {}
    with ProcessPoolExecutor(max(1, num_processes), get_context("spawn")) as pool:
        tasks = {key: pool.submit(outcome, job) for key, job in jobs.items()}
        for number, ((board_name, row_name), task) in enumerate(tasks.items()):
            update(f"{row_name} on {board_name}", number, len(tasks))
            found.setdefault(board_name, {})[row_name] = task.result()
    return found


def _job(board: Board, row: Row) -> Job:
    machine = Spec.parse(board.machine)
    for key, value in Spec.parse(f"m{{{row.execution}}}").options if row.execution else ():
        machine = machine.with_options(**{key: value})
    return Job(row.name, row.network, str(machine), row.size)
