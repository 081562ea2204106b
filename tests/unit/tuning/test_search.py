"""The search takes what is faster, twice and in the race; it keeps to its budget; the plain plan is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.planning import UNLIMITED, Budget
from tilewright.tuning import Candidate, Choice, Plan, SearchOutcome, Site, Trial, search


def candidate(template: str, number: int, product: str = "product") -> Candidate:
    return Candidate.of({product: Choice.of(template, number=number)})


PLAIN = Candidate(())
SLOW, FAST, FASTER = (candidate("template", i) for i in range(3))
SPEED = {PLAIN: 100.0, SLOW: 130.0, FAST: 80.0, FASTER: 70.0}
SITES = (Site("a", (SLOW, FAST)), Site("b", (FASTER,)), Site("tiny", (FASTER,)))
NO_LIMIT = Budget(UNLIMITED)
Times = Callable[[str, Candidate, int], float]


def steady(site: str, choice: Candidate, call: int) -> float:
    return SPEED[choice] * (0.001 if site == "tiny" else 1.0)


@dataclass
class Bench:
    """Times by a function; a clock that advances by a second for each plan measured."""

    times: Times = steady
    race_times: Times | None = None
    max_plans: int = 3
    now_s: float = 0.0
    seen: list[tuple[str, Candidate]] = field(default_factory=list)
    num_calls: int = 0
    interrupt_at: int = -1
    sites: Sequence[Site] = SITES

    def profile(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, Sequence[float]]]:
        if self.num_calls == self.interrupt_at:
            raise KeyboardInterrupt
        self.num_calls += 1
        self.now_s += len(plans)
        self.seen += [item for plan in plans for item in plan.items()]
        return [
            {s.key: [self.times(s.key, p.get(s.key, PLAIN), self.num_calls)] * 4 for s in self.sites}
            for p in plans
        ]

    def race(self, plans: Sequence[Plan]) -> Sequence[Sequence[float]]:
        self.now_s += len(plans)
        times = self.race_times or self.times
        return [[sum(times(s.key, p.get(s.key, PLAIN), 0) for s in self.sites)] * 9 for p in plans]


def run(
    bench: Bench,
    budget: Budget = NO_LIMIT,
    known: Mapping[str, Mapping[Candidate, Trial]] | None = None,
) -> tuple[SearchOutcome, list[tuple[str, Trial]]]:
    recorded: list[tuple[str, Trial]] = []
    outcome = search(
        SITES,
        bench,
        budget.start(lambda: bench.now_s),
        record=recorded.extend,
        report=lambda *_: None,
        known=known or {},
        clock=lambda: bench.now_s,
    )
    return outcome, recorded


def test_the_fastest_of_each_site_is_taken() -> None:
    outcome, recorded = run(Bench())
    assert dict(outcome.plan.candidates) == {"a": FAST, "b": FASTER}
    assert outcome.plan.is_complete
    assert outcome.plan.tuned_ns < outcome.plan.plain_ns
    assert {(site, t.candidate) for site, t in recorded} == {("a", SLOW), ("a", FAST), ("b", FASTER)}


def test_an_algorithm_far_behind_is_not_measured_in_other_sizes() -> None:
    bad = [candidate("other", i) for i in range(9)]
    sites = (Site("a", (*bad, FAST)),)

    def times(site: str, choice: Candidate, call: int) -> float:
        return SPEED.get(choice, 200.0)

    bench = Bench(times)
    search(
        sites,
        bench,
        NO_LIMIT.start(),
        record=lambda _: None,
        report=lambda *_: None,
        known={},
        clock=lambda: bench.now_s,
    )
    tried = [choice for _, choice in bench.seen]
    assert FAST in tried
    assert 0 < sum(choice in bad for choice in tried) <= bench.max_plans


def test_sites_that_take_no_time_are_not_measured() -> None:
    bench = Bench()
    run(bench)
    assert "tiny" not in dict(bench.seen)


def test_what_wins_only_once_is_not_taken() -> None:
    def lucky_once(site: str, choice: Candidate, call: int) -> float:
        return SPEED[PLAIN] if site == "b" and call > 2 else steady(site, choice, call)

    outcome, recorded = run(Bench(lucky_once))
    assert dict(outcome.plan.candidates) == {"a": FAST}
    assert [t.ratio for site, t in recorded if site == "b"][-1] == 1.0, "the last finding counts"


def test_the_plain_plan_stays_unless_the_race_is_won() -> None:
    outcome, _ = run(Bench(race_times=lambda site, choice, call: 100.0))
    assert outcome.plan.candidates == {}
    assert outcome.plan.plain_ns == outcome.plan.tuned_ns


def test_trials_are_counted_against_the_budget() -> None:
    outcome, _ = run(Bench(), Budget(2))
    assert outcome.plan.candidates.keys() <= {"a", "b"}
    assert not outcome.plan.is_complete
    bench = Bench()
    run(bench, Budget(1))
    assert [item for item in bench.seen if item == ("a", FAST)] == []


def test_the_deadline_is_kept() -> None:
    for deadline_s in (2.0, 5.0, 9.0, 30.0):
        bench = Bench()
        run(bench, Budget(UNLIMITED, deadline_s))
        assert bench.now_s <= max(deadline_s, 1.0), "the first look at the plain plan always happens"


def test_known_trials_are_not_measured_again_but_confirmed() -> None:
    known = {"a": {SLOW: Trial(SLOW, 130.0, 100.0), FAST: Trial(FAST, 80.0, 100.0)}}
    bench = Bench()
    outcome, recorded = run(bench, known=known)
    assert dict(outcome.plan.candidates) == {"a": FAST, "b": FASTER}
    assert ("a", SLOW) not in bench.seen
    assert [site for site, _ in recorded].count("a") == 1, "the winner, once more"


def test_an_interrupt_keeps_what_was_measured_and_takes_nothing() -> None:
    outcome, recorded = run(Bench(max_plans=2, interrupt_at=2))
    assert outcome.is_interrupted
    assert outcome.plan.candidates == {}
    assert recorded


FIRST, SECOND = candidate("template", 1, "first"), candidate("template", 1, "second")
BOTH = Candidate.of(dict(FIRST.choices + SECOND.choices))
GROUP = (Site("group", (FIRST, SECOND)),)


def run_group(times: Times) -> tuple[SearchOutcome, Bench]:
    bench = Bench(times, sites=GROUP)
    outcome = search(
        GROUP,
        bench,
        NO_LIMIT.start(),
        record=lambda _: None,
        report=lambda *_: None,
        known={},
        clock=lambda: bench.now_s,
    )
    return outcome, bench


def test_what_wins_for_several_products_of_a_group_is_taken_together() -> None:
    speed = {PLAIN: 100.0, FIRST: 90.0, SECOND: 80.0, BOTH: 70.0}
    outcome, _ = run_group(lambda site, candidate, call: speed[candidate])
    assert outcome.plan.candidates == {"group": BOTH}


def test_products_of_a_group_that_disturb_each_other_are_not_changed_together() -> None:
    speed = {PLAIN: 100.0, FIRST: 90.0, SECOND: 80.0, BOTH: 85.0}
    outcome, bench = run_group(lambda site, candidate, call: speed[candidate])
    assert outcome.plan.candidates == {"group": SECOND}
    assert ("group", BOTH) in bench.seen
