"""Models with many operators or operands: compiled in time that grows with their number, or on the host.

The times are bounds that only something quadratic or worse passes on a busy machine.
"""

# mypy: disable-error-code="dict-item"

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.ir.ops.registry import MAX_OPERANDS

Array = np.ndarray[Any, Any]
TIMEOUT_S = 120
SIZE = 40


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, int],
    outputs: list[str],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n, size in inputs.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    initializers = [numpy_helper.from_array(array, n) for n, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "large", given, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agrees(proto: onnx.ModelProto, rtol: float = 1e-5) -> tw.CompiledModel:
    """The model compiled for the processor, which gives what the interpreter gives."""
    loaded = tw.load(proto)
    compiled = tw.compile(loaded, no_cache=True, timeout_s=TIMEOUT_S)
    reference = tw.compile(loaded, target="interpreter")
    rng = np.random.default_rng(3)
    feed = {v.name: rng.uniform(0.5, 1, v.shape).astype(np.float32) for v in loaded.graph.inputs}
    for got, expected in zip(compiled.run(None, feed), reference.run(None, feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-6)
    return compiled


def newton(steps: int) -> onnx.ModelProto:
    nodes, y = [], "x"
    for i in range(steps):
        nodes += [
            helper.make_node("Div", ["x", y], [f"q{i}"]),
            helper.make_node("Add", [y, f"q{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"s{i}", "half"], [f"y{i}"]),
        ]
        y = f"y{i}"
    return model(nodes, {"x": SIZE}, [y], {"half": np.float32(0.5)})


def gated(steps: int) -> onnx.ModelProto:
    nodes, h = [], "x"
    for i in range(steps):
        nodes += [
            helper.make_node("Sigmoid", [h], [f"s{i}"]),
            helper.make_node("Mul", [h, f"s{i}"], [f"h{i}"]),
        ]
        h = f"h{i}"
    return model(nodes, {"x": SIZE}, [h])


def fibonacci(steps: int) -> onnx.ModelProto:
    nodes, before, now = [helper.make_node("Neg", ["x"], ["a"])], "x", "a"
    for i in range(steps):
        nodes.append(helper.make_node("Mul", [now, before], [f"a{i}"]))
        before, now = now, f"a{i}"
    return model(nodes, {"x": SIZE}, [now])


def chain(steps: int) -> onnx.ModelProto:
    ops = ("Relu", "Tanh", "Abs", "Sigmoid")
    nodes = [
        helper.make_node(ops[i % 4], [f"v{i - 1}" if i else "x"], [f"v{i}"], name=f"n{i}")
        for i in range(steps)
    ]
    return model(nodes, {"x": SIZE}, [f"v{steps - 1}"])


def tree(leaves: int) -> onnx.ModelProto:
    """Products of one input with constants, summed in pairs: all products are live together."""
    constants = {f"c{i}": np.full(SIZE, 1 / (i + 1), np.float32) for i in range(leaves)}
    nodes = [helper.make_node("Mul", ["x", name], [f"m{name}"]) for name in constants]
    level, count = [f"m{name}" for name in constants], 0
    while len(level) > 1:
        for left, right in zip(level[::2], level[1::2], strict=False):
            nodes.append(helper.make_node("Add", [left, right], [f"t{count}"]))
            count += 1
        paired = len(level) // 2
        level = [f"t{i}" for i in range(count - paired, count)] + level[2 * paired :]
    return model(nodes, {"x": SIZE}, level, constants)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "proto",
    [newton(12), newton(120), gated(100), fibonacci(24), fibonacci(300), chain(900), tree(100)],
    ids=["newton-12", "newton-120", "gated", "fibonacci-24", "fibonacci-300", "chain", "tree"],
)
def test_shared_values_and_deep_chains_compile(proto: onnx.ModelProto) -> None:
    agrees(proto)


@pytest.mark.slow
@pytest.mark.parametrize("make", [newton, gated, fibonacci, chain, tree])
def test_thousands_of_operators_compile(make: Any) -> None:
    agrees(make(3_000), rtol=1e-3)


def names(stem: str, count: int) -> list[str]:
    return [f"{stem}{i}" for i in range(count)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("op", "count"), [("Sum", MAX_OPERANDS - 1), ("Max", 10_000), ("Mean", 10_000)])
def test_sums_of_very_many_operands(op: str, count: int) -> None:
    inputs = {f"x{i}": 3 for i in range(8)}
    read = [f"x{i % 8}" for i in range(count)]
    compiled = agrees(model([helper.make_node(op, read, ["y"])], inputs, ["y"]))
    assert any("MAX_OPERANDS = 1,024" in str(s) for s in compiled.steps) == (count >= MAX_OPERANDS)


@pytest.mark.sampled(0)
def test_a_tensor_split_into_ten_thousand() -> None:
    outputs = names("y", 10_000)
    agrees(model([helper.make_node("Split", ["x"], outputs, axis=0)], {"x": 10_000}, outputs[::5_000]))


def test_five_thousand_tensors_concatenated() -> None:
    inputs = dict.fromkeys(names("x", 20), 3)
    read = [name for _ in range(250) for name in inputs]
    agrees(model([helper.make_node("Concat", read, ["y"], axis=0)], inputs, ["y"]))


@pytest.mark.sampled(0)
def test_a_million_shuffled_indices() -> None:
    indices = np.random.default_rng(1).permutation(1_000_000).astype(np.int64)
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    agrees(model([node], {"x": 1_000_000}, ["y"], {"i": indices}))
