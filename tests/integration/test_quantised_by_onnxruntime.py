"""Networks that onnxruntime's tools quantised compute what onnxruntime computes of them."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import tilewright as tw

pytestmark = pytest.mark.sampled(3)

Array = np.ndarray[Any, Any]


def recurrent_network(steps: int, batch: int, width: int, size: int, *, layers: int = 2) -> onnx.ModelProto:
    """Layers of LSTM in both directions."""
    rng = np.random.default_rng(0)
    nodes, weights, x, columns = [], [], "x", width
    for layer in range(layers):
        shapes = {"w": (2, 4 * size, columns), "r": (2, 4 * size, size), "b": (2, 8 * size)}
        for name, shape in shapes.items():
            data = rng.uniform(-1, 1, shape) / size**0.5
            weights.append(numpy_helper.from_array(data.astype(np.float32), f"{name}{layer}"))
        given = [x, *(f"{name}{layer}" for name in shapes)]
        attributes = {"direction": "bidirectional", "hidden_size": size}
        nodes.append(helper.make_node("LSTM", given, [f"every{layer}"], f"lstm{layer}", **attributes))
        nodes.append(helper.make_node("Transpose", [f"every{layer}"], [f"turned{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"turned{layer}", "shape"], [f"x{layer + 1}"]))
        x, columns = f"x{layer + 1}", 2 * size
    weights.append(numpy_helper.from_array(np.array([steps, batch, 2 * size]), "shape"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, (steps, batch, width))],
        [helper.make_tensor_value_info(x, 1, (steps, batch, 2 * size))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def computed_by_onnxruntime(
    model: onnx.ModelProto, feed: dict[str, Array], *, saved_to: Path | None = None, optimises: bool = True
) -> list[Array]:
    """What onnxruntime computes; `saved_to` takes the model as it optimised it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if optimises else level.ORT_DISABLE_ALL
    if saved_to is not None:
        options.optimized_model_filepath = str(saved_to)
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("batch", "per_channel"), [(1, False), (1, True), (3, True)])
def test_recurrent_layers_that_are_quantised_dynamically(
    batch: int, per_channel: bool, tmp_path: Path
) -> None:
    path = tmp_path / "quantised.onnx"
    network = recurrent_network(6, batch, 10, 40)
    quantize_dynamic(network, path, per_channel=per_channel, weight_type=QuantType.QInt8)
    model = onnx.load(path)
    assert [n.op_type for n in model.graph.node].count("DynamicQuantizeLSTM") == 2
    feed = {"x": np.random.default_rng(1).standard_normal((6, batch, 10)).astype(np.float32)}
    (expected,) = computed_by_onnxruntime(model, feed)
    results = [tw.compile(model, threads=threads) for threads in (1, 2)]
    found = [compiled.run(None, feed)[0] for compiled in results]
    # A state that is rounded to another byte moves others by a step of its range times a weight.
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-3)
    assert np.median(abs(found[0] - expected)) < 1e-6
    np.testing.assert_array_equal(found[0], found[1])
    assert not [kernel for kernel in results[0].kernels if kernel.is_host]
    assert [kernel.template for kernel in results[0].kernels].count("recurrent") == 2


TRANSFORMER = """<ir_version: 9, opset_import: ["": 17]> g (float[2,6,16] x) => (float[2,6,16] y)
    <float root = {1.4142135}, float one = {1.0}, float half = {0.5}, float scale = {0.35355338},
     int64[4] heads = {2,6,2,8}, int64[3] joined = {2,6,16}> {
    q = MatMul(x, wq)  qb = Add(q, bq)  qh = Reshape(qb, heads)  qt = Transpose <perm=[0,2,1,3]> (qh)
    k = MatMul(x, wk)  kb = Add(k, bk)  kh = Reshape(kb, heads)  kt = Transpose <perm=[0,2,3,1]> (kh)
    v = MatMul(x, wv)  vb = Add(v, bv)  vh = Reshape(vb, heads)  vt = Transpose <perm=[0,2,1,3]> (vh)
    s = MatMul(qt, kt)  t = Mul(s, scale)  p = Softmax <axis=-1> (t)  o = MatMul(p, vt)
    ot = Transpose <perm=[0,2,1,3]> (o)  oj = Reshape(ot, joined)  a = MatMul(oj, wo)  ab = Add(a, bo)
    r = Add(ab, x)  n = LayerNormalization <axis=-1, epsilon=1e-5> (r, g1, b1)
    f = MatMul(n, wf)  fb = Add(f, bf)  d = Div(fb, root)  e = Erf(d)  f1 = Add(e, one)
    m = Mul(fb, f1)  h = Mul(m, half)
    u = MatMul(h, wu)  ub = Add(u, bu)  z = Add(ub, n)
    y = LayerNormalization <axis=-1, epsilon=1e-5> (z, g2, b2)
}"""


def transformer() -> onnx.ModelProto:
    """A layer of an encoder, as exporters write it."""
    model, rng = onnx.parser.parse_model(TRANSFORMER), np.random.default_rng(0)
    shapes = {f"w{name}": (16, 16) for name in "qkvo"} | {"wf": (16, 32), "wu": (32, 16)}
    shapes |= {f"b{name}": (16,) for name in "qkvou"} | {
        "bf": (32,),
        "g1": (16,),
        "b1": (16,),
        "g2": (16,),
        "b2": (16,),
    }
    for name, shape in shapes.items():
        data = rng.standard_normal(shape) / 4 + (name[0] == "g")
        model.graph.initializer.append(numpy_helper.from_array(data.astype(np.float32), name))
    return model


FEED = {"x": np.random.default_rng(1).standard_normal((2, 6, 16)).astype(np.float32)}


class Once(CalibrationDataReader):  # type: ignore[misc]
    """One input to calibrate by."""

    def __init__(self) -> None:
        self.left = [FEED]

    def get_next(self) -> dict[str, Array] | None:
        """The input, and then nothing."""
        return self.left.pop() if self.left else None


def assert_same(model: onnx.ModelProto, *, steps: float = 0.0, optimises: bool = True) -> None:
    """What we compute is what onnxruntime computes, but for so many steps of a byte of the results' range."""
    (expected,) = computed_by_onnxruntime(model, FEED, optimises=optimises)
    compiled = tw.compile(model, threads=1)
    (found,) = compiled.run(None, FEED)
    assert not [kernel for kernel in compiled.kernels if kernel.is_host]
    limit = 2e-5 + steps * (expected.max() - expected.min()) / 255
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


def test_a_transformer_that_a_session_optimised(tmp_path: Path) -> None:
    path = tmp_path / "optimised.onnx"
    computed_by_onnxruntime(transformer(), FEED, saved_to=path)
    model = onnx.load(path)
    assert {"SkipLayerNormalization", "Gelu"} & {node.op_type for node in model.graph.node if node.domain}
    assert_same(model)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_transformer_that_is_quantised_dynamically(per_channel: bool, tmp_path: Path) -> None:
    path = tmp_path / "quantised.onnx"
    kind = QuantType.QInt8 if per_channel else QuantType.QUInt8
    quantize_dynamic(transformer(), path, per_channel=per_channel, weight_type=kind)
    assert_same(onnx.load(path), steps=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
def test_a_transformer_that_is_quantised_by_an_input(form: str, tmp_path: Path) -> None:
    source, path = tmp_path / "model.onnx", tmp_path / "quantised.onnx"
    onnx.save(transformer(), source)
    quantize_static(source, path, Once(), quant_format=QuantFormat[form])
    # onnxruntime's fusions of QuantizeLinear and DequantizeLinear round elsewhere than these.
    assert_same(onnx.load(path), steps=3, optimises=form == "QOperator")


@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_a_transformer_whose_weights_have_four_bits(form: str, is_symmetric: bool) -> None:
    quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    found = quantizer.MatMulNBitsQuantizer(
        transformer(), block_size=16, is_symmetric=is_symmetric, quant_format=QuantFormat[form]
    )
    found.process()
    model = found.model.model
    assert_same(model, optimises=form == "QOperator")
