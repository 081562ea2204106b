"""Find faster ways to make a model's kernels by running the whole model, within a budget.

A *site* is what a measurement is of: a product in steps of its own, at all its places, or a group of kernels
that share steps. A *bench* runs the model as several plans make it, in turns, and stamps the time of every
step: weights are as cold and threads as many as in use, and one run measures a candidate for each site at
once. A candidate must win twice, the second time freshly built, to enter the tuned plan; and the tuned plan
must beat the plain one, which takes every estimate's choice, in a race of whole models. Otherwise the plain
plan stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

from tilewright.planning import Meter
from tilewright.planning.choice import Choice
from tilewright.records import dataclass
from tilewright.tuning.choice import PLAIN, Candidate, Plan
from tilewright.tuning.database import Trial, TunedPlan

# To be tried again a candidate must win by this much, and to be taken by this much the second time.
_MARGIN = 0.04
_CONFIRMED_MARGIN = 0.02
# The tuned plan must win the race by this much in the middle, and two standard deviations more rounds than a
# fair coin would give it. A race that says neither yes nor no is run again.
_RACE_MARGIN = 0.01
_NUM_RACES = 3
# An algorithm whose best estimate takes so much longer is not measured with other sizes.
_HOPELESS_RATIO = 1.3
# A kernel with a smaller share of the model's time is not worth a measurement.
_MIN_SHARE = 0.004
_NUM_CONFIRMATIONS = 2
# What is kept of the budget for confirmation and race, each of two plans, in measurements of one plan.
_END_PLANS = 5

Samples = Sequence[float]


@dataclass(frozen=True, slots=True)
class Site:
    """Work that occurs in a model and is measured as a whole, and the ways to do it beside the plain one.

    A candidate of a site with several products changes one of them. `nodes` are the operators that its places
    begin with.
    """

    key: str
    candidates: tuple[Candidate, ...]
    nodes: tuple[str, ...] = ()


class Bench(Protocol):
    """Builds and runs a model by different plans. Equal plans are built anew in every call."""

    @property
    def max_plans(self) -> int:
        """Plans that one call may be given: each needs memory."""
        ...

    def profile(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, Samples]]:
        """For each plan the times in ns of each site, all its places together, one sample for each run."""
        ...

    def race(self, plans: Sequence[Plan]) -> Sequence[Samples]:
        """For each plan whole-model times in ns, one for each round; rounds take plans in turns."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SearchOutcome:
    """What a search found. `trials` are the best of each site, won or lost, in the order of `sites`.

    `num_measured` of their candidates were measured, now or before; `num_trials` of them now.
    """

    plan: TunedPlan
    trials: Mapping[str, Trial]
    plain_ns: Mapping[str, float]
    num_trials: int
    is_interrupted: bool = False
    num_measured: int = 0


Record = Callable[[Sequence[tuple[str, Trial]]], object]
Report = Callable[[str, int, int], None]


@dataclass(slots=True)
class _Search:
    sites: Sequence[Site]
    bench: Bench
    meter: Meter
    record: Record
    report: Report
    known: Mapping[str, Mapping[Candidate, Trial]]
    clock: Callable[[], float]
    trials: dict[str, dict[Candidate, Trial]] = field(default_factory=dict)
    plain_ns: dict[str, float] = field(default_factory=dict)
    plan_s: float = 0.0  # what a plan took in the last measurement
    least_s: float = math.inf  # and in the quickest, when its kernels were compiled already
    num_trials: int = 0

    def run(self) -> SearchOutcome:
        """The whole search; an interrupt ends it with what is known."""
        start_s = self.clock()
        plan = TunedPlan(PLAIN, 0.0, 0.0, is_complete=False)
        interrupted = False
        try:
            (times,) = self.bench.profile([PLAIN])
            self._note_time(start_s, num_plans=1)
            self.plain_ns = {site: typical(samples) for site, samples in times.items()}
            todo = self._todo()
            is_complete = self._measure_all(todo)
            plan = self._race(self._confirmed(), is_complete)
        except KeyboardInterrupt:
            interrupted = True
        best = {site: min(found.values(), key=_ratio) for site, found in self.trials.items() if found}
        plan = replace(plan, budget=self.meter.budget)
        num_measured = sum(
            candidate in self.trials.get(site.key, {}) for site in self.sites for candidate in site.candidates
        )
        return SearchOutcome(plan, best, self.plain_ns, self.num_trials, interrupted, num_measured)

    def _todo(self) -> dict[str, list[Candidate]]:
        """Candidates of each site that were not measured yet; what is known already is a trial."""
        total = sum(self.plain_ns.values())
        todo: dict[str, list[Candidate]] = {}
        for site in self.sites:
            known = self.known.get(site.key, {})
            self.trials[site.key] = {c: trial for c, trial in known.items() if self._is_of(site, c)}
            if self.plain_ns.get(site.key, 0.0) >= _MIN_SHARE * total:
                todo[site.key] = [c for c in site.candidates if c not in known]
        return todo

    def _measure_all(self, todo: dict[str, list[Candidate]]) -> bool:
        """Measure candidates, some for every site at a time; whether none is left."""
        total = sum(map(len, todo.values()))
        while any(todo.values()):
            num_plans = min(self.bench.max_plans, self._num_affordable(self._end_s()))
            if num_plans < 2:
                self.meter.cut_off = True
                return False
            plans: list[dict[str, Candidate]] = []
            for _ in range(num_plans - 1):
                plan = {site: left.pop(0) for site, left in todo.items() if left and self.meter.spend()}
                if plan:
                    plans.append(plan)
            if not plans:
                return False
            self._tell(total)
            for site, trial in self._profile(plans):
                self.trials[site][trial.candidate] = trial
            for site, left in todo.items():
                todo[site] = [c for c in left if not self._is_hopeless(site, c)]
        return True

    def _tell(self, total: int) -> None:
        """How far the search is, by candidates or by the budget, and what a run of the best would take."""
        done, whole = max((self.num_trials, total), self.meter.progress, key=_share)
        plain_ns = sum(self.plain_ns.values())
        best = {
            site: min((t.ratio for t in found.values()), default=1.0) for site, found in self.trials.items()
        }
        saved_ns = sum(self.plain_ns.get(site, 0.0) * max(0.0, 1 - ratio) for site, ratio in best.items())
        gain = plain_ns / (plain_ns - saved_ns) if plain_ns > saved_ns else 1.0
        self.report(f"measure kernels, best so far {gain:.2f} x untuned", done, whole)

    def _is_of(self, site: Site, candidate: Candidate) -> bool:
        """Whether a candidate is one of the site's, or made of several of them."""
        parts = {part for known in site.candidates for part in known.choices}
        return parts.issuperset(candidate.choices)

    def _is_hopeless(self, site: str, candidate: Candidate) -> bool:
        """Whether the best estimates of the same algorithm were so slow that other sizes will not help."""
        ratios = [t.ratio for c, t in self.trials[site].items() if c.algorithm == candidate.algorithm]
        return bool(ratios) and min(ratios) > _HOPELESS_RATIO

    def _profile(self, plans: Sequence[Plan]) -> list[tuple[str, Trial]]:
        """Trials of the plans' candidates, recorded."""
        start_s = self.clock()
        plain, *others = self.bench.profile([PLAIN, *plans])
        self._note_time(start_s, num_plans=1 + len(plans))
        trials = [
            (site, Trial(candidate, typical(times[site]), typical(plain[site])))
            for plan, times in zip(plans, others, strict=True)
            for site, candidate in plan.items()
            if times.get(site) and plain.get(site)
        ]
        self.num_trials += len(trials)
        self.record(trials)
        return trials

    def _confirmed(self) -> dict[str, Candidate]:
        """Candidates that win again when they are built anew, together."""
        confirmed: dict[str, Candidate] = {}
        for attempt in range(_NUM_CONFIRMATIONS):
            plan = dict(confirmed)
            for site in self.trials:
                best = self._most_promising(site)
                if site not in plan and best is not None:
                    plan[site] = best
            if plan == confirmed:
                return confirmed
            if self.meter.left_s is not None and self.meter.left_s < self._end_s():
                self.meter.cut_off = True
                return confirmed
            self.report("measure the best again", attempt, _NUM_CONFIRMATIONS)
            confirmed = {}
            for site, trial in self._profile([plan]):
                self.trials[site][trial.candidate] = trial
                if trial.ratio < 1 - _CONFIRMED_MARGIN and self._pays(site, trial):
                    confirmed[site] = trial.candidate
        return confirmed

    def _most_promising(self, site: str) -> Candidate | None:
        """What to measure again: the best of each product together, or else the best; None without a gain."""
        winners = sorted((t for t in self.trials[site].values() if t.ratio < 1 - _MARGIN), key=_ratio)
        if not winners:
            return None
        together: dict[str, Choice] = {}
        for trial in winners:
            for signature, choice in trial.candidate.choices:
                together.setdefault(signature, choice)
        combined = Candidate.of(together)
        return winners[0].candidate if combined in self.trials[site] else combined

    def _pays(self, site: str, trial: Trial) -> bool:
        """Whether what changes several products is no slower than what changes one of them."""
        if len(trial.candidate.choices) == 1:
            return True
        least = min(t.ratio for c, t in self.trials[site].items() if len(c.choices) == 1)
        return trial.ratio < least + _CONFIRMED_MARGIN

    def _race(self, candidates: Plan, is_complete: bool) -> TunedPlan:
        if not candidates:
            return TunedPlan(PLAIN, 0.0, 0.0, is_complete)
        plain: list[float] = []
        tuned: list[float] = []
        for attempt in range(_NUM_RACES):
            self.report("compare whole models", attempt, _NUM_RACES)
            start_s = self.clock()
            more = self.bench.race([PLAIN, candidates])
            plain += more[0]
            tuned += more[1]
            took_s = self.clock() - start_s
            left_s = self.meter.left_s
            if is_faster(tuned, plain) or is_faster(plain, tuned) or (left_s is not None and left_s < took_s):
                break
        wins = is_faster(tuned, plain)
        return TunedPlan(candidates if wins else PLAIN, typical(plain), typical(tuned), is_complete)

    def _note_time(self, start_s: float, *, num_plans: int) -> None:
        self.plan_s = (self.clock() - start_s) / num_plans
        self.least_s = min(self.least_s, self.plan_s)

    def _end_s(self) -> float:
        """What to keep for confirmation and race; nothing if nothing is promising."""
        promising = any(t.ratio < 1 - _MARGIN for found in self.trials.values() for t in found.values())
        return _END_PLANS * self.least_s if promising else 0.0

    def _num_affordable(self, kept_s: float) -> int:
        """How many plans can be measured if so much time is kept."""
        left_s = self.meter.left_s
        if left_s is None or self.plan_s <= 0:
            return self.bench.max_plans
        return max(0, int((left_s - kept_s) / self.plan_s))


def search(
    sites: Sequence[Site],
    bench: Bench,
    meter: Meter,
    *,
    record: Record,
    report: Report,
    known: Mapping[str, Mapping[Candidate, Trial]],
    clock: Callable[[], float] = time.monotonic,
) -> SearchOutcome:
    """Look for a plan faster than the plain one. `record` gets trials as soon as they are measured.

    `known` are trials of earlier searches, by site: they are not measured again unless they look good.
    """
    return _Search(sites, bench, meter, record, report, known, clock).run()


def typical(samples: Samples) -> float:
    """The lower quartile: disturbances only ever add time, and the least of all is luck.

    >>> typical([5.0, 1.0, 2.0, 3.0, 9.0])
    2.0
    """
    ordered = sorted(samples)
    return ordered[(len(ordered) - 1) // 4]


def is_faster(candidate: Samples, incumbent: Samples) -> bool:
    """Whether the candidate wins a race clearly: by a margin in the middle, and in more rounds than by luck.

    >>> is_faster([9.0] * 9, [10.0] * 9), is_faster([9.0, 9.0, 9.0, 11.0, 11.0], [10.0] * 5)
    (True, False)
    """
    ratios = sorted(c / i for c, i in zip(candidate, incumbent, strict=True))
    wins = sum(ratio < 1 for ratio in ratios)
    middle = ratios[len(ratios) // 2]
    return middle < 1 - _RACE_MARGIN and wins >= len(ratios) / 2 + math.sqrt(len(ratios))


def _share(done_of: tuple[int, int]) -> float:
    done, total = done_of
    return done / total if total else 0.0


def _ratio(trial: Trial) -> float:
    return trial.ratio
