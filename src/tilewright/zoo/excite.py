"""Mobile networks with squeeze-and-excitation in torchvision's form: MobileNet-v3 and EfficientNet."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import Activation, classifier, conv_bn, excite, hard_swish, silu
from tilewright.zoo.network import Size, image_network

# Gamma in front of an activation, and at the end of a residual branch. Well above 1 SiLU acts like a ReLU,
# whose gain does not depend on its input: errors of scale then stay constant through depth, not growing.
_SCALE, _BRANCH_SCALE = 3.0, 0.5


@dataclass(frozen=True, slots=True)
class _Block:
    """An inverted residual; `squeeze` channels inside the excitation, none if zero."""

    inner: int
    channels: int
    kernel: int
    stride: int
    squeeze: int
    activation: Activation
    squeeze_activation: Activation
    gate: str
    eps: float


def _inverted_residual(b: Builder, x: Tensor, block: _Block) -> Tensor:
    shortcut = block.stride == 1 and x.channels == block.channels
    y, index = x, 0
    if block.inner != x.channels:
        y = conv_bn(b, y, block.inner, 1, scale=_SCALE, eps=block.eps, names=("0.0", "0.1"))
        with b.scope("0.2"):
            y = block.activation(b, y)
        index = 1
    y = conv_bn(
        b,
        y,
        block.inner,
        block.kernel,
        stride=block.stride,
        padding=block.kernel // 2,
        groups=block.inner,
        scale=_SCALE,
        eps=block.eps,
        names=(f"{index}.0", f"{index}.1"),
    )
    with b.scope(f"{index}.2"):
        y = block.activation(b, y)
    if block.squeeze:
        index += 1
        with b.scope(str(index)):
            y = excite(b, y, block.squeeze, block.squeeze_activation, block.gate)
    scale = _BRANCH_SCALE if shortcut else 1.0
    names = (f"{index + 1}.0", f"{index + 1}.1")
    y = conv_bn(b, y, block.channels, 1, scale=scale, eps=block.eps, names=names)
    return b.add(y, x) if shortcut else y


def _stem(b: Builder, x: Tensor, channels: int, activation: Activation, eps: float) -> Tensor:
    with b.scope("features.0"):
        return activation(
            b, conv_bn(b, x, channels, 3, stride=2, padding=1, scale=_SCALE, eps=eps, names=("0", "1"))
        )


# MobileNet-v3

# kernel, inner channels, channels, excitation, hard-swish, stride
_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


def _nearest_eighth(channels: int) -> int:
    """A quarter of `channels` in multiples of 8, at most a tenth below."""
    quarter = channels / 4
    rounded = max(8, int(quarter + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * quarter else rounded


def _mobilenet_v3_large(b: Builder, x: Tensor) -> None:
    eps = 1e-3
    x = _stem(b, x, 16, hard_swish, eps)
    for index, (kernel, inner, channels, excited, swish, stride) in enumerate(_LARGE, start=1):
        activation = hard_swish if swish else Builder.relu
        squeeze = _nearest_eighth(inner) if excited else 0
        block = _Block(inner, channels, kernel, stride, squeeze, activation, Builder.relu, "HardSigmoid", eps)
        with b.scope(f"features.{index}.block"):
            x = _inverted_residual(b, x, block)
    with b.scope("features.16"):
        x = hard_swish(b, conv_bn(b, x, 960, 1, scale=_SCALE, eps=eps, names=("0", "1")))
    x = b.flatten(b.global_avg_pool(x))
    x = hard_swish(b, b.gemm(x, 1280, name="classifier.0"), name="classifier.1")
    b.output(b.gemm(x, 1000, name="classifier.3"), "logits")


# EfficientNet

# expansion, kernel, first stride, channels, repeats
_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def _efficientnet_b0(b: Builder, x: Tensor) -> None:
    eps = 1e-5
    x = _stem(b, x, 32, silu, eps)
    for stage, (expansion, kernel, first_stride, channels, repeats) in enumerate(_B0, start=1):
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            inner, squeeze = x.channels * expansion, x.channels // 4
            block = _Block(inner, channels, kernel, stride, squeeze, silu, silu, "Sigmoid", eps)
            with b.scope(f"features.{stage}.{repeat}.block"):
                x = _inverted_residual(b, x, block)
    with b.scope("features.8"):
        x = silu(b, conv_bn(b, x, 1280, 1, scale=_SCALE, eps=eps, names=("0", "1")))
    classifier(b, x, name="classifier.1")


NETWORKS = (
    image_network(
        "mobilenet_v3_large",
        "mobile",
        "MobileNet-v3 large with hard-swish and squeeze-and-excitation",
        "Howard et al., Searching for MobileNetV3, ICCV 2019",
        _mobilenet_v3_large,
        image=Size(224, smallest=32),
    ),
    image_network(
        "efficientnet_b0",
        "mobile",
        "EfficientNet-B0 with SiLU and squeeze-and-excitation",
        "Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019",
        _efficientnet_b0,
        image=Size(224, smallest=32),
    ),
)
