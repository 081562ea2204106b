"""The contest's rules for whole schedules: whether one is valid, and what each of its subgraphs takes.

Written from the contest's text. Where the text is open: a base cost buys a native tile of a product with its
whole sum; a slice that is asked for again is computed again; operators may be connected through an input that
they share; a tensor that is read inside its subgraph never reaches slow memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.contest.problem import ContestProblem
from tilewright.contest.subgraph import Subgraph, analyse, is_connected
from tilewright.contest.walk import num_steps, step_compute
from tilewright.contest.walker import fast_walk
from tilewright.errors import UsageError
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a schedule; without an order, tiles run row by row."""

    operators: tuple[int, ...]
    granularity: tuple[int, int, int]
    retained: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None


class InvalidSchedule(UsageError):
    """A schedule that breaks the contest's rules."""


def latencies_of(problem: ContestProblem, steps: Sequence[Step]) -> list[float]:
    """The time of each subgraph of a schedule.

    Raises:
        InvalidSchedule: it breaks a rule; the message names step and rule.
    """
    stored = {t for t in problem.users if t not in problem.maker}
    resident: set[int] = set()
    missing = set(range(len(problem.operators)))
    latencies = []
    for number, step in enumerate(steps):
        subgraph = _checked(problem, number, step)
        outside = {load.tensor for load in subgraph.loads}
        for t in sorted(outside - stored - resident):
            raise InvalidSchedule(f"step {number}: tensor {t} is neither in slow memory nor resident.")
        time, peak = time_of(problem, subgraph, step, resident)
        if time == inf:
            raise InvalidSchedule(
                f"step {number}: needs {peak} elements of fast memory, which has {problem.capacity}."
            )
        latencies.append(time)
        missing.difference_update(step.operators)
        resident = set(step.retained)
        stored.update(set(subgraph.sinks) - resident)
    for i in sorted(missing):
        raise InvalidSchedule(f"operator {i} is in no step.")
    for t in problem.results:
        if t not in stored:
            raise InvalidSchedule(f"tensor {t} is an output of the graph, but not in slow memory at the end.")
    return latencies


def time_of(problem: ContestProblem, subgraph: Subgraph, step: Step, resident: set[int]) -> tuple[float, int]:
    """Time and peak memory of a subgraph beside what is resident; infinite where memory does not suffice."""
    w, h, k = step.granularity
    rows, columns = -(-subgraph.height // h), -(-subgraph.width // w)
    steps = max([1, *(num_steps(d, k) for d in subgraph.root_depths)])
    loads = walked_loads(problem, subgraph, k, resident)
    num_split = sum(num_steps(d, k) > 1 for d in subgraph.root_depths)
    num_retained = sum(t in step.retained for t in subgraph.sinks)
    return fast_walk(
        range(rows * columns) if step.order is None else step.order,
        columns,
        step.granularity,
        (subgraph.width, subgraph.height),
        step_compute(problem, subgraph, k, steps),
        loads,
        len(subgraph.sinks) - num_retained,
        max(len(subgraph.sinks), num_split) - num_retained,
        sum(map(problem.size, resident)) + sum(map(problem.size, step.retained)),
        problem.capacity,
        problem.bandwidth,
    )


def walked_loads(
    problem: ContestProblem, subgraph: Subgraph, k: int, resident: set[int] | frozenset[int]
) -> list[tuple[int, int, int, int, int, int]]:
    """Slices as the walk takes them."""
    return [
        (t, rows, columns, problem.heights[t], problem.widths[t], num_steps(depth, k))
        for t, rows, columns, depth in subgraph.loads
        if t not in resident
    ]


def _checked(problem: ContestProblem, number: int, step: Step) -> Subgraph:
    """The subgraph of a step that keeps the rules on its own."""
    where = f"step {number}"
    members = step.operators
    if not members or len(set(members)) != len(members):
        raise InvalidSchedule(f"{where}: it is empty, or names an operator twice.")
    if not all(0 <= i < len(problem.operators) for i in members):
        raise InvalidSchedule(f"{where}: it names operators that there are not.")
    has_product = any(problem.operators[i].is_product for i in members)
    for size, native, axis in zip(step.granularity, problem.native, "whk", strict=True):
        if size < 1 or (size > native and (axis != "k" or has_product)):
            raise InvalidSchedule(f"{where}: {axis}={size} is not from 1 to the native {native}.")
    if not is_connected(problem, members):
        raise InvalidSchedule(f"{where}: its operators are not connected.")
    subgraph = analyse(problem, members)
    if subgraph is None:
        raise InvalidSchedule(f"{where}: its outputs differ in shape.")
    if subgraph.least_depth and step.granularity[2] > subgraph.least_depth:
        raise InvalidSchedule(
            f"{where}: k={step.granularity[2]} is above {subgraph.least_depth}, a sum of one of its products."
        )
    made = {problem.operators[i].output for i in members}
    if len(set(step.retained)) != len(step.retained) or not made.issuperset(step.retained):
        raise InvalidSchedule(f"{where}: it retains tensors that it does not make, or one twice.")
    num_tiles = -(-subgraph.height // step.granularity[1]) * -(-subgraph.width // step.granularity[0])
    if step.order is not None and sorted(step.order) != list(range(num_tiles)):
        raise InvalidSchedule(f"{where}: its traversal order is no permutation of {num_tiles} tiles.")
    return subgraph
