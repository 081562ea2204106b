"""Residual networks in torchvision's form (v1.5: a bottleneck's 3 x 3 convolution carries the stride)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import classifier, conv_bn
from tilewright.zoo.network import Size, image_network

# The branch is damped so that depth does not blow up the sum; a trained network learns the same.
_BRANCH_SCALE = 0.5

Block = Callable[[Builder, Tensor, int, int], Tensor]


def _shortcut(b: Builder, x: Tensor, channels: int, stride: int) -> Tensor:
    if stride == 1 and x.channels == channels:
        return x
    return conv_bn(b, x, channels, 1, stride=stride, names=("downsample.0", "downsample.1"))


def _join(b: Builder, branch: Tensor, x: Tensor, stride: int) -> Tensor:
    shortcut = _shortcut(b, x, branch.channels, stride)
    y = b.relu(b.add(branch, shortcut))
    # An identity shortcut comes out of a ReLU, so that this ReLU takes nothing from it.
    return replace(y, power=shortcut.power + 0.5 * branch.power) if shortcut is x else y


def _basic(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    y = b.relu(conv_bn(b, x, width, 3, stride=stride, padding=1, names=("conv1", "bn1")))
    y = conv_bn(b, y, width, 3, padding=1, scale=_BRANCH_SCALE, names=("conv2", "bn2"))
    return _join(b, y, x, stride)


def _bottleneck(
    b: Builder, x: Tensor, width: int, stride: int, *, groups: int = 1, group_width: int = 64
) -> Tensor:
    inner, outer = width * group_width * groups // 64, 4 * width
    y = b.relu(conv_bn(b, x, inner, 1, names=("conv1", "bn1")))
    y = b.relu(conv_bn(b, y, inner, 3, stride=stride, padding=1, groups=groups, names=("conv2", "bn2")))
    y = conv_bn(b, y, outer, 1, scale=_BRANCH_SCALE, names=("conv3", "bn3"))
    return _join(b, y, x, stride)


def _resnet(b: Builder, x: Tensor, *, block: Block, depths: tuple[int, int, int, int]) -> None:
    x = b.relu(conv_bn(b, x, 64, 7, stride=2, padding=3, names=("conv1", "bn1")))
    x = b.max_pool(x, 3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            with b.scope(f"layer{stage + 1}.{index}"):
                x = block(b, x, 64 << stage, 2 if stage > 0 and index == 0 else 1)
    classifier(b, x)


_PAPER = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
_IMAGE = Size(224, smallest=32)

NETWORKS = (
    image_network(
        "resnet18",
        "resnet",
        "ResNet-18, basic blocks 2-2-2-2",
        _PAPER,
        partial(_resnet, block=_basic, depths=(2, 2, 2, 2)),
        image=_IMAGE,
    ),
    image_network(
        "resnet34",
        "resnet",
        "ResNet-34, basic blocks 3-4-6-3",
        _PAPER,
        partial(_resnet, block=_basic, depths=(3, 4, 6, 3)),
        image=_IMAGE,
    ),
    image_network(
        "resnet50",
        "resnet",
        "ResNet-50 v1.5, bottlenecks 3-4-6-3",
        _PAPER,
        partial(_resnet, block=_bottleneck, depths=(3, 4, 6, 3)),
        image=_IMAGE,
    ),
    image_network(
        "resnext50_32x4d",
        "resnet",
        "ResNeXt-50, 32 groups of width 4",
        "Xie et al., Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017",
        partial(_resnet, block=partial(_bottleneck, groups=32, group_width=4), depths=(3, 4, 6, 3)),
        image=_IMAGE,
    ),
)
