"""MobileViT-S: convolutions for local features, transformers over patches for global ones."""

from __future__ import annotations

from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import attention, classifier, conv_bn, conv_layer, dense, layer_norm, silu
from tilewright.zoo.network import Size, image_network

_PATCH = 2
_HEADS = 4
# Gamma of the layers with SiLU, of those without, and of those that end a residual branch.
_SCALE, _LINEAR_SCALE, _BRANCH_SCALE = 3.0, 1.0, 0.5


def _named_silu(b: Builder, x: Tensor) -> Tensor:
    return silu(b, x, name="activation")


_NAMES = ("convolution", "normalization")
_conv_layer = partial(conv_layer, activation=_named_silu, names=_NAMES, scale=_SCALE)


def _inverted_residual(b: Builder, x: Tensor, channels: int, stride: int, name: str) -> Tensor:
    inner = 4 * x.channels
    shortcut = stride == 1 and x.channels == channels
    with b.scope(name):
        y = _conv_layer(b, x, inner, 1, "expand_1x1")
        y = _conv_layer(b, y, inner, 3, "conv_3x3", stride=stride, groups=inner)
        scale = _BRANCH_SCALE if shortcut else _LINEAR_SCALE
        with b.scope("reduce_1x1"):
            y = conv_bn(b, y, channels, 1, scale=scale, names=_NAMES)
        return b.add(x, y, name="residual") if shortcut else y


def _unfold(b: Builder, x: Tensor) -> Tensor:
    """[N, C, H, W] to [4 N, H W / 4, C]: pixels at the same place of their 2 x 2 patches form a sequence."""
    n, c, h, w = x.shape
    area = _PATCH * _PATCH
    rows, columns = h // _PATCH, w // _PATCH
    x = b.transpose(b.reshape(x, (n * c * rows, _PATCH, columns, _PATCH)), (0, 2, 1, 3))
    x = b.transpose(b.reshape(x, (n, c, rows * columns, area)), (0, 3, 2, 1))
    return b.reshape(x, (n * area, rows * columns, c))


def _fold(b: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `_unfold`, back to `shape`."""
    n, c, h, w = shape
    area = _PATCH * _PATCH
    rows, columns = h // _PATCH, w // _PATCH
    x = b.transpose(b.reshape(x, (n, area, rows * columns, c)), (0, 3, 2, 1))
    x = b.transpose(b.reshape(x, (n * c * rows, columns, _PATCH, _PATCH)), (0, 2, 1, 3))
    return b.reshape(x, shape)


def _transformer_layer(b: Builder, x: Tensor) -> Tensor:
    features = x.shape[-1]
    y = layer_norm(b, x, eps=1e-5, name="layernorm_before")
    with b.scope("attention"):
        with b.scope("attention"):
            y = attention(b, y, heads=_HEADS)
        y = dense(b, y, features, name="output.dense")
    x = b.add(y, x, name="residual_1")
    y = layer_norm(b, x, eps=1e-5, name="layernorm_after")
    y = silu(b, dense(b, y, 2 * features, name="intermediate.dense"), name="intermediate.act")
    return b.add(dense(b, y, features, name="output.dense"), x, name="residual_2")


def _mobilevit_block(b: Builder, x: Tensor, channels: int, hidden: int, depth: int) -> Tensor:
    x = _inverted_residual(b, x, channels, 2, "downsampling_layer")
    height, width = x.shape[2:]
    y = _conv_layer(b, x, channels, 3, "conv_kxk")
    y = b.conv(y, hidden, 1, name="conv_1x1.convolution")
    even = (height + height % _PATCH, width + width % _PATCH)
    if even != (height, width):
        y = b.resize_bilinear(y, *even)
    folded = y.shape
    y = _unfold(b, y)
    for layer in range(depth):
        with b.scope(f"transformer.layer.{layer}"):
            y = _transformer_layer(b, y)
    y = _fold(b, layer_norm(b, y, eps=1e-5, name="layernorm"), folded)
    if even != (height, width):
        y = b.resize_bilinear(y, height, width)
    y = _conv_layer(b, y, channels, 1, "conv_projection")
    return _conv_layer(b, b.concat([x, y]), channels, 3, "fusion")


def _mobilevit_s(b: Builder, x: Tensor) -> None:
    x = _conv_layer(b, x, 16, 3, "conv_stem", stride=2)
    x = _inverted_residual(b, x, 32, 1, "encoder.layer.0.layer.0")
    for index in range(3):
        x = _inverted_residual(b, x, 64, 2 if index == 0 else 1, f"encoder.layer.1.layer.{index}")
    for stage, (channels, hidden, depth) in enumerate(((96, 144, 2), (128, 192, 4), (160, 240, 3)), start=2):
        with b.scope(f"encoder.layer.{stage}"):
            x = _mobilevit_block(b, x, channels, hidden, depth)
    x = _conv_layer(b, x, 640, 1, "conv_1x1_exp")
    classifier(b, x, name="classifier")


NETWORKS = (
    image_network(
        "mobilevit_s",
        "mobile",
        "MobileViT-S; an odd feature map (7 x 7 at 224 pixels) is resampled around its transformers",
        "Mehta and Rastegari, MobileViT, ICLR 2022",
        _mobilevit_s,
        image=Size(256, smallest=32),
    ),
)
