"""Parts first, then wholes; what wins twice and the race is kept; failures are found out and never chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from tests.support.form_spaces import ChainForm, ChainSpace

from tilewright.planning import UNLIMITED, Budget
from tilewright.system.worker_process import NoWorker
from tilewright.tuning.form_plan import (
    Findings,
    FormOutcome,
    FormSite,
    FormTrial,
    KernelTimes,
    Listener,
    Paired,
    TunedForms,
)
from tilewright.tuning.reformer import Reformer
from tilewright.tuning.workers import Failed

LONG, SHORT, TINY = ChainSpace((4, 4, 32, 16)), ChainSpace((16,)), ChainSpace((2,), "tiny")
SITES = tuple(FormSite(space, (f"node of {space.key}",)) for space in (LONG, SHORT, TINY))
SCALE = {LONG.key: 1.0, SHORT.key: 1.0, TINY.key: 0.001}
HARD = FormSite(ChainSpace((4, 32, 8, 16, 2, 4, 16, 8), "hard", is_blind=True))
NO_DEADLINE_SOON = Budget(UNLIMITED, 400.0)
Plan = Mapping[str, ChainForm]
Sites = Sequence[FormSite[ChainForm]]


def chain_of(site: FormSite[ChainForm]) -> ChainSpace:
    assert isinstance(site.space, ChainSpace)
    return site.space


def never(key: str, form: ChainForm) -> bool:
    return False


@dataclass
class Bench:
    """Times by the spaces' formula; a clock that advances by a second for each plan measured."""

    max_plans: int = 4
    fails: Callable[[str, ChainForm], bool] = never
    race_factor: float = 1.0
    now_s: float = 0.0
    interrupt_at_s: float = float("inf")
    sites: Sites = SITES

    def profile(self, plan: Plan) -> KernelTimes | Failed:
        self.now_s += 1
        return self._times(plan)

    def compare(
        self, reference: Plan, plans: Sequence[Plan], *, for_long: bool = False
    ) -> Sequence[Paired | Failed]:
        if self.now_s >= self.interrupt_at_s:
            raise KeyboardInterrupt
        self.now_s += 1 + len(plans)
        beside = self._times(reference)
        assert not isinstance(beside, Failed)
        found = map(self._times, plans)
        return [times if isinstance(times, Failed) else Paired(times, beside) for times in found]

    def race(self, incumbent: Plan, plan: Plan) -> tuple[list[float], list[float]]:
        self.now_s += 2
        before, after = self._total(incumbent), self._total(plan) * self.race_factor
        return [before + number for number in range(9)], [after + number for number in range(9)]

    def _total(self, plan: Plan) -> float:
        return sum(
            SCALE.get(space.key, 1.0) * space.time_ns(plan.get(space.key, space.initial()))
            for space in map(chain_of, self.sites)
        )

    def _times(self, plan: Plan) -> KernelTimes | Failed:
        if any(self.fails(key, form) for key, form in plan.items()):
            return Failed("crashed", "SIGSEGV")
        times: dict[str, dict[int, list[float]]] = {}
        for space in map(chain_of, self.sites):
            form, first = plan.get(space.key, space.initial()), 0
            kernels: dict[int, list[float]] = {}
            for last in range(len(form.sizes)):
                if last == len(form.sizes) - 1 or form.cuts[last]:
                    part = ChainForm(form.sizes[first : last + 1], form.cuts[first:last])
                    ns = ChainSpace(space.best_sizes[first : last + 1]).time_ns(part)
                    kernels[first] = [SCALE.get(space.key, 1.0) * ns] * 5
                    first = last + 1
            times[space.key] = kernels
        return times


@dataclass
class Told:
    trials: list[FormTrial[ChainForm]] = field(default_factory=list)
    stored: list[TunedForms[ChainForm]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def run(
    bench: Bench,
    budget: Budget = NO_DEADLINE_SOON,
    *,
    splits: bool = True,
    findings: Findings[ChainForm] | None = None,
    seed: int = 0,
) -> tuple[FormOutcome[ChainForm], Told]:
    told = Told()
    listener = Listener(
        told.trials.extend, told.stored.append, lambda what, done, total: told.reports.append(what)
    )
    reformer = Reformer(
        bench.sites,
        bench,
        budget.start(lambda: bench.now_s),
        listener,
        findings or Findings(),
        seed=seed,
        splits=splits,
        clock=lambda: bench.now_s,
    )
    return reformer.run(), told


def speedup(plan: TunedForms[ChainForm]) -> float:
    return plan.plain_ns / plan.tuned_ns if plan.forms else 1.0


def test_parts_are_tuned_before_their_whole_begins_with_what_was_best() -> None:
    bench = Bench()
    outcome, told = run(bench)
    keys = [trial.key for trial in told.trials]
    parts = {part.space.key for part in LONG.split()}
    first_whole = keys.index(LONG.key)
    assert parts <= set(keys[:first_whole])
    joined = told.trials[first_whole].form
    assert joined.sizes == LONG.best_sizes, "each part had found its best size"
    assert dict(outcome.plan.forms)[LONG.key].cuts[0] is False, "fusing the equal ones was found by the whole"
    assert dict(outcome.plan.forms)[SHORT.key].sizes == (16,)
    assert outcome.plan.is_complete
    assert TINY.key not in keys, "it takes no time"
    assert told.stored[-1].forms == outcome.plan.forms


def test_the_reformer_needs_less_than_a_search_of_wholes() -> None:
    budget = Budget(UNLIMITED, 60.0)
    with_parts, wholes = (
        [speedup(run(Bench(sites=(HARD,)), budget, seed=seed, splits=splits)[0].plan) for seed in range(4)]
        for splits in (True, False)
    )
    assert min(with_parts) > max(wholes)


def test_equal_parts_are_measured_once_for_all_their_places() -> None:
    _, told = run(Bench())
    four = ChainSpace((4,)).key
    assert LONG.split()[0].space.key == LONG.split()[1].space.key == four
    forms = [trial.form for trial in told.trials if trial.key == four]
    assert len(forms) == len(set(forms))
    times = {trial.form: trial.plain_ns for trial in told.trials if trial.key == four}
    assert set(times.values()) == {2 * ChainSpace((4,)).time_ns(ChainSpace((4,)).initial())}


def test_a_plan_that_fails_is_halved_until_the_guilty_form_is_known() -> None:
    def fails(key: str, form: ChainForm) -> bool:
        return key == SHORT.key and form.sizes == (16,)

    outcome, told = run(Bench(fails=fails))
    failed = [trial for trial in told.trials if trial.failure is not None]
    assert [(t.key, t.form.sizes, t.failure) for t in failed] == [
        (SHORT.key, (16,), Failed("crashed", "SIGSEGV"))
    ]
    assert outcome.plan.forms[SHORT.key].sizes in {(8,), (32,)}, "the best of those that work"
    assert LONG.key in outcome.plan.forms, "the others of its plans were measured"
    report = next(site for site in outcome.sites if site.key == SHORT.key)
    assert report.num_failed == 1


def test_the_untuned_plan_stays_unless_the_race_is_won() -> None:
    outcome, told = run(Bench(race_factor=2.0))
    assert outcome.plan.forms == {}
    assert told.stored == []
    assert all(site.form is None for site in outcome.sites)


def test_what_is_best_so_far_is_stored_on_the_way_and_survives_an_interrupt() -> None:
    num_stored = set()
    for interrupt_at_s in range(1, 40, 3):
        outcome, told = run(Bench(interrupt_at_s=interrupt_at_s, sites=(HARD,)))
        assert outcome.plan.forms == (told.stored[-1].forms if told.stored else {})
        assert not (outcome.is_interrupted and outcome.plan.is_complete)
        num_stored.add(len(told.stored) if outcome.is_interrupted else -1)
    assert max(num_stored) > 0, "a plan was there before the search ended"


def test_the_loss_of_all_who_measure_ends_with_the_best_so_far(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(Bench):
        def compare(
            self, reference: Plan, plans: Sequence[Plan], *, for_long: bool = False
        ) -> Sequence[Paired | Failed]:
            if self.now_s >= 40:
                raise NoWorker("no machine of the cluster is left")
            return super().compare(reference, plans, for_long=for_long)

    outcome, told = run(Lost(sites=(HARD,)))
    assert outcome.is_lost
    assert told.stored
    assert outcome.plan.forms == told.stored[-1].forms
    assert not outcome.plan.is_complete
    assert [record.getMessage() for record in caplog.records] == [
        "the search ends with the best so far: no machine of the cluster is left"
    ]


def test_the_deadline_is_kept() -> None:
    for deadline_s in (2.0, 10.0, 30.0, 100.0):
        bench = Bench()
        run(bench, Budget(UNLIMITED, deadline_s))
        assert bench.now_s <= deadline_s + 4


def test_trials_are_counted_against_the_budget() -> None:
    outcome, told = run(Bench(), Budget(10))
    confirmations = 2 * 2
    assert len(told.trials) <= 10 + confirmations
    assert outcome.num_trials == len({(trial.key, trial.form) for trial in told.trials})


def test_a_later_search_goes_on_where_this_one_ended() -> None:
    first, told = run(Bench(), Budget(20))

    def known(space: object) -> Mapping[ChainForm, float | None]:
        key = space.key  # type: ignore[attr-defined]
        return {t.form: t.ratio for t in told.trials if t.key == key}

    _, again = run(Bench(), findings=Findings(known, first.plan if first.plan.forms else None))
    before = {(t.key, t.form) for t in told.trials}
    measured = [(t.key, t.form) for t in again.trials]
    repeated = [pair for pair in measured if pair in before]
    assert len(repeated) <= 4, "only what is confirmed is measured again"


def test_what_did_well_elsewhere_is_measured_first() -> None:
    fast = [ChainForm((16,), ()), ChainForm((8,), ())]
    hints: Findings[ChainForm] = Findings(hints=lambda space: fast if space.key == SHORT.key else [])
    _, told = run(Bench(), findings=hints)
    assert [trial.form for trial in told.trials if trial.key == SHORT.key][:2] == fast


def test_what_is_best_of_a_subgraph_is_tried_next_by_those_of_the_same_structure() -> None:
    """The second has one operator after the other of the same best sizes, and begins with nothing known."""
    first, second = ChainSpace((4, 32, 8), "alike"), ChainSpace((4, 32, 16), "alike")
    other = ChainSpace((4, 32, 8, 8), "alike")
    sites = tuple(FormSite(space) for space in (first, second, other))
    _, told = run(Bench(sites=sites), splits=False)
    tried = {key: [t.form for t in told.trials if t.key == key] for key in (s.key for s in sites)}
    shared = set(tried[first.key]) & set(tried[second.key]) - {*first.starts(), *second.starts()}
    assert shared
    assert not set(tried[first.key]) & set(tried[other.key])


def test_a_seed_and_measurements_decide_everything() -> None:
    one, two = (run(Bench(), Budget(60), seed=7)[1] for _ in range(2))
    assert one.trials == two.trials


def test_progress_says_how_far_it_is_and_what_it_brought() -> None:
    _, told = run(Bench())
    assert any("of 2 done" in text and "x untuned" in text and "s left" in text for text in told.reports)


@dataclass(frozen=True)
class CutsOnly(ChainSpace):
    """Sizes are as they are: alone, an operator has one form."""

    def starts(self) -> Sequence[ChainForm]:
        return ()

    def mutate(self, form: ChainForm, rng: random.Random) -> ChainForm:
        if not form.cuts:
            return form
        place = rng.randrange(len(form.cuts))
        return ChainForm(form.sizes, (*form.cuts[:place], not form.cuts[place], *form.cuts[place + 1 :]))


def test_a_whole_is_searched_though_its_parts_have_nothing_to_vary() -> None:
    outcome, told = run(Bench(sites=(FormSite(CutsOnly((1, 1, 1))),)))
    assert {trial.key for trial in told.trials} == {CutsOnly((1, 1, 1)).key}
    (form,) = outcome.plan.forms.values()
    assert form.cuts == (False, False)
    assert outcome.plan.is_complete


class Without(CutsOnly):
    """The cuts of the untuned plan are left out of the search."""

    def keeps_kernels(self, form: ChainForm) -> bool:
        return False


def test_where_untuned_kernels_are_left_out_the_best_of_the_others_stays() -> None:
    space = Without((1, 1, 1))
    outcome, _ = run(Bench(sites=(FormSite(space),)))
    assert outcome.plan.forms[space.key].cuts == (False, False)


def test_a_subgraph_that_stays_says_why() -> None:
    whys: set[str] = set()
    for budget in (Budget(1), Budget(4), Budget(UNLIMITED, 10.0), NO_DEADLINE_SOON):
        for site in run(Bench(race_factor=2.0), budget)[0].sites:
            assert site.form is None
            assert (site.ratio is None) == site.why.startswith("nothing else was measured")
            whys.add(site.why)
    assert "nothing else was measured before the budget ended" in whys
    assert any(why.startswith("built anew it took") for why in whys)


def test_times_of_less_than_a_tick_of_the_clock_decide_nothing() -> None:
    class Coarse(Bench):
        """Its clock stands still in those runs that confirm."""

        def compare(
            self, reference: Plan, plans: Sequence[Plan], *, for_long: bool = False
        ) -> Sequence[Paired | Failed]:
            found = super().compare(reference, plans)
            return [
                Paired(nothing(p.plan), nothing(p.reference)) if for_long and isinstance(p, Paired) else p
                for p in found
            ]

    def nothing(times: KernelTimes) -> KernelTimes:
        return {key: {at: [0.0] * len(ns) for at, ns in kernels.items()} for key, kernels in times.items()}

    outcome, _ = run(Coarse())
    assert outcome.plan.forms == {}
