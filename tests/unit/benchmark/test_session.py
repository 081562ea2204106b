"""Measuring in turns: everybody gets the same rounds, failures are results, equals are called equal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.accuracy import relative_error
from tilewright.benchmark import BenchPlan, Entrant, Verdict, compare_engines
from tilewright.benchmark import session as session_module
from tilewright.errors import UsageError

pytestmark = pytest.mark.sampled(10)

QUICK = BenchPlan(num_threads=1, duration_s=0.05, warmup_s=0.0)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tw.compile(small_net(), threads=1).save(tmp_path_factory.mktemp("bench") / "m.tw")


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_everybody_gets_the_same_number_of_rounds(artifact: Path) -> None:
    entrants = [Entrant(label, "tilewright", artifact, 1.5) for label in "ab"]
    plan = BenchPlan(num_threads=1, duration_s=0.05, num_iterations=30, warmup_s=0.0)
    feed = feed_for(small_net())
    expected = tw.compile(small_net(), "interpreter").run(None, feed)
    found = compare_engines(entrants, feed, plan, expected=expected)
    assert [c.label for c in found.contestants] == ["a", "b"]
    assert found.num_rounds >= session_module.MIN_ROUNDS
    for contestant in found.contestants:
        assert contestant.error is None
        assert contestant.timing is not None
        assert len(contestant.timing.samples_ms) == found.num_rounds
        assert len(contestant.timing.runs_ms) >= plan.num_iterations
        assert contestant.load_s > 1.5, "what was spent on the file before counts as loading"
        assert contestant.peak_bytes > 1 << 20
        assert contestant.max_error is not None
        assert contestant.max_error < 1e-5
    assert found.ratio("b") is not None
    assert found.machine.num_cores >= 1


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_who_cannot_run_does_not_stop_the_others(artifact: Path, tmp_path: Path) -> None:
    bad = Entrant("bad", "tilewright", tmp_path / "none.tw", accuracy="fast")
    entrants = [Entrant("good", "tilewright", artifact, accuracy="relaxed"), bad]
    found = compare_engines(entrants, feed_for(small_net()), QUICK)
    assert [c.accuracy for c in found.contestants] == ["relaxed", "fast"]
    ran, refused = found.contestants
    assert ran.timing is not None
    assert refused.timing is None
    assert refused.error is not None
    assert "none.tw" in refused.error
    assert found.ratio("bad") is None
    assert found.verdict is None


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("short_bursts")
@pytest.mark.parametrize("failing", ["a", "b", "ab"])
def test_who_fails_while_it_is_measured_does_not_stop_the_others(
    failing: str, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, num_bursts = session_module._Worker.ask, dict.fromkeys("ab", 0)

    def failing_ask(worker: session_module._Worker, request: Mapping[str, Any]) -> dict[str, Any]:
        label = worker.entrant.label
        num_bursts[label] += "seconds" in request
        is_out = label in failing and num_bursts[label] > 2
        return {"error": f"{label}: no memory"} if is_out else ask(worker, request)

    monkeypatch.setattr(session_module._Worker, "ask", failing_ask)
    found = compare_engines([Entrant(n, "tilewright", artifact) for n in "ab"], feed_for(small_net()), QUICK)
    for contestant in found.contestants:
        if contestant.label in failing:
            assert contestant.error == f"{contestant.label}: no memory"
            assert contestant.timing is None
            assert num_bursts[contestant.label] == 3, "it is not asked again"
        else:
            assert contestant.error is None
            assert contestant.timing is not None
            assert len(contestant.timing.samples_ms) == found.num_rounds >= session_module.MIN_ROUNDS
    assert found.verdict is None


def test_a_process_that_dies_is_named(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = compare_engines([Entrant("a", "tilewright", artifact)], feed_for(small_net()), QUICK)
    assert found.contestants[0].error == "a: its process ended with exit code 1."


@pytest.mark.sampled(0)
def test_a_burst_is_separated_from_the_one_before(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that spin while idle must not take time from whoever runs next."""
    slept: list[float] = []
    monkeypatch.setattr("tilewright.benchmark.session.time.sleep", slept.append)
    monkeypatch.setattr(session_module, "BURST_S", 0.001)
    entrants = [Entrant(label, "tilewright", artifact) for label in "ab"]
    found = compare_engines(entrants, feed_for(small_net()), QUICK)
    assert slept.count(session_module.SETTLE_S) == 2 * (found.num_rounds + 1), "one more for warming up"


@pytest.mark.parametrize(
    "settings",
    [
        {"num_threads": 0},
        {"duration_s": 0.0},
        {"duration_s": float("nan")},
        {"num_iterations": 0},
        {"warmup_s": -1.0},
        {"num_streams": 0},
        {"num_streams": 10**6},
    ],
    ids=str,
)
def test_plans_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BenchPlan(**{"num_threads": 1, **settings})  # type: ignore[arg-type]


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_streams_share_the_threads_and_are_compared_by_their_time_per_run(artifact: Path) -> None:
    entrants = [Entrant(label, "tilewright", artifact) for label in "ab"]
    plan = BenchPlan(num_threads=2, duration_s=0.05, warmup_s=0.0, num_streams=2)
    found = compare_engines(entrants, feed_for(small_net()), plan)
    assert found.num_streams == 2
    for contestant in found.contestants:
        timing = contestant.timing
        assert timing is not None
        assert len(timing.runs_ms) >= 2 * found.num_rounds, "every stream runs in every round"
        per_s = sorted(1e3 / ms for ms in timing.samples_ms)
        assert contestant.queries_per_s is not None
        assert per_s[0] <= contestant.queries_per_s <= per_s[-1]


@pytest.mark.parametrize("labels", ["", "aa"])
def test_everybody_has_a_name_of_their_own(labels: str, artifact: Path) -> None:
    with pytest.raises(UsageError, match="each once"):
        compare_engines([Entrant(n, "tilewright", artifact) for n in labels], {}, QUICK)


def test_unknown_engines_are_a_result(artifact: Path) -> None:
    found = compare_engines([Entrant("x", "tensorflow", artifact)], feed_for(small_net()), QUICK)
    assert found.contestants[0].error is not None
    assert "unknown engine 'tensorflow'" in found.contestants[0].error


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.5], [0.0], 0.5),
        ([np.nan], [np.nan], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_errors_are_relative_to_the_largest_value(got: list, expected: list, error: float) -> None:
    assert relative_error(np.array(got), np.array(expected)) == error


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_bench_in_python_measures_compiled_models_and_files(artifact: Path) -> None:
    feed = feed_for(small_net())
    found = tw.bench(tw.compile(small_net(), threads=1), artifact, feed=feed, duration="0.05s", threads=1)
    assert [c.label for c in found.contestants] == ["1: cpu", "2: m.tw"]
    assert all(c.max_error is not None and c.max_error < 1e-5 for c in found.contestants)
    assert found.median_ms is not None
    assert found.verdict in set(Verdict)
    assert found.to_json()["contestants"][1]["ratio"]["verdict"] == str(found.verdict)


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_one_model_alone_is_compared_with_nobody(artifact: Path) -> None:
    feed = feed_for(small_net())
    heads = [
        tw.bench(artifact, *others, feed=feed, duration="0.05s", threads=1).tables()[0].heads
        for others in ((), (artifact,))
    ]
    assert heads[0] == ("engine", "accuracy", "p50", "p90", "p99", "error", "memory")
    assert heads[1] == (*heads[0], "its time over the first's", "verdict")


def test_bench_in_python_says_what_a_peer_needs(artifact: Path) -> None:
    with pytest.raises(UsageError, match="ONNX file"):
        tw.bench(tw.open(artifact), "onnxruntime", feed={})
    with pytest.raises(UsageError, match="trials"):
        tw.bench(artifact, feed={}, duration="5trials")


@pytest.mark.slow
def test_equals_are_rarely_called_different(artifact: Path) -> None:
    """The same artifact twice, on this machine as it is: at most one verdict in twenty is wrong, and of
    twenty comparisons more than three wrong ones have a chance below 2 %."""
    entrants = [Entrant(label, "tilewright", artifact) for label in "ab"]
    plan = BenchPlan(num_threads=1, duration_s=2.0)
    feed = feed_for(small_net())
    verdicts = [compare_engines(entrants, feed, plan).verdict for _ in range(20)]
    assert sum(v in (Verdict.FASTER, Verdict.SLOWER) for v in verdicts) <= 3, verdicts


@pytest.mark.usefixtures("short_bursts")
def test_types_that_files_of_arrays_lack_are_measured_too(tmp_path: Path) -> None:
    """bfloat16 inputs and outputs reach the process and come back."""
    from onnx import TensorProto, helper
    from tests.support.models import model

    values = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [4, 8]) for n in ("x", "y")]
    proto = model([helper.make_node("Relu", ["x"], ["y"], "relu")], values[:1], values[1:], [])
    x = np.linspace(-1, 1, 32).reshape(4, 8).astype(tw.load(proto).graph.inputs[0].dtype.numpy)
    artifact = tw.compile(proto, threads=1).save(tmp_path / "m.tw")
    expected = [np.maximum(x.astype(np.float64), 0)]
    found = compare_engines([Entrant("a", "tilewright", artifact)], {"x": x}, QUICK, expected=expected)
    assert found.contestants[0].max_error == 0.0


@pytest.mark.sampled(0)
@pytest.mark.usefixtures("short_bursts")
def test_bench_says_of_another_model_that_it_is_one(artifact: Path) -> None:
    feed = {"image": np.zeros((1, 3, 12, 12), np.float32)}
    other = tw.compile(small_net(seed=1), threads=1)
    found = tw.bench(artifact, other, feed=feed, duration="0.05s", threads=1)
    assert [c.is_other_model for c in found.contestants] == [False, True]
    assert found.contestants[0].max_error is not None
    assert found.contestants[1].max_error is not None
    assert found.contestants[1].max_error > 1e-3
    told = (
        "2: cpu is another model than 1: m.tw: its time is of other work, its error against the outputs of "
        "1: m.tw."
    )
    assert told in found.lines()


def test_bench_refuses_a_model_of_other_inputs(artifact: Path) -> None:
    other = tw.compile(small_net(size=8), threads=1)
    with pytest.raises(UsageError, match=r"2: cpu takes .*8, 8.*, 1: m\.tw .*12, 12.*the same inputs"):
        tw.bench(artifact, other, threads=1)
