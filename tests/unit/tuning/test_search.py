"""The search takes what is faster, twice and in the race; it keeps to its budget; the plain plan is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.planning import UNLIMITED, Budget
from tilewright.tuning import Choice, Choices, Outcome, Site, Trial, search

PLAIN, SLOW, FAST, FASTER = (Choice.of("template", number=i) for i in range(4))
SPEED = {PLAIN: 100.0, SLOW: 130.0, FAST: 80.0, FASTER: 70.0}
SITES = (Site("a", (PLAIN, SLOW, FAST)), Site("b", (PLAIN, FASTER)), Site("tiny", (PLAIN, FASTER)))
NO_LIMIT = Budget(UNLIMITED)
Times = Callable[[str, Choice, int], float]


def steady(site: str, choice: Choice, call: int) -> float:
    return SPEED[choice] * (0.001 if site == "tiny" else 1.0)


@dataclass
class Bench:
    """Times by a function; a clock that advances by a second for each plan measured."""

    times: Times = steady
    race_times: Times | None = None
    max_plans: int = 3
    now_s: float = 0.0
    seen: list[tuple[str, Choice]] = field(default_factory=list)
    num_calls: int = 0
    interrupt_at: int = -1

    def profile(self, plans: Sequence[Choices]) -> Sequence[Mapping[str, Sequence[float]]]:
        if self.num_calls == self.interrupt_at:
            raise KeyboardInterrupt
        self.num_calls += 1
        self.now_s += len(plans)
        self.seen += [item for plan in plans for item in plan.items()]
        return [
            {
                s.signature: [self.times(s.signature, p.get(s.signature, PLAIN), self.num_calls)] * 4
                for s in SITES
            }
            for p in plans
        ]

    def race(self, plans: Sequence[Choices]) -> Sequence[Sequence[float]]:
        self.now_s += len(plans)
        times = self.race_times or self.times
        return [[sum(times(s.signature, p.get(s.signature, PLAIN), 0) for s in SITES)] * 9 for p in plans]


def run(
    bench: Bench,
    budget: Budget = NO_LIMIT,
    known: Mapping[str, Mapping[Choice, Trial]] | None = None,
) -> tuple[Outcome, list[tuple[str, Trial]]]:
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
    assert dict(outcome.plan.choices) == {"a": FAST, "b": FASTER}
    assert outcome.plan.is_complete
    assert outcome.plan.tuned_ns < outcome.plan.plain_ns
    assert {(site, t.choice) for site, t in recorded} == {("a", SLOW), ("a", FAST), ("b", FASTER)}


def test_an_algorithm_far_behind_is_not_measured_in_other_sizes() -> None:
    bad = [Choice.of("other", number=i) for i in range(9)]
    sites = (Site("a", (PLAIN, *bad, FAST)),)

    def times(site: str, choice: Choice, call: int) -> float:
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
    assert 0 < sum(choice.template == "other" for choice in tried) <= bench.max_plans


def test_sites_that_take_no_time_are_not_measured() -> None:
    bench = Bench()
    run(bench)
    assert "tiny" not in dict(bench.seen)


def test_what_wins_only_once_is_not_taken() -> None:
    def lucky_once(site: str, choice: Choice, call: int) -> float:
        return SPEED[PLAIN] if site == "b" and call > 2 else steady(site, choice, call)

    outcome, recorded = run(Bench(lucky_once))
    assert dict(outcome.plan.choices) == {"a": FAST}
    assert [t.ratio for site, t in recorded if site == "b"][-1] == 1.0, "the last finding counts"


def test_the_plain_plan_stays_unless_the_race_is_won() -> None:
    outcome, _ = run(Bench(race_times=lambda site, choice, call: 100.0))
    assert outcome.plan.choices == {}
    assert outcome.plan.plain_ns == outcome.plan.tuned_ns


def test_trials_are_counted_against_the_budget() -> None:
    outcome, _ = run(Bench(), Budget(2))
    assert outcome.plan.choices.keys() <= {"a", "b"}
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
    assert dict(outcome.plan.choices) == {"a": FAST, "b": FASTER}
    assert ("a", SLOW) not in bench.seen
    assert [site for site, _ in recorded].count("a") == 1, "the winner, once more"


def test_an_interrupt_keeps_what_was_measured_and_takes_nothing() -> None:
    outcome, recorded = run(Bench(max_plans=2, interrupt_at=2))
    assert outcome.is_interrupted
    assert outcome.plan.choices == {}
    assert recorded
