"""Profiles of kernels in context: peaks by template, limits, what is counted."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tilewright import zoo
from tilewright.benchmark.limits import MachineLimits
from tilewright.benchmark.profile import Profile, profile_program
from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.derive import flops, macs
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.program import Program
from tilewright.targets.cpu.kernel import Kernel

pytestmark = pytest.mark.sampled(5)

LIMITS = MachineLimits(1, 100e9, 1600e9, 10e9, 100e9, 200e9, 1000, 50e9)


def profiled(program: Program, feed: dict[str, Any]) -> Profile:
    return profile_program(
        program, feed, num_threads=1, duration_s=0.05, limits=lambda constant_bytes: LIMITS
    )


@pytest.fixture(scope="module")
def squeezenet() -> Profile:
    model = zoo.build("squeezenet1_1", image=64)
    program = plan(load_onnx(model), Options(no_cache=True)).program
    feed = zoo.example_inputs(model, 0)
    return profiled(program, feed)


def test_peaks_are_those_of_the_unit_that_computes() -> None:
    assert LIMITS.peak_flop_per_s("contraction") == 100e9
    assert LIMITS.peak_flop_per_s("winograd-2") == pytest.approx(100e9 * 36 / 16)
    assert LIMITS.peak_flop_per_s("winograd-4") == pytest.approx(100e9 * 4)
    assert LIMITS.peak_flop_per_s("matrix-3") == pytest.approx(1600e9 / 3)
    assert LIMITS.peak_flop_per_s("integer-tiles") == 3200e9
    assert LIMITS.peak_flop_per_s("integer-winograd-vnni") == 800e9


def test_a_kernel_of_kernels_spends_its_time_as_its_parts_do() -> None:
    def kernel(template: str, macs: int, *parts: Kernel) -> Kernel:
        return Kernel("k", "", 1, (), template=template, macs=macs, parts=parts)

    direct, tiles = kernel("contraction", 100), kernel("matrix-3", 300)
    assert LIMITS.compute_ns(kernel("loop-nest", 0)) == 0
    assert LIMITS.compute_ns(direct) == pytest.approx(2e9 * 100 / 100e9)
    # Eight blocks of both, and parts without products.
    fused = kernel("fused", 3200, direct, kernel("loop-nest", 0), tiles)
    each = LIMITS.compute_ns(direct) + LIMITS.compute_ns(tiles)
    assert LIMITS.compute_ns(fused) == pytest.approx(8 * each)


def test_products_of_all_kernels_are_those_of_the_model(squeezenet: Profile) -> None:
    model = zoo.build("squeezenet1_1", image=64)
    convolutions = [n for n in load_onnx(model).nodes if n.op_type == "Conv"]
    counted = sum(k.product_flop for k in squeezenet.kernels)
    assert counted == sum(2 * macs(node) for node in convolutions)


def test_operations_of_all_kernels_are_those_of_the_model(squeezenet: Profile) -> None:
    nodes = load_onnx(zoo.build("squeezenet1_1", image=64)).nodes
    expected = sum(flops(node) for node in nodes if node.op_type in ("Conv", "Relu", "MaxPool"))
    counted = sum(k.flop for k in squeezenet.kernels)
    assert expected <= counted <= 1.001 * expected  # the mean and the softmax of the end are small
    pooling = [k for k in squeezenet.kernels if k.operators == ("MaxPool",)]
    assert len(pooling) == 3
    assert all(k.flop > 0 and k.product_flop == 0 and k.gflop_per_s > 0 for k in pooling)


def test_weights_are_counted_once_each(squeezenet: Profile) -> None:
    model = zoo.build("squeezenet1_1", image=64)
    least = sum(v.size_bytes for v in load_onnx(model).initializers)
    assert least <= sum(k.constant_bytes for k in squeezenet.kernels) <= 2 * least


def test_shares_and_limits_are_consistent(squeezenet: Profile) -> None:
    assert sum(k.share for k in squeezenet.kernels) <= 1.0001
    assert sum(squeezenet.operator_share.values()) == pytest.approx(sum(k.share for k in squeezenet.kernels))
    assert sum(squeezenet.bound_share.values()) == pytest.approx(sum(k.share for k in squeezenet.kernels))
    for kernel in squeezenet.kernels:
        assert kernel.low_ns <= kernel.median_ns <= kernel.high_ns
        assert kernel.limit_ns > 0
        assert kernel.limit_ns <= kernel.median_ns or kernel.median_ns >= 1000
        assert (kernel.bound == "overhead") == (kernel.median_ns > 4 * kernel.limit_ns)


def test_a_trace_has_a_track_of_steps_and_one_of_each_thread() -> None:
    model = zoo.build("squeezenet1_1", image=64)
    program = plan(load_onnx(model), Options(no_cache=True)).program
    feed = zoo.example_inputs(model, 0)
    found = profile_program(program, feed, num_threads=2, duration_s=0.05, limits=lambda _: LIMITS)
    events = json.loads(found.chrome_trace("<s>"))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {0: "steps", 1: "worker 0 (caller)", 2: "worker 1"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["<s>"]
    by_track = {t: [e for e in events if e["ph"] == "X" and e["tid"] == t] for t in tracks}
    assert [e["args"]["kernel"] for e in by_track[0]] == [k.id for k in found.kernels]
    ran = [e["args"] for t in (1, 2) for e in by_track[t]]
    kernels = {a["kernel"]: a["of"] for a in ran}
    assert kernels.keys() >= {k.id for k in found.kernels}, "steps are named by the first of their kernels"
    assert {a["step"] for a in ran} == set(range(len(found.kernels)))
    assert sorted((a["kernel"], a["chunk"]) for a in ran) == sorted(
        (kernel, chunk) for kernel, number in kernels.items() for chunk in range(number)
    )
    for events_of_track in by_track.values():
        ordered = sorted(events_of_track, key=lambda e: (e["ts"], e["dur"]))
        for event, following in itertools.pairwise(ordered):
            assert event["ts"] + event["dur"] <= following["ts"] + 1e-6  # of floats: whole ns
    for event in (*by_track[1], *by_track[2]):
        step = by_track[0][event["args"]["step"]]
        assert event["name"] in step["name"]
        assert step["ts"] - 5 <= event["ts"] <= event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 5


def test_operators_on_the_host_have_rows_with_their_time() -> None:
    g = Graph("unique")
    x = g.add_input(Value("x", DType.FLOAT32, (4096,)))
    doubled = g.append(Node("Add", [x, x], [g.value("d", DType.FLOAT32, (4096,))], opset=14)).output
    unique = Node("Unique", [doubled], [g.value("u", DType.FLOAT32, (4096,))], {"sorted": 1}, opset=11)
    kept = g.append(unique).output
    g.outputs = [g.append(Node("Neg", [kept], [g.value("y", DType.FLOAT32, (4096,))], opset=13)).output]
    program = plan(g, Options(no_cache=True)).program
    found = profiled(program, {"x": np.arange(4096, dtype=np.float32)})
    assert [k.operators for k in found.kernels] == [("Add",), ("Unique",), ("Neg",)]
    add, host, _ = found.kernels
    assert (host.bound, host.template, host.limit_ns, host.flop) == ("host", "host", 0, 0)
    assert host.median_ns > 10 * add.median_ns, "a sort in Python beside an addition of vectors"
    assert found.bound_share["host"] == host.share > 0.5
    assert "on the host" in found.verdict
    assert found.run_ns >= sum(k.median_ns for k in found.kernels) * 0.5


def test_reading_takes_as_long_as_where_the_data_stays() -> None:
    assert LIMITS.read_ns(5000, 0) == pytest.approx(1e9 * 5000 / 50e9)
    assert LIMITS.read_ns(0, 1000) == pytest.approx(1e9 * 1000 / 200e9)
    assert LIMITS.read_ns(0, 1001) == pytest.approx(1e9 * 1001 / 100e9)


@dataclass(frozen=True)
class Speed:
    read_bytes_per_s: float


def test_constants_are_read_at_the_speed_of_where_so_many_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three looks the best, with a footprint of as many bytes as there are constants."""
    looks = {6000: [70e9, 80e9, 60e9], 1000: [150e9, 130e9, 140e9], 20000: [8e9, 9e9, 7e9]}
    asked = []

    def probe(num_threads: int, footprint_bytes: int) -> Speed:
        asked.append((num_threads, footprint_bytes))
        return Speed(looks[footprint_bytes].pop())

    monkeypatch.setattr("tilewright.benchmark.limits.probe_bandwidth", probe)
    assert LIMITS.with_constants(6000) == replace(LIMITS, constant_bytes_per_s=80e9)
    assert asked == [(1, 6000)] * 3
    # Fewer than what the smallest caches have are measured with as many as fit there.
    assert LIMITS.with_constants(10) == replace(LIMITS, constant_bytes_per_s=150e9)
    # A look that was disturbed is no reason to call the caches slower than memory.
    assert LIMITS.with_constants(20000).constant_bytes_per_s == LIMITS.memory_bytes_per_s
    # None, or more than any cache has: what was measured of memory holds.
    assert LIMITS.with_constants(0) == LIMITS.with_constants(1 << 40) == LIMITS
    assert len(asked) == 9


def test_until_their_number_is_known_constants_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(num_threads: int, footprint_bytes: int) -> Speed:
        return Speed(1e18 / footprint_bytes)

    monkeypatch.setattr("tilewright.benchmark.limits.probe_bandwidth", probe)
    limits = MachineLimits.measure(1)
    assert limits.constant_bytes_per_s == limits.memory_bytes_per_s
    assert limits.memory_bytes_per_s < limits.cache_bytes_per_s < limits.small_bytes_per_s
