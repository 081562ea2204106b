import pytest

from tilewright.errors import UsageError
from tilewright.planning import UNLIMITED, Budget


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
