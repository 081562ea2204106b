"""Profiles of kernels in context: peaks by template, limits, what is counted."""

from __future__ import annotations

import json

import pytest

from tilewright import zoo
from tilewright.benchmark.profile import MachineLimits, Profile, profile_program
from tilewright.compiler import plan
from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.derive import macs
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.targets.cpu.kernel import Kernel

LIMITS = MachineLimits(1, 100e9, 1600e9, 10e9, 100e9)


@pytest.fixture(scope="module")
def squeezenet() -> Profile:
    model = zoo.build("squeezenet1_1", image=64)
    program = plan(load_onnx(model), Options(no_cache=True)).program
    feed = zoo.example_inputs(model, 0)
    return profile_program(program, feed, num_threads=1, duration_s=0.05, limits=LIMITS)


def test_peaks_are_those_of_the_unit_that_computes() -> None:
    assert LIMITS.peak_flop_per_s("contraction") == 100e9
    assert LIMITS.peak_flop_per_s("winograd-2") == pytest.approx(100e9 * 36 / 16)
    assert LIMITS.peak_flop_per_s("winograd-4") == pytest.approx(100e9 * 4)
    assert LIMITS.peak_flop_per_s("matrix-3") == pytest.approx(1600e9 / 3)
    assert LIMITS.peak_flop_per_s("integer-tiles") == 3200e9


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
    counted = sum(k.flop for k in squeezenet.kernels)
    assert counted == sum(2 * macs(node) for node in convolutions)


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
        assert (kernel.bound == "overhead") == (kernel.median_ns > 4 * kernel.limit_ns)


def test_a_trace_has_each_kernel_once(squeezenet: Profile) -> None:
    events = json.loads(squeezenet.chrome_trace("s"))["traceEvents"]
    assert len([e for e in events if e["ph"] == "X"]) == len(squeezenet.kernels)


def test_operators_on_the_host_are_named() -> None:
    g = Graph("nonzero")
    x = g.add_input(Value("x", DType.FLOAT32, (2,)))
    y = g.append(Node("Unique", [x], [g.value("y", DType.FLOAT32, (2,))], {"sorted": 1}, opset=11)).output
    g.outputs = [y]
    program = plan(g, Options(no_cache=True)).program
    with pytest.raises(UnsupportedOp, match="Unique"):
        profile_program(program, {}, num_threads=1, duration_s=0.01, limits=LIMITS)
