"""What the machine did, and what that means for the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.benchmark.machine_state import MachineState, Snapshot, Ticks, busy_share

QUIET = MachineState("a processor", 4, "performance", 0.5, 0.6, 0.01, 0.02, 60.0, 70.0, 0.0)


def test_a_quiet_machine_has_nothing_to_say() -> None:
    assert QUIET.warnings() == ()
    assert "a processor, 4 cores" in str(QUIET)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"busy_share_before": 0.4}, "40 %"),
        ({"busy_share_after": 0.3}, "30 %"),
        ({"steal_share": 0.1}, "10 %"),
        ({"core_latency_after_ns": 400.0}, "from 60 to 400"),
        ({"governor": "powersave"}, "powersave"),
    ],
    ids=str,
)
def test_each_disturbance_is_named(change: dict[str, float | str], word: str) -> None:
    (warning,) = replace(QUIET, **change).warnings()  # type: ignore[arg-type]
    assert word in warning


def test_what_is_not_known_is_neither_shown_nor_warned_of() -> None:
    assert str(replace(QUIET, instruction_set="avx512+amx")).startswith("a processor, 4 cores, avx512+amx, ")
    unknown = MachineState("p", 1, None, None, None, None, None, None, None, None)
    assert unknown.warnings() == ()
    assert str(unknown) == "p, 1 core"


def test_stolen_time_is_a_share_of_what_passed() -> None:
    before = Snapshot(1.0, 0.0, None, Ticks(busy=500, stolen=100, total=1000))
    after = Snapshot(1.0, 0.0, None, Ticks(busy=600, stolen=150, total=2000))
    assert MachineState.between(before, after).steal_share == 0.05
    assert MachineState.between(replace(before, ticks=None), after).steal_share is None
    assert MachineState.between(before, before).steal_share == 0.0


def test_ticks_are_those_of_the_cores_this_process_may_use(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5\n")
    # Guest time, the last two, is counted in user time already.
    assert Ticks.read(path, frozenset({0})) == Ticks(busy=27, stolen=8, total=36)
    assert Ticks.read(path, frozenset({0, 1})) == Ticks(busy=33, stolen=9, total=44)
    assert Ticks.read(path, frozenset({7})) is None
    path.write_text("cpu0 1 2 3 4\n")
    assert Ticks.read(path, frozenset({0})) is None
    assert Ticks.read(tmp_path / "none", frozenset({0})) is None


def test_the_busy_share_is_a_share() -> None:
    share = busy_share(0.05)
    assert share is None or 0 <= share <= 1
