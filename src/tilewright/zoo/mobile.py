"""Networks for small devices in torchvision's form: MobileNet-v2, MNASNet, ShuffleNet-v2."""

from __future__ import annotations

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import classifier, conv_bn, relu6
from tilewright.zoo.network import Size, image_network

# A shortcut adds the block's output to its input; damping keeps the sum near the input's scale.
_BRANCH_SCALE = 0.5

# MobileNet-v2


def _inverted_residual(b: Builder, x: Tensor, channels: int, stride: int, expansion: int) -> Tensor:
    inner = x.channels * expansion
    shortcut = stride == 1 and x.channels == channels
    y, index = x, 0
    if expansion != 1:
        y = relu6(b, conv_bn(b, y, inner, 1, names=("conv.0.0", "conv.0.1")), name="conv.0.2")
        index = 1
    names = (f"conv.{index}.0", f"conv.{index}.1")
    y = conv_bn(b, y, inner, 3, stride=stride, padding=1, groups=inner, names=names)
    y = relu6(b, y, name=f"conv.{index}.2")
    names = (f"conv.{index + 1}", f"conv.{index + 2}")
    y = conv_bn(b, y, channels, 1, scale=_BRANCH_SCALE if shortcut else 1.0, names=names)
    return b.add(x, y) if shortcut else y


def _mobilenet_v2(b: Builder, x: Tensor) -> None:
    with b.scope("features"):
        x = conv_bn(b, x, 32, 3, stride=2, padding=1, names=("0.0", "0.1"))
        x = relu6(b, x, name="0.2")
        index = 1
        for expansion, channels, repeats, first_stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for repeat in range(repeats):
                with b.scope(str(index)):
                    x = _inverted_residual(b, x, channels, first_stride if repeat == 0 else 1, expansion)
                index += 1
        x = relu6(b, conv_bn(b, x, 1280, 1, names=("18.0", "18.1")), name="18.2")
    classifier(b, x, name="classifier.1")


# MNASNet


def _mnasnet_block(b: Builder, x: Tensor, channels: int, kernel: int, stride: int, expansion: int) -> Tensor:
    inner = x.channels * expansion
    shortcut = stride == 1 and x.channels == channels
    with b.scope("layers"):
        y = b.relu(conv_bn(b, x, inner, 1, names=("0", "1")), name="2")
        y = conv_bn(b, y, inner, kernel, stride=stride, padding=kernel // 2, groups=inner, names=("3", "4"))
        y = b.relu(y, name="5")
        y = conv_bn(b, y, channels, 1, scale=_BRANCH_SCALE if shortcut else 1.0, names=("6", "7"))
    return b.add(y, x) if shortcut else y


def _mnasnet1_0(b: Builder, x: Tensor) -> None:
    with b.scope("layers"):
        x = b.relu(conv_bn(b, x, 32, 3, stride=2, padding=1, names=("0", "1")), name="2")
        x = b.relu(conv_bn(b, x, 32, 3, padding=1, groups=32, names=("3", "4")), name="5")
        x = conv_bn(b, x, 16, 1, names=("6", "7"))
        for index, (channels, kernel, first_stride, expansion, repeats) in enumerate(
            (
                (24, 3, 2, 3, 3),
                (40, 5, 2, 3, 3),
                (80, 5, 2, 6, 3),
                (96, 3, 1, 6, 2),
                (192, 5, 2, 6, 4),
                (320, 3, 1, 6, 1),
            ),
            start=8,
        ):
            for repeat in range(repeats):
                with b.scope(f"{index}.{repeat}"):
                    stride = first_stride if repeat == 0 else 1
                    x = _mnasnet_block(b, x, channels, kernel, stride, expansion)
        x = b.relu(conv_bn(b, x, 1280, 1, names=("14", "15")), name="16")
    x = b.reduce_mean(x, [2, 3], keepdims=False)
    b.output(b.gemm(x, 1000, name="classifier.1"), "logits")


# ShuffleNet-v2


def _shuffle(b: Builder, x: Tensor) -> Tensor:
    """Interleave the two halves of the channels."""
    n, c, h, w = x.shape
    halves = b.transpose(b.reshape(x, (n, 2, c // 2, h, w)), (0, 2, 1, 3, 4))
    return b.reshape(halves, x.shape)


def _shuffle_branch(b: Builder, x: Tensor, channels: int, stride: int) -> Tensor:
    with b.scope("branch2"):
        y = b.relu(conv_bn(b, x, channels, 1, names=("0", "1")), name="2")
        y = conv_bn(b, y, channels, 3, stride=stride, padding=1, groups=channels, names=("3", "4"))
        return b.relu(conv_bn(b, y, channels, 1, names=("5", "6")), name="7")


def _shuffle_unit(b: Builder, x: Tensor, channels: int, stride: int) -> Tensor:
    half = channels // 2
    if stride == 1:
        kept, worked = b.split(x, (half, half))
    else:
        worked = x
        with b.scope("branch1"):
            kept = conv_bn(b, x, x.channels, 3, stride=2, padding=1, groups=x.channels, names=("0", "1"))
            kept = b.relu(conv_bn(b, kept, half, 1, names=("2", "3")), name="4")
    return _shuffle(b, b.concat([kept, _shuffle_branch(b, worked, half, stride)]))


def _shufflenet_v2_x1_0(b: Builder, x: Tensor) -> None:
    x = b.relu(conv_bn(b, x, 24, 3, stride=2, padding=1, names=("conv1.0", "conv1.1")), name="conv1.2")
    x = b.max_pool(x, 3, stride=2, padding=1)
    for stage, (channels, repeats) in enumerate(((116, 4), (232, 8), (464, 4)), start=2):
        for repeat in range(repeats):
            with b.scope(f"stage{stage}.{repeat}"):
                x = _shuffle_unit(b, x, channels, 2 if repeat == 0 else 1)
    x = b.relu(conv_bn(b, x, 1024, 1, names=("conv5.0", "conv5.1")), name="conv5.2")
    x = b.reduce_mean(x, [2, 3], keepdims=False)
    b.output(b.gemm(x, 1000), "logits")


NETWORKS = (
    image_network(
        "mobilenet_v2",
        "mobile",
        "MobileNet-v2, width 1.0",
        "Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018",
        _mobilenet_v2,
        image=Size(224, smallest=32),
    ),
    image_network(
        "mnasnet1_0",
        "mobile",
        "MNASNet B1, depth multiplier 1.0",
        "Tan et al., MnasNet: Platform-Aware Neural Architecture Search for Mobile, CVPR 2019",
        _mnasnet1_0,
        image=Size(224, smallest=32),
    ),
    image_network(
        "shufflenet_v2_x1_0",
        "mobile",
        "ShuffleNet-v2, width 1.0",
        "Ma et al., ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design, ECCV 2018",
        _shufflenet_v2_x1_0,
        image=Size(224, smallest=32),
    ),
)
