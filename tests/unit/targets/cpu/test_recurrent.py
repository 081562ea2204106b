"""Loops over the steps of recurrent layers: on every instruction set, for any number of threads."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.property.checks import assert_same, for_all
from tests.property.strategies import Case, onnxruntime_outputs, reference_outputs

import tilewright as tw
from tilewright.ir.dtype import DType
from tilewright.ir.fuse import steps_group
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Stepwise
from tilewright.ir.ops import describe
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.targets.cpu.isa import CacheSizes, Isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.recurrent import lower_steps
from tilewright.testing.kernel_runner import KernelRunner

pytestmark = pytest.mark.sampled(2)

Array = np.ndarray[Any, Any]
HOST_ISAS = [name for name in ("avx512", "avx2", "neon") if isa_by_name(name).runs_on_host]


def kernel_agrees(one: Case, isa: Isa, *, may_round: bool = False) -> bool:
    description, group = describe(one.node), steps_group(one.node)
    assert isinstance(description, Stepwise)
    given = [a for a in one.inputs if a is not None]
    constants = {("input", i) for i, value in enumerate(group.inputs) if value.is_constant}
    free = len(group.locals)
    kernels = lower_steps(description, group.nests, constants, free, isa, may_round=may_round)
    assert not isinstance(kernels, Declined), kernels
    names = {value.name: array for value, array in zip(filter(None, one.node.inputs), given, strict=True)}
    operands: dict[tuple[str, int], Array] = {
        ("input", i): names[value.name] for i, value in enumerate(group.inputs)
    }
    for position, value in enumerate(group.outputs):
        operands["output", position] = np.full(value.shape, np.nan, np.float32)
    layouts = {key: Layout.row_major(array.ndim) for key, array in operands.items()}
    runner = KernelRunner(kernels, operands, layouts, isa)
    runner()
    got = [runner.result(("output", position)) for position in range(len(group.outputs))]
    assert_same(one, got, reference_outputs(one))
    return True


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa_name", HOST_ISAS)
@pytest.mark.parametrize("op_type", ["RNNSteps", "GRUSteps", "LSTMSteps"])
def test_kernels_compute_what_the_reference_computes(op_type: str, isa_name: str) -> None:
    isa = isa_by_name(isa_name)
    assert for_all((INTERNAL_DOMAIN, op_type), lambda one: kernel_agrees(one, isa), 12) > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa_name", HOST_ISAS)
def test_weights_of_24_bits_lie_side_by_side(isa_name: str) -> None:
    isa = replace(isa_by_name(isa_name), caches=CacheSizes(l2_bytes=0))
    key = (INTERNAL_DOMAIN, "LSTMSteps")
    assert for_all(key, lambda one: kernel_agrees(one, isa, may_round=True), 8) > 0


def layer(
    op_type: str, *, steps: int, batch: int, width: int, size: int, directions: int, linear: int = 1
) -> Graph:
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.add_input(Value("x", DType.FLOAT32, (steps, batch, width)))
    shapes = (
        (directions, gates * size, width),
        (directions, gates * size, size),
        (directions, 2 * gates * size),
    )
    weights = [graph.constant((rng.standard_normal(s) / size**0.5).astype(np.float32)) for s in shapes]
    y = graph.value("y", DType.FLOAT32, (steps, directions, batch, size))
    attributes: dict[str, Attribute] = {
        "hidden_size": size,
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if op_type == "GRU":
        attributes["linear_before_reset"] = linear
    graph.append(Node(op_type, [x, *weights], [y], attributes, opset=14))
    graph.outputs = [y]
    return graph


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("op_type", "linear"), [("LSTM", 0), ("GRU", 1), ("GRU", 0)])
@pytest.mark.parametrize("batch", [3, 40])
def test_layers_agree_with_onnxruntime(op_type: str, linear: int, batch: int) -> None:
    graph = layer(op_type, steps=6, batch=batch, width=8, size=72, directions=2, linear=linear)
    x = np.random.default_rng(1).standard_normal((6, batch, 8)).astype(np.float32)
    (node,) = graph.nodes
    weights = [value.data for value in node.inputs[1:] if value is not None]
    expected = onnxruntime_outputs(Case(node, (x, *weights), exact=False, rtol=0, atol=0, runtime=True))
    assert not isinstance(expected, str), expected
    compiled = tw.compile(tw.Model(graph, "0" * 64, "layer"), threads=2)
    assert "recurrent" in {kernel.template for kernel in compiled.kernels}
    np.testing.assert_allclose(compiled.run(None, {"x": x})[0], expected[0], rtol=0, atol=3e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("op_type", "linear"), [("LSTM", 0), ("GRU", 1), ("GRU", 0)])
def test_any_number_of_threads_gives_the_same_bits(op_type: str, linear: int) -> None:
    graph = layer(op_type, steps=40, batch=2, width=8, size=96, directions=2, linear=linear)
    feed = {"x": np.random.default_rng(1).standard_normal((40, 2, 8)).astype(np.float32)}
    model = tw.Model(graph, "0" * 64, "layer")
    results = [tw.compile(model, threads=threads).run(None, feed)[0] for threads in (1, 2, 3, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    np.testing.assert_allclose(results[0], run_graph(graph, feed)["y"], rtol=0, atol=1e-5)


def test_threads_that_share_a_loop_may_come_at_any_time() -> None:
    # Shares of units are taken over from participants that do not come, and given back when they do.
    graph = layer("LSTM", steps=300, batch=1, width=4, size=128, directions=1)
    feed = {"x": np.random.default_rng(1).standard_normal((300, 1, 4)).astype(np.float32)}
    compiled = tw.compile(tw.Model(graph, "0" * 64, "layer"), threads=4)
    (expected,) = compiled.run(None, feed)
    found: list[Array] = []

    def run() -> None:
        found.extend(compiled.run(None, feed)[0] for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for each in found:
        np.testing.assert_array_equal(each, expected)


def test_a_loop_is_one_kernel_however_many_steps_there_are() -> None:
    graph = layer("LSTM", steps=5000, batch=1, width=2, size=4, directions=1)
    compiled = tw.compile(tw.Model(graph, "0" * 64, "long"), threads=1)
    assert not [kernel for kernel in compiled.kernels if kernel.is_host]
    assert len(compiled.kernels) <= 3
    feed = {"x": np.random.default_rng(1).standard_normal((5000, 1, 2)).astype(np.float32)}
    expected = run_graph(graph, feed)["y"]
    np.testing.assert_allclose(compiled.run(None, feed)[0], expected, rtol=0, atol=1e-5)
