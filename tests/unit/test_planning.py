import pytest

from tilewright.errors import UsageError
from tilewright.planning import UNLIMITED, Budget, Infeasible, Quality, Status


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500trials", Budget(500)),
        ("1 trial", Budget(1)),
        ("60s", Budget(UNLIMITED, 60.0)),
        ("1.5m", Budget(UNLIMITED, 90.0)),
        ("250ms", Budget(UNLIMITED, 0.25)),
        ("2h", Budget(UNLIMITED, 7200.0)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "60", "s", "1.5trials", "-3s", "0s", "five", "1e3s"])
def test_bad_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        Budget.parse(text)


def test_evaluations_are_counted() -> None:
    meter = Budget(2).start()
    assert [meter.spend() for _ in range(4)] == [True, True, False, False]
    assert meter.num_evaluations == 2
    assert not meter.cut_off


def test_the_deadline_cuts_off() -> None:
    now = iter([0.0, 1.0, 2.5, 3.0])
    meter = Budget(100, deadline_s=2.5).start(lambda: next(now))
    assert [meter.spend(), meter.spend()] == [True, False]
    assert meter.cut_off
    assert meter.num_evaluations == 1


def test_a_cost_at_its_bound_is_optimal() -> None:
    assert Quality.of(5, bound=5, unit="ns").status is Status.OPTIMAL
    assert Quality.of(5, bound=5, unit="ns", cut_off=True).status is Status.OPTIMAL
    assert Quality.of(6, bound=5, unit="ns").status is Status.FEASIBLE
    assert Quality.of(6, bound=5, unit="ns", cut_off=True).status is Status.CUT_OFF


def test_the_gap_is_relative_to_the_bound() -> None:
    assert Quality.of(6, bound=5, unit="ns").gap == pytest.approx(0.2)
    assert Quality.of(0, bound=0, unit="ns").gap == 0
    assert Quality.of(1, bound=0, unit="ns").gap == float("inf")
    assert str(Quality.of(6, bound=5, unit="ns")) == "6 ns (feasible, at least 5)"


def test_no_is_explained_in_one_line() -> None:
    answer = Infeasible("L1", 200, 100, ("x (150 bytes)",), ("a smaller tile",))
    assert str(answer) == "L1 needs 200 bytes but has 100; largest: x (150 bytes). Try a smaller tile."
