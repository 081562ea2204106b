"""Cases of sampled tests that a run has: as many as asked, the same for a seed, all of them in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sampling import drawn, with_examples

ROOT = Path(__file__).parents[2]
CASES = [f"tests/test_one.py::test_it[{number}]" for number in range(200)]
DAYS = [f"2026-11-{day:02}" for day in range(1, 31)]


def test_a_draw_has_as_many_cases_as_asked_and_depends_on_its_seed_alone() -> None:
    for day in DAYS:
        assert len(drawn(CASES, 7, day)) == 7
        assert drawn(CASES, 7, day) == drawn(reversed(CASES), 7, day)
    assert len({frozenset(drawn(CASES, 7, day)) for day in DAYS}) == len(DAYS)


def test_every_case_has_its_turn() -> None:
    assert set().union(*(drawn(CASES, 50, day) for day in DAYS)) == set(CASES)


def test_a_larger_share_adds_to_a_smaller_draw() -> None:
    few, third, all_ = (drawn(CASES, 5, "a day", share) for share in (0.0, 1 / 3, 1.0))
    assert few < third < all_ == set(CASES)
    assert 40 < len(third) < 95


def test_a_new_case_takes_the_turn_of_no_more_than_one() -> None:
    before, after = drawn(CASES[1:], 5, "a day"), drawn(CASES, 5, "a day")
    assert len(before - after) <= 1


def test_a_test_of_one_case_has_its_turn_where_a_share_is_asked() -> None:
    days = [bool(drawn(CASES[:1], 0, day, 0.5)) for day in DAYS]
    assert any(days)
    assert not all(days)
    assert not any(drawn(CASES[:1], 0, day) for day in DAYS)


@pytest.mark.parametrize(
    ("asked", "is_fixed", "share", "count"),
    [(50, False, 0.4, 20), (50, False, 1.0, 50), (8, False, 0.4, 5), (3, False, 0.4, 3), (50, True, 0.4, 50)],
)
def test_a_share_of_examples_is_run_where_they_are_random(
    asked: int, is_fixed: bool, share: float, count: int
) -> None:
    found = []

    @settings(max_examples=asked, derandomize=is_fixed, database=None)
    @given(st.integers(0, 1 << 60))
    def every(number: int) -> None:
        found.append(number)

    with_examples(every, share)
    every()
    assert len(found) == count


FILE = """
import pytest

pytestmark = pytest.mark.sampled(2)

@pytest.mark.parametrize("number", range(8))
def test_one(number): pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(8))
def test_of_its_own(number): pass

@pytest.mark.slow
def test_slow(): pass
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("named", "num_of_file", "num_of_its_own"),
    [("", 2, 3), ("test_it.py", 8, 3), ("test_it.py::test_one", 8, 0), ("test_it.py::test_of_its_own", 0, 8)],
)
def test_a_file_runs_as_many_of_its_tests_as_it_says_unless_it_is_named(
    named: str, num_of_file: int, num_of_its_own: int, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(FILE)
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--collect-only", str(tmp_path / named)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert sum("::test_one[" in line for line in found) == num_of_file, done.stdout
    assert sum("::test_of_its_own[" in line for line in found) == num_of_its_own
    assert len(found) == num_of_file + num_of_its_own
