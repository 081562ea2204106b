import pytest

from tilewright.errors import InternalError
from tilewright.planning import Quality, Status


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


def test_a_proven_bound_above_the_cost_is_our_mistake() -> None:
    with pytest.raises(InternalError, match=r"a bound of 6 ns is above a cost of 5 ns\."):
        Quality.of(5, bound=6, unit="ns")


def test_an_estimated_bound_above_the_cost_is_recorded_as_violated() -> None:
    quality = Quality.of(5, bound=10, unit="ns", is_proven=False)
    assert quality.is_bound_violated
    assert quality.status is Status.FEASIBLE
    assert quality.gap == pytest.approx(-0.5)
    assert str(quality) == "5 ns (feasible, below its estimated bound of 10)"


def test_an_estimated_bound_proves_nothing_where_it_is_reached() -> None:
    reached = Quality.of(5, bound=5, unit="ns", is_proven=False)
    assert reached.status is Status.FEASIBLE
    assert not reached.is_bound_violated
    assert reached.gap == 0
    assert str(Quality.of(6, bound=5, unit="ns", is_proven=False)) == "6 ns (feasible, estimated at least 5)"
