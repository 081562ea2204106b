"""What kernels have to do at least: padding, strides and rows that nobody reads do not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.benchmark.work import BenchmarkWork, needed_share, total_constant_bytes
from tilewright.compiler import plan
from tilewright.ir.derive import flops, nests_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.options import Options
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.target import CpuTarget


def convolution(size: int, kernel: int, *, stride: int = 1, pad: int = 0, group: int = 1) -> Graph:
    g = Graph("conv")
    x = g.add_input(Value("x", DType.FLOAT32, (1, 32, size, size)))
    w = g.constant(np.ones((32, 32 // group, kernel, kernel), np.float32), "w")
    out = (size + 2 * pad - kernel) // stride + 1
    y = g.value("y", DType.FLOAT32, (1, 32, out, out))
    attributes: dict[str, Any] = {
        "pads": (pad,) * 4,
        "strides": (stride,) * 2,
        "group": group,
        "kernel_shape": (kernel,) * 2,
    }
    g.outputs = [g.append(Node("Conv", [x, w], [y], attributes, opset=11)).output]
    return g


def works(graph: Graph) -> list[BenchmarkWork]:
    program = plan(graph, Options(no_cache=True)).program
    lowered = CpuTarget().place(program, host_isa()).lowered
    return [BenchmarkWork.of(launch, lowered) for launch in lowered.launches]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"), [(2, 5, 1, 2), (4, 3, 2, 1), (7, 3, 1, 1), (6, 3, 1, 0)]
)
def test_products_with_padding_are_not_needed(size: int, kernel: int, stride: int, pad: int) -> None:
    (nest,) = nests_of(convolution(size, kernel, stride=stride, pad=pad).nodes[0])
    taps = [
        (o * stride + k - pad) for o in range((size + 2 * pad - kernel) // stride + 1) for k in range(kernel)
    ]
    one_axis = sum(0 <= t < size for t in taps) / len(taps)
    assert needed_share(nest) == pytest.approx(one_axis**2)


def test_weights_that_only_meet_padding_are_not_read() -> None:
    depthwise = works(convolution(2, 5, pad=2, group=32))
    # Of each 5 x 5 window, 3 x 3 weights meet one of the 2 x 2 pixels.
    assert total_constant_bytes(depthwise) == 32 * 9 * 4
    assert total_constant_bytes(works(convolution(5, 5, pad=2, group=32))) == 32 * 25 * 4


def test_pixels_that_a_stride_jumps_over_are_not_read() -> None:
    (work,) = [w for w in works(convolution(8, 1, stride=2)) if w.product_flop]
    assert work.product_flop == 2 * 32 * 32 * 16
    assert work.activation_bytes == 4 * (32 * 16 + 32 * 16)


def test_of_a_table_the_rows_that_are_looked_up_are_read() -> None:
    g = Graph("lookup")
    indices = g.add_input(Value("i", DType.INT64, (3,)))
    table = g.constant(np.ones((1000, 64), np.float32), "t")
    rows = g.append(Node("Gather", [table, indices], [g.value("r", DType.FLOAT32, (3, 64))], opset=13)).output
    g.outputs = [rows]
    assert total_constant_bytes(works(g)) == 3 * 64 * 4


def test_operations_that_do_not_depend_on_a_loop_are_needed_once() -> None:
    g = Graph("scale")
    x = g.add_input(Value("x", DType.FLOAT32, (16, 64)))
    s = g.add_input(Value("s", DType.FLOAT32, (16, 1)))
    e = g.append(Node("Exp", [s], [g.value("e", DType.FLOAT32, (16, 1))], opset=13)).output
    g.outputs = [g.append(Node("Mul", [x, e], [g.value("y", DType.FLOAT32, (16, 64))], opset=14)).output]
    found = works(g)
    exponential = flops(g.nodes[0]) // 16
    assert sum(w.vector_flop for w in found) == 16 * exponential + 16 * 64
    assert sum(w.activation_bytes for w in found) >= 4 * (16 + 2 * 16 * 64)


def test_elements_narrower_than_float32_take_less() -> None:
    g = Graph("bytes")
    x = g.add_input(Value("x", DType.UINT8, (1, 16, 8, 8)))
    y = g.value("y", DType.UINT8, (1, 16, 4, 4))
    g.outputs = [
        g.append(Node("MaxPool", [x], [y], {"kernel_shape": (2, 2), "strides": (2, 2)}, opset=12)).output
    ]
    (work,) = works(g)
    assert work.other_flop == flops(g.nodes[0]) > 0
    assert work.vector_flop == work.other_flop / 4
