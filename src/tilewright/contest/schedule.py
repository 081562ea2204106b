"""A schedule of the contest's graph by the joint search: its steps, its figures, the contest's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from math import inf
from pathlib import Path

from tilewright.bit_sets import bits
from tilewright.contest.pricer import ContestPricer
from tilewright.contest.problem import MAX_STEPS, ContestProblem, read_problem
from tilewright.contest.rules import Step, latencies_of
from tilewright.errors import InfeasibleMapping, InternalError
from tilewright.files import write_output
from tilewright.joint.base import Plan
from tilewright.joint.check import check_plan
from tilewright.joint.planner import JointAnswer, solve
from tilewright.planning import Bound, Budget, Quality
from tilewright.planning.quality import beside
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.results import Result, Table, about, in_json
from tilewright.text.printable import printable

UNIT = "units of time"


@dataclass(frozen=True, slots=True)
class ContestStep:
    """A step of a schedule."""

    operators: tuple[int, ...]
    granularity: tuple[int, int, int] = field(metadata=about("Width, height and depth of tiles."))
    retained: tuple[int, ...] = field(metadata=about("Tensors kept in fast memory for the next step."))
    order: str = field(metadata=about("How tiles follow each other: row-wise or column-wise, as a snake."))
    latency: float


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ContestSchedule(Result):
    """A schedule of a graph of the graph-scheduling contest, in the contest's own unit of time."""

    problem: str
    num_operators: int
    latency: float
    bounds: tuple[Bound, ...]
    gap: float = field(metadata=about("How far the latency lies above the highest bound, relative to it."))
    status: str = field(metadata=about("How the search ended: optimal, feasible, cut off."))
    is_interrupted: bool = field(
        metadata=about("Whether the user ended the search; this was the best schedule until then.")
    )
    num_windows: int = field(metadata=about("Parts of the graph that were solved exactly."))
    steps: tuple[ContestStep, ...]
    quality: Quality = field(metadata=about(hidden=True))
    schedule: tuple[Step, ...] = field(metadata=about(hidden=True))

    @in_json
    def num_recomputed(self) -> int:
        """Operators that run in more than one step, counted each further time."""
        return sum(len(step.operators) for step in self.steps) - self.num_operators

    def tables(self) -> Sequence[Table]:
        """The steps."""
        rows = tuple(
            (
                str(number),
                " ".join(map(str, step.operators)),
                " x ".join(map(str, step.granularity)),
                step.order,
                " ".join(map(str, step.retained)),
                f"{step.latency:,.1f}",
            )
            for number, step in enumerate(self.steps)
        )
        return (
            Table(("step", "operators", "w x h x k", "tiles", "retained", "latency"), rows, "", (0, 5), (3,)),
        )

    def lines(self) -> Sequence[str]:
        """The sum, and how good it is."""
        return (
            f"{self.problem}: {self.num_operators} operators in {len(self.steps)} steps, "
            f"{self.num_recomputed} computed again; latency {self.latency:,.1f}",
            str(self.quality),
        )

    def solution(self) -> str:
        """The contest's solution file."""
        document = {
            "subgraphs": [list(step.operators) for step in self.schedule],
            "granularities": [list(step.granularity) for step in self.schedule],
            "tensors_to_retain": [list(step.retained) for step in self.schedule],
            "traversal_orders": [None if step.order is None else list(step.order) for step in self.schedule],
            "subgraph_latencies": [step.latency for step in self.steps],
        }
        return json.dumps(document) + "\n"

    def save(self, path: Path | str) -> None:
        """Write the contest's solution file."""
        write_output(path, self.solution().encode())


def schedule_problem(
    problem: ContestProblem | Path | str, budget: Budget, progress: Progress | None = None
) -> ContestSchedule:
    """The best schedule that a budget finds, checked."""
    if not isinstance(problem, ContestProblem):
        problem = read_problem(problem)
    pricer = ContestPricer(problem, is_exhaustive=True)
    update = progress or (lambda *_: None)
    coarse = ContestPricer(problem)
    answer = solve(
        pricer,
        budget,
        unit=UNIT,
        coarse=coarse,
        publish=lambda plan: update(f"{problem.name}: {beside(plan.cost, pricer.bound.value, UNIT)}", 0, 0),
    )
    pricer = coarse if answer.pricer is coarse else pricer
    if answer.plan.cost == inf:
        raise _infeasible(problem, pricer, answer.plan)
    for violation in check_plan(pricer, answer.plan):
        raise InternalError(f"{problem.name}: a plan that its checker refuses ({violation}).")
    return _result(problem, pricer, answer)


def _infeasible(problem: ContestProblem, pricer: ContestPricer, plan: Plan) -> InfeasibleMapping:
    """The error for a graph of which no schedule was found."""
    block = next(block for block in plan.blocks if pricer.price(block) == inf)
    operators = ", ".join(map(str, bits(block.layers)))
    return InfeasibleMapping(
        f"{printable(problem.name)}: no schedule was found: no granularity of operator {operators} fits "
        f"'fast_memory_capacity' = {problem.capacity} with at most {MAX_STEPS} tiles and steps. Give it more."
    )


def _result(problem: ContestProblem, pricer: ContestPricer, answer: JointAnswer) -> ContestSchedule:
    schedule = pricer.steps(answer.plan.blocks)
    latencies = latencies_of(problem, schedule)
    tilings = [pricer.tiling(block) for block in answer.plan.blocks]
    quality = answer.quality
    if abs(sum(latencies) - quality.cost) > 1e-6 * quality.cost:
        raise InternalError(f"{problem.name}: steps take {sum(latencies)}, not {quality.cost}.")
    steps = tuple(
        ContestStep(
            step.operators,
            step.granularity,
            step.retained,
            "column-wise" if tiling.direction else "row-wise",
            latency,
        )
        for step, tiling, latency in zip(schedule, tilings, latencies, strict=True)
    )
    return ContestSchedule(
        problem=problem.name,
        num_operators=len(problem.operators),
        latency=quality.cost,
        bounds=quality.bounds,
        gap=quality.gap_to(quality.highest),
        status=str(quality.status),
        is_interrupted=answer.is_interrupted,
        num_windows=answer.num_windows,
        steps=steps,
        quality=quality,
        schedule=tuple(schedule),
    )
