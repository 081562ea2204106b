"""Composed layers of the zoo compute what their formulas say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tilewright.zoo import conformer, dlrm, gpt, mobile, mobilevit, yolo
from tilewright.zoo import excite as mobile_excite
from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import (
    attention,
    dense,
    excite,
    gelu,
    hard_swish,
    layer_norm,
    leaky_relu,
    mish,
    relu6,
    silu,
    tanh_gelu,
)

Array = np.ndarray


def evaluate(layer: Callable[[Builder, Tensor], Tensor], x: Array) -> tuple[Array, dict[str, Array], Tensor]:
    """Output of `layer` on `x`, its parameters by name, and what the builder knows of the output."""
    b = Builder("layer", seed=0)
    result = layer(b, b.input("x", x.shape))
    b.output(result, "y")
    model = b.finish()
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    parameters = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    (y,) = session.run(None, {"x": x})
    assert y.shape == result.shape
    return y, parameters, result


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (silu, lambda x: x * _sigmoid(x)),
        (mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (gelu, lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2),
        (
            tanh_gelu,
            lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        ),
        (hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
        (relu6, lambda x: np.clip(x, 0, 6)),
        (leaky_relu, lambda x: np.where(x > 0, x, x / 10)),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_activation_is_its_formula_and_its_power_is_estimated(
    layer: Callable[[Builder, Tensor], Tensor], formula: Callable[[Array], Array], scale: float
) -> None:
    x = scale * normal(1, 20000)
    y, _, result = evaluate(lambda b, t: layer(b, _with_power(b, t, scale**2)), x)
    np.testing.assert_allclose(y, formula(x), rtol=1e-5, atol=1e-6)
    if layer is not relu6:  # cut at 6 when the input is large; that does not concern weights
        assert result.power == pytest.approx(float((y.astype(np.float64) ** 2).mean()), rel=0.06)


def _with_power(b: Builder, x: Tensor, power: float) -> Tensor:
    return b.node("Identity", [x], x.shape, power=power)


def test_layer_norm_has_zero_mean_and_unit_variance_before_its_affine_step() -> None:
    x = 5 * normal(2, 3, 64) + 2
    y, parameters, _ = evaluate(lambda b, t: layer_norm(b, t, eps=1e-6, name="ln"), x)
    plain = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(y, plain * parameters["ln.weight"] + parameters["ln.bias"], atol=1e-5)


def test_dense_multiplies_by_the_weight_as_stored() -> None:
    x = normal(2, 3, 8)
    y, parameters, _ = evaluate(lambda b, t: dense(b, t, 5, name="fc"), x)
    np.testing.assert_allclose(y, x @ parameters["fc.weight"] + parameters["fc.bias"], atol=1e-5)


def test_attention_mixes_values_by_the_softmax_of_query_and_key_per_head() -> None:
    batch, sequence, heads, width = 2, 5, 3, 4
    x = normal(batch, sequence, heads * width)
    y, parameters, _ = evaluate(lambda b, t: attention(b, t, heads=heads), x)
    projected = {
        name: x @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]
        for name in ("query", "key", "value")
    }
    expected = np.empty_like(x)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        query, key, value = (projected[name][..., part] for name in ("query", "key", "value"))
        scores = np.exp(query @ key.transpose(0, 2, 1) / math.sqrt(width))
        expected[..., part] = scores / scores.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_channel_shuffle_interleaves_the_halves() -> None:
    x = normal(2, 6, 3, 3)
    y, _, _ = evaluate(mobile._shuffle, x)
    np.testing.assert_array_equal(y, x[:, [0, 3, 1, 4, 2, 5]])


def test_focus_takes_every_second_pixel() -> None:
    x = normal(1, 3, 8, 6)
    y, _, _ = evaluate(yolo._focus, x)
    parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    np.testing.assert_array_equal(y, np.concatenate(parts, axis=1))


def test_unfold_gathers_pixels_of_equal_place_and_fold_undoes_it() -> None:
    x = normal(2, 3, 4, 6)
    unfolded, _, _ = evaluate(mobilevit._unfold, x)
    assert unfolded.shape == (8, 6, 3)
    for place, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        pixels = x[:, :, row::2, column::2].reshape(2, 3, 6).transpose(0, 2, 1)
        np.testing.assert_array_equal(unfolded.reshape(2, 4, 6, 3)[:, place], pixels)
    again, _, _ = evaluate(lambda b, t: mobilevit._fold(b, mobilevit._unfold(b, t), t.shape), x)
    np.testing.assert_array_equal(again, x)


def test_relative_shift_moves_scores_by_distance_to_their_key() -> None:
    """Column c of the input is the distance T - 1 - c; query i meets key j at the distance i - j."""
    frames = 5
    x = normal(2, 3, frames, 2 * frames - 1)
    y, _, _ = evaluate(conformer._shift, x)
    for i in range(frames):
        for j in range(frames):
            np.testing.assert_array_equal(y[..., i, j], x[..., i, frames - 1 - (i - j)])


def test_relative_positions_are_sines_of_the_distance() -> None:
    table = conformer._relative_positions(4)
    assert table.shape == (1, 7, 144)
    distances = np.arange(3, -4, -1)
    np.testing.assert_allclose(table[0, :, 0], np.sin(distances), atol=1e-6)
    np.testing.assert_allclose(table[0, :, 1], np.cos(distances), atol=1e-6)
    np.testing.assert_array_equal(table[0, 3, :4], [0, 1, 0, 1])


def test_dlrm_interacts_every_pair_once() -> None:
    batch, width = 2, 128
    x = normal(batch, 3 * width)

    def interact(b: Builder, t: Tensor) -> Tensor:
        first, *others = b.split(t, (width,) * 3)
        return dlrm._interact(b, first, others)

    y, _, _ = evaluate(interact, x)
    a, b, c = (x[:, i * width : (i + 1) * width] for i in range(3))
    pairs = np.stack([(b * a).sum(1), (c * a).sum(1), (c * b).sum(1)], axis=1)
    np.testing.assert_allclose(y, np.concatenate([a, pairs], axis=1), rtol=1e-4, atol=1e-4)


def test_excitation_gates_channels_by_their_means() -> None:
    x = normal(2, 8, 4, 4)
    y, parameters, _ = evaluate(lambda b, t: excite(b, t, 2, Builder.relu, "HardSigmoid"), x)
    first, second = (parameters[f"{name}.weight"][..., 0, 0] for name in ("fc1", "fc2"))
    hidden = np.maximum(x.mean((2, 3)) @ first.T + parameters["fc1.bias"], 0)
    gate = np.clip((hidden @ second.T + parameters["fc2.bias"]) / 6 + 0.5, 0, 1)
    np.testing.assert_allclose(y, x * gate[:, :, None, None], atol=1e-5)


@pytest.mark.parametrize(("channels", "squeeze"), [(72, 24), (120, 32), (480, 120), (672, 168), (960, 240)])
def test_mobilenet_v3_squeezes_to_multiples_of_eight(channels: int, squeeze: int) -> None:
    """The widths that torchvision's released weights have."""
    assert mobile_excite._nearest_eighth(channels) == squeeze


@pytest.mark.slow
def test_gpt2_does_not_see_what_comes_later() -> None:
    """Changing the last token changes the logits of the last position only."""
    b = Builder("gpt2_small", seed=0)
    gpt._gpt2(b, (b.input("input_ids", (2, 6), "int64"),))
    session = ort.InferenceSession(b.finish().SerializeToString(), providers=["CPUExecutionProvider"])
    tokens = np.array([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]])
    (logits,) = session.run(None, {"input_ids": tokens})
    np.testing.assert_allclose(logits[0, :5], logits[1, :5], atol=1e-4)
    assert np.abs(logits[0, 5] - logits[1, 5]).max() > 0.1
