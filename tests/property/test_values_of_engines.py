"""Values at borders, at ends and in types where implementations tend to differ: as ONNX Runtime has them."""

# mypy: disable-error-code="list-item"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.dtype import DType
from tilewright.ir.interpret import run_graph

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
EXTENTS = ((1, 3), (3, 1), (3, 7), (5, 5), (7, 2), (7, 18), (14, 19), (30, 9))
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def model(op_type: str, inputs: Sequence[Array | None], opset: int, /, **attributes: Any) -> ModelProto:
    """One node; the first input is fed, the others are constants."""
    names = ["" if a is None else f"i{number}" for number, a in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    constants = {n: a for n, a in zip(names[1:], inputs[1:], strict=True) if a is not None}
    x = inputs[0]
    assert x is not None
    return model_of([node], {"i0": x}, constants, opset)


def model_of(
    nodes: Sequence[NodeProto], feed: Mapping[str, Array], constants: Mapping[str, Array], opset: int
) -> ModelProto:
    """All results of some nodes, which read what is fed and constants."""
    given = [
        helper.make_tensor_value_info(name, DType.from_numpy(x.dtype).value, x.shape)
        for name, x in feed.items()
    ]
    made = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output]
    kept = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", given, made, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def require_those_of_onnxruntime(
    nodes: Sequence[NodeProto],
    feed: Mapping[str, Array],
    constants: Mapping[str, Array],
    opset: int,
    error: float = 0.0,
) -> None:
    """Nodes of one model, each of which makes one value, are interpreted as they are there; `error` is
    relative and absolute."""
    proto = model_of(nodes, feed, constants, opset)
    wanted = session_of(proto).run([node.output[0] for node in nodes], dict(feed))
    found = run_graph(load_onnx(proto), dict(feed))
    for node, want in zip(nodes, wanted, strict=True):
        name = node.output[0]
        np.testing.assert_allclose(found[name], want, rtol=error, atol=error, err_msg=name, strict=True)


def session_of(proto: ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def theirs(proto: ModelProto, x: Array) -> Array:
    return np.asarray(session_of(proto).run(None, {"i0": x})[0])


def interpreted(proto: ModelProto, x: Array) -> Array:
    (result,) = run_graph(load_onnx(proto), {"i0": x}).values()
    return result


def compiled(proto: ModelProto, x: Array) -> Array:
    return np.asarray(tw.compile(proto, threads=1).run(None, {"i0": x})[0])


@pytest.mark.parametrize(
    "mode", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
)
def test_nearest_elements_are_those_of_onnxruntime(mode: str) -> None:
    """All extents and roundings are nodes of one model."""
    feed = {f"x{extent}": np.arange(extent, dtype=np.float32) for extent, _ in EXTENTS}
    sizes = {f"to{resized}": np.array([resized], np.int64) for _, resized in EXTENTS}
    nodes = [
        helper.make_node(
            "Resize",
            [f"x{extent}", "", "", f"to{resized}"],
            [f"{extent} {resized} {rounding}"],
            mode="nearest",
            coordinate_transformation_mode=mode,
            nearest_mode=rounding,
        )
        for (extent, resized), rounding in product(EXTENTS, ROUNDINGS)
    ]
    require_those_of_onnxruntime(nodes, feed, sizes, 19)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("roi", [(0.0, 1.0), (0.25, 0.75), (-0.2, 1.2), (0.4, 0.6), (0.1, 1.0)])
def test_borders_of_crop_and_resize_are_those_of_onnxruntime(mode: str, roi: tuple[float, float]) -> None:
    """Which elements are extrapolated, and which element is the nearest one at a border."""
    # ONNX Runtime copies those that keep their extent, whatever their region.
    extents = [(extent, resized) for extent, resized in EXTENTS if extent != resized]
    feed = {f"x{n}": np.stack([np.arange(n), np.arange(n) ** 2]).astype(np.float32) for n, _ in extents}
    constants = {f"to{n}": np.array([2, n], np.int64) for _, n in extents}
    constants["roi"] = np.array([0, roi[0], 1, roi[1]], np.float32)
    nodes = [
        helper.make_node(
            "Resize",
            [f"x{extent}", "roi", "", f"to{resized}"],
            [f"{extent} {resized} {rounding}"],
            mode=mode,
            nearest_mode=rounding,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=-9.0,
        )
        for rounding in (ROUNDINGS if mode == "nearest" else ROUNDINGS[:1])
        for extent, resized in extents
    ]
    require_those_of_onnxruntime(nodes, feed, constants, 13, error=1e-5)
    few = [n for n in nodes if n.input[0] in ("x3", "x7") and ROUNDINGS[0] in n.output[0]]
    fed = {name: feed[name] for name in ("x3", "x7")}
    proto = model_of(few, fed, constants, 13)
    names = [node.output[0] for node in few]
    found, wanted = tw.compile(proto, threads=1).run(names, fed), session_of(proto).run(names, fed)
    for name, ours, want in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_slices_backward_are_clamped_as_the_standard_says() -> None:
    """A start before the first element is the first one when stepping backward."""
    x = np.arange(5, dtype=np.float32)
    cases = tuple(product((-9, -6, -5, -1, 0, 4, 9), (-9, -6, -5, 0, 3, 9), (-1, -2, -(2**31), 1, 2)))
    numbers = {str(n): np.array([n], np.int64) for case in ((0,), *cases) for n in case}
    nodes = [
        helper.make_node("Slice", ["x", str(start), str(end), "0", str(step)], [f"{start} {end} {step}"])
        for start, end, step in cases
    ]
    require_those_of_onnxruntime(nodes, {"x": x}, numbers, 13)
    proto = model("Slice", [x, *(np.array([n], np.int64) for n in (-9, -9, 0, -1))], 13)
    np.testing.assert_array_equal(compiled(proto, x), [0])


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.1}])
def test_attributes_and_their_defaults_are_float32(attributes: dict[str, float]) -> None:
    """In float64 the difference to the decimal number shows."""
    x = np.array([-3.0, -1e-3, 2.0], np.float64)
    proto = model("LeakyRelu", [x], 16, **attributes)
    np.testing.assert_allclose(interpreted(proto, x), theirs(proto, x), rtol=1e-14)
    np.testing.assert_allclose(compiled(proto, x), theirs(proto, x), rtol=1e-14)


def test_batch_normalisation_in_float64_uses_the_float32_epsilon() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    parameters = [
        np.array([0.5, 1, 2], np.float64),
        np.array([0, 1, 2], np.float64),
        np.zeros(3),
        np.array([1e-5, 0, 1], np.float64),
    ]
    proto = model("BatchNormalization", [x, *parameters], 15)
    np.testing.assert_allclose(compiled(proto, x), theirs(proto, x), rtol=1e-12)


@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("opset", [21, 23])
def test_quotients_of_half_types_are_rounded_from_opset_23_on(run: Any, opset: int) -> None:
    """`precision` says in which type QuantizeLinear divides; it is the scale's if it is not given."""
    x, scale = np.array([102.9, 63.28, 120, 48.25], np.float16), np.float16(0.003)
    quotient = x / scale if opset >= 23 else x.astype(np.float32) / np.float32(scale)
    for zero in (np.uint16(0), np.uint16(6)):
        proto = model("QuantizeLinear", [x, np.asarray(scale), np.asarray(zero)], opset)
        want = np.rint(quotient.astype(np.float32)) + np.float32(zero)
        np.testing.assert_array_equal(run(proto, x), want.astype(np.uint16))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_large_odd_exponents_keep_the_sign(run: Any) -> None:
    x, exponents = (
        np.array([-1, -1, -1, 1, -2], np.float32),
        np.array([2**24 + 1, 2**24, -(2**24) - 1, 2**24 + 1, 3], np.int32),
    )
    np.testing.assert_array_equal(run(model("Pow", [x, exponents], 15), x), [-1, 1, -1, 1, -8])


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_integers_between_elements_are_rounded_once(run: Any) -> None:
    x = np.array([[[[0, 10, 2**30 + 3, 7]]]], np.int32)
    grid = np.array([[[[-0.25, 0], [0.25, 0], [0.0, 0.0]]]], np.float32)
    proto = model("GridSample", [x, grid], 20, mode="linear", align_corners=1)
    assert run(proto, x).dtype == np.int32
    places = (np.array([-0.25, 0.25, 0.0], np.float64) + 1) / 2 * 3
    want = np.rint(np.interp(places, range(4), x.reshape(-1)))
    np.testing.assert_array_equal(run(proto, x).reshape(-1), want.astype(np.int32))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_resized_integers_beyond_their_type_are_its_limits(run: Any) -> None:
    limits = np.iinfo(np.int64)
    x = np.array([[[[limits.max, limits.min, limits.max, 0]]]])
    proto = model("Resize", [x, None, np.array([1, 1, 1, 2], np.float32)], 13, mode="linear")
    found = run(proto, x).reshape(-1)
    assert found[0] == limits.max
    assert found.min() >= limits.min
    assert found[1] > 0 > found[3]


def test_running_sums_of_nothing_are_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    for exclusive in (0, 1):
        proto = model("CumSum", [x, np.int64(1)], 14, exclusive=exclusive)
        assert interpreted(proto, x).shape == (2, 0)


def test_a_ceiling_mode_window_wider_than_its_input_is_one() -> None:
    x = np.array([[[3.0]]], np.float32)
    proto = model("AveragePool", [x], 19, kernel_shape=[2], strides=[3], ceil_mode=1)
    np.testing.assert_array_equal(interpreted(proto, x), theirs(proto, x))
    np.testing.assert_array_equal(compiled(proto, x), theirs(proto, x))
