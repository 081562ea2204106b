"""Networks of the zoo, quantised: exact against the integer reference, close to ONNX Runtime."""

# mypy: disable-error-code="var-annotated"

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.support.quantize import quantize

import tilewright as tw
from tilewright import zoo

Array = np.ndarray[Any, Any]

NETWORKS = {
    "resnet18": {"image": 32},
    "mobilenet_v2": {"image": 64},
    "squeezenet1_1": {"image": 64},
    "bert_tiny": {"sequence": 32},
}


def runtime_output(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def output(model: onnx.ModelProto, feeds: dict[str, Array], target: str = "cpu", **settings: Any) -> Array:
    with tw.compile(model, target, no_cache=True, **settings) as compiled:
        return np.asarray(compiled.run(None, feeds)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_quantized_networks_equal_the_integer_reference(name: str) -> None:
    network = zoo.build(name, **NETWORKS[name])
    feeds = zoo.example_inputs(network)
    model = quantize(network, feeds)
    with tw.compile(model, threads=2, no_cache=True) as compiled:
        found = np.asarray(compiled.run(None, feeds)[0])
        templates = {k.template for k in compiled.kernels if k.macs}
        assert "host" not in {k.template for k in compiled.kernels}
        integers = sum(k.macs for k in compiled.kernels if k.template.startswith("integer-"))
        # Attention multiplies activations alone, which stay float.
        assert integers > 0.99 * sum(k.macs for k in compiled.kernels if k.template != "attention"), templates
    scale = np.abs(found).max()
    # All bytes are equal where nothing between them is summed in float; what follows the last is float.
    exact = 2e-2 if "attention" in templates else 1e-6
    np.testing.assert_allclose(found, output(model, feeds, "interpreter"), rtol=0, atol=exact * scale)
    # ONNX Runtime may round a byte the other way, which the layers behind spread.
    np.testing.assert_allclose(found, runtime_output(model, feeds), rtol=0, atol=0.02 * scale)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", [{}, {"isa": "avx2"}, {"accuracy": "strict"}], ids=str)
@pytest.mark.parametrize("activation", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_bytes_that_leave_a_network_are_within_one_of_onnxruntime(
    settings: dict[str, Any], activation: type, per_channel: bool
) -> None:
    model, feeds = small_network(activation, per_channel)
    found = output(model, feeds, **settings)
    assert found.dtype == activation
    np.testing.assert_array_equal(found, output(model, feeds, "interpreter"))
    theirs = runtime_output(model, feeds)
    assert np.abs(found.astype(int) - theirs.astype(int)).max() <= 1
    assert np.unique(found).size > 20


def attention(activation: type, *, quantizes_weights: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Softmax of products of two quantised activations, times a third; its weights quantised too, or not."""
    shape, zero = (2, 12, 16), np.asarray(3, activation)
    constants = {"s": np.float32(0.02), "z": zero, "w": np.float32(1 / 255), "o": np.asarray(0, np.uint8)}
    nodes = [helper.make_node("DequantizeLinear", [name, "s", "z"], [f"{name}f"]) for name in ("q", "k", "v")]
    nodes += [
        helper.make_node("Transpose", ["kf"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["qf", "t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
    ]
    weights = "p"
    if quantizes_weights:
        nodes.append(helper.make_node("QuantizeLinear", ["p", "w", "o"], ["pq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["pq", "w", "o"], ["pd"]))
        weights = "pd"
    nodes.append(helper.make_node("MatMul", [weights, "vf"], ["y"]))
    nodes.append(helper.make_node("QuantizeLinear", ["y", "s", "z"], ["out"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(activation))
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, kind, shape) for name in ("q", "k", "v")],
        [helper.make_tensor_value_info("out", kind, shape)],
        [onnx.numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    info, rng = np.iinfo(activation), np.random.default_rng(0)
    return model, {
        name: rng.integers(info.min, info.max + 1, shape).astype(activation) for name in ("q", "k", "v")
    }


@pytest.mark.parametrize("activation", [np.uint8, np.int8])
def test_products_of_two_quantised_activations_are_of_integers(activation: type) -> None:
    model, feeds = attention(activation, quantizes_weights=True)
    with tw.compile(model, no_cache=True) as compiled:
        found = np.asarray(compiled.run(None, feeds)[0])
        assert sum(k.template.startswith("integer-") and k.macs > 0 for k in compiled.kernels) == 2
    assert np.abs(found.astype(int) - output(model, feeds, "interpreter").astype(int)).max() <= 1
    assert np.abs(found.astype(int) - runtime_output(model, feeds).astype(int)).max() <= 1
    assert np.unique(found).size > 20


def test_attention_whose_weights_stay_in_float_stays_one_kernel() -> None:
    model, feeds = attention(np.uint8, quantizes_weights=False)
    with tw.compile(model, no_cache=True) as compiled:
        assert not any(k.template.startswith("integer-") for k in compiled.kernels)
        found = np.asarray(compiled.run(None, feeds)[0])
    assert np.abs(found.astype(int) - runtime_output(model, feeds).astype(int)).max() <= 1


def test_a_saved_model_computes_the_same(tmp_path: Any) -> None:
    model, feeds = small_network(np.uint8, True)
    compiled = tw.compile(model, no_cache=True)
    expected = compiled.run(None, feeds)[0]
    path = compiled.save(tmp_path / "model.tw")
    np.testing.assert_array_equal(tw.open(path).run(None, feeds)[0], expected)


def test_ranges_found_at_run_time() -> None:
    """The operator form: DynamicQuantizeLinear, ConvInteger with padding, MatMulInteger."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["c"], ["cf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cf", "s"], ["cs"]),
        helper.make_node("Reshape", ["cs", "shape"], ["rows"]),
        helper.make_node("DynamicQuantizeLinear", ["rows"], ["q2", "s2", "z2"]),
        helper.make_node("MatMulInteger", ["q2", "v", "z2", "vz"], ["m"]),
        helper.make_node("Cast", ["m"], ["mf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["mf", "s2"], ["y"]),
    ]
    constants = {
        "w": rng.integers(-20, 20, (24, 8, 3, 3)).astype(np.int8),
        "wz": np.int8(0),
        "shape": np.array([48, 72]),
        "v": rng.integers(0, 255, (72, 40)).astype(np.uint8),
        "vz": np.uint8(131),
    }
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (48, 40))],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {"x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)}
    with tw.compile(model, no_cache=True) as compiled:
        found = np.asarray(compiled.run(None, feeds)[0])
        assert sum(k.template.startswith("integer-") and k.macs > 0 for k in compiled.kernels) == 2
    scale = np.abs(found).max()
    np.testing.assert_allclose(found, output(model, feeds, "interpreter"), rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(found, runtime_output(model, feeds), rtol=0, atol=1e-5 * scale)


def small_network(activation: type, per_channel: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A stem, a residual sum, a depthwise layer with bounds, a pool, a concatenation; bytes come out."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        scale = 1.5 / np.sqrt(np.prod(shape[1:]))
        return onnx.numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["sum"]),
        helper.make_node("Conv", ["sum", "w3"], ["c3"], pads=[1, 1, 1, 1], group=24),
        helper.make_node("Clip", ["c3", "zero", "six"], ["r3"]),
        helper.make_node("MaxPool", ["r3"], ["p3"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("AveragePool", ["sum"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["p2", "p3"], ["cat"], axis=1),
        helper.make_node("Conv", ["cat", "w4"], ["y"]),
    ]
    weights = [weight("w1", 24, 3, 3, 3), weight("b1", 24), weight("w2", 24, 24, 3, 3)]
    weights += [weight("w3", 24, 1, 3, 3), weight("w4", 20, 48, 1, 1)]
    weights += [onnx.numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0), ("six", 6))]
    shape = (1, 3, 30, 30)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 20, 7, 7))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    made = quantize(model, feeds, per_channel=per_channel, activation=activation)
    low, high = (0, 255) if activation is np.uint8 else (-128, 127)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.04), "y_s"))
    made.graph.initializer.append(
        onnx.numpy_helper.from_array(np.asarray((low + high + 1) // 2, activation), "y_z")
    )
    made.graph.node.append(helper.make_node("QuantizeLinear", ["y", "y_s", "y_z"], ["bytes"]))
    del made.graph.output[:]
    kind = TensorProto.UINT8 if activation is np.uint8 else TensorProto.INT8
    made.graph.output.append(helper.make_tensor_value_info("bytes", kind, (1, 20, 7, 7)))
    return made, feeds
