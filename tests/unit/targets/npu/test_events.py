"""Tasks on units: what is ready and was issued first runs first, one at a time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tilewright.targets.npu.events import TaskGraph


def test_a_chain_over_two_units_takes_its_sum() -> None:
    tasks = TaskGraph()
    first = tasks.add("a", 2.0, (0, 0, 0), "x", [])
    second = tasks.add("b", 3.0, (0, 0, 1), "x", [first])
    tasks.add("a", 1.0, (0, 0, 2), "x", [second])
    assert [(r.unit, r.start_s, r.end_s) for r in tasks.run()] == [("a", 0, 2), ("b", 2, 5), ("a", 5, 6)]


def test_a_pipeline_of_tiles_is_bound_by_its_slowest_unit() -> None:
    tasks = TaskGraph()
    for tile in range(10):
        load = tasks.add("mover", 1.0, (0, tile, 0), "load", [])
        tasks.add("unit", 3.0, (0, tile, 1), "compute", [load])
    assert max(r.end_s for r in tasks.run()) == 1 + 10 * 3


def test_of_ready_tasks_the_first_issued_runs_first() -> None:
    tasks = TaskGraph()
    tasks.add("a", 1.0, (2, 0, 0), "late", [])
    tasks.add("a", 1.0, (1, 0, 0), "early", [])
    assert [r.what for r in tasks.run()] == ["early", "late"]


def test_runs_that_were_never_looked_at_say_how_long_units_are_busy() -> None:
    tasks = TaskGraph()
    tasks.add("a", 2.0, (0, 0, 0), "x", [], num_cores=3)
    tasks.add("b", 1.5, (0, 1, 0), "x", [])
    tasks.add("a", 1.0, (1, -2, 0), "y", [])
    runs = tasks.run()
    assert runs.busy_s(4) == {"a": 2.0 * 3 / 4 + 1.0, "b": 1.5}
    assert len(runs) == 3
    assert (runs[-1].what, runs[-1].start_s, runs[-1].tile) == ("y", 2.0, -1)
    assert runs[:2] == tuple(runs)[:2]
    assert runs == tasks.run()
    assert runs != TaskGraph().run()


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 40).map(lambda quarters: quarters / 4),
            st.lists(st.integers(0, 30), max_size=3),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_nothing_runs_before_what_it_waits_for_nor_beside_another_on_its_unit(
    drawn: list[tuple[str, float, list[int], int]],
) -> None:
    tasks = TaskGraph()
    needs: list[set[int]] = []
    for number, (unit, seconds, after, step) in enumerate(drawn):
        earlier = {a % number for a in after} if number else set()
        tasks.add(unit, seconds, (step, number, 0), str(number), earlier)
        needs.append(earlier)
    runs = {int(r.what): r for r in tasks.run()}
    assert set(runs) == {n for n, (_, seconds, _, _) in enumerate(drawn) if seconds}
    for number, run in runs.items():
        assert all(runs[n].end_s <= run.start_s + 1e-9 for n in needs[number] if n in runs)
    for unit in "abc":
        own = sorted((r.start_s, r.end_s) for r in runs.values() if r.unit == unit)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(own))
