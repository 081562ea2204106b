import pytest

from tilewright.errors import InternalError
from tilewright.planning import Bound, Quality, Rule, Space, Status

ALL = Space("schedules")
STAGED = ALL.keeping(Rule("groups in a stage", 8))


def bound(value: float, space: Space = ALL, *, is_proven: bool = True) -> Bound:
    return Bound(value, space, "by hand", is_proven)


def test_a_cost_at_its_bound_is_optimal_among_the_plans_that_it_is_of() -> None:
    assert Quality.of(5, bound(5), unit="ns").status is Status.OPTIMAL
    assert Quality.of(5, bound(5), unit="ns", cut_off=True).status is Status.OPTIMAL
    assert Quality.of(6, bound(5), unit="ns").status is Status.FEASIBLE
    assert Quality.of(6, bound(5), unit="ns", cut_off=True).status is Status.CUT_OFF
    narrow = Quality.of(6, bound(5), bound(6, STAGED), unit="ns")
    assert (narrow.status, narrow.optimal_among, narrow.bound) == (Status.OPTIMAL, STAGED, 5)
    assert (
        str(narrow) == "6 ns (optimal among schedules at most 8 groups in a stage; all schedules at least 5)"
    )


def test_what_is_optimal_in_several_spaces_names_the_widest() -> None:
    assert Quality.of(5, bound(5), bound(5, STAGED), unit="ns").optimal_among == ALL


def test_the_gap_is_relative_to_the_widest_bound() -> None:
    assert Quality.of(6, bound(5), unit="ns").gap == pytest.approx(0.2)
    assert Quality.of(6, bound(5), bound(6, STAGED), unit="ns").gap == pytest.approx(0.2)
    assert Quality.of(0, bound(0), unit="ns").gap == 0
    assert Quality.of(1, bound(0), unit="ns").gap == float("inf")
    assert str(Quality.of(6, bound(5), unit="ns")) == "6 ns (feasible; all schedules at least 5)"


@pytest.mark.parametrize("bounds", [(bound(6),), (bound(5), bound(6, STAGED))])
def test_a_proven_bound_above_the_cost_is_our_mistake(bounds: tuple[Bound, ...]) -> None:
    with pytest.raises(InternalError, match=r"a bound of 6 ns of .* \(by hand\) is above a cost of 5 ns;"):
        Quality.of(5, *bounds, unit="ns")


def test_an_estimated_bound_above_the_cost_is_recorded_as_violated() -> None:
    quality = Quality.of(5, bound(10, is_proven=False), unit="ns")
    assert quality.widest.is_violated(quality.cost)
    assert quality.status is Status.FEASIBLE
    assert quality.gap == pytest.approx(-0.5)
    assert str(quality) == "5 ns (feasible; below 10, the estimated bound of all schedules)"


def test_an_estimated_bound_proves_nothing_where_it_is_reached() -> None:
    reached = Quality.of(5, bound(5, is_proven=False), unit="ns")
    assert reached.status is Status.FEASIBLE
    assert reached.optimal_among is None
    assert reached.gap == 0
    assert str(Quality.of(6, bound(5, is_proven=False), unit="ns")) == (
        "6 ns (feasible; all schedules estimated at least 5)"
    )


def test_spaces_are_said_in_words() -> None:
    assert [str(ALL), str(STAGED)] == ["all schedules", "schedules at most 8 groups in a stage"]


def test_a_space_includes_those_that_keep_all_of_its_rules() -> None:
    lanes = Rule("without lanes")
    assert ALL.includes(STAGED)
    assert not STAGED.includes(ALL)
    assert STAGED.includes(ALL.keeping(Rule("groups in a stage", 3), lanes))
    assert not STAGED.includes(ALL.keeping(Rule("groups in a stage", 9)))
    assert not ALL.keeping(lanes).includes(STAGED)
    assert not ALL.includes(Space("mappings"))
