"""`tw.compare_schedules`: estimates beside measurements, and why there is none."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.benchmark import Contestant


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_schedulers_are_compared_by_estimate_and_measured_in_turns() -> None:
    found = tw.compare_schedules(small_net(), "sequential,greedy", duration_s=0.05, threads=1)
    first, second = found.schedules
    assert (first.schedule, second.schedule) == ("sequential", "greedy")
    assert first.cost is not None
    assert first.cost >= (first.bound or 0) > 0
    assert first.median_ms is not None
    assert second.ratio is not None
    assert first.ratio is None
    assert found.num_threads == 1
    table = found.tables()[0]
    assert table.heads[-1] == "verdict"
    assert [row[0] for row in table.rows] == ["sequential", "greedy"]


def test_without_time_or_code_nothing_is_measured() -> None:
    for target, duration_s in (("cpu", 0.0), ("stcp920", 1.0)):
        found = tw.compare_schedules(small_net(), ["sequential"], duration_s=duration_s, target=target)
        assert found.num_threads is None
        assert found.schedules[0].median_ms is None
        assert "verdict" not in found.tables()[0].heads


def test_a_scheduler_without_an_answer_is_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.api import schedules

    compile_model = schedules.compile_model

    def refusing(model: object, *, options: tw.Options) -> tw.CompiledModel:
        if options.schedule == "greedy":
            raise tw.InfeasibleMapping("no room for it.")
        return compile_model(model, options=options)  # type: ignore[arg-type]

    monkeypatch.setattr(schedules, "compile_model", refusing)
    found = tw.compare_schedules(small_net(), "sequential,greedy", duration_s=0, threads=1)
    assert [s.error for s in found.schedules] == [None, "no room for it."]
    assert found.tables()[1].rows == (("greedy", "no room for it."),)
    with pytest.raises(tw.InfeasibleMapping, match="no room"):
        tw.compare_schedules(small_net(), "greedy", duration_s=0, threads=1)


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_a_schedule_that_does_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.api import schedules
    from tilewright.api.benchmark import BenchResult

    bench = schedules.bench

    def failing(*models: tw.CompiledModel, **settings: Any) -> BenchResult:
        found = bench(*models, **settings)
        first, second = found.contestants
        broken = Contestant(second.label, second.engine, error="its process ended with exit code 1.")
        return dataclasses.replace(found, contestants=(first, broken))

    monkeypatch.setattr(schedules, "bench", failing)
    found = tw.compare_schedules(small_net(), "sequential,greedy", duration_s=0.05, threads=1)
    assert [s.failure for s in found.schedules] == [None, "its process ended with exit code 1."]
    table, reasons = found.tables()
    assert table.rows[1][6] == "failed"
    assert reasons.rows == (("greedy", "its process ended with exit code 1."),)


@pytest.mark.parametrize(
    ("schedules", "duration_s", "words"),
    [("nonsense", 0.0, "nonsense"), ("", 0.0, "a name is empty"), ("greedy", -1.0, "duration")],
)
def test_what_makes_no_sense_is_refused(schedules: str, duration_s: float, words: str) -> None:
    with pytest.raises(tw.UsageError, match=words):
        tw.compare_schedules(small_net(), schedules, duration_s=duration_s)
