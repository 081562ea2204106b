"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.planning import Budget
from tilewright.reproduce.ago import budgets, exhibits, measured, redundancy
from tilewright.reproduce.ago.ablation import STACKS, Stack, ablated
from tilewright.reproduce.ago.ablation import VARIANTS as ABLATION
from tilewright.reproduce.ago.budgets import SUBGRAPHS, Subgraph, Tuned, tuned
from tilewright.reproduce.ago.latency import AGO, ON_DEVICE, UNTUNED, Job, Raced, raced, seconds
from tilewright.reproduce.ago.latency import VARIANTS as LATENCY
from tilewright.reproduce.ago.paper import NETWORK, PRINTED, SIZE, SIZES
from tilewright.reproduce.ago.partitions import VARIANTS, Weighed, partitioned
from tilewright.reproduce.base import Effort, Exhibit, Reproduction, Update
from tilewright.reproduce.on_device import OnDevice, exhibit_on_device, planned_on
from tilewright.text.formatting import counted

_BUDGET = seconds(60.0)
_STACK_BUDGET = Budget(300)
_STACK_THREADS = 2
# Small ones first, so that a share of the effort has several.
_CLASSICAL = ("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v2", "mnasnet1_0")
_NEW: Mapping[str, Mapping[str, int]] = {"bert_tiny": {"sequence": 128}, NETWORK: SIZE}
_SIZED = tuple((name, {"image": size}) for size in SIZES for name in _CLASSICAL)
JOBS: Mapping[str, tuple[Job, ...]] = {
    "Figure 10": tuple(Job(name, size, 1, _BUDGET) for name, size in _SIZED),
    "Figure 11": tuple(Job(name, size, 2, _BUDGET) for name, size in _SIZED),
    "Figure 12": tuple(
        Job(name, size, threads, _BUDGET) for threads in (2, 1) for name, size in _NEW.items()
    ),
}
"""What is tuned and raced for the figures of latency."""

# What a race takes beside its searches, of a limited time; less than the least finds nothing.
_EXTRA_S, _RACE_S = 10.0, 4.0
_LEAST_SEARCH_S = 1.0


@dataclass(frozen=True, slots=True)
class _Task:
    """What is tuned and raced for a figure: a network of the zoo, or a stack."""

    figure: str
    job: Job
    stack: Stack | None = None

    @property
    def key(self) -> str:
        """What tells it from others, its budget included."""
        budget = self.job.budget
        effort = (
            f"{budget.max_evaluations} trials" if budget.deadline_s is None else f"{budget.deadline_s:g} s"
        )
        return f"{self.name}, {self.job.num_threads} threads, {effort} each search"

    @property
    def name(self) -> str:
        """For people."""
        return " ".join((self.job.network, *map(str, self.job.size.values())))

    @property
    def num_searches(self) -> int:
        """How many of its contestants are tuned."""
        variants = LATENCY if self.stack is None else ABLATION
        return sum(variant.search is not None for variant in variants.values())

    def race(self) -> Raced:
        """Tune and race it."""
        return raced(self.job) if self.stack is None else ablated(self.stack, self.job)


class Ago(Reproduction):
    """The reproduction. A share of the effort is one of what is tuned and raced."""

    title = "Boosting Mobile AI Inference by Removing Constraints on Graph Optimization (AGO, INFOCOM 2023)"
    resumes = True
    measures_devices = True
    exhibits = (
        *(f"Figure {number}" for number in (6, 7, 8, 9)),
        *JOBS,
        "Figure 13",
        "Figure 14",
    )
    printed = PRINTED

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        wanted = effort.only or self.exhibits
        races = list(_raced(_limited(list(_tasks(wanted, effort.share)), effort), effort, update))
        stacks = {task.stack: race for task, race in races if task.stack is not None}
        made: list[Exhibit] = []
        if {"Figure 6", "Figure 7"}.intersection(wanted):
            made.append(redundancy.figures_6_and_7())
        if "Figure 8" in wanted:
            found_budgets = dict(_tuned(effort, update))
            made += [budgets.figure_8(found_budgets)] if found_budgets else []
        made += [redundancy.figure_9()] if "Figure 9" in wanted else []
        for figure in JOBS:
            of_figure = [race for task, race in races if task.figure == figure]
            made += [measured.latency_exhibit(figure, of_figure)] if of_figure else []
        made += _on_device(wanted, effort, update)
        made += [measured.ablation_exhibit(stacks)] if stacks else []
        if "Figure 14" in wanted:
            found: dict[tuple[str, str], Weighed] = {}
            num_operators: dict[str, int] = {}
            for graph, name, count, weighed in partitioned(NETWORK, SIZE, tuple(VARIANTS)):
                found[graph, name] = weighed
                num_operators[graph] = count
                update(f"{NETWORK} by {name}", len(found), 2 * len(VARIANTS))
            made = [exhibits.readings(), *made, exhibits.figure_14(found, num_operators)]
        return made


def _on_device(wanted: Sequence[str], effort: Effort, update: Update) -> Iterator[Exhibit]:
    """The networks of the figures of latency on the GPU that was asked for, at every size once."""
    if effort.device is None:
        return
    jobs = [task.job for task in _tasks(wanted, effort.share) if task.stack is None]
    found: dict[str, dict[str, OnDevice]] = {}
    for number, job in enumerate(jobs):
        name = " ".join((job.network, *map(str, job.size.values())))
        if name in found:
            continue
        key = f"{name} on {effort.device}"
        update(key, number, len(jobs))
        run = partial(planned_on, job.network, job.size, effort.device, ON_DEVICE)
        found[name] = effort.kept.made(key, dict[str, OnDevice], run)
    if found:
        yield exhibit_on_device(
            "Latency on a GPU",
            "The networks of the paper's figures of latency, by AGO's subgraphs and by operators with what "
            "follows them element by element. Nothing is tuned: kernels are cut by estimates, and intensive "
            "fusion is what the GPU's products take of it.",
            found,
            AGO,
            UNTUNED,
        )


def _tasks(wanted: Sequence[str], share: float) -> Iterator[_Task]:
    for figure, jobs in JOBS.items():
        if figure in wanted:
            yield from (_Task(figure, job) for job in jobs[: round(share * len(jobs))])
    if "Figure 13" in wanted:
        for stack in STACKS[: round(share * len(STACKS))]:
            yield _Task("Figure 13", Job(stack.name, {}, _STACK_THREADS, _STACK_BUDGET, 3.0), stack)


def _limited(tasks: Sequence[_Task], effort: Effort) -> list[_Task]:
    """The tasks with budgets that share the time there is; the same time gives the same budgets."""
    if effort.budget_s is None or not tasks:
        return list(tasks)
    searches_s = effort.budget_s - len(tasks) * _EXTRA_S
    search_s = max(_LEAST_SEARCH_S, round(searches_s / sum(task.num_searches for task in tasks), 1))
    return [replace(task, job=replace(task.job, budget=seconds(search_s), seconds=_RACE_S)) for task in tasks]


def _raced(tasks: Sequence[_Task], effort: Effort, update: Update) -> Iterator[tuple[_Task, Raced]]:
    """Those that are kept, and those for which there is time."""
    started_s = time.monotonic()
    longest_s = 0.0
    for number, task in enumerate(tasks):
        race = effort.kept.value(task.key, Raced)
        if race is None:
            begun_s = time.monotonic()
            if effort.budget_s is not None and begun_s + longest_s > started_s + effort.budget_s:
                continue
            update(
                f"{task.figure}: {task.name} tuned and raced, {counted(task.job.num_threads, 'thread')}",
                number,
                len(tasks),
            )
            race = task.race()
            effort.kept.keep(task.key, race)
            longest_s = max(longest_s, time.monotonic() - begun_s)
        yield task, race


def _tuned(effort: Effort, update: Update) -> Iterator[tuple[Subgraph, Tuned]]:
    """Subgraphs of figure 8 that are kept, and those for which there is time: its share of what is asked."""
    chosen = SUBGRAPHS[: round(effort.share * len(SUBGRAPHS))]
    share = 1.0 if effort.only == ("Figure 8",) else 1 / len(Ago.exhibits)
    end_s = None if effort.budget_s is None else time.monotonic() + share * effort.budget_s
    longest_s = 0.0
    for number, subgraph in enumerate(chosen):
        key = f"{subgraph.structure} {subgraph.size}, forms"
        known = effort.kept.value(key, Tuned)
        if known is None:
            begun_s = time.monotonic()
            if end_s is not None and begun_s + longest_s > end_s:
                continue
            update(f"Figure 8: {subgraph.structure} {subgraph.size} tuned", number, len(chosen))
            known = tuned(subgraph)
            effort.kept.keep(key, known)
            longest_s = max(longest_s, time.monotonic() - begun_s)
        yield subgraph, known
