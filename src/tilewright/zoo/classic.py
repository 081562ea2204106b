"""Image classifiers in torchvision's form: VGG, SqueezeNet, DenseNet, Inception."""

from __future__ import annotations

from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import classifier, conv_bn, conv_layer
from tilewright.zoo.network import Size, image_network

# VGG


def _vgg16(b: Builder, x: Tensor) -> None:
    index = 0
    for repeats, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            x = b.conv(x, channels, 3, padding=1, bias=True, name=f"features.{index}")
            x = b.relu(x, name=f"features.{index + 1}")
            index += 2
        x = b.max_pool(x, 2, stride=2, name=f"features.{index}")
        index += 1
    x = b.flatten(x)
    for index in (0, 3):
        x = b.relu(b.gemm(x, 4096, name=f"classifier.{index}"), name=f"classifier.{index + 1}")
    b.output(b.gemm(x, 1000, name="classifier.6"), "logits")


# SqueezeNet


def _fire(b: Builder, x: Tensor, squeeze: int, expand: int) -> Tensor:
    x = b.relu(b.conv(x, squeeze, 1, bias=True, name="squeeze"), name="squeeze_activation")
    narrow = b.relu(b.conv(x, expand, 1, bias=True, name="expand1x1"), name="expand1x1_activation")
    wide = b.relu(b.conv(x, expand, 3, padding=1, bias=True, name="expand3x3"), name="expand3x3_activation")
    return b.concat([narrow, wide])


_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def _squeezenet(b: Builder, x: Tensor, *, stem: tuple[int, int], pool_before: tuple[int, ...]) -> None:
    channels, kernel = stem
    x = b.conv(x, channels, kernel, stride=2, bias=True, name="features.0")
    x = b.relu(x, name="features.1")
    index = 2
    for fire, (squeeze, expand) in enumerate(_FIRES):
        if fire in pool_before:
            x = b.max_pool(x, 3, stride=2, ceil=True, name=f"features.{index}")
            index += 1
        with b.scope(f"features.{index}"):
            x = _fire(b, x, squeeze, expand)
        index += 1
    x = b.relu(b.conv(x, 1000, 1, bias=True, name="classifier.1"), name="classifier.2")
    b.output(b.flatten(b.global_avg_pool(x, name="classifier.3")), "logits")


# DenseNet


def _dense_layer(b: Builder, features: Tensor) -> Tensor:
    y = b.relu(b.batch_norm(features, name="norm1"), name="relu1")
    y = b.conv(y, 128, 1, name="conv1")
    y = b.relu(b.batch_norm(y, name="norm2"), name="relu2")
    y = b.conv(y, 32, 3, padding=1, name="conv2")
    return b.concat([features, y])


def _densenet121(b: Builder, x: Tensor) -> None:
    with b.scope("features"):
        x = b.relu(conv_bn(b, x, 64, 7, stride=2, padding=3, names=("conv0", "norm0")), name="relu0")
        x = b.max_pool(x, 3, stride=2, padding=1, name="pool0")
        for block, depth in enumerate((6, 12, 24, 16), start=1):
            for layer in range(1, depth + 1):
                with b.scope(f"denseblock{block}.denselayer{layer}"):
                    x = _dense_layer(b, x)
            if block == 4:
                break
            with b.scope(f"transition{block}"):
                x = b.conv(b.relu(b.batch_norm(x, name="norm")), x.channels // 2, 1)
                x = b.avg_pool(x, 2, stride=2, name="pool")
        x = b.relu(b.batch_norm(x, name="norm5"), name="relu5")
    classifier(b, x, name="classifier")


# Inception v3


_unit = partial(conv_layer, activation=Builder.relu, padding=0, eps=1e-3)
"""A convolution without padding, unless it says so."""


def _pool_branch(b: Builder, x: Tensor, channels: int) -> Tensor:
    return _unit(b, b.avg_pool(x, 3, stride=1, padding=1), channels, 1, "branch_pool")


def _inception_a(b: Builder, x: Tensor, *, pool_channels: int) -> Tensor:
    direct = _unit(b, x, 64, 1, "branch1x1")
    wide = _unit(b, _unit(b, x, 48, 1, "branch5x5_1"), 64, 5, "branch5x5_2", padding=2)
    double = _unit(b, _unit(b, x, 64, 1, "branch3x3dbl_1"), 96, 3, "branch3x3dbl_2", padding=1)
    double = _unit(b, double, 96, 3, "branch3x3dbl_3", padding=1)
    return b.concat([direct, wide, double, _pool_branch(b, x, pool_channels)])


def _inception_b(b: Builder, x: Tensor) -> Tensor:
    single = _unit(b, x, 384, 3, "branch3x3", stride=2)
    double = _unit(b, _unit(b, x, 64, 1, "branch3x3dbl_1"), 96, 3, "branch3x3dbl_2", padding=1)
    double = _unit(b, double, 96, 3, "branch3x3dbl_3", stride=2)
    return b.concat([single, double, b.max_pool(x, 3, stride=2)])


def _row(b: Builder, x: Tensor, channels: int, length: int, name: str) -> Tensor:
    return _unit(b, x, channels, (1, length), name, padding=(0, length // 2))


def _column(b: Builder, x: Tensor, channels: int, length: int, name: str) -> Tensor:
    return _unit(b, x, channels, (length, 1), name, padding=(length // 2, 0))


def _inception_c(b: Builder, x: Tensor, *, inner: int) -> Tensor:
    direct = _unit(b, x, 192, 1, "branch1x1")
    single = _row(b, _unit(b, x, inner, 1, "branch7x7_1"), inner, 7, "branch7x7_2")
    single = _column(b, single, 192, 7, "branch7x7_3")
    double = _column(b, _unit(b, x, inner, 1, "branch7x7dbl_1"), inner, 7, "branch7x7dbl_2")
    double = _column(b, _row(b, double, inner, 7, "branch7x7dbl_3"), inner, 7, "branch7x7dbl_4")
    double = _row(b, double, 192, 7, "branch7x7dbl_5")
    return b.concat([direct, single, double, _pool_branch(b, x, 192)])


def _inception_d(b: Builder, x: Tensor) -> Tensor:
    single = _unit(b, _unit(b, x, 192, 1, "branch3x3_1"), 320, 3, "branch3x3_2", stride=2)
    wide = _row(b, _unit(b, x, 192, 1, "branch7x7x3_1"), 192, 7, "branch7x7x3_2")
    wide = _column(b, wide, 192, 7, "branch7x7x3_3")
    wide = _unit(b, wide, 192, 3, "branch7x7x3_4", stride=2)
    return b.concat([single, wide, b.max_pool(x, 3, stride=2)])


def _inception_e(b: Builder, x: Tensor) -> Tensor:
    direct = _unit(b, x, 320, 1, "branch1x1")
    single = _unit(b, x, 384, 1, "branch3x3_1")
    single = b.concat([_row(b, single, 384, 3, "branch3x3_2a"), _column(b, single, 384, 3, "branch3x3_2b")])
    double = _unit(b, _unit(b, x, 448, 1, "branch3x3dbl_1"), 384, 3, "branch3x3dbl_2", padding=1)
    double = b.concat(
        [_row(b, double, 384, 3, "branch3x3dbl_3a"), _column(b, double, 384, 3, "branch3x3dbl_3b")]
    )
    return b.concat([direct, single, double, _pool_branch(b, x, 192)])


# GoogLeNet


def _googlenet_module(b: Builder, x: Tensor, widths: tuple[int, int, int, int, int, int]) -> Tensor:
    direct, reduce3, single, reduce5, double, pooled = widths
    branches = [
        _unit(b, x, direct, 1, "branch1"),
        _unit(b, _unit(b, x, reduce3, 1, "branch2.0"), single, 3, "branch2.1", padding=1),
        _unit(b, _unit(b, x, reduce5, 1, "branch3.0"), double, 3, "branch3.1", padding=1),
    ]
    pool = b.max_pool(x, 3, stride=1, padding=1, ceil=True, name="branch4.0")
    return b.concat([*branches, _unit(b, pool, pooled, 1, "branch4.1")])


_GOOGLENET = (
    ("inception3a", (64, 96, 128, 16, 32, 32)),
    ("inception3b", (128, 128, 192, 32, 96, 64)),
    ("inception4a", (192, 96, 208, 16, 48, 64)),
    ("inception4b", (160, 112, 224, 24, 64, 64)),
    ("inception4c", (128, 128, 256, 24, 64, 64)),
    ("inception4d", (112, 144, 288, 32, 64, 64)),
    ("inception4e", (256, 160, 320, 32, 128, 128)),
    ("inception5a", (256, 160, 320, 32, 128, 128)),
    ("inception5b", (384, 192, 384, 48, 128, 128)),
)


def _googlenet(b: Builder, x: Tensor) -> None:
    """torchvision's version: the widest branch has 3 x 3 where the paper has 5 x 5."""
    x = _unit(b, x, 64, 7, "conv1", stride=2, padding=3)
    x = b.max_pool(x, 3, stride=2, ceil=True, name="maxpool1")
    x = _unit(b, _unit(b, x, 64, 1, "conv2"), 192, 3, "conv3", padding=1)
    x = b.max_pool(x, 3, stride=2, ceil=True, name="maxpool2")
    for name, widths in _GOOGLENET:
        if name == "inception4a":
            x = b.max_pool(x, 3, stride=2, ceil=True, name="maxpool3")
        if name == "inception5a":
            x = b.max_pool(x, 2, stride=2, ceil=True, name="maxpool4")
        with b.scope(name):
            x = _googlenet_module(b, x, widths)
    classifier(b, x)


# Inception v3, put together

_MIXED = (
    ("Mixed_5b", partial(_inception_a, pool_channels=32)),
    ("Mixed_5c", partial(_inception_a, pool_channels=64)),
    ("Mixed_5d", partial(_inception_a, pool_channels=64)),
    ("Mixed_6a", _inception_b),
    ("Mixed_6b", partial(_inception_c, inner=128)),
    ("Mixed_6c", partial(_inception_c, inner=160)),
    ("Mixed_6d", partial(_inception_c, inner=160)),
    ("Mixed_6e", partial(_inception_c, inner=192)),
    ("Mixed_7a", _inception_d),
    ("Mixed_7b", _inception_e),
    ("Mixed_7c", _inception_e),
)


def _inception_v3(b: Builder, x: Tensor) -> None:
    x = _unit(b, x, 32, 3, "Conv2d_1a_3x3", stride=2)
    x = _unit(b, _unit(b, x, 32, 3, "Conv2d_2a_3x3"), 64, 3, "Conv2d_2b_3x3", padding=1)
    x = b.max_pool(x, 3, stride=2, name="maxpool1")
    x = _unit(b, _unit(b, x, 80, 1, "Conv2d_3b_1x1"), 192, 3, "Conv2d_4a_3x3")
    x = b.max_pool(x, 3, stride=2, name="maxpool2")
    for name, module in _MIXED:
        with b.scope(name):
            x = module(b, x)
    classifier(b, x)


_SQUEEZENET = "Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters, 2016"

NETWORKS = (
    image_network(
        "vgg16",
        "classic",
        "VGG-16 without batch normalisation; below 224 pixels the first linear layer shrinks with the image",
        "Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015",
        _vgg16,
        image=Size(224, smallest=32, multiple=32, largest=224),
    ),
    image_network(
        "squeezenet1_0",
        "classic",
        "SqueezeNet 1.0, 7 x 7 stem",
        _SQUEEZENET,
        partial(_squeezenet, stem=(96, 7), pool_before=(0, 3, 7)),
        image=Size(224, smallest=32),
    ),
    image_network(
        "squeezenet1_1",
        "classic",
        "SqueezeNet 1.1, 3 x 3 stem and earlier pooling",
        _SQUEEZENET,
        partial(_squeezenet, stem=(64, 3), pool_before=(0, 2, 4)),
        image=Size(224, smallest=32),
    ),
    image_network(
        "densenet121",
        "classic",
        "DenseNet-121, growth 32, blocks 6-12-24-16",
        "Huang et al., Densely Connected Convolutional Networks, CVPR 2017",
        _densenet121,
        image=Size(224, smallest=32),
    ),
    image_network(
        "googlenet",
        "classic",
        "GoogLeNet with batch normalisation, without the auxiliary classifiers",
        "Szegedy et al., Going Deeper with Convolutions, CVPR 2015",
        _googlenet,
        image=Size(224, smallest=32),
    ),
    image_network(
        "inception_v3",
        "classic",
        "Inception v3 with batch normalisation, without the auxiliary classifier",
        "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016",
        _inception_v3,
        image=Size(299, smallest=75),
    ),
)
