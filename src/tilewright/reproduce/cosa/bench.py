"""Answers of mappers to the paper's layers: what several exhibits need is done once, layers in parallel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from tilewright.cost.base import Objective
from tilewright.cost.noc import simulate
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import Problem, written
from tilewright.mapping import cosa
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.exact import Exact
from tilewright.mapping.hybrid import Hybrid
from tilewright.mapping.random import Random
from tilewright.planning import Budget
from tilewright.reproduce.base import Effort, Update
from tilewright.reproduce.cosa.paper import NETWORKS
from tilewright.reproduce.processes import process_pool

T = TypeVar("T")
MACHINE = "simba-cosa-repo"
MAPPERS: Mapping[str, Mapper] = {
    "Random": Random(),
    "Hybrid": Hybrid(num_threads=32, timeout=0),
    "CoSA": cosa.Cosa(),
    "exact": Exact(),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A mapper's answer for one layer: what it drew, legal or not, and how many mappings it evaluated."""

    cycles: int
    energy_pj: float
    seconds: float
    num_samples: float
    num_evaluations: int
    mapping: LoopMapping


def solve_layer(task: MappingProblem, mapper: Mapper) -> Answer:
    """What a mapper answers.

    Raises:
        InfeasibleMapping: it finds nothing that fits.
    """
    answer = mapper.solve(task, Budget())
    if not isinstance(answer, MappingSolution):
        raise InfeasibleMapping(f"{task.problem.name}: {answer}")
    evaluations = answer.provenance.num_evaluations
    return Answer(
        answer.cost.cycles,
        answer.cost.energy_pj,
        answer.seconds,
        answer.details.get("samples", evaluations),
        evaluations,
        answer.mapping,
    )


def noc_cycles(task: MappingProblem, mapping: LoopMapping) -> int:
    """Cycles of a mapping by the simulator of the network."""
    return simulate(task.problem, task.machine, mapping).cycles


class Bench:
    """The work of all exhibits, layers in parallel; what two exhibits need is done once."""

    def __init__(self, effort: Effort, update: Update) -> None:
        self.effort, self.update = effort, update
        self.machine = load_preset(MACHINE)
        self.pool: ProcessPoolExecutor | None = None
        self._ends = ExitStack()
        self.known: dict[tuple[str, Objective, str], dict[str, Answer]] = {}

    def __enter__(self) -> Bench:
        if self.effort.num_processes > 1:
            self.pool = self._ends.enter_context(process_pool(self.effort.num_processes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    def layers(self) -> dict[str, list[Problem]]:
        """By network; of a share of the work, the first layers of each network's evenly spread ones."""
        step = max(1, round(1 / self.effort.share))
        return {network: [written(text) for text in texts[::step]] for network, texts in NETWORKS.items()}

    def answers(
        self, mapper: str, objective: Objective = "latency", machine: Machine | None = None
    ) -> dict[str, Answer]:
        """Of every layer by its name."""
        machine = machine or self.machine
        key = (mapper, objective, machine.name)
        if key not in self.known:
            problems = {p.name: p for problems in self.layers().values() for p in problems}
            tasks = [MappingProblem(problem, machine, objective) for problem in problems.values()]
            found = self.each(solve_layer, tasks, [MAPPERS[mapper]] * len(tasks))
            self.known[key] = dict(zip(problems, found, strict=True))
        return self.known[key]

    def each(self, function: Callable[..., T], *arguments: Sequence[object]) -> list[T]:
        """The function of each, in order, in several processes."""
        if self.pool is None:
            return [function(*one) for one in zip(*arguments, strict=True)]
        return list(self.pool.map(function, *arguments))


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))
