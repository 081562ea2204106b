"""Composed layers, spelled out in the primitive nodes that PyTorch's exporter emits for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilewright.zoo.builder import Builder, Extents, Tensor

Activation = Callable[[Builder, Tensor], Tensor]


def _gated_power(power: float, at_zero: float, bend: float) -> float:
    """Mean square of x * gate(x) for a normal x of mean square `power`.

    The ratio rises from the square of the gate at zero to that of a ReLU; `bend` fits it to within 5 %.
    """
    return power * (at_zero + 0.5 * bend * power) / (1.0 + bend * power)


def silu(b: Builder, x: Tensor, *, name: str = "act") -> Tensor:
    """x * sigmoid(x)."""
    y = b.mul(x, b.unary("Sigmoid", x, name=f"{name}.sigmoid"), name=f"{name}.mul")
    return replace(y, power=_gated_power(x.power, 0.25, 0.75))


def mish(b: Builder, x: Tensor, *, name: str = "act") -> Tensor:
    """x * tanh(softplus(x))."""
    gate = b.unary("Tanh", b.unary("Softplus", x, name=f"{name}.softplus"), name=f"{name}.tanh")
    return replace(b.mul(x, gate, name=f"{name}.mul"), power=_gated_power(x.power, 0.36, 1.93))


def leaky_relu(b: Builder, x: Tensor, *, name: str = "act") -> Tensor:
    """x where positive, x / 10 elsewhere."""
    return b.node("LeakyRelu", [x], x.shape, name=name, power=0.505 * x.power, alpha=0.1)


def relu6(b: Builder, x: Tensor, *, name: str = "relu6") -> Tensor:
    """x limited to [0, 6]."""
    return b.clip(x, 0.0, 6.0, name=name)


def gelu(b: Builder, x: Tensor, *, name: str = "gelu") -> Tensor:
    """x * (1 + erf(x / sqrt(2))) / 2, in five nodes."""
    with b.scope(name):
        erf = b.unary("Erf", b.binary("Div", x, math.sqrt(2.0), name="div"), name="erf")
        y = b.mul(b.mul(x, b.add(erf, 1.0)), 0.5, name="half")
    return replace(y, power=_gated_power(x.power, 0.25, 2.33))


def scaled_gelu(b: Builder, x: Tensor, *, name: str = "gelu") -> Tensor:
    """The same as (x / 2) * (1 + erf(x * sqrt(1 / 2)))."""
    with b.scope(name):
        erf = b.unary("Erf", b.mul(x, math.sqrt(0.5), name="scaled"), name="erf")
        y = b.mul(b.mul(x, 0.5, name="half"), b.add(erf, 1.0))
    return replace(y, power=_gated_power(x.power, 0.25, 2.33))


def tanh_gelu(b: Builder, x: Tensor, *, name: str = "gelu") -> Tensor:
    """GELU's approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2, in eight nodes."""
    with b.scope(name):
        cube = b.mul(b.binary("Pow", x, 3.0), 0.044715, name="cube")
        inner = b.mul(b.add(x, cube), math.sqrt(2.0 / math.pi), name="inner")
        gate = b.add(b.unary("Tanh", inner), 1.0, name="gate")
        y = b.mul(b.mul(x, 0.5, name="half"), gate)
    return replace(y, power=_gated_power(x.power, 0.25, 2.33))


def hard_swish(b: Builder, x: Tensor, *, name: str = "hard_swish") -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6, in four nodes."""
    with b.scope(name):
        gate = b.clip(b.add(x, 3.0), 0.0, 6.0)
        y = b.binary("Div", b.mul(x, gate), 6.0)
    return replace(y, power=_gated_power(x.power, 0.25, 0.55))


def layer_norm(b: Builder, x: Tensor, *, eps: float, name: str) -> Tensor:
    """Normalisation over the last axis, in nine nodes."""
    features = x.shape[-1]
    with b.scope(name):
        weight = b.parameter("weight", (features,), mean=1.0, deviation=0.1)
        bias = b.parameter("bias", (features,), deviation=0.05)
        centred = b.binary("Sub", x, b.reduce_mean(x, [-1], keepdims=True))
        square = b.binary("Pow", centred, 2.0)
        variance = b.reduce_mean(square, [-1], keepdims=True, name="variance")
        deviation = b.unary("Sqrt", b.add(variance, eps, name="add_eps"))
        y = b.add(b.mul(b.binary("Div", centred, deviation), weight), bias)
    return replace(y, power=1.0)


def layer_norm_node(b: Builder, x: Tensor, *, eps: float, name: str) -> Tensor:
    """The same in one node, as exporters write it from opset 17 on."""
    features = x.shape[-1]
    with b.scope(name):
        weight = b.parameter("weight", (features,), mean=1.0, deviation=0.1)
        bias = b.parameter("bias", (features,), deviation=0.05)
        return b.node(
            "LayerNormalization", [x, weight, bias], x.shape, name="norm", power=1.0, axis=-1, epsilon=eps
        )


def dense(
    b: Builder, x: Tensor, out_features: int, *, name: str, gain: float = 1.0, bias: bool = True
) -> Tensor:
    """A linear layer on the last axis: MatMul, then Add. Its weights bring the output to power `gain`."""
    in_features = x.shape[-1]
    with b.scope(name):
        weight = b.parameter(
            "weight", (in_features, out_features), deviation=math.sqrt(gain / (in_features * x.power))
        )
        product = b.matmul(x, weight)
        if not bias:
            return product
        return b.add(b.parameter("bias", (out_features,), deviation=0.05), product)


def attention(b: Builder, x: Tensor, *, heads: int, mask: Tensor | None = None) -> Tensor:
    """Self-attention of [batch, sequence, features] up to the joined heads; q, k, v are separate and biased.

    The query has power 2 so that the softmax prefers some positions over others.
    """
    batch, sequence, features = x.shape
    width = features // heads
    split = (batch, sequence, heads, width)
    query = b.transpose(b.reshape(dense(b, x, features, name="query", gain=2.0), split), (0, 2, 1, 3))
    key = b.transpose(b.reshape(dense(b, x, features, name="key"), split), (0, 2, 3, 1))
    value = b.transpose(b.reshape(dense(b, x, features, name="value"), split), (0, 2, 1, 3))
    scores = b.binary("Div", b.matmul(query, key, name="scores"), math.sqrt(width))
    if mask is not None:
        scores = b.add(scores, mask, name="add_mask")
    context = b.matmul(b.softmax(scores), value, name="context")
    return b.reshape(b.transpose(context, (0, 2, 1, 3)), (batch, sequence, features))


def conv_bn(
    b: Builder,
    x: Tensor,
    out_channels: int,
    kernel: Extents,
    *,
    names: tuple[str, str],
    stride: Extents = 1,
    padding: Extents = 0,
    groups: int = 1,
    scale: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """An unbiased convolution and its batch normalisation, named `names`; `scale` is the mean of gamma."""
    conv, bn = names
    y = b.conv(x, out_channels, kernel, stride=stride, padding=padding, groups=groups, name=conv)
    return b.batch_norm(y, scale=scale, eps=eps, name=bn)


def conv_layer(
    b: Builder,
    x: Tensor,
    channels: int,
    kernel: Extents,
    name: str,
    *,
    activation: Activation,
    names: tuple[str, str] = ("conv", "bn"),
    stride: int = 1,
    padding: Extents | None = None,
    groups: int = 1,
    scale: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """`conv_bn` and an activation, all named within `name`; windows of one number keep the image's size."""
    if padding is None:
        assert isinstance(kernel, int), "windows that are not square say what they pad"
        padding = kernel // 2
    with b.scope(name):
        y = conv_bn(
            b,
            x,
            channels,
            kernel,
            names=names,
            stride=stride,
            padding=padding,
            groups=groups,
            scale=scale,
            eps=eps,
        )
        return activation(b, y)


def excite(b: Builder, x: Tensor, squeeze: int, inner: Activation, gate: str = "Sigmoid") -> Tensor:
    """Scale each channel by a gate that two 1 x 1 convolutions compute from the channel means."""
    y = b.global_avg_pool(x)
    y = inner(b, b.conv(y, squeeze, 1, bias=True, name="fc1"))
    y = b.conv(y, x.channels, 1, bias=True, name="fc2")
    attributes = {"alpha": 1.0 / 6.0, "beta": 0.5} if gate == "HardSigmoid" else {}
    scaled = b.mul(b.unary(gate, y, name="scale_activation", **attributes), x, name="scale")
    return replace(scaled, power=0.29 * x.power)  # the mean square of a sigmoid of a standard normal value


def classifier(b: Builder, x: Tensor, *, classes: int = 1000, name: str = "fc") -> None:
    """Global average pool, flatten, linear: the head of most image classifiers, and the graph output."""
    pooled = b.flatten(b.global_avg_pool(x))
    b.output(b.gemm(pooled, classes, name=name), "logits")
