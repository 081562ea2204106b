"""The search over plans of one program against all plans of a small space: it reaches the least, or finds
less, as its own space is larger, and no bound is above it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests.support.one_program import least_cost, machine_of, network

from tilewright.options import Options
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.progress import PhaseClock
from tilewright.targets.npu.box_bound import box_bound, is_in_space
from tilewright.targets.npu.ports import DMA
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT
from tilewright.targets.npu.target import NpuTarget

ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Found:
    """The least cost of all plans that is below the search's, else that; what the search found; the bound."""

    least: float
    joint: float
    bound: float

    @property
    def is_least(self) -> bool:
        """Whether no plan is better than the search's."""
        return self.joint <= self.least * ROUNDING


def found(seed: int, most: int, trials: int) -> Found:
    """The least of all plans, and what the search finds from GraphTurbo's on."""
    graph, machine = network(seed, most), machine_of(seed)
    target, options = NpuTarget(machine), Options(budget=Budget(trials))
    backend = target.backend(graph, options)
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    start = planner.program(GRAPHTURBO)
    improved = backend.improve(start, planner.ordered, Budget(trials)).program
    # A plan's own bound is of those that fetch weights as it does.
    executions = improved.recipe.execution, RESIDENT
    plans = [backend.plan(improved.schedule, replace(improved.recipe, execution=e)) for e in executions]
    planned = plans[0]
    joint = improved.schedule.quality.cost
    bound_ns = min(plan.simulation.lower_bound_s for plan in plans) * 1e9
    least, best = least_cost(backend, backend.nest_judge(), joint)
    if all(is_in_space(plan, backend.works) for plan in (planned, best) if plan is not None):
        input_s = backend.works.least_seconds(graph, backend.analysis.maps, converts=True)[DMA]
        maps = backend.analysis.maps
        bound_ns = max(bound_ns, box_bound(backend.works, graph, maps, machine, input_s).value)
    return Found(least, joint, bound_ns)


@pytest.mark.parametrize("seed", [2, 8])
def test_the_search_reaches_the_least_of_all_plans_and_no_bound_is_above_it(seed: int) -> None:
    case = found(seed, most=3, trials=30)
    assert case.bound <= case.least * ROUNDING
    assert case.is_least


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(100, 200))
def test_no_bound_is_above_the_least_of_all_plans(seed: int) -> None:
    case = found(seed, most=3, trials=20)
    assert case.bound <= case.least * ROUNDING


@pytest.mark.slow
def test_the_search_reaches_the_least_of_all_plans_nearly_always() -> None:
    cases = [found(seed, most=5, trials=60) for seed in range(500)]
    assert all(case.bound <= case.least * ROUNDING for case in cases)
    assert sum(case.is_least for case in cases) >= 475
