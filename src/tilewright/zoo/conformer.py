"""Conformer-S encoder: convolution and relative-position self-attention over speech frames."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import dense, layer_norm, silu
from tilewright.zoo.network import InputSpec, Settings, Size, ZooNetwork

_MELS = 80
_LAYERS = 16
_FEATURES = 144
_HEADS = 4
_KERNEL = 31  # the paper says 32; implementations take the odd neighbour, which needs no uneven padding
_EPS = 1e-5


def _inputs(settings: Settings) -> tuple[InputSpec, ...]:
    return (InputSpec("features", (settings.batch, settings.sequence, _MELS)),)


def _subsample(b: Builder, x: Tensor) -> Tensor:
    """Two 3 x 3 convolutions of stride 2, then a linear layer: a quarter of the frames."""
    x = b.unsqueeze(x, 1)
    x = b.relu(b.conv(x, _FEATURES, 3, stride=2, bias=True, name="conv.0"), name="conv.1")
    x = b.relu(b.conv(x, _FEATURES, 3, stride=2, bias=True, name="conv.2"), name="conv.3")
    batch, channels, frames, bins = x.shape
    x = b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, frames, channels * bins))
    return dense(b, x, _FEATURES, name="out")


def _relative_positions(frames: int) -> npt.NDArray[np.float32]:
    """Sines and cosines of the distances frames - 1 down to 1 - frames: [1, 2 * frames - 1, features]."""
    distances = np.arange(frames - 1, -frames, -1, dtype=np.float64)[:, None]
    rates = np.exp(np.arange(0, _FEATURES, 2) * (-math.log(10000.0) / _FEATURES))
    table = np.empty((2 * frames - 1, _FEATURES))
    table[:, 0::2], table[:, 1::2] = np.sin(distances * rates), np.cos(distances * rates)
    return table.astype(np.float32)[None]


def _shift(b: Builder, scores: Tensor) -> Tensor:
    """[N, heads, T, 2T - 1] by distance to [N, heads, T, T] by position, as Transformer-XL does it."""
    batch, heads, frames, distances = scores.shape
    zeros = b.constant(np.zeros((batch, heads, frames, 1), np.float32))
    padded = b.reshape(b.concat([zeros, scores], axis=3), (batch, heads, distances + 1, frames))
    shifted = b.reshape(b.slice(padded, 2, 1, distances + 1), scores.shape)
    return b.slice(shifted, 3, 0, frames)


def _attention(b: Builder, x: Tensor, positions: Tensor) -> Tensor:
    batch, frames, features = x.shape
    width = features // _HEADS
    split = (batch, frames, _HEADS, width)
    query = b.reshape(dense(b, x, features, name="linear_q", gain=2.0), split)
    key = b.transpose(b.reshape(dense(b, x, features, name="linear_k"), split), (0, 2, 3, 1))
    value = b.transpose(b.reshape(dense(b, x, features, name="linear_v"), split), (0, 2, 1, 3))
    place = dense(b, positions, features, name="linear_pos", bias=False)
    place = b.transpose(b.reshape(place, (1, positions.shape[1], _HEADS, width)), (0, 2, 3, 1))
    scores = []
    for bias, other in (("pos_bias_u", key), ("pos_bias_v", place)):
        shifted_query = b.add(query, b.parameter(bias, (_HEADS, width), deviation=0.3))
        scores.append(b.matmul(b.transpose(shifted_query, (0, 2, 1, 3)), other))
    by_content, by_place = scores
    total = b.binary("Div", b.add(by_content, _shift(b, by_place)), math.sqrt(width))
    context = b.transpose(b.matmul(b.softmax(total), value), (0, 2, 1, 3))
    return dense(b, b.reshape(context, x.shape), features, name="linear_out")


def _feed_forward(b: Builder, x: Tensor, name: str) -> Tensor:
    """Half a residual step of a four times wider layer."""
    y = layer_norm(b, x, eps=_EPS, name=f"norm_{name}")
    with b.scope(name):
        y = silu(b, dense(b, y, 4 * _FEATURES, name="w_1"))
        return b.add(x, b.mul(dense(b, y, _FEATURES, name="w_2"), 0.5, name="half"))


def _convolve(b: Builder, x: Tensor) -> Tensor:
    """Pointwise convolution into a gated linear unit, depthwise one over time, pointwise one."""
    x = b.transpose(x, (0, 2, 1))
    features = x.channels
    x = b.conv(x, 2 * features, 1, bias=True, name="pointwise_conv1")
    linear, gate = b.split(x, (features, features))
    x = b.mul(linear, b.unary("Sigmoid", gate, name="gate"), name="glu")
    x = replace(x, power=0.3 * linear.power)  # the mean square of a sigmoid of a standard normal value
    x = b.conv(x, features, _KERNEL, padding=_KERNEL // 2, groups=features, bias=True, name="depthwise_conv")
    x = silu(b, b.batch_norm(x, name="norm"))
    x = b.conv(x, features, 1, bias=True, name="pointwise_conv2")
    return b.transpose(x, (0, 2, 1))


def _block(b: Builder, x: Tensor, positions: Tensor) -> Tensor:
    x = _feed_forward(b, x, "feed_forward_macaron")
    y = layer_norm(b, x, eps=_EPS, name="norm_mha")
    with b.scope("self_attn"):
        x = b.add(x, _attention(b, y, positions), name="residual")
    y = layer_norm(b, x, eps=_EPS, name="norm_conv")
    with b.scope("conv_module"):
        x = b.add(x, _convolve(b, y), name="residual")
    x = _feed_forward(b, x, "feed_forward")
    return layer_norm(b, x, eps=_EPS, name="norm_final")


def _conformer_s(b: Builder, inputs: tuple[Tensor, ...]) -> None:
    with b.scope("embed"):
        x = _subsample(b, inputs[0])
    positions = b.buffer("pos_enc.pe", _relative_positions(x.shape[1]))
    for layer in range(_LAYERS):
        with b.scope(f"encoders.{layer}"):
            x = _block(b, x, positions)
    b.output(x, "encoded")


NETWORKS = (
    ZooNetwork(
        "conformer_s",
        "speech",
        "Conformer-S encoder of 16 blocks on 80 mel bins; the sequence counts frames before subsampling",
        "Gulati et al., Conformer: Convolution-augmented Transformer, Interspeech 2020",
        _inputs,
        _conformer_s,
        sequence=Size(512, smallest=16),
    ),
)
