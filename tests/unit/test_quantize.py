"""`tw.quantize`: each method's model is ONNX that other engines run alike, and errs no more than it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cli import tilewright

import tilewright as tw
from tilewright.quantization.methods import METHODS, Choices, packed_blocks, quantized
from tilewright.quantization.ranges import Ranges

Array = np.ndarray[Any, Any]

pytestmark = [pytest.mark.usefixtures("known_limits"), pytest.mark.sampled(9)]


def network(*, opset: int = 17) -> onnx.ModelProto:
    """Convolutions with normalisation and a residual sum, a pool, and products of which one has no name."""
    rng = np.random.default_rng(1)

    def made(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    arrays = {
        "w1": made(8, 3, 3, 3),
        "gamma": np.abs(made(8)) + 1,
        "beta": made(8),
        "mean": made(8),
        "var": np.abs(made(8)) + 1,
        "w2": made(8, 8, 1, 1),
        "b2": made(8),
        "w3": made(20, 8),
        "b3": made(20),
        "w4": made(20, 40),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "gamma", "beta", "mean", "var"], ["n1"], name="norm"),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="second"),
        helper.make_node("Add", ["c2", "r1"], ["s"], name="sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], name="third", transB=1),
        helper.make_node("MatMul", ["g", "w4"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 40])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def samples(count: int = 3) -> list[dict[str, Array]]:
    rng = np.random.default_rng(2)
    return [{"x": rng.standard_normal((2, 3, 9, 9)).astype(np.float32)} for _ in range(count)]


def run_elsewhere(model: onnx.ModelProto, feed: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, feed)
    return result


def error(got: Array, expected: Array) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


CASES = [
    ("static", {}, 4, {"QuantizeLinear", "DequantizeLinear"}, 0.03),
    ("static", {"per_channel": False, "ranges": "percentile"}, 4, {"QuantizeLinear"}, 0.1),
    ("dynamic", {}, 2, {"DynamicQuantizeLinear", "MatMulInteger"}, 0.03),
    ("weights", {"bits": 4, "block": 16}, 2, {"MatMulNBits"}, 0.15),
    ("weights", {}, 2, {"MatMulNBits"}, 0.01),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("method", "settings", "num", "operators", "limit"), CASES)
def test_every_method_errs_little_and_runs_elsewhere_alike(
    method: str, settings: dict[str, Any], num: int, operators: set[str], limit: float
) -> None:
    model = network()
    made = tw.quantize(model, samples=samples(), method=method, **settings)
    assert made.num_quantized == num == len(made.layers)
    assert operators <= {node.op_type for node in made.proto.graph.node}
    read = {name for node in made.proto.graph.node for name in node.input}
    assert {tensor.name for tensor in made.proto.graph.initializer} <= read
    assert made.float_bytes < model.ByteSize()  # without the normalisation
    assert "BatchNormalization" not in {node.op_type for node in made.proto.graph.node}
    onnx.checker.check_model(made.proto)
    errors = []
    for feed in samples():
        (ours,) = tw.compile(made.proto).run(None, feed)
        errors.append(error(ours, run_elsewhere(model, feed)))
        # A value between two steps may fall to either side.
        assert error(run_elsewhere(made.proto, feed), ours) < 0.02
    assert 0 < max(errors) < limit
    assert made.error == pytest.approx(max(errors), rel=1e-3)
    assert [trial.num_float for trial in made.trials] == [0]


def test_layers_stay_float_until_the_error_is_allowed() -> None:
    model = network()
    whole = tw.quantize(model, samples=samples())
    allowed = whole.error / 2
    made = tw.quantize(model, samples=samples(), max_error=allowed)
    assert made.error <= allowed < whole.error
    assert 0 < made.num_quantized < whole.num_quantized
    assert made.trials[0].num_float == 0
    assert made.trials[0].error == pytest.approx(whole.error)
    (y,) = tw.compile(made.proto).run(None, samples()[0])
    assert error(y, run_elsewhere(model, samples()[0])) <= allowed * 1.001
    assert all(layer.error_alone is not None for layer in made.layers)
    with pytest.raises(tw.NumericMismatch, match="no static form errs at most 1e-09: one layer alone errs"):
        tw.quantize(model, samples=samples(1), max_error=1e-9)


def test_layers_to_keep_stay_as_they_are() -> None:
    model = network()
    made = tw.quantize(model, samples=samples(1), keep=["first", "y"])
    assert [layer.name for layer in made.layers if layer.is_quantized] == ["second", "third"]
    (last,) = [node for node in made.proto.graph.node if node.op_type == "MatMul"]
    assert list(last.input) == ["g", "w4"]
    with pytest.raises(tw.UsageError, match="keep 'norm': no layer of the model has this name"):
        tw.quantize(model, keep=["norm"])
    with pytest.raises(tw.UsageError, match="no Gemm, MatMul of float32 with constant weights"):
        tw.quantize(model, method="dynamic", keep=["third", "y"])


def test_the_same_samples_give_the_same_model_whatever_names_are_taken() -> None:
    model = network()
    for name in ("r1_scale", "second_weight", "r1_dequantized"):
        model.graph.node.append(helper.make_node("Identity", ["x"], [name]))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    first, second = (tw.quantize(model, samples=samples()).proto for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    names = [name for node in first.graph.node for name in node.output]
    names += [tensor.name for tensor in first.graph.initializer]
    assert len(names) == len(set(names))
    assert tw.compile(first).run(["r1_scale"], samples()[0])[0].shape == (2, 3, 9, 9)


def test_an_old_opset_is_converted() -> None:
    made = tw.quantize(network(opset=11), samples=samples(1))
    assert made.proto.opset_import[0].version == 13
    assert made.num_quantized == 4


def test_a_value_that_is_no_number_is_refused() -> None:
    feed = {"x": np.full((2, 3, 9, 9), np.nan, np.float32)}
    with pytest.raises(tw.InputError, match="'x' is NaN or infinite on a sample"):
        tw.quantize(network(), samples=feed)


def test_ranges_are_of_all_samples() -> None:
    every, most = Ranges("minmax"), Ranges("percentile")
    rng = np.random.default_rng(3)
    for scale in (1.0, 3.0):
        values = rng.uniform(-scale, scale, 100_000)
        values[0] = 1000 * scale
        every.add({"v": values})
        most.add({"v": values})
    assert every.bounds()["v"][1] == 3000
    assert most.bounds()["v"] == pytest.approx((-2, 2), rel=0.01)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 16)])
def test_blocks_hold_their_largest_weight_exactly(bits: int, block: int) -> None:
    columns = np.random.default_rng(4).standard_normal((5, 2 * block + 3)).astype(np.float32)
    columns[0, :block] = 0
    packed, scales = packed_blocks(columns, bits, block)
    assert packed.shape == (5, 3, block * bits // 8)
    whole = packed if bits == 8 else np.stack((packed & 15, packed >> 4), axis=-1).reshape(5, 3, block)
    steps = scales.reshape(5, 3, 1)
    values = ((whole.astype(np.int32) - (1 << bits - 1)) * steps).reshape(5, -1)[:, : columns.shape[1]]
    apart = np.abs(values - columns)
    for row, part in np.ndindex(5, 3):
        inside = slice(part * block, min((part + 1) * block, columns.shape[1]))
        assert apart[row, inside].max() <= abs(steps[row, part, 0]) * 1.0001
        largest = np.abs(columns[row, inside]).argmax()
        assert apart[row, inside][largest] <= 1e-6 * abs(columns[row, inside][largest])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "int8"}, "method 'int8': expected one of static, dynamic, weights."),
        ({"bits": 4}, "bits 4: weights have 8; with method weights 4 or 8."),
        ({"block": 24}, "block 24: give a power of two from 16 to 256."),
        ({"max_error": -1.0}, "max_error -1: give a number above 0, such as 0.02."),
        ({"ranges": "entropy"}, "ranges 'entropy': expected one of minmax, percentile."),
        ({"samples": []}, "samples: give at least one."),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.UsageError) as caught:
        tw.quantize(network(), **settings)
    assert str(caught.value) == message


def model_of(
    nodes: list[onnx.NodeProto],
    shape: list[int],
    outputs: list[str],
    kind: int = TensorProto.FLOAT,
    **arrays: Array,
) -> onnx.ModelProto:
    """A model of one input x."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def test_biases_keep_their_size_where_weights_are_tiny_or_one_bias_serves_all() -> None:
    weights = drawn(3, 2, 3, 3) * np.array([1, 0, 1e-9], np.float32).reshape(3, 1, 1, 1)
    biases = np.array([1, 30, -30], np.float32)
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    made = tw.quantize(model_of([conv], [1, 2, 5, 5], ["y"], w=weights, b=biases))
    assert made.error < 0.01
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    made = tw.quantize(model_of([gemm], [4, 8], ["y"], w=drawn(8, 6), b=drawn(1)))
    assert made.error < 0.02


@pytest.mark.parametrize("method", ["static", "dynamic", "weights"])
def test_a_weight_that_several_layers_read_is_stored_once(method: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["b"]),
        helper.make_node("Sub", ["a", "b"], ["y"]),
    ]
    proto = model_of(nodes, [4, 32], ["y"], w=drawn(32, 24))
    numbers = {layer.number for layer in METHODS[method].layers(proto)}
    made = quantized(proto, method, numbers, {"x": (-3, 3), "n": (-3, 3)}, Choices())
    assert numbers == {0, 2}
    assert [t.data_type for t in made.graph.initializer if np.prod(t.dims) >= 32 * 24] == [
        TensorProto.UINT8 if method == "weights" else TensorProto.INT8
    ]
    feed = {"x": drawn(4, 32)}
    assert error(run_elsewhere(made, feed), run_elsewhere(proto, feed)) < 0.02


def test_normalisation_stays_where_a_body_reads_what_it_normalises() -> None:
    inner = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    other = helper.make_tensor_value_info("e", TensorProto.FLOAT, None)
    branches = {
        "then_branch": helper.make_graph([helper.make_node("Neg", ["c"], ["t"])], "then", [], [inner]),
        "else_branch": helper.make_graph([helper.make_node("Abs", ["c"], ["e"])], "else", [], [other]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["is"], to=TensorProto.BOOL),
        helper.make_node("If", ["is"], ["i"], **branches),
        helper.make_node("Add", ["n", "i"], ["y"]),
    ]
    made = tw.quantize(model_of(nodes, [1, 2, 5, 5], ["y"], w=drawn(3, 2, 3, 3), s=np.ones(3, np.float32)))
    assert made.error < 0.02


def test_constant_nodes_are_weights_and_places_of_a_pool_stay_whole_numbers() -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(drawn(3, 2, 3, 3))),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["p", "at"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["at", "at"], ["y"], axis=0),
    ]
    made = tw.quantize(model_of(nodes, [1, 2, 5, 5], ["y"], TensorProto.INT64))
    assert made.num_quantized == 1


def test_errors_of_other_than_finite_floats() -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["p"])
    logs = [product, helper.make_node("Relu", ["p"], ["r"]), helper.make_node("Log", ["r"], ["y"])]
    feed = {"x": drawn(4, 8)}
    made = tw.quantize(model_of(logs, [4, 8], ["y"], w=drawn(8, 6)), samples=feed)
    assert 0 < made.error < 0.1  # infinite at the same places
    best = [product, helper.make_node("ArgMax", ["p"], ["y"], axis=1)]
    model = model_of(best, [64, 8], ["y"], TensorProto.INT64, w=drawn(8, 600))
    assert tw.quantize(model, method="weights", bits=4, samples={"x": drawn(64, 8)}).error > 0
    with pytest.raises(tw.UsageError, match="keep 'none': no layer"):
        tw.quantize(model, keep="none")


def test_the_verb_reads_folders_of_samples_and_writes_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")
    Path("samples").mkdir()
    for number, feed in enumerate(samples()):
        np.savez(f"samples/{number}.npz", **cast(Any, feed))
    result = tilewright("quantize", "net.onnx", "-i", "samples", "-o", "small.onnx")
    assert result.code == 0, result.err
    assert "net.onnx, static: 4 layers quantised" in result.out
    assert "worst of 3 samples" in result.out
    assert "next: tilewright bench net.onnx small.onnx" in result.err
    assert onnx.load("small.onnx").producer_name == "tilewright"
    failed = tilewright("quantize", "net.onnx", "-i", ".", "-o", "net.onnx")
    assert failed.code == 2
    assert failed.complaint == "net.onnx: would replace what was given; give another file with -o."
    assert tilewright("quantize", "net.onnx", "-i", ".").complaint == ".: no .npz file lies there."
    onnx.save(network(), "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    for taken in ("big.bin", "samples/0.npz"):
        failed = tilewright("quantize", "big.onnx", "-i", "samples/0.npz", "-o", taken)
        assert failed.complaint == f"{taken}: would replace what was given; give another file with -o."
