"""A plan is stored when it beats the untuned one and the stored one in whole runs, and never otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.form_spaces import ChainForm

from tilewright.planning import UNLIMITED, Budget
from tilewright.tuning.form_plan import KernelTimes, Listener, Paired, TunedForms
from tilewright.tuning.incumbent import Incumbent
from tilewright.tuning.workers import Failed

FAST, SLOW, OTHER = ChainForm((1,), ()), ChainForm((2,), ()), ChainForm((4,), ())
Plan = Mapping[str, ChainForm]


@dataclass
class Bench:
    """Races of which each form of a plan adds so much to a time of 100."""

    added_ns: Mapping[ChainForm, float]
    max_plans: int = 2
    races: list[tuple[Plan, Plan]] = field(default_factory=list)

    def profile(self, plan: Plan) -> KernelTimes | Failed:
        raise NotImplementedError

    def compare(
        self, reference: Plan, plans: Sequence[Plan], *, for_long: bool = False
    ) -> Sequence[Paired | Failed]:
        raise NotImplementedError

    def race(self, incumbent: Plan, plan: Plan) -> tuple[list[float], list[float]]:
        self.races.append((incumbent, plan))
        before, after = (100 + sum(self.added_ns[f] for f in p.values()) for p in (incumbent, plan))
        return [before] * 9, [after] * 9


def incumbent(bench: Bench) -> tuple[Incumbent[ChainForm], list[TunedForms[ChainForm]]]:
    stored: list[TunedForms[ChainForm]] = []
    listener: Listener[ChainForm] = Listener(lambda trials: None, stored.append, lambda *what: None)
    return Incumbent(bench, Budget(UNLIMITED).start(), listener), stored


def test_a_plan_that_wins_is_stored_once() -> None:
    bench = Bench({FAST: -20.0})
    best, stored = incumbent(bench)
    for _ in range(2):
        best.challenge({"a": FAST}, {"a": 0.8})
    assert [plan.forms for plan in stored] == [{"a": FAST}]
    assert (best.plan.plain_ns, best.plan.tuned_ns) == (100.0, 80.0)
    assert len(bench.races) == 1


def test_large_gains_race_alone_where_small_ones_were_none() -> None:
    bench = Bench({FAST: -10.0, SLOW: 30.0})
    best, stored = incumbent(bench)
    best.challenge({"a": FAST, "b": SLOW}, {"a": 0.8, "b": 0.98})
    assert [plan.forms for plan in stored] == [{"a": FAST}]


def test_nothing_is_stored_that_is_slower_than_the_untuned_or_the_stored_plan() -> None:
    bench = Bench({FAST: -20.0, OTHER: -10.0, SLOW: 30.0})
    best, stored = incumbent(bench)
    best.challenge({"a": SLOW}, {"a": 0.8})
    assert not stored
    assert best.plan.forms == {}
    best.challenge({"a": FAST}, {"a": 0.8})
    best.challenge({"a": OTHER}, {"a": 0.9})
    assert best.plan.forms == {"a": FAST}


def test_the_stored_plan_defends_itself_against_another() -> None:
    bench = Bench({FAST: -20.0, OTHER: -10.0, SLOW: 30.0})
    best, _ = incumbent(bench)
    best.challenge({"a": OTHER}, {"a": 0.9})
    best.defend({"a": SLOW})
    assert best.plan.forms == {"a": OTHER}
    best.defend({"a": FAST})
    assert best.plan.forms == {"a": FAST}
    assert abs(best.plan.tuned_ns - 80.0) < 1e-6
    num_races = len(bench.races)
    best.defend({"a": FAST})
    assert len(bench.races) == num_races


def test_a_form_that_took_the_place_of_another_does_not_take_its_verdict() -> None:
    bench = Bench({FAST: -20.0, OTHER: -10.0, SLOW: -5.0})
    best, _ = incumbent(bench)
    best.verdicts = {"a": "built anew it took 0.90 of the time", "b": "built anew it took 0.95 of the time"}
    best.challenge({"a": OTHER, "b": SLOW}, {"a": 0.9, "b": 0.95})
    assert best.taken_by == best.verdicts
    best.defend({"a": FAST, "b": SLOW})
    assert best.taken_by == {"b": "built anew it took 0.95 of the time"}
