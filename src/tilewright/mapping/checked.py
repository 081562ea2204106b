"""Answers of mappers, each of them checked before it is used."""

from __future__ import annotations

from math import isclose

from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution
from tilewright.mapping.check import check_solution
from tilewright.planning import Budget, Infeasible, Violation
from tilewright.planning.checking import require_right


def solved(mapper: Mapper, task: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
    """What a mapper answers.

    Raises:
        InfeasibleMapping: there is no mapping.
        InternalError: a check finds a fault in it.
    """
    answer = mapper.solve(task, budget)
    if isinstance(answer, MappingSolution):
        what = f"the mapping of {task.problem.name} on {task.machine.name} by {mapper.name!r}"
        require_right(what, lambda: violations_of(task, answer))
    return answer


def violations_of(task: MappingProblem, answer: MappingSolution) -> tuple[Violation, ...]:
    """What is wrong with a mapping, and with what is said of it: the cost model counts it anew."""
    found = check_solution(task, answer)
    return found or recounted(answer, evaluate(task.problem, task.machine, answer.mapping, task.cost_options))


def recounted(answer: MappingSolution, counted: Cost) -> tuple[Violation, ...]:
    """A stated cost that is not what the cost model counts."""
    stated = answer.cost
    if stated.cycles == counted.cycles and isclose(stated.energy_pj, counted.energy_pj, rel_tol=1e-9):
        return ()
    said, found = (f"{cost.cycles} cycles and {cost.energy_pj:g} pJ" for cost in (stated, counted))
    return (Violation("cost", f"stated {said}, counted {found}"),)
