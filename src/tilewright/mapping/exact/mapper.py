"""The exact mapper: least latency, energy or their product under the real cost, with a proof.

A mapping is built from the outermost level inwards, one loop at a time. What a partial mapping has cost is
known, what the rest costs at least follows from the words that must still move, so that partial mappings
which cannot beat a limit are dropped, and of those that are at the same point only ones that differ in
something the rest depends on are kept. The limit starts just above the lower bound and is raised until a
mapping is found: then nothing below it was missed, and the mapping is optimal.

Factors divide the extents exactly; extents padded to what fan-outs divide, or to numbers without large
primes, are tried as well.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from tilewright.cost.base import Objective
from tilewright.cost.bound import check_smallest_tiles, objective_bound
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.nest_table import Evaluator
from tilewright.cost.objective import measure, rank
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.machine import Level, Machine, Unit
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import convolution
from tilewright.mapping.base import UNPADDED, MappingProblem, MappingSolution, build_solution
from tilewright.mapping.cosa import Cosa
from tilewright.mapping.exact import search_states
from tilewright.mapping.exact.joined import Joined
from tilewright.mapping.exact.lattice import Lattice, num_points
from tilewright.mapping.exact.padding import bound_padded, padded_problems
from tilewright.mapping.exact.search_pass import ALL, Found, Question, search
from tilewright.mapping.exact.space import Space
from tilewright.mapping.paper import Paper
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Bound, Budget, Infeasible, Provenance, option
from tilewright.progress import checkpoint

_LIMITS = (1.004, 1.012, 1.03, 1.07, 1.16, 1.35, 1.8, 3.0, 10.0, inf)
_OBJECTIVES: dict[int, Objective] = {
    search_states.LATENCY: "latency",
    search_states.ENERGY_WITHIN: "energy",
    search_states.EDP: "edp",
}
_NUMBERS = {name: number for number, name in _OBJECTIVES.items()}
_ROUNDING = 1e-9
_NEARLY = 1.015
_FAIRLY = 1.05
_CLOSE = 1.2  # a limit so near the bound is not worth a way of several passes
_QUICK_STATES = 300_000
_NUM_BLIND, _FEW_STATES = 5, 4_000  # passes, and search states, before good mappings are looked for
_WIDTHS = (1, 4)
_SHORT_PASSES = ((ALL, 1.16), (1, inf), (4, inf), (ALL, inf))
_BLIND, _BOLD = 20_000, 200_000  # search states of a level
_SHARE_BEFORE_COSA = 0.1  # of the time, after which a search that has nothing takes CoSA's mapping meanwhile
_MOST_IN_VAIN = 6  # mappings that cost more than their search states said
_SHARE_OF_TIES = 0.09  # of the time, for less energy where nothing is faster
_MANY_POINTS, _FEW_POINTS = 20_000, 3_000
_IN_TURN: dict[Objective, tuple[int, ...]] = {
    "latency": (search_states.EDP, search_states.LATENCY),
    "energy": (search_states.ENERGY_WITHIN,),
    "edp": (search_states.EDP,),
}


@dataclass(frozen=True, slots=True)
class Exact:
    """Least latency, energy or their product under the real cost, with a proof."""

    max_points: int = option(
        200_000, "Most ways through the tiles of one search; beyond, the answer has a gap."
    )
    max_search_states: int = option(
        2_000_000, "Most partial mappings of one search; beyond, the answer has a gap."
    )
    pads: bool = option(
        True, "Also try padded extents: those that fan-outs divide, or without large prime factors."
    )

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "exact"

    @property
    def is_short(self) -> bool:
        """Whether it looks at few partial mappings."""
        return self.max_search_states <= _FEW_STATES

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The best mapping; among those of the least latency, the one of the least energy.

        The widest bound of the quality is of all mappings, padded ones too, `details["bound_unpadded"]` of
        those whose factors divide the extents.
        """
        started = time.perf_counter()
        best, bound = self._search(problem, budget, None)
        if best.mapping is None and problem.constraints.name_dims:
            raise InfeasibleMapping(
                f"no mapping that keeps {problem.constraints} was reached; change them or give more budget."
            )
        return self._solution(problem, best, bound, time.perf_counter() - started)

    def improve(
        self, problem: MappingProblem, budget: Budget, known: Mapping, cost: Cost, bound: float
    ) -> Improvement:
        """What is better than a mapping of that cost by 1.5 %, or as fast with so much less energy; a short
        search may come upon what is better by less. `bound` is one of all mappings."""
        started = time.perf_counter()
        if problem.objective == "latency" and cost.cycles <= bound:
            best = self._as_fast(problem, budget, _Best(known, cost, bound))
        else:
            best, bound = self._search(problem, budget, _Best(known, cost))
        answer = None
        if best.mapping is not known:
            answer = self._solution(problem, best, bound, time.perf_counter() - started)
        return Improvement(answer, best.bound, best.is_cut_off)

    def _as_fast(self, problem: MappingProblem, budget: Budget, known: _Best) -> _Best:
        """What is as fast as the fastest that is known, with less energy, as far as it is quickly found."""
        end_s = None if budget.deadline_s is None else time.monotonic() + budget.deadline_s
        return _Search(problem, self, end_s).run_within(known)

    def _search(self, problem: MappingProblem, budget: Budget, known: _Best | None) -> tuple[_Best, float]:
        """(The best mapping, with the bound of those that pad nothing; that of all where it `pads`)."""
        if budget.deadline_s is not None:
            _compile()
        end_s = None if budget.deadline_s is None else time.monotonic() + budget.deadline_s
        check_smallest_tiles(problem.problem, problem.machine, problem.cost_options)
        best = self._unpadded(problem, end_s, known)
        if not Evaluator.suits(problem.problem, problem.cost_options):
            # The search counts no transfers between neighbours, all first fills, multicasts to all instances,
            # and windows of two dims.
            note = f"{best.note}, nothing proven beyond the roofline"
            best = replace(best, energy_bound_pj=0.0, bound=self._bound(problem), note=note)
        bound = best.bound
        if self.pads:
            bound = min(bound, bound_padded(problem))
            if self._value(problem, best) > bound:
                best = replace(self._padded(problem, best, end_s), bound=best.bound)
        return best, bound

    def _solution(
        self, problem: MappingProblem, best: _Best, bound: float, seconds: float
    ) -> MappingSolution:
        mapping, cost = best.mapping, best.cost
        if mapping is None or mapping.padding(problem.problem):
            mapping, cost = mapping or Tilings(problem).everything_outermost(), None
        return build_solution(
            problem,
            mapping,
            Provenance(self.name, num_evaluations=best.num_search_states, note=best.note),
            cost=cost,
            seconds=seconds,
            bounds=tuple(self._bounds(problem, mapping, best, bound)),
            cut_off=best.is_cut_off,
            details={"energy_bound_at_latency_pj": best.energy_bound_pj, "bound_unpadded": best.bound},
        )

    def _bounds(
        self, problem: MappingProblem, mapping: Mapping, best: _Best, bound: float
    ) -> Iterator[Bound]:
        """Lower bounds of spaces that hold the mapping, that of all mappings first."""
        if self.pads:
            known = bound
            yield Bound(bound, problem.space, "spatial factors and search")
        else:
            known = problem.roofline().value
            yield problem.roofline()
        if best.bound > known and mapping.padding(problem.problem) == 0:
            yield Bound(best.bound, problem.space.keeping(UNPADDED), "search")

    def _unpadded(self, problem: MappingProblem, end_s: float | None, known: _Best | None) -> _Best:
        """The best mapping whose factors divide the extents; where time is short, of few tiles."""
        seed = None
        if (
            known is None
            and end_s is not None
            and not problem.constraints.name_dims
            and num_points(Joined.of(problem).task.problem) > _MANY_POINTS
        ):
            coarse = _Search(problem, replace(self, max_points=_FEW_POINTS), end_s)
            seed = coarse.run_narrowly()
            if coarse.is_over():
                return replace(seed, bound=self._bound(problem), is_cut_off=True)
        return _Search(problem, self, end_s).run(known, seed=seed)

    def _padded(self, problem: MappingProblem, best: _Best, end_s: float | None) -> _Best:
        """The best mapping if padded extents are tried, too."""
        for candidate in padded_problems(problem, self._value(problem, best)):
            if best.is_cut_off or (end_s is not None and time.monotonic() > end_s):
                return replace(best, is_cut_off=True)
            enough = self._value(problem, best) / _NEARLY
            if bound_padded(candidate, enough) >= enough:
                continue
            try:
                other = _Search(candidate, self, end_s).run(best)
            except InfeasibleMapping:  # fixed factors do not divide these extents
                continue
            if other.mapping is best.mapping:
                best = replace(best, num_search_states=other.num_search_states, is_cut_off=other.is_cut_off)
            else:  # what was proven of its energy is about mappings without padding
                best = replace(other, energy_bound_pj=0.0, note=f"{other.note}, padded")
        return best

    @staticmethod
    def _bound(task: MappingProblem) -> float:
        return objective_bound(task.problem, task.machine, task.objective, task.cost_options)

    @staticmethod
    def _value(task: MappingProblem, best: _Best) -> float:
        if best.cost is None:
            return inf
        return measure(task.objective, best.cost.cycles, best.cost.energy_pj)


@dataclass(frozen=True, slots=True)
class Improvement:
    """What is better than a known mapping, if anything is, and what no mapping that pads nothing beats."""

    answer: MappingSolution | None
    bound_unpadded: float
    is_cut_off: bool


@functools.cache
def _compile() -> None:
    """Compile the search's loops before a budget is spent: the first time on a machine that takes seconds."""
    machine = Machine(
        name="tiny",
        levels=(Level(name="Buffer", capacity_bytes=64), Level(name="Memory")),
        units=(Unit(name="mac", kind="mac", macs_per_cycle={"int8": 1}),),
    )
    _Search(MappingProblem(convolution({"P": 2, "R": 2, "K": 2}), machine), Exact(), None).run()


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


def _proven(answer: Found, limit: float) -> float:
    """What a pass with a limit proves."""
    return min(limit, answer.least_lost, *answer.values[:1])


def _looked_at(_: int) -> Mapping:
    raise AssertionError("mappings of a pass are put together once")


class _Search:
    """One problem, extents as they are."""

    def __init__(self, task: MappingProblem, mapper: Exact, end_s: float | None) -> None:
        self.task, self.mapper, self.end_s = task, mapper, end_s
        self.joined = Joined.of(task)
        max_points = mapper.max_points
        if mapper.is_short and task.block is not None:
            # Three levels of a GPU fill the places of a short search with the first of many tiles.
            max_points = min(max_points, _FEW_POINTS)
        self.lattice = Lattice.of(self.joined.task.problem, task.cost_options, max_points)
        self.space = Space(self.joined.task, self.lattice)
        self.best, self.refines = _Best(), True
        self.answers: dict[Question, Found] = {}
        self.counted: dict[Mapping, Cost] = {}
        self.num_search_states = self.largest_pass = 0
        self.is_cut_off = self.is_seeded = False
        self.seen = inf  # the least value of search states whose mappings were looked at
        self.started_s = time.monotonic()
        self.least_cycles = self.space.least(search_states.LATENCY)

    def run_narrowly(self) -> _Best:
        """A good mapping, quickly."""
        for objective in _IN_TURN[self.task.objective]:
            self.seen = inf
            self._narrowly(objective, inf, self.space.least(objective))
        return self.best

    def run_within(self, known: _Best) -> _Best:
        """A mapping of less energy that takes no longer than a known one, quickly; else that one."""
        self.best = known
        if known.cost is not None:
            self._narrowly(search_states.ENERGY_WITHIN, float(known.cost.cycles), 0.0, _WIDTHS[:1])
        return self.best

    def run(self, known: _Best | None = None, *, seed: _Best | None = None) -> _Best:
        """The best mapping, `known` if nothing that is looked for, 1.5 % less, is found, `seed` if nothing
        beats it at all."""
        self.best, self.refines = known or seed or _Best(), known is None
        match self.task.objective:
            case _ if self.mapper.is_short:
                bound, energy_bound = self._shortly(), 0.0
            case "latency":
                bound, energy_bound = self._latency()
            case "energy" | "edp" as objective:
                if known is None:
                    # What is best at the least latency is seldom far from the best, and quickly found.
                    self._deepen(search_states.ENERGY_WITHIN, self.least_cycles)
                bound = self._deepen(
                    search_states.ENERGY_WITHIN if objective == "energy" else search_states.EDP, inf
                )
                energy_bound = bound if objective == "energy" else 0.0
        value = self._value(_NUMBERS[self.task.objective], inf)
        if value > bound and self._has_rule_at_most and self.end_s is not None and not self.is_seeded:
            self._seed(self.end_s - time.monotonic())
        if value > bound * _NEARLY and known is None:
            self._take_by_rule()
        if self.lattice.is_merged:  # nothing was proven of the tiles that are left out
            bound = self.mapper._bound(self.task)
            energy_bound = 0.0
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
        least = self.least_cycles
        energy = self._deepen(search_states.ENERGY_WITHIN, least, must_find=True)
        if self.best.cost is not None and self.best.cost.cycles <= least:
            return least, energy
        least = self.least_cycles = self._deepen(search_states.LATENCY, inf)
        if self.best.cost is None:
            return least, energy
        return least, self._deepen(search_states.ENERGY_WITHIN, float(self.best.cost.cycles))

    def _deepen(self, objective: int, cap_cycles: float, *, must_find: bool = False) -> float:
        """Raise the limit until something lies below it; gives a bound on what all mappings take.

        With a mapping in hand, until none can be better by 1.5 %, then, if that was quickly answered,
        whether one is better at all. With `must_find` it ends where a narrow search has found nothing:
        whether anything keeps the cap is sooner asked where energy does not matter.
        """
        start = self.space.least(objective, cap_cycles)
        if start == inf:
            return inf
        self.seen = inf
        proven, is_blind, last_pass = start, True, 0
        for number, factor in enumerate(_LIMITS):
            if is_blind and (not self.refines or last_pass > _FEW_STATES or number == _NUM_BLIND):
                is_blind = False
                proven = max(proven, self._narrowly(objective, cap_cycles, start))
                if must_find and self._value(objective, cap_cycles) == inf:
                    return proven
                proven = max(proven, self._boldly(objective, cap_cycles, proven))
            enough = self._value(objective, cap_cycles) / _NEARLY
            if min(enough, self.seen) <= proven:
                break
            limit = enough if enough <= start * _CLOSE else min(start * factor, enough)
            if limit <= proven:
                continue
            most = _BLIND if is_blind and self.refines else ALL
            answer = self._pass(objective, limit, cap_cycles, most=most)
            if answer is None:
                return proven
            last_pass = answer.num_search_states
            proven = max(proven, _proven(answer, limit))
            if answer.values or limit == enough:
                break
            if answer.least_lost < limit and enough < inf:
                break  # no free capacity for more
        known = self._value(objective, cap_cycles)
        if known == inf or not self.refines or self.largest_pass > _QUICK_STATES:
            return proven
        if proven >= min(known, self.seen):
            return proven
        answer = self._pass(objective, known * (1 + _ROUNDING), cap_cycles)
        if answer is None:
            return proven
        return max(proven, _proven(answer, known))

    def _shortly(self) -> float:
        """Look near the bound, then follow few partial mappings of each tile, then as many as there are
        places for, until a mapping is near what is proven: a short search does not raise its limit.

        Of least cycles the mapping is one of little energy, looked for first. Gives what is proven.
        """
        objective = _NUMBERS[self.task.objective]
        proven = least = self.space.least(objective)
        is_latency = objective == search_states.LATENCY
        if is_latency:
            self._pass(search_states.ENERGY_WITHIN, inf, least * _LIMITS[0], _WIDTHS[0])
        of_little_energy = self.best
        for width, factor in _SHORT_PASSES:
            value = self._value(objective, inf)
            if value <= proven * _NEARLY:
                break
            self.seen = inf
            limit = min(value if self.refines else value / _NEARLY, least * factor)
            answer = self._pass(objective, limit, inf, width)
            if answer is not None:
                proven = max(proven, _proven(answer, limit))
        if self._value(objective, inf) > proven * _NEARLY and self.refines:
            self._take_by_rule()
        if is_latency and self.best is not of_little_energy and self.best.cost is not None:
            self._pass(search_states.ENERGY_WITHIN, inf, float(self.best.cost.cycles), _WIDTHS[0])
        return proven

    def _boldly(self, objective: int, cap_cycles: float, proven: float) -> float:
        """Look at once at all that could be better, by 1.5 % where something is known before: mostly that is
        little, and if not, seen soon. Gives what is proven.

        Infinite where nothing keeps the cap.
        """
        known = self._value(objective, cap_cycles)
        if min(known / _NEARLY, self.seen) <= proven:
            return proven
        limit = known * (1 + _ROUNDING) if self.refines else known / _NEARLY
        answer = self._pass(objective, limit, cap_cycles, most=_BOLD)
        return proven if answer is None else _proven(answer, limit)

    def _narrowly(
        self, objective: int, cap_cycles: float, start: float, widths: tuple[int, ...] = _WIDTHS
    ) -> float:
        """Good mappings: of each tile only a few partial mappings go on. Gives what is proven all the same,
        where these are all or what is left out promises little."""
        proven = 0.0
        for width in widths:
            known = self._value(objective, cap_cycles)
            if known <= start * (_NEARLY if width == _WIDTHS[0] else _FAIRLY) or (
                known < inf and not self.refines
            ):
                return proven
            ruled = self._value_of(self._by_rule, objective, cap_cycles) * (1 + _ROUNDING)
            limit = min(known, ruled)
            answer = self._pass(objective, limit, cap_cycles, width)
            if answer is None:
                return proven
            proven = max(proven, _proven(answer, limit))
            if self.seen <= proven:
                return proven
        if self._value(objective, cap_cycles) > start * _NEARLY:
            self._take_by_rule()
        return proven

    def _take_by_rule(self) -> None:
        if self._by_rule is not None:
            self._take(self._by_rule.mapping, self._by_rule.cost)

    @property
    def _has_rule_at_most(self) -> bool:
        """Whether there is no mapping yet but perhaps the rule's."""
        return self.best.mapping is None or (
            self._by_rule is not None and self.best.mapping is self._by_rule.mapping
        )

    @functools.cached_property
    def _by_rule(self) -> MappingSolution | None:
        """What the rule for kernels gives at once. What costs more is not looked at, and where a few partial
        mappings of each tile lead nowhere near it, it is the best so far."""
        if self.task.constraints or self.task.block is not None:  # the rule knows of none
            return None
        try:
            solution = Paper().solve(self.task, Budget())
        except InfeasibleMapping:
            return None
        return None if isinstance(solution, Infeasible) else solution

    def _pass(
        self, objective: int, limit: float, cap_cycles: float, width: int = ALL, most: int = ALL
    ) -> Found | None:
        checkpoint()
        most = min(most, self.mapper.max_search_states)
        question = Question(objective, limit, cap_cycles, most, width)
        if (asked := self.answers.get(question)) is not None:  # its mappings have been looked at
            self.seen = min((self.seen, *asked.values[:1]))
            return asked
        answer = search(self.space, question, self.is_over if width == ALL else self.is_over_at_last)
        if answer is None:
            self.is_cut_off |= not self.is_tie
            return None
        self.answers[question] = replace(answer, mapping=_looked_at)  # without its search states
        self.num_search_states += answer.num_search_states
        if width == ALL:
            self.largest_pass = max(self.largest_pass, answer.num_search_states)
        self.seen = min((self.seen, *answer.values[:1]))
        num_in_vain = 0
        for number, value in enumerate(answer.values):
            known = self._value(objective, cap_cycles)
            if known <= value or num_in_vain == _MOST_IN_VAIN:
                break  # what follows costs as much at least, or is rounded alike
            self._take(self.joined.parted(answer.mapping(number)))
            num_in_vain = 0 if self._value(objective, cap_cycles) < known else num_in_vain + 1
        return answer

    @property
    def is_tie(self) -> bool:
        """Whether nothing is faster than the best mapping, and only its energy is in question."""
        cost = self.best.cost
        return (
            self.task.objective == "latency"
            and cost is not None
            and cost.cycles <= self.least_cycles * _NEARLY
        )

    def is_over(self) -> bool:
        """Whether time is up, or what there is for less energy where nothing is faster."""
        if self.end_s is None:
            return False
        ends_s = self.started_s + _SHARE_OF_TIES * (self.end_s - self.started_s)
        return self.is_over_at_last() or (self.is_tie and time.monotonic() > ends_s)

    def is_over_at_last(self) -> bool:
        """Whether time is up; a search that has nothing after a share of it takes CoSA's mapping meanwhile.

        Most have something by then, and an integer program takes as long as many a search.
        """
        if self.end_s is None:
            return False
        now = time.monotonic()
        waits_until_s = self.started_s + _SHARE_BEFORE_COSA * (self.end_s - self.started_s)
        if self._has_rule_at_most and not self.is_seeded and now > waits_until_s:
            self._seed((self.end_s - now) / 4)
        return time.monotonic() > self.end_s

    def _seed(self, deadline_s: float) -> None:
        self.is_seeded = True
        if deadline_s <= 0 or self.task.constraints:  # CoSA knows of none
            return
        try:
            solution = Cosa().solve(self.task, Budget(deadline_s=deadline_s))
        except InfeasibleMapping:  # not in this time, or what it answers does not fit
            return
        if not isinstance(solution, Infeasible):
            self._take(solution.mapping)

    def _value(self, objective: int, cap_cycles: float) -> float:
        """Of the best mapping so far."""
        return self._value_of(self.best, objective, cap_cycles)

    @staticmethod
    def _value_of(answer: _Best | MappingSolution | None, objective: int, cap_cycles: float) -> float:
        cost = None if answer is None else answer.cost
        if cost is None or cost.cycles > cap_cycles:
            return inf
        return measure(_OBJECTIVES[objective], cost.cycles, cost.energy_pj)

    def _take(self, mapping: Mapping, cost: Cost | None = None) -> None:
        cost = cost or self.counted.get(mapping)
        if cost is None:
            cost = evaluate(self.task.problem, self.task.machine, mapping, self.task.cost_options)
            self.counted[mapping] = cost
        if self.best.cost is None or self._rank(cost) < self._rank(self.best.cost):
            self.best = replace(self.best, mapping=mapping, cost=cost)

    def _rank(self, cost: Cost) -> tuple[float, float]:
        return rank(self.task.objective, cost.cycles, cost.energy_pj)
