"""Pages of models and of comparisons: every figure is where it belongs, names stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cli import tilewright
from tests.support.models import host_net, small_net
from tests.support.pictures import marks, own_text, pictures
from tests.support.report_pages import comparison, profile_of

import tilewright as tw
from tilewright.api.pages import model_report, run_times
from tilewright.benchmark.latency_page import latency_page
from tilewright.benchmark.statistics import Timing
from tilewright.report.lanes import SPAN
from tilewright.report.limits import TimedKernel, bound_colour, roofline_section, times_section
from tilewright.report.model_page import Clock, TimedStep, run_section
from tilewright.report.workers import RecordedChunk, RecordedRun
from tilewright.steps import BufferInfo, MemoryInfo

EVIL = '<script>alert("x")</script>&\x1b[2J'
TIMES = st.floats(1.0, 1e12)


def kernel(number: int, time_ns: float, limit_ns: float | None, *, flop: int = 0) -> TimedKernel:
    return TimedKernel(f"k{number}", "loops", time_ns, time_ns, time_ns, limit_ns, "memory", flop, 100)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=80))
def test_bars_are_as_long_as_times_and_marks_lie_at_limits(times: list[tuple[float, float]]) -> None:
    kernels = [kernel(n, time_ns, limit_ns) for n, (time_ns, limit_ns) in enumerate(times)]
    parts = times_section(kernels)
    (drawn,) = pictures("".join(parts))
    (bars,), (limits,) = marks(drawn, "barX"), marks(drawn, "tickX")
    longest = sorted(kernels, key=lambda k: -k.time_ns)[:60]
    unit_ns = 1e6 if drawn["x"]["label"] == "time, ms" else 1e3
    assert bars["x1"] == 0
    assert bars["x2"] == [k.time_ns / unit_ns for k in longest]
    assert limits["x"] == [(k.limit_ns or 0.0) / unit_ns for k in longest]
    assert bars["y"] == limits["y"] == drawn["y"]["domain"]
    assert drawn["x"]["domain"] == [0, max(*bars["x2"], *limits["x"])]
    if len(kernels) > 60:
        assert "the 60 longest" in "".join(parts)


def test_kernels_without_a_limit_have_no_mark() -> None:
    (drawn,) = pictures("".join(times_section([kernel(0, 5.0, None)])))
    (limits,), (spread,) = marks(drawn, "tickX"), marks(drawn, "ruleY")
    assert (limits["num"], limits["x"], spread["num"]) == (0, [], 1)
    assert times_section([]) == []
    assert times_section([kernel(0, 0.0, None)]) == []


@given(st.lists(st.tuples(TIMES, st.integers(1, 10**12)), min_size=1, max_size=20))
def test_roofs_bound_each_other(kernels: list[tuple[float, int]]) -> None:
    timed = [kernel(n, time_ns, 1.0, flop=flop) for n, (time_ns, flop) in enumerate(kernels)]
    flop_per_s, bytes_per_s = {"vectors": 1e11, "tiles": 8e11}, {"memory": 1e10, "caches": 1e11}
    (drawn,) = pictures("".join(roofline_section(timed, flop_per_s, bytes_per_s, "measured.")))
    (dots,), roofs = marks(drawn, "dot"), marks(drawn, "line")
    assert dots["num"] == len(timed)
    assert len(roofs) == 4
    for roof in roofs:
        for axis in ("x", "y"):
            low, high = drawn[axis]["domain"]
            assert all(low <= value <= high for value in roof[axis])


def test_the_memory_of_a_step_is_that_of_its_buffers() -> None:
    steps = [TimedStep("a", 1000.0, "compute"), TimedStep("b", 3000.0, "memory")]
    buffers = (BufferInfo("x", 0, 64, -1, 0), BufferInfo("y", 64, 32, 0, 1))
    text = "".join(run_section(steps, MemoryInfo(96, 96, 0, 0, buffers)))
    assert "<b>arena</b>" in text
    (places,) = [found for drawn in pictures(text) for found in marks(drawn, "rect") if "y1" in found]
    assert places["title"][0].startswith("x: 64 B at 0\n")
    assert list(zip(places["x1"], places["x2"], strict=True)) == [(0, SPAN // 4), (0, SPAN)]
    assert list(zip(places["y1"], places["y2"], strict=True)) == [(0, 64), (64, 96)]


def test_each_thread_has_a_lane_of_what_it_ran() -> None:
    steps = [TimedStep("a", 1000.0, "compute"), TimedStep("b", 3000.0, "memory")]
    chunks = (
        RecordedChunk("k0", "Copy <a>", 0, 0, 1, 0, 0.0, 1000.0),
        RecordedChunk("k1", "Sum", 1, 0, 2, 1, 2000.0, 4000.0),
        RecordedChunk("k1", "Sum", 1, 1, 2, 0, 2000.0, 3000.0),
    )
    run = RecordedRun(3, ((0.0, 1000.0), (2000.0, 4000.0)), chunks)
    text = "".join(run_section(steps, None, run))
    assert re.findall(r"<b>(worker.*?) ?</div>", text) == [
        "worker 0 (caller)</b> 50 %",
        "worker 1</b> 50 %",
        "worker 2</b> 0 %",
    ]
    lanes = [
        list(zip(*(found[name] for name in ("x1", "x2", "fill", "title")), strict=True))
        for drawn in pictures(text)
        for found in marks(drawn, "rect")
    ]
    quarter, arithmetic, memory = SPAN // 4, bound_colour("compute"), bound_colour("memory")
    # Steps reach until the next one begins.
    assert [rect[:3] for lane in lanes[:2] for rect in lane] == [
        (0, 2 * quarter, arithmetic),
        (2 * quarter, 4 * quarter, memory),
    ]
    assert lanes[2:] == [
        [
            (0, quarter, arithmetic, "k0 Copy <a>\n1.0 µs from 0 ms on"),
            (2 * quarter, 3 * quarter, memory, "k1 Sum, chunk 2 of 2\n1.0 µs from 0.002 ms on"),
        ],
        [(2 * quarter, 4 * quarter, memory, "k1 Sum, chunk 1 of 2\n2.0 µs from 0.002 ms on")],
        [],
    ]


def test_steps_without_times_are_all_alike() -> None:
    clock = Clock([TimedStep("a", None, "estimate"), TimedStep("b", 5.0, "estimate")])
    assert (clock.axis.unit, clock.start(-1), clock.start(1), clock.end(1), clock.end(9)) == (
        "step",
        0,
        1,
        2,
        2,
    )
    assert run_section([], None) == []


def test_a_plan_with_more_places_than_kernels_is_drawn_over_its_own() -> None:
    buffers = (BufferInfo("x", 0, 64, 0, 7),)
    text = "".join(run_section([TimedStep("a", 5.0, "estimate")], MemoryInfo(64, 64, 0, 0, buffers)))
    assert "What the plan runs, one after another" in text
    assert 'class="top">step</div>' in text


@pytest.mark.parametrize(("make", "target"), [(small_net, "cpu"), (host_net, "cpu"), (small_net, "null")])
def test_the_report_of_a_model_has_its_parts(make, target: str) -> None:  # type: ignore[no-untyped-def]
    compiled = tw.compile(make(), target, threads=1)
    text = model_report(compiled, "net")
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads[0] == "Graph"
    assert heads[-2:] == ["Edges: fused or cut", "Tables"]
    assert ("Time of kernels" in heads) == any(k.estimate_ns for k in compiled.kernels)
    fused = sum(edge.is_fused for edge in compiled.explain().edges)
    assert f"{fused:,} fused into one kernel" in text
    for step in compiled.steps:
        assert f"<td>{step.kernels[0].id}</td>" in text


def test_measured_times_stand_beside_their_limits() -> None:
    compiled = tw.compile(small_net(), threads=1)
    profile = profile_of(compiled)
    times = run_times(profile)
    assert [k.limit_ns is None for k in times.kernels] == [k.bound == "host" for k in profile.kernels]
    text = model_report(compiled, "net", profile)
    assert "<h2>Roofline</h2>" in text
    assert "vectors, 100 GFLOP/s" in text
    assert "memory, 10 GB/s" in text
    assert profile.verdict.replace("'", "&#x27;") in text


def test_names_are_text_on_every_page() -> None:
    model = small_net()
    model.graph.node[0].name = EVIL
    compiled = tw.compile(model, threads=1)
    for text in (
        model_report(compiled, EVIL, profile_of(compiled)),
        latency_page(replace(comparison(), model=EVIL), (), (EVIL,)),
    ):
        text = own_text(text)
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(" in text
        assert "\x1b" not in text
        assert not re.search(r"https?://|url\(|@import", text)


def test_distributions_hold_every_run() -> None:
    text = latency_page(comparison(), (), ("quiet",))
    assert "1,530 of tilewright, 1,530 of onnxruntime" in text
    assert "openvino: &lt;broken&gt; model" in text
    assert [len(marks(drawn, "line")) for drawn in pictures(text)] == [2, 2, 0, 2]
    assert "quiet" in text


@pytest.mark.parametrize("runs_ms", [(5.0,), (5.0, 5.0, 5.0), (1e-6, 1e6), (0.0, 1.0)])
def test_odd_samples_are_drawn(runs_ms: tuple[float, ...]) -> None:
    first = replace(comparison().contestants[0], timing=Timing(runs_ms, runs_ms))
    text = latency_page(replace(comparison(), contestants=(first,)), (), ())
    assert not re.search(r"\bnan\b|\binf\b", own_text(text), re.IGNORECASE)
    for drawn in pictures(text):
        for line in marks(drawn, "line"):
            for axis in ("x", "y"):
                low, high = drawn[axis]["domain"]
                assert all(low <= value <= high for value in line[axis])


@pytest.mark.usefixtures("known_limits")
@pytest.mark.sampled(0)
def test_verbs_write_their_reports(tmp_path: Path) -> None:
    path = tw.compile(small_net(), threads=1).save(tmp_path / "net.tw")
    done = tilewright("profile", path, "--duration", "0.01", "--report", tmp_path / "profile.html")
    assert done.code == 0
    assert "<h2>Roofline</h2>" in (tmp_path / "profile.html").read_text()
    model = tmp_path / "net.onnx"
    onnx.save(small_net(), model)
    assert tilewright("compile", model, "--report", tmp_path / "compile.html").code == 0
    assert "<h2>Time of kernels</h2>" in (tmp_path / "compile.html").read_text()
    for verb in ("profile", "compile", "bench"):
        told = tilewright(verb, model, "--report", tmp_path / "net.pdf")
        assert told.complaint.endswith("net.pdf: give a name that ends in .html.")


@pytest.mark.usefixtures("known_limits")
@pytest.mark.sampled(0)
def test_open_models_are_shown_at_their_shapes(tmp_path: Path) -> None:
    model, saved, page, feed = (tmp_path / name for name in ("open.onnx", "open.tw", "open.html", "x.npz"))
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[N, 8] x) => (float[N, 8] y) {'
    onnx.save(onnx.parser.parse_model(text + "a = Softmax(x) y = Neg(a)}"), model)
    assert tilewright("compile", model, "--shapes", "x:3|5x8", "--report", page).code == 0
    written = page.read_text()
    assert "compiled for 2 sets of shapes" in written
    assert "<summary>x: 3x8</summary>" in written
    assert "<summary>x: 5x8</summary>" in written
    assert written.count("<h2>Time of kernels</h2>") == 2
    told = tilewright("profile", model, "--duration", "0.01", "--report", page)
    assert told.code == 2
    assert "input 'x' leaves dimension 0 (N) open; fix it with --shapes x:?x8" in told.complaint
    np.savez(feed, x=np.ones((7, 8), np.float32))
    assert tilewright("profile", model, "-i", feed, "--duration", "0.01", "--report", page).code == 0
    assert "Steps, workers and memory over time" in page.read_text()
    assert "7x8" in tilewright("profile", saved, "-i", feed, "--duration", "0.01").complaint
    np.savez(feed, x=np.ones((5, 8), np.float32))
    assert tilewright("profile", saved, "-i", feed, "--duration", "0.01", "--report", page).code == 0
