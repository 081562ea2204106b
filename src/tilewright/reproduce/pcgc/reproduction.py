"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from math import ceil
from typing import TypeVar

from tilewright.benchmark.statistics import Timing
from tilewright.planning import Spec
from tilewright.reproduce.base import Effort, Exhibit, Reproduction, Update
from tilewright.reproduce.in_turns import Plans, measured
from tilewright.reproduce.on_device import OnDevice, exhibit_on_device, planned_on
from tilewright.reproduce.pcgc import exhibits, gains, learned, tables
from tilewright.reproduce.pcgc.examples import Example, examples
from tilewright.reproduce.pcgc.paper import BOARDS, PRINTED, Board, Row
from tilewright.reproduce.pcgc.runs import PcgcJob, PcgcOutcome, Planned, outcome, speeds
from tilewright.reproduce.processes import process_pool

T = TypeVar("T")

_RELAY, _PCGC = "Relay's rule", "PCGC"
_HERE: Plans = {
    _RELAY: {"partition": "layerwise"},
    "static fusion": {"partition": "pcgc{recut=none}"},
    _PCGC: {"partition": "pcgc"},
}
_FIGURE_13 = "v100{dtype=float32}"
_NETWORKS_OF_FIGURE_13 = ("resnet50", "resnet34", "mobilenet_v2", "yolov4_tiny", "bert_base")
_NETWORKS_HERE = ("resnet34", "resnet50", "yolov4_tiny", "yolox_nano")


class Pcgc(Reproduction):
    """The reproduction; a share of the effort is one of each table's networks."""

    title = "PCGC: A performance compact graph compiler based on multilevel fusion-splitting rules (2022)"
    resumes = True
    measures_devices = True
    printed = PRINTED

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit."""
        boards = [replace(b, rows=tuple(_share(b.rows, effort.share))) for b in BOARDS]
        kept = effort.kept
        jobs = {(b.name, row.name): _job(b, row) for b in boards for row in b.rows}
        outcomes = _made(outcome, PcgcOutcome, list(jobs.values()), effort, update)
        found = {b.name: {row.name: outcomes[jobs[b.name, row.name]] for row in b.rows} for b in boards}
        figure_13 = [
            PcgcJob(network, network, _FIGURE_13) for network in _share(_NETWORKS_OF_FIGURE_13, effort.share)
        ]
        speedups = _made(speeds, dict[str, Planned], figure_13, effort, update)
        # Alone on the processor, so that nothing disturbs what is measured.
        times = {}
        for network in _share(_NETWORKS_HERE, effort.share):
            update(f"{network} on this processor", 0, 1)
            times[network] = kept.made(
                f"{network} here", dict[str, Timing], functools.partial(measured, network, 1, _HERE)
            )
        on_device = {}
        if effort.device is not None:
            for network in _share(_NETWORKS_HERE, effort.share):
                key = f"{network} on {effort.device}"
                update(key, 0, 1)
                run = functools.partial(planned_on, network, {}, effort.device, _HERE)
                on_device[network] = kept.made(key, dict[str, OnDevice], run)
        drawn = kept.made("examples", tuple[Example, ...], lambda: tuple(examples()))
        costs = kept.made(
            f"learned costs at share {effort.share:g}",
            tuple[Exhibit, ...],
            lambda: learned.exhibits(effort, update),
        )
        planned = (
            *tables.tables(found),
            *gains.exhibits(found),
            gains.frontier(found),
            exhibits.rules(),
            exhibits.drawn(drawn),
            exhibits.speedups({job.name: speedups[job] for job in figure_13}),
        )
        said = "Three partitions of each network; their kernels run one after another."
        gpu = exhibit_on_device("Partitions on a GPU", said, on_device, _PCGC, _RELAY) if on_device else None
        return (*planned, exhibits.here(times), *((gpu,) if gpu else ()), *costs)


def _share(items: Sequence[T], share: float) -> Sequence[T]:
    return items[: ceil(share * len(items))]


def _made(
    make: Callable[[PcgcJob], T], kind: type[T], jobs: Sequence[PcgcJob], effort: Effort, update: Update
) -> dict[PcgcJob, T]:
    """What a function makes of each job, in processes of their own; what an earlier run finished is taken."""
    kept = effort.kept
    keys = {job: f"{make.__name__} of {job}" for job in jobs}
    known = {job: kept.value(key, kind) for job, key in keys.items()}
    found = {job: value for job, value in known.items() if value is not None}
    with process_pool(effort.num_processes) as pool:
        tasks = {pool.submit(make, job): job for job in jobs if job not in found}
        for task in as_completed(tasks):
            job = tasks[task]
            update(str(job), len(found), len(jobs))
            found[job] = task.result()
            kept.keep(keys[job], found[job])
    return found


def _job(board: Board, row: Row) -> PcgcJob:
    machine = Spec.parse(board.machine)
    if row.execution:
        machine = machine.with_options(**dict(Spec.parse(f"m{{{row.execution}}}").options))
    return PcgcJob(row.name, row.network, str(machine), (row.width, row.height), row.batch)
