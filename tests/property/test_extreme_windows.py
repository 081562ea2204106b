"""Windows of any length, stride, dilation and padding: kernels of a bounded text, and right values."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.property.checks import EXAMPLES

from tilewright.compiler import plan
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.options import Options
from tilewright.targets.cpu.isa import host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Kernel
from tilewright.targets.cpu.lower.lower import lower_partition
from tilewright.targets.cpu.lower.lowered import KernelLaunch
from tilewright.targets.cpu.target import CpuTarget

# Bytes of a kernel's text: LLVM takes about a second. A convolution of a classifier has up to 200 kB.
MAX_TEXT_BYTES = 800_000
MAX_MACS = 1_000_000
MAX_WEIGHTS = 100_000


def convolution(x: Any, weight: Any, **attributes: Any) -> ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "window", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernels_of(graph: Graph, isa: str | None = None) -> list[Kernel]:
    """All kernels that are generated for a graph."""
    found = host_isa() if isa is None else isa_by_name(isa)
    partition = plan(graph, Options(no_cache=True, threads=1, isa=isa)).program.partition
    work = [one for unit in lower_partition(partition, found).work for one in unit]
    return [k for launch in work if isinstance(launch, KernelLaunch) for k in launch.kernel.all_kernels()]


def check_values(model: ModelProto, x: Any) -> None:
    graph = load_onnx(model)
    executable = CpuTarget().generate(plan(graph, Options(no_cache=True, threads=1)).program).load(1)
    got = executable.run({"x": x})["y"]
    executable.close()
    want = run_graph(graph, {"x": x}, dtype=DType.FLOAT64)["y"]
    assert np.abs(got - want).max(initial=0) <= 3e-6 * max(1.0, np.abs(want).max(initial=0))


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, tuple[int, int], int]:
    """Taps, stride, dilation, padding before and behind, and the extent, for some number of positions."""
    taps = draw(st.sampled_from([1, 2, 3, 7, 16, 31, 64, 255, 455, 700]))
    stride = draw(st.sampled_from([1, 2, 3, 7, max(1, taps - 14), taps, taps + 5]))
    dilation = draw(st.sampled_from([1, 1, 1, 2, 5, 24]))
    reach = (taps - 1) * dilation
    pads = draw(st.tuples(*[st.sampled_from([0, 1, taps // 2, taps - 1, reach, taps + 3])] * 2))
    positions = draw(st.sampled_from([1, 2, 5, 17, 40, 100]))
    extent = (positions - 1) * stride + reach + 1 - sum(pads) + draw(st.integers(0, stride - 1))
    return taps, stride, dilation, pads, max(1, extent)


@settings(EXAMPLES, max_examples=40)
@given(
    drawn=st.lists(axes(), min_size=1, max_size=2),
    groups=st.sampled_from([1, 1, 2, 3, 8]),
    per_group=st.tuples(st.sampled_from([1, 1, 2, 5, 16]), st.sampled_from([1, 2, 7, 16, 64, 160])),
    seed=st.integers(0, 1000),
)
def test_a_window_of_any_kind_has_bounded_kernels_and_right_values(
    drawn: list[Any], groups: int, per_group: tuple[int, int], seed: int
) -> None:
    taps, strides, dilations, pads, extents = zip(*drawn, strict=True)
    positions = [
        (n + sum(p) - (k - 1) * d - 1) // s + 1
        for k, s, d, p, n in zip(taps, strides, dilations, pads, extents, strict=True)
    ]
    assume(min(positions) > 0)
    channels, num_out = per_group
    num_weights = prod(taps) * channels * num_out * groups
    assume(num_weights <= MAX_WEIGHTS and num_weights * prod(positions) <= MAX_MACS)
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((groups * num_out, channels, *taps)).astype(np.float32)
    x = rng.standard_normal((1, groups * channels, *extents)).astype(np.float32)
    model = convolution(
        x,
        weight,
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=[p[0] for p in pads] + [p[1] for p in pads],
    )
    assert max(len(k.text) for k in kernels_of(load_onnx(model))) <= MAX_TEXT_BYTES
    check_values(model, x)


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("taps", "stride", "pads"),
    [(455, 441, (7, 448)), (455, 1, (227, 227)), (700, 2, (699, 0))],
    ids=["a bank of filters", "each row at an edge", "one-sided"],
)
def test_a_long_window_has_little_code(taps: int, stride: int, pads: tuple[int, int], isa: str) -> None:
    """Code for the rows at edges grew with the taps: 17 s of LLVM for the first of these."""
    weight = np.ones((640, 1, 1, taps), np.float32)
    x = np.zeros((1, 1, 1, 1600), np.float32)
    model = convolution(x, weight, strides=[1, stride], pads=[0, pads[0], 0, pads[1]])
    (kernel,) = kernels_of(load_onnx(model), isa)
    assert kernel.template == "contraction"
    assert len(kernel.text) <= MAX_TEXT_BYTES / 2


def test_a_bank_of_long_filters_has_right_values() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((48, 1, 1, 455)).astype(np.float32)
    x = rng.standard_normal((1, 1, 1, 3000)).astype(np.float32)
    check_values(convolution(x, weight, strides=[1, 441], pads=[0, 7, 0, 448]), x)
