"""Divide and conquer over the subgraphs of a model (AGO, section V): parts are tuned first, then the whole.

SPLIT takes each subgraph apart into parts of at most one complex operator. All parts of all subgraphs are
searched at the same time, as one run of the model measures a form of each. When the parts of a subgraph have
settled, JOIN composes what was best of each, and the search of the whole begins there. Without the reformer
wholes are searched from the start.

As candidates are many and measurements are noisy, what seems best is built anew, all together, and must win
again; then whole models race. A plan that won its race is stored at once: what is best so far can be used at
any time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Generic

from tilewright.planning import Meter
from tilewright.records import dataclass
from tilewright.system.worker_process import NoWorker
from tilewright.tuning.evolution import DEFAULT_EVOLUTION, Evolution, EvolutionOptions
from tilewright.tuning.form_plan import (
    Findings,
    FormBench,
    FormOutcome,
    FormSite,
    FormTrial,
    KernelTimes,
    Listener,
    Paired,
    SiteReport,
)
from tilewright.tuning.incumbent import Incumbent
from tilewright.tuning.samples import typical
from tilewright.tuning.similar import Sharing
from tilewright.tuning.space import FormPart, FormSpace, FormT
from tilewright.tuning.workers import Failed

logger = logging.getLogger(__name__)

# To be built again a form must be faster by this much, and to be taken by this much the second time, when it
# is measured for longer.
_MARGIN = 0.02
_CONFIRMED_MARGIN = 0.01
_NUM_CONFIRMATIONS = 2
# A subgraph with so many times the average share of the time is measured in every plan.
_FULL_SHARE = 0.5
# Searches that have settled go on in the time that is left, until they have been as patient as this.
_MOST_PATIENCE = 4
# A subgraph with a smaller share of the model's time is not worth a measurement.
_MIN_SHARE = 0.004
# A plan is confirmed and raced once it promises to be faster than the last one by this much ...
_CHECKPOINT_GAIN = 0.02
# ... and searching took so many times what that took last, and so long at least.
_CHECKPOINT_RATIO = 4.0
_CHECKPOINT_S = 20.0
# What confirming and racing takes, in measurements of one plan.
_END_PLANS = 6

Choice = dict[str, FormT]
"""A form for each of some spaces, by their keys: what one run measures."""


@dataclass(slots=True, eq=False)
class _Subgraph(Generic[FormT]):
    """A site and how far its search is: in its parts, or as a whole."""

    site: FormSite[FormT]
    parts: tuple[FormPart[FormT], ...]  # none: it is searched as a whole
    plain_ns: float

    @property
    def space(self) -> FormSpace[FormT]:
        return self.site.space

    @property
    def spaces(self) -> list[FormSpace[FormT]]:
        """The spaces that are searched now, each once."""
        return list({p.space.key: p.space for p in self.parts}.values()) if self.parts else [self.space]

    def form(self, choice: Mapping[str, FormT]) -> FormT:
        """Its form where the spaces that are searched now have these."""
        if not self.parts:
            return choice[self.space.key] if self.space.key in choice else self.space.initial()
        return self.space.join(
            [choice[p.space.key] if p.space.key in choice else p.space.initial() for p in self.parts]
        )

    def places(self, key: str) -> list[tuple[int, ...] | None]:
        """Where a space of this key lies in it: positions of operators, None for all of them."""
        if not self.parts:
            return [None] if key == self.space.key else []
        return [part.positions for part in self.parts if part.space.key == key]


@dataclass(slots=True, eq=False)
class Reformer(Generic[FormT]):
    """One search; `run` it once."""

    sites: Sequence[FormSite[FormT]]
    bench: FormBench[FormT]
    meter: Meter
    listener: Listener[FormT]
    findings: Findings[FormT] = field(default_factory=Findings)
    seed: int = 0
    splits: bool = True
    options: EvolutionOptions = DEFAULT_EVOLUTION
    clock: Callable[[], float] = time.monotonic
    _subgraphs: list[_Subgraph[FormT]] = field(default_factory=list)
    _evolutions: dict[str, Evolution[FormT]] = field(default_factory=dict)
    _num_parts: dict[str, int] = field(default_factory=dict)
    _measured: dict[str, set[FormT]] = field(default_factory=dict)
    _incumbent: Incumbent[FormT] = field(init=False)
    _due: dict[str, float] = field(default_factory=dict)  # plans in which a form of a space should be
    _sharing: Sharing[FormT] = field(default_factory=Sharing)
    _plain_failure: Failed | None = None
    _total_ns: float = 0.0
    _stored_ratio: float = 1.0
    _checkpoint_s: float = 0.0  # what the last one took
    _searched_s: float = 0.0  # since the last checkpoint
    _plan_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=3)
    )  # of a plan, in the last comparisons
    _least_s: float = math.inf  # and in the quickest, when its kernels were compiled already

    def __post_init__(self) -> None:
        self._incumbent = Incumbent(self.bench, self.meter, self.listener, self.clock)

    def run(self) -> FormOutcome[FormT]:
        """The whole search; an interrupt ends it with the plan that was stored last.

        So does the loss of all machines that measure, with a warning.
        """
        is_interrupted = is_lost = False
        try:
            self._begin()
            while self._round() or self._join_settled() or self._has_patience():
                self._join_settled()
                if self._is_due():
                    self._checkpoint(num_confirmations=1)
            self._checkpoint(num_confirmations=_NUM_CONFIRMATIONS)
            self._incumbent.defend(self._with_the_same_kernels())
        except KeyboardInterrupt:
            is_interrupted = True
        except NoWorker as error:
            is_lost = True
            logger.warning("the search ends with the best so far: %s", error)
        is_complete = self._is_settled and not is_interrupted and not is_lost
        plan = replace(self._incumbent.plan, is_complete=is_complete)
        evolutions = tuple(self._evolutions.values())
        return FormOutcome(
            plan,
            tuple(map(self._report, self._subgraphs)),
            sum(map(len, self._measured.values())),
            sum(evolution.num_priced for evolution in evolutions),
            is_interrupted,
            is_lost,
            sum(evolution.num_candidates for evolution in evolutions),
            num_measured := sum(evolution.num_measured for evolution in evolutions),
            "" if num_measured else self._why_unmeasured(is_interrupted=is_interrupted, is_lost=is_lost),
        )

    def _why_unmeasured(self, *, is_interrupted: bool, is_lost: bool) -> str:
        """Why no candidate has a time."""
        if is_interrupted or is_lost:
            return "the search was interrupted" if is_interrupted else "no process was left to measure"
        if self._plain_failure is not None:
            return f"the untuned plan {self._plain_failure.reason}: {self._plain_failure.detail}"
        if not self._subgraphs:
            return "what can be made in another way takes too little of the time"
        if self.meter.cut_off:
            return "the budget is too small to run this model often enough"
        return "its kernels take less time than can be measured"

    # Rounds.

    def _begin(self) -> None:
        """Measure the untuned plan, and take apart the subgraphs that are worth it."""
        times = self.bench.profile({})
        if isinstance(times, Failed):
            self._plain_failure = times
            return
        by_site = {key: typical(_summed(kernels.values())) for key, kernels in times.items() if kernels}
        self._total_ns = sum(by_site.values())
        for site in self.sites:
            plain_ns = by_site.get(site.key, 0.0)
            if plain_ns < _MIN_SHARE * self._total_ns or not plain_ns:
                continue
            parts = site.space.split() if self.splits else ()
            self._num_parts[site.key] = max(1, len(parts))
            self._subgraphs.append(_Subgraph(site, parts if len(parts) > 1 else (), plain_ns))
        apart = {s.site.key: s.form({}) for s in self._subgraphs if s.parts}
        if apart and isinstance(self.bench.profile(apart), Failed):
            for subgraph in self._subgraphs:  # not all parts can be computed alone
                subgraph.parts = ()
        if self.findings.plan is not None and self.findings.plan.forms:
            plan = self._incumbent.plan = self.findings.plan
            self._stored_ratio = plan.tuned_ns / plan.plain_ns
            for s in self._subgraphs:
                form = plan.forms.get(s.site.key)
                if form is not None and s.space.read(form.to_json()) is not None:
                    self._evolution(s.space).start_with(form, "of an earlier plan")

    def _round(self) -> bool:
        """Measure some forms of every space that has not settled; False at the end of budget or search."""
        start_s = self.clock()
        is_promising = bool(self._plan_s) and self._promise() < 1 - _CONFIRMED_MARGIN
        kept_s = max(_END_PLANS * self._least_s, self._checkpoint_s) if is_promising else 0.0
        num_plans = min(self.bench.max_plans - 1, self._num_affordable(kept_s) - 1)
        if num_plans < 1:
            self.meter.cut_off = True
            return False
        choices = self._choices(num_plans)
        if not choices:
            return False
        self._tell()
        self._measure(choices)
        self._searched_s += self.clock() - start_s
        return True

    def _choices(self, num_plans: int) -> list[Choice[FormT]]:
        """What to measure: in each plan a new form of every space that has not settled.

        Spaces with little of the time have one in fewer plans: each form takes time to compile.
        """
        choices: list[Choice[FormT]] = [{} for _ in range(num_plans)]
        weights = self._weights()
        for space in self._searched_spaces():
            evolution = self._evolution(space)
            if evolution.has_settled:
                continue
            due = self._due.get(space.key, 1.0) + weights[space.key] * num_plans
            count = min(num_plans, int(due))
            self._due[space.key] = min(due - count, 1.0)
            for choice, form in zip(choices, evolution.propose(count) if count else (), strict=False):
                if self.meter.spend():
                    choice[space.key] = form
            if count < num_plans:  # not all forms of small ones in one plan
                choices.append(choices.pop(0))
        return [choice for choice in choices if choice]

    def _weights(self) -> dict[str, float]:
        """Of each searched space in which part of the plans it has a form."""
        time_ns: dict[str, float] = {}
        for subgraph in self._subgraphs:
            for space in subgraph.spaces:
                if not self._evolution(space).has_settled:
                    share = subgraph.plain_ns / len(subgraph.spaces)
                    time_ns[space.key] = time_ns.get(space.key, 0.0) + share
        enough_ns = _FULL_SHARE * sum(time_ns.values()) / max(1, len(time_ns))
        return {key: min(1.0, ns / enough_ns) for key, ns in time_ns.items()}

    def _measure(self, choices: Sequence[Choice[FormT]]) -> None:
        """Measure choices beside what they are compared with; a plan that fails is halved to find out why."""
        reference, *plans = (
            {s.site.key: s.form(choice) for s in self._subgraphs} for choice in ({}, *choices)
        )
        trials: list[FormTrial[FormT]] = []
        again: list[Choice[FormT]] = []
        for choice, times in zip(choices, self._compared(reference, plans), strict=True):
            if not isinstance(times, Failed):
                trials += self._trials(choice, times)
            elif len(choice) == 1:
                ((key, form),) = choice.items()
                features = self._evolutions[key].space.features(form)
                trials.append(FormTrial(key, form, (), 0.0, features, times))
            else:
                again += _halves(choice)
        self._take_note(trials)
        for start in range(0, len(again), self.bench.max_plans - 1):
            if self._num_affordable(0.0) > 1:
                self._measure(again[start : start + self.bench.max_plans - 1])

    def _trials(self, choice: Choice[FormT], times: Paired) -> Iterator[FormTrial[FormT]]:
        for key, form in choice.items():
            samples, plain = self._times_of(key, times.plan), self._times_of(key, times.reference)
            if samples and plain and typical(samples) and typical(plain):
                features = self._evolutions[key].space.features(form)
                yield FormTrial(key, form, samples, typical(plain), features)

    def _times_of(self, key: str, times: KernelTimes) -> list[float]:
        """Times of a space's kernels at all its places together, run by run; none where they have none."""
        samples = [
            kernel
            for subgraph in self._subgraphs
            for positions in subgraph.places(key)
            for position, kernel in times.get(subgraph.site.key, {}).items()
            if positions is None or position in positions
        ]
        return _summed(samples)

    def _take_note(self, trials: Sequence[FormTrial[FormT]]) -> None:
        outcomes: dict[str, dict[FormT, float | None]] = {}
        for trial in trials:
            outcomes.setdefault(trial.key, {})[trial.form] = trial.ratio
            self._measured.setdefault(trial.key, set()).add(trial.form)
        for key, found in outcomes.items():
            self._evolutions[key].observe(found)
        self._sharing.share(outcomes, self._evolutions, self._searched_spaces())
        self.listener.record(trials)

    # Parts and wholes.

    def _searched_spaces(self) -> list[FormSpace[FormT]]:
        return list({space.key: space for s in self._subgraphs for space in s.spaces}.values())

    def _evolution(self, space: FormSpace[FormT]) -> Evolution[FormT]:
        if space.key not in self._evolutions:
            known = self.findings.trials(space)
            evolution = Evolution(space, self.seed, known=known, options=self.options)
            for form in reversed(self.findings.hints(space)):
                evolution.start_with(form, "measured elsewhere")
            self._evolutions[space.key] = evolution
        return self._evolutions[space.key]

    def _join_settled(self) -> bool:
        """Subgraphs whose parts have settled go on as a whole, from the best of each; whether any does."""
        any_joined = False
        for subgraph in self._subgraphs:
            if subgraph.parts and all(self._evolution(space).has_settled for space in subgraph.spaces):
                any_joined, joined = True, self._joined(subgraph)
                subgraph.parts = ()
                self._evolution(subgraph.space).start_with(joined, "joined from its parts")
        return any_joined

    def _joined(self, subgraph: _Subgraph[FormT]) -> FormT:
        return subgraph.form({s.key: self._evolution(s).best[0] for s in subgraph.spaces})

    def _has_patience(self) -> bool:
        """Whether searches that have settled go on, which they do while some can bring up something new."""
        wholes = [self._evolution(subgraph.space) for subgraph in self._subgraphs]
        if all(e.is_exhausted or e.patience == _MOST_PATIENCE for e in wholes) or self.meter.cut_off:
            return False
        for evolution in wholes:
            evolution.patience = min(2 * evolution.patience, _MOST_PATIENCE)
        return True

    @property
    def _is_settled(self) -> bool:
        return all(not s.parts and self._evolution(s.space).has_settled for s in self._subgraphs)

    # The best so far.

    def _promising(self, subgraph: _Subgraph[FormT]) -> tuple[FormT, float] | None:
        """The form of a subgraph that promises most, and what it promises; None without a gain."""
        offers = [(form, ratio) for form, ratio in self._others(subgraph) if ratio < 1 - _MARGIN]
        return min(offers, key=lambda offer: offer[1], default=None)

    def _others(self, subgraph: _Subgraph[FormT]) -> list[tuple[FormT, float]]:
        """The best that was measured of a subgraph beside its initial form, and its best parts as a whole."""
        initial = subgraph.space.initial()
        whole = self._evolutions.get(subgraph.space.key)
        measured = [] if whole is None else whole.ranking
        others = [(form, ratio) for form, ratio in measured if form != initial][:1]
        if subgraph.parts:
            joined = self._joined(subgraph)
            if joined != initial and (whole is None or not whole.knows(joined)):
                ratios = [self._evolution(part.space).best[1] for part in subgraph.parts]
                others.append((joined, sum(ratios) / len(ratios)))
        return others

    def _promise(self) -> float:
        """The time of the most promising plan over that of the untuned one, as far as kernels tell."""
        if not self._total_ns:
            return 1.0
        saved_ns = sum(
            s.plain_ns * (1 - offer[1]) for s in self._subgraphs if (offer := self._promising(s)) is not None
        )
        return 1 - saved_ns / self._total_ns

    def _is_due(self) -> bool:
        promises = self._promise() < self._stored_ratio * (1 - _CHECKPOINT_GAIN)
        least_s = max(_CHECKPOINT_S, _CHECKPOINT_RATIO * self._checkpoint_s)
        return promises and self._searched_s > least_s

    def _checkpoint(self, *, num_confirmations: int) -> None:
        """Confirm what promises most, let it race, and store it if it wins."""
        start_s = self.clock()
        forms = self._confirmed(num_confirmations)
        searches = {s.site.key: self._evolution(s.space) for s in self._subgraphs}
        ratios = {key: searches[key].ratio(form) or 1.0 for key, form in forms.items()}
        self._incumbent.challenge(forms, ratios)
        self._stored_ratio = min(self._stored_ratio, self._promise())
        self._searched_s, self._checkpoint_s = 0.0, self.clock() - start_s

    def _with_the_same_kernels(self) -> dict[str, FormT]:
        """The stored plan without its cuts: there the best that differs in how products are made alone.

        Where the search leaves out the kernels that are there untuned, its cuts stay.
        """
        forms = dict(self._incumbent.plan.forms)
        for s in self._subgraphs:
            if s.site.key in forms and not s.space.keeps_kernels(forms[s.site.key]):
                ranking = self._evolution(s.space).ranking
                kept = next(((f, r) for f, r in ranking if s.space.keeps_kernels(f)), None)
                if kept is None:
                    continue
                del forms[s.site.key]
                if kept[1] < 1 - _MARGIN:
                    forms[s.site.key] = kept[0]
        return forms

    def _confirmed(self, most: int) -> dict[str, FormT]:
        """Forms that win again when they are built anew, together."""
        confirmed: dict[str, FormT] = {}
        for attempt in range(most):
            forms = dict(confirmed)
            for s in self._subgraphs:
                offer = self._promising(s)
                if s.site.key not in forms and offer is not None:
                    forms[s.site.key] = offer[0]
            if forms == confirmed:
                return confirmed
            if self.meter.left_s is not None and self.meter.left_s < self._least_s:
                self.meter.cut_off = True
                return confirmed
            self.listener.report("measure the best again", attempt, most)
            (times,) = self._compared({}, [forms], for_long=True)
            if isinstance(times, Failed):
                return confirmed
            confirmed = self._won_again(forms, times)
        return confirmed

    def _won_again(self, forms: Mapping[str, FormT], times: Paired) -> dict[str, FormT]:
        trials: list[FormTrial[FormT]] = []
        for s in self._subgraphs:
            if s.site.key in forms:
                form = forms[s.site.key]
                samples, plain = (_summed(run[s.site.key].values()) for run in (times.plan, times.reference))
                if not typical(plain):  # less than a tick of the clock that stamps steps
                    continue
                self._evolution(s.space)
                features = s.space.features(form)
                trials.append(FormTrial(s.site.key, form, samples, typical(plain), features))
        self._take_note(trials)
        won: dict[str, FormT] = {}
        for trial in trials:
            ratio = trial.time_ns / trial.plain_ns
            self._incumbent.verdicts[trial.key] = f"built anew it took {ratio:.2f} of the time"
            if ratio < 1 - _CONFIRMED_MARGIN:
                won[trial.key] = trial.form
        return won

    # Time, and what people read.

    def _compared(
        self, reference: Mapping[str, FormT], plans: Sequence[Mapping[str, FormT]], *, for_long: bool = False
    ) -> Sequence[Paired | Failed]:
        start_s = self.clock()
        results = self.bench.compare(reference, plans, for_long=for_long)
        self._note_time(start_s, num_plans=1 + len(plans))
        return results

    def _note_time(self, start_s: float, *, num_plans: int) -> None:
        plan_s = (self.clock() - start_s) / num_plans
        self._plan_s.append(plan_s)
        self._least_s = min(self._least_s, plan_s)

    def _num_affordable(self, kept_s: float) -> int:
        """How many plans can be measured if so much time is kept."""
        left_s = self.meter.left_s
        if left_s is None:
            return self.bench.max_plans
        # The median, as another process may have been measuring; unknown before the first comparison.
        plan_s = sorted(self._plan_s)[len(self._plan_s) // 2] if self._plan_s else left_s / 4
        return max(0, int((left_s - kept_s) / plan_s)) if plan_s > 0 else self.bench.max_plans

    def _tell(self) -> None:
        num_settled = sum(not s.parts and self._evolution(s.space).has_settled for s in self._subgraphs)
        left_s = self.meter.left_s
        left = "" if left_s is None else f", {max(0.0, left_s):.0f} s left"
        total = len(self._subgraphs)
        gain = 1 / self._promise()
        text = f"tune subgraphs: {num_settled} of {total} done, best so far {gain:.2f} x untuned{left}"
        self.listener.report(text, num_settled, total)

    def _report(self, subgraph: _Subgraph[FormT]) -> SiteReport[FormT]:
        site, whole = subgraph.site, self._evolutions.get(subgraph.space.key)
        keys = {site.key, *(part.space.key for part in site.space.split())} if self.splits else {site.key}
        searches = [self._evolutions[key] for key in sorted(keys) if key in self._evolutions]
        form = self._incumbent.plan.forms.get(site.key)
        others = self._others(subgraph)
        ratio = min((other[1] for other in others), default=None)
        if form is not None and whole is not None:
            ratio = whole.ratio(form) or ratio
        return SiteReport(
            key=site.key,
            nodes=site.nodes,
            num_parts=self._num_parts[site.key],
            num_priced=sum(search.num_priced for search in searches),
            num_measured=sum(search.num_measured for search in searches),
            num_failed=sum(search.num_failed for search in searches),
            plain_ns=subgraph.plain_ns,
            ratio=ratio,
            form=form,
            why=self._why(site.key, form, whole, ratio, is_settled=all(s.has_settled for s in searches)),
        )

    def _why(
        self,
        key: str,
        form: FormT | None,
        whole: Evolution[FormT] | None,
        ratio: float | None,
        *,
        is_settled: bool,
    ) -> str:
        """Why a site has the form that it has."""
        if form is not None:
            origin = "" if whole is None else whole.origins.get(form, "")
            return "; ".join(
                x for x in (origin, self._incumbent.taken_by.get(key, ""), "the race was won") if x
            )
        if key in self._incumbent.verdicts:
            return f"{self._incumbent.verdicts[key]}: not enough, or the race of whole models was not won"
        if ratio is not None and ratio < 1 - _MARGIN:
            return f"the best other took {ratio:.2f} of the time, but no time was left to confirm it"
        tried = "nothing else was measured" if ratio is None else "no other was faster by enough"
        return tried if is_settled else f"{tried} before the budget ended"


def _summed(samples: Iterable[Sequence[float]]) -> list[float]:
    """Several kernels' times as one, run by run."""
    return [sum(run) for run in zip(*samples, strict=True)]


def _halves(choice: Choice[FormT]) -> list[Choice[FormT]]:
    items = list(choice.items())
    middle = len(items) // 2
    return [dict(items[:middle]), dict(items[middle:])]
