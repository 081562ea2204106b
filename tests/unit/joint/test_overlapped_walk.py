"""The walk of a search over plans of one program alone: plans are numbers, priced by a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.joint.overlapped.moves import Beginning, Move, Moves
from tilewright.joint.overlapped.plan import NestPlan
from tilewright.joint.overlapped.search import Judged, search
from tilewright.planning import Budget

MEMORY = "longest-liveness"


class Numbers:
    """Plans are numbers here, which a judge prices by a table: a hill before a valley."""

    def __init__(self, costs: list[float]) -> None:
        self.costs = costs
        self.asked: list[int] = []

    def plan(self, number: int) -> NestPlan:
        return NestPlan((), MEMORY, str(number))

    def __call__(self, plan: NestPlan, most: float) -> Judged | None:
        number = int(plan.execution)
        self.asked.append(number)
        cost = self.costs[number]
        return None if cost > 1000 else Judged(plan, cost, [1.0])


class Steps(Moves):
    """Moves to the next numbers."""

    def __init__(self, judge: Numbers, drawn: Iterable[int] = (), asked_for: Iterable[int] = ()) -> None:
        self.judge, self.drawn, self.asked_for = judge, iter(drawn), iter(asked_for)

    def draw(self, plan: NestPlan, weights: Sequence[float]) -> Move | None:
        number = next(self.drawn, int(plan.execution) + 1)
        return Move("next", self.judge.plan(number)) if number < len(self.judge.costs) else None

    def another(self, best: NestPlan) -> Move | None:
        number = next(self.asked_for, None)
        return None if number is None else Move("another", self.judge.plan(number))


def test_late_acceptance_passes_through_worse_plans() -> None:
    judge = Numbers([10.0, 9.0, 9.25, 5.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    heard: list[float] = []
    best = search(judge, Steps(judge), start, Budget(9).start(), lambda b, *_: heard.append(b.cost))
    assert best.cost == 5.0
    assert heard == [9.0, 9.25, 5.0]
    greedy = search(judge, Steps(judge), start, Budget(9).start(), lambda *_: None, length=1)
    assert greedy.cost == 9.0


def test_behind_a_much_better_plan_the_search_stays_near_it() -> None:
    judge = Numbers([10.0, 5.0, 5.2, 3.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves = Steps(judge, (1, 2))
    assert search(judge, moves, start, Budget(9).start(), lambda *_: None).cost == 5.0
    assert judge.asked == [0, 1, 2], "5.2 is less than plans before, but more than 3 % above the best"


def test_a_search_tries_nothing_again_that_one_before_it_has_seen() -> None:
    judge = Numbers([10.0, 9.0, 9.5, 5.0, 6.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    seen: set[NestPlan] = set()
    first = search(judge, Steps(judge, (1, 2)), start, Budget(2).start(), lambda *_: None, seen=seen)
    assert first.cost == 9.0
    tried = list(judge.asked)
    best = search(judge, Steps(judge, (1, 2, 3)), first, Budget(2).start(), lambda *_: None, seen=seen)
    assert best.cost == 5.0
    assert set(judge.asked[len(tried) :]).isdisjoint(tried)


def test_a_search_begins_with_its_opening_and_goes_on_from_the_best_plan_of_it() -> None:
    judge = Numbers([10.0, 9.0, 9.5, 5.0, 6.0, 7.0, 4.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    given: list[NestPlan] = []

    def beginning(number: int) -> Beginning:
        def leap(best: NestPlan) -> Move:
            given.append(best)
            return Move("leap", judge.plan(number))

        return leap

    opening = [beginning(number) for number in (0, 5, 2)]
    best = search(judge, Steps(judge), start, Budget(9).start(), lambda *_: None, opening)
    assert [int(plan.execution) for plan in given] == [0, 0, 5], "each changes the best plan so far"
    assert judge.asked == [0, 5, 2, 6], "what is known is not judged again"
    assert best.cost == 4.0


def test_plans_of_others_come_between_moves_sooner_where_one_was_better() -> None:
    judge = Numbers([100.0] * 20 + [50.0, 200.0, 200.0, 200.0, 40.0, 200.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves = Steps(judge, range(1, 20), range(20, 26))
    search(judge, moves, start, Budget(12).start(), lambda *_: None)
    found = [place for place, number in enumerate(judge.asked[1:]) if number >= 20]
    assert found == [0, 1, 2, 4, 8, 9]


def test_a_plan_of_others_that_is_known_takes_no_turn() -> None:
    judge = Numbers([100.0] * 20 + [200.0] * 4)
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves = Steps(judge, range(1, 20), (20, 20, 0, 21, 22, 23))
    search(judge, moves, start, Budget(9).start(), lambda *_: None)
    found = [place for place, number in enumerate(judge.asked[1:]) if number >= 20]
    assert found == [0, 1, 3, 7]


def test_behind_a_better_plan_of_others_the_opening_is_taken_again() -> None:
    judge = Numbers([10.0, 11.0, 9.0, 12.0, 6.0, 20.0, 5.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None

    def placed(best: NestPlan) -> Move:
        return Move("placed", judge.plan(4 if best.execution == "2" else 1))

    heard: list[str] = []
    moves = Steps(judge, (6,), (2, 3))
    best = search(judge, moves, start, Budget(5).start(), lambda _, what, __: heard.append(what), [placed])
    assert heard == ["placed", "another", "placed", "another", "next"]
    assert judge.asked == [0, 1, 2, 4, 3, 6]
    assert best.cost == 5.0


def test_behind_a_plan_of_others_that_is_hardly_better_the_opening_is_not_taken_again() -> None:
    judge = Numbers([10.0, 11.0, 9.95, 12.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    asked: list[str] = []

    def placed(best: NestPlan) -> Move:
        asked.append(best.execution)
        return Move("placed", judge.plan(1))

    search(judge, Steps(judge, (3,), (2,)), start, Budget(3).start(), lambda *_: None, [placed])
    assert (judge.asked, asked) == ([0, 1, 2, 3], ["0"])


def test_from_its_start_a_search_takes_the_steps_of_its_beginning() -> None:
    judge = Numbers([10.0, 9.0, 12.0, 8.0, 20.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves, heard = Steps(judge, (4,), (2, 3)), list[str]()

    def placed(best: NestPlan) -> Move:
        return Move(f"placed {best.execution}", judge.plan(1))

    beginning = [moves.another, placed]
    search(
        judge, moves, start, Budget(4).start(), lambda _, what, __: heard.append(what), [placed],
        beginning=beginning,
    )  # fmt: skip
    assert heard == ["another", "placed 0", "another", "next"]
    assert judge.asked == [0, 2, 1, 3, 4], "the opening has been seen when it is taken again"


def test_plans_of_others_come_when_moves_find_nothing_more() -> None:
    judge = Numbers([10.0, 11.0, 12.0, 13.0, 9.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves = Steps(judge, [0] * 4000, (1, 2, 3, 4))
    assert search(judge, moves, start, Budget(9).start(), lambda *_: None).cost == 9.0


def test_where_nothing_gains_the_search_goes_on_from_its_second_start() -> None:
    judge = Numbers([10.0, 20.0, 30.0, 40.0, 12.0, 5.0, 20.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    moves, budget = Steps(judge, (1, 2)), Budget(9)

    def second() -> Judged | None:
        return judge(judge.plan(4), 1e9)

    best = search(judge, moves, start, budget.start(), lambda *_: None, second=second, length=2)
    assert judge.asked == [0, 1, 2, 4, 5, 6]
    assert best.cost == 5.0


def test_only_plans_that_are_simulated_are_trials() -> None:
    judge = Numbers([10.0, 2000.0])
    start = judge(judge.plan(0), 1e9)
    assert start is not None
    meter = Budget(5).start()
    best = search(judge, Steps(judge), start, meter, lambda *_: None)
    assert best is start
    assert meter.num_evaluations == 1, "one was paid for and then refused unsimulated"
