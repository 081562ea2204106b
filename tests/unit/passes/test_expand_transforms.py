"""Fourier transforms as products: values against float64, with nothing left for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.interpret import run_graph
from tilewright.passes.expand_transforms import ExpandTransforms

Array = np.ndarray[Any, Any]

# Of the largest result: float32 rounds to 6e-8.
MAX_ERROR = 8e-7


def model(
    op_type: str, x: Array, constants: dict[str, Any], inputs: list[str], opset: int, **attributes: Any
) -> ModelProto:
    node = helper.make_node(op_type, inputs, ["y"], **attributes)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "transform",
        [helper.make_tensor_value_info("x", element, x.shape)],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def dft_model(x: Array, length: int | None, axis: int, opset: int, **attributes: int) -> ModelProto:
    constants = {} if length is None else {"length": np.int64(length)}
    inputs = ["x", "" if length is None else "length"]
    if opset < 20:
        return model("DFT", x, constants, inputs, opset, axis=axis, **attributes)
    return model("DFT", x, {**constants, "axis": np.int64(axis)}, [*inputs, "axis"], opset, **attributes)


def signal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def as_complex(x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def check(proto: ModelProto, x: Array, want: Array) -> None:
    graph = load_onnx(proto)
    result = ExpandTransforms().run(graph)
    assert result.num_changes == 1
    assert not {node.op_type for node in graph.nodes} & {"DFT", "STFT"}
    by_products = run_graph(graph, {"x": x})["y"]
    by_host = run_graph(load_onnx(proto), {"x": x})["y"]
    assert by_host.shape == by_products.shape == want.shape
    scale = np.abs(want).max()
    assert np.abs(by_host - want).max() <= 2e-7 * scale
    assert np.abs(by_products - want).max() <= MAX_ERROR * scale
    compiled = tw.compile(proto, threads=1, no_cache=True)
    (got,) = compiled.run(None, {"x": x})
    compiled.close()
    assert np.abs(got - want).max() <= MAX_ERROR * scale


LENGTHS = [1, 2, 15, 16, 101, 400, 600, 1024, 1155, 3000]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_spectrum_and_the_signal_of_a_spectrum(length: int, num_parts: int) -> None:
    x = signal(2, length, num_parts)
    z = as_complex(x)
    check(dft_model(x, None, 1, 17), x, parts(np.fft.fft(z, axis=1)))
    check(dft_model(x, None, 1, 20, inverse=1), x, parts(np.fft.ifft(z, axis=1)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", LENGTHS)
def test_half_a_spectrum_of_a_real_signal(length: int) -> None:
    x = signal(3, length, 1)
    check(dft_model(x, None, -2, 20, onesided=1), x, parts(np.fft.rfft(as_complex(x), axis=1)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [4, 15, 600, 625, 2048])
def test_a_real_signal_from_half_its_spectrum(length: int) -> None:
    """Imaginary parts of the first and the middle point count for nothing, as in numpy."""
    x = signal(2, length // 2 + 1, 2)
    want = np.fft.irfft(as_complex(x), length, axis=1)[..., None]
    check(dft_model(x, length, 1, 20, onesided=1, inverse=1), x, want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("extent", "length"), [(20, 12), (20, 31), (700, 1024), (1500, 1024)])
def test_a_signal_is_cut_or_padded_to_the_length(extent: int, length: int) -> None:
    x = signal(2, extent, 2)
    check(dft_model(x, length, 1, 17), x, parts(np.fft.fft(as_complex(x), length, axis=1)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("shape", "axis"), [((6, 5, 7, 2), 0), ((2, 640, 3, 1), 1), ((2, 5, 640, 2), 2)])
def test_any_axis(shape: tuple[int, ...], axis: int) -> None:
    x = signal(*shape)
    check(dft_model(x, None, axis, 20), x, parts(np.fft.fft(as_complex(x), axis=axis)))


def test_doubles_keep_their_accuracy() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1024, 2))
    compiled = tw.compile(dft_model(x, None, 1, 17), threads=1, no_cache=True)
    (got,) = compiled.run(None, {"x": x})
    compiled.close()
    want = parts(np.fft.fft(as_complex(x), axis=1))
    assert np.abs(got - want).max() <= 1e-14 * np.abs(want).max()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("windowed", ["none", "constant", "fed"])
@pytest.mark.parametrize(("length", "step"), [(400, 160), (25, 7), (1024, 256), (1200, 7), (1200, 1201)])
@pytest.mark.parametrize("shape", [(2, 2600), (1, 2600, 1), (2, 2600, 2)], ids=str)
def test_frames_of_a_signal(shape: tuple[int, ...], length: int, step: int, windowed: str) -> None:
    x, factors = signal(*shape), np.hanning(length).astype(np.float32)
    is_complex = shape[2:] == (2,)
    constants: dict[str, Any] = {"step": np.int64(step), "length": np.int64(length)}
    if windowed == "constant":
        constants["window"] = factors
    inputs = ["x", "step", "" if windowed == "none" else "window", "length"]
    proto = model("STFT", x, constants, inputs, 17, onesided=int(not is_complex))
    feed = {"x": x}
    if windowed == "fed":
        proto.graph.input.append(helper.make_tensor_value_info("window", TensorProto.FLOAT, [length]))
        feed["window"] = factors
    z = as_complex(x if x.ndim == 3 else x[..., None])
    frames = np.lib.stride_tricks.sliding_window_view(z, length, axis=1)[:, ::step]
    spectrum = np.fft.fft(frames * (1 if windowed == "none" else factors))
    want = parts(spectrum if is_complex else spectrum[..., : length // 2 + 1])
    graph = load_onnx(proto)
    assert ExpandTransforms().run(graph).num_changes == 1
    for got in (run_graph(graph, feed)["y"], run_graph(load_onnx(proto), feed)["y"]):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= MAX_ERROR * np.abs(want).max()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [400, 2048])
def test_frames_are_generated_code(length: int) -> None:
    x = signal(1, 6000)
    constants = {
        "step": np.int64(length // 4),
        "length": np.int64(length),
        "window": np.ones(length, np.float32),
    }
    check_model = model("STFT", x, constants, ["x", "step", "window", "length"], 17)
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), length, axis=1)[:, :: length // 4]
    check(check_model, x, parts(np.fft.rfft(frames)))


def test_a_large_prime_factor_is_left_to_the_host() -> None:
    x = signal(1, 2 * 1009, 1)
    graph = load_onnx(dft_model(x, None, 1, 17))
    result = ExpandTransforms().run(graph)
    assert result.num_changes == 0
    assert "has the factor 1009" in result.remarks[0].text
    want = parts(np.fft.fft(as_complex(x), axis=1))
    assert np.abs(run_graph(graph, {"x": x})["y"] - want).max() <= 2e-7 * np.abs(want).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_are_constants_from_float64(op_type: str, periodic: int) -> None:
    node = helper.make_node(op_type, ["n"], ["y"], periodic=periodic)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    size = numpy_helper.from_array(np.int64(37), "n")
    proto = helper.make_model(
        helper.make_graph([node], "window", [], [out], [size]), opset_imports=[helper.make_opsetid("", 17)]
    )
    (want,) = ReferenceEvaluator(proto).run(None, {})
    compiled = tw.compile(proto, target="interpreter")
    (got,) = compiled.run(None, {})
    np.testing.assert_allclose(got, want, atol=2e-7)


@pytest.mark.parametrize(
    "settings", [(80, 400, 16000, 0.0, 8000.0), (8, 16, 8192, 0.0, 4096.0), (40, 64, 16000, 20.0, 7600.0)]
)
def test_bands_are_constants(settings: tuple[Any, ...]) -> None:
    types = (np.int64, np.int64, np.int64, np.float32, np.float32)
    given = [
        numpy_helper.from_array(t(v), f"i{k}") for k, (t, v) in enumerate(zip(types, settings, strict=True))
    ]
    node = helper.make_node("MelWeightMatrix", [g.name for g in given], ["y"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([node], "bands", [], [out], given), opset_imports=[helper.make_opsetid("", 17)]
    )
    (want,) = ReferenceEvaluator(proto).run(None, {})
    (got,) = tw.compile(proto, target="interpreter").run(None, {})
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_window_of_another_length_than_its_frames_is_refused() -> None:
    x = signal(1, 100)
    constants: dict[str, Any] = {
        "step": np.int64(4),
        "length": np.int64(16),
        "window": np.ones(12, np.float32),
    }
    proto = model("STFT", x, constants, ["x", "step", "window", "length"], 17)
    with pytest.raises(TilewrightError, match="dimension of the window must match"):
        tw.compile(proto, target="interpreter")
