from tilewright.planning import Infeasible


def test_no_is_explained_in_one_line() -> None:
    answer = Infeasible("L1", 200, 100, ("x (150 bytes)",), ("a smaller tile",))
    assert str(answer) == "L1 needs 200 bytes but has 100; largest: x (150 bytes). Try a smaller tile."
