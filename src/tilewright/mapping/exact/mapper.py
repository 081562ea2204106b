"""The exact mapper: least latency, energy or their product under the real cost, with a proof.

A mapping is built from the outermost level inwards, one loop at a time. What a partial mapping has cost is
known, what the rest costs at least follows from the words that must still move, so that partial mappings
which cannot beat a limit are dropped, and of those that are at the same point only ones that differ in
something the rest depends on are kept. The limit starts just above the lower bound and is raised until a
mapping is found: then nothing below it was missed, and the mapping is optimal.

Factors divide the extents exactly; where extents have large primes, padded extents are tried as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from math import inf

from tilewright.cost.base import Objective
from tilewright.cost.bound import check_smallest_tiles, energy_bound_pj, latency_bound_cycles, objective_bound
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.nest_table import Evaluator
from tilewright.cost.objective import UNITS, measure, rank
from tilewright.errors import InfeasibleMapping
from tilewright.loops.mapping import Mapping
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import search_states
from tilewright.mapping.exact.lattice import Lattice
from tilewright.mapping.exact.space import Found, Space
from tilewright.mapping.factors import smooth
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Budget, Infeasible, Provenance, Quality, option

_LIMITS = (1.004, 1.012, 1.03, 1.07, 1.16, 1.35, 1.8, 3.0, 10.0, inf)
_OBJECTIVES: dict[int, Objective] = {
    search_states.LATENCY: "latency",
    search_states.ENERGY_WITHIN: "energy",
    search_states.EDP: "edp",
}
_ROUNDING = 1e-9
_NEARLY = 1.015
_CLOSE = 1.2  # a limit so near the bound is not worth a way of several passes
_QUICK_LABELS = 300_000


@dataclass(frozen=True, slots=True)
class Exact:
    """Least latency, energy or their product under the real cost, with a proof."""

    max_points: int = option(
        60_000, "Most ways through the tiles of one search; beyond, the answer has a gap."
    )
    max_search_states: int = option(
        2_000_000, "Most partial mappings of one search; beyond, the answer has a gap."
    )
    pads: bool = option(True, "Also try padded extents where an extent has a large prime factor.")

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "exact"

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The best mapping; among those of the least latency, the one of the least energy.

        The bound of the quality holds for all mappings whose factors divide the extents (of a padded answer,
        and with transfers between neighbours, for all mappings whatsoever); `bound_cycles` and
        `bound_energy_pj` hold for all mappings.
        """
        started = time.perf_counter()
        end_s = None if budget.deadline_s is None else time.monotonic() + budget.deadline_s
        check_smallest_tiles(problem.problem, problem.machine, problem.cost_options)
        best = _Search(problem, self, end_s).run(seed=None if end_s is None else _seed(problem, budget))
        bound, note = best.bound, best.note
        if not Evaluator.suits(problem.problem, problem.cost_options):
            # The search counts without transfers between neighbours, and windows of two dims.
            bound, note = self._bound(problem), f"{note}, nothing proven beyond the roofline"
            best = replace(best, energy_bound_pj=0.0)
        if self.pads:
            for candidate in _padded(problem):
                if best.is_cut_off or self._bound(candidate) * _NEARLY >= self._value(problem, best):
                    continue
                other = _Search(candidate, self, end_s).run(best)
                if other.mapping is best.mapping:
                    best = replace(
                        best, num_search_states=other.num_search_states, is_cut_off=other.is_cut_off
                    )
                    continue
                # What was proven is about mappings without padding.
                bound, note = self._bound(problem), f"{other.note}, padded"
                best = replace(other, energy_bound_pj=0.0)
        mapping = best.mapping or Tilings(problem).everything_outermost()
        cost = evaluate(problem.problem, problem.machine, mapping, problem.cost_options)
        value = measure(problem.objective, cost.cycles, cost.energy_pj)
        return MappingSolution(
            mapping,
            cost,
            Quality.of(value, bound=bound, unit=UNITS[problem.objective], cut_off=best.is_cut_off),
            Provenance(self.name, num_evaluations=best.num_search_states, note=note),
            seconds=time.perf_counter() - started,
            details={"energy_bound_at_latency_pj": best.energy_bound_pj},
            bound_cycles=latency_bound_cycles(problem.problem, problem.machine),
            bound_energy_pj=energy_bound_pj(problem.problem, problem.machine),
        )

    @staticmethod
    def _bound(task: MappingProblem) -> float:
        return objective_bound(task.problem, task.machine, task.objective)

    @staticmethod
    def _value(task: MappingProblem, best: _Best) -> float:
        if best.cost is None:
            return inf
        return measure(task.objective, best.cost.cycles, best.cost.energy_pj)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best mapping so far with its cost, and what was proven."""

    mapping: Mapping | None = None
    cost: Cost | None = None
    bound: float = 0.0
    energy_bound_pj: float = 0.0
    num_search_states: int = 0
    is_cut_off: bool = False
    note: str = ""


class _Search:
    """One problem, extents as they are."""

    def __init__(self, task: MappingProblem, mapper: Exact, end_s: float | None) -> None:
        self.task, self.end_s = task, end_s
        self.lattice = Lattice.of(task.problem, task.cost_options, mapper.max_points)
        self.space = Space(task, self.lattice, mapper.max_search_states)
        self.best, self.refines = _Best(), True
        self.num_search_states = self.largest_pass = 0
        self.is_cut_off = False
        self.roofline_cycles = float(latency_bound_cycles(task.problem, task.machine))

    def run(self, known: _Best | None = None, *, seed: _Best | None = None) -> _Best:
        """The best mapping, `known` if nothing beats it by 1.5 %, `seed` if nothing beats it at all."""
        self.best, self.refines = known or seed or _Best(), known is None
        match self.task.objective:
            case "latency":
                bound, energy_bound = self._latency()
            case "energy" | "edp" as objective:
                if known is None:
                    # What is best at the least latency is seldom far from the best, and quickly found.
                    self._deepen(search_states.ENERGY_WITHIN, self.roofline_cycles)
                bound = self._deepen(
                    search_states.ENERGY_WITHIN if objective == "energy" else search_states.EDP, inf
                )
                energy_bound = bound if objective == "energy" else 0.0
        return replace(
            self.best,
            bound=bound,
            energy_bound_pj=energy_bound,
            num_search_states=self.num_search_states + (known.num_search_states if known else 0),
            is_cut_off=self.is_cut_off,
            note=f"{len(self.lattice.num_tiles)} tiles, {self.num_search_states} partial mappings",
        )

    def _latency(self) -> tuple[float, float]:
        """(Least cycles, least energy of mappings that take no longer than the one found)."""
        cycles = self.roofline_cycles
        energy = self._deepen(search_states.ENERGY_WITHIN, cycles)
        if self.best.cost is not None and self.best.cost.cycles <= cycles:
            return cycles, energy
        least = self._deepen(search_states.LATENCY, inf)
        if self.best.cost is None:
            return least, energy
        return least, self._deepen(search_states.ENERGY_WITHIN, float(self.best.cost.cycles))

    def _deepen(self, objective: int, cap_cycles: float) -> float:
        """Raise the limit until something lies below it; gives a bound on what all mappings take.

        With a mapping in hand, until none can be better by 1.5 %, then, if that was quickly answered,
        whether one is better at all.
        """
        start = self.space.least(objective, cap_cycles)
        if start == inf:
            return inf
        proven = start
        for factor in _LIMITS:
            enough = self._value(objective, cap_cycles) / _NEARLY
            limit = enough if enough <= start * _CLOSE else min(start * factor, enough)
            if limit <= proven:
                break
            answer = self._pass(objective, limit, cap_cycles)
            if answer is None:
                return proven
            proven = max(proven, min(limit, answer.least_lost, *(value for value, _ in answer.mappings[:1])))
            if answer.mappings or limit == enough:
                break
        known = self._value(objective, cap_cycles)
        if known == inf or not self.refines or self.largest_pass > _QUICK_LABELS or proven >= known:
            return proven
        answer = self._pass(objective, known * (1 + _ROUNDING), cap_cycles)
        if answer is None:
            return proven
        return max(proven, min(known, answer.least_lost, *(value for value, _ in answer.mappings[:1])))

    def _pass(self, objective: int, limit: float, cap_cycles: float) -> Found | None:
        answer = self.space.search(objective, limit, cap_cycles, self.end_s)
        if answer is None:
            self.is_cut_off = True
            return None
        self.num_search_states += answer.num_search_states
        self.largest_pass = max(self.largest_pass, answer.num_search_states)
        for value, mapping in answer.mappings:
            if self._value(objective, cap_cycles) <= value:
                break  # what follows costs as much at least
            self._take(mapping)
        return answer

    def _value(self, objective: int, cap_cycles: float) -> float:
        """Of the best mapping so far."""
        cost = self.best.cost
        if cost is None or cost.cycles > cap_cycles:
            return inf
        return measure(_OBJECTIVES[objective], cost.cycles, cost.energy_pj)

    def _take(self, mapping: Mapping) -> None:
        cost = evaluate(self.task.problem, self.task.machine, mapping, self.task.cost_options)
        if self.best.cost is None or self._rank(cost) < self._rank(self.best.cost):
            self.best = replace(self.best, mapping=mapping, cost=cost)

    def _rank(self, cost: Cost) -> tuple[float, float]:
        return rank(self.task.objective, cost.cycles, cost.energy_pj)


def _seed(task: MappingProblem, budget: Budget) -> _Best:
    """CoSA's mapping, for searches that may end early: it takes a moment, and is far better than nothing."""
    assert budget.deadline_s is not None
    try:
        solution = Cosa().solve(task, Budget(deadline_s=budget.deadline_s / 2))
    except InfeasibleMapping:  # not in this time, or what it answers does not fit
        return _Best()
    return _Best() if isinstance(solution, Infeasible) else _Best(solution.mapping, solution.cost)


def _padded(task: MappingProblem) -> Iterator[MappingProblem]:
    """The problem with extents raised to ones that divide better, the least work first.

    Each extent stays, or goes to the next number without a large prime, or to the next multiple of 4 or 16,
    as fan-outs are mostly powers of two.
    """
    choices = [_rounded_up(extent) for _, extent in task.problem.dims]
    problems = [
        replace(
            task.problem,
            dims=tuple((dim, new) for (dim, _), new in zip(task.problem.dims, chosen, strict=True)),
        )
        for chosen in product(*choices)
    ]
    problems.sort(key=lambda problem: problem.num_macs)
    tried = (
        p for p in problems if task.problem.num_macs < p.num_macs <= _MOST_PADDING * task.problem.num_macs
    )
    for problem in islice(tried, _MOST_PADDED):
        yield replace(task, problem=problem)


_MOST_PADDING = 1.5
_MOST_PADDED = 24


def _rounded_up(extent: int) -> list[int]:
    if extent == 1:
        return [1]
    return sorted({extent, smooth(extent), -(-extent // 4) * 4, -(-extent // 16) * 16})
