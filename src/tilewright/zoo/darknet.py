"""YOLOv4 and YOLOv4-tiny as their Darknet configurations define them. Outputs are the heads' raw maps."""

from __future__ import annotations

from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import conv_layer, leaky_relu, mish
from tilewright.zoo.network import Size, image_network

# Gamma of the layers with Mish. Well above 1 Mish acts like a ReLU, whose gain does not depend on its input:
# errors of scale then stay constant through depth instead of growing. Residual branches are damped.
_SCALE, _BRANCH_SCALE = 2.0, 1.0
_OUTPUTS = 3 * (80 + 5)  # anchors x (classes + box + objectness)

_layer = partial(conv_layer, activation=leaky_relu)


def _head(b: Builder, x: Tensor, channels: int, name: str) -> None:
    with b.scope(name):
        y = _layer(b, x, channels, 3, "0")
        y = b.conv(y, _OUTPUTS, 1, bias=True, name="1")
    b.output(y, name)


# YOLOv4

_STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))


def _cross_stage(b: Builder, x: Tensor, channels: int, blocks: int) -> Tensor:
    """Downsample, then run residual blocks on one of two branches, half-wide except in the first stage."""
    first = blocks == 1
    width = channels if first else channels // 2

    layer = partial(conv_layer, b, activation=mish, scale=_SCALE)
    x = layer(x, channels, 3, "down", stride=2)
    kept = layer(x, width, 1, "route")
    y = layer(x, width, 1, "main")
    for block in range(blocks):
        z = layer(y, channels // 2 if first else width, 1, f"res.{block}.0")
        z = layer(z, width, 3, f"res.{block}.1", scale=_BRANCH_SCALE)
        y = b.add(y, z, name=f"res.{block}.add")
    return layer(b.concat([layer(y, width, 1, "post"), kept]), channels, 1, "merge")


def _alternate(b: Builder, x: Tensor, channels: int, count: int, name: str) -> Tensor:
    """`count` layers that alternate between 1 x 1 at `channels` and 3 x 3 at twice as many."""
    for index in range(count):
        wide = index % 2 == 1
        x = _layer(b, x, 2 * channels if wide else channels, 3 if wide else 1, f"{name}.{index}")
    return x


def _spatial_pyramid(b: Builder, x: Tensor) -> Tensor:
    pools = [b.max_pool(x, kernel, stride=1, padding=kernel // 2) for kernel in (13, 9, 5)]
    return b.concat([*pools, x])


def _lift(b: Builder, low: Tensor, lateral: Tensor, channels: int, name: str) -> Tensor:
    """Join an upsampled map with the backbone's map of that resolution."""
    with b.scope(name):
        raised = b.upsample(_layer(b, low, channels, 1, "reduce"))
        joined = b.concat([_layer(b, lateral, channels, 1, "lateral"), raised])
        return _alternate(b, joined, channels, 5, "fuse")


def _lower(b: Builder, high: Tensor, lateral: Tensor, channels: int, name: str) -> Tensor:
    """Join a downsampled map with the pyramid's map of that resolution."""
    with b.scope(name):
        joined = b.concat([_layer(b, high, channels, 3, "down", stride=2), lateral])
        return _alternate(b, joined, channels, 5, "fuse")


def _yolov4(b: Builder, x: Tensor) -> None:
    with b.scope("backbone"):
        x = _layer(b, x, 32, 3, "stem", activation=mish)
        maps = []
        for stage, (channels, blocks) in enumerate(_STAGES, start=1):
            with b.scope(f"stage{stage}"):
                x = _cross_stage(b, x, channels, blocks)
            maps.append(x)
    with b.scope("neck"):
        x = _spatial_pyramid(b, _alternate(b, x, 512, 3, "before_spp"))
        coarse = _alternate(b, x, 512, 3, "after_spp")
        middle = _lift(b, coarse, maps[3], 256, "up1")
        fine = _lift(b, middle, maps[2], 128, "up2")
        middle = _lower(b, fine, middle, 256, "down1")
        coarse = _lower(b, middle, coarse, 512, "down2")
    for features, channels, name in ((fine, 256, "p3"), (middle, 512, "p4"), (coarse, 1024, "p5")):
        _head(b, features, channels, name)


# YOLOv4-tiny


def _tiny_stage(b: Builder, x: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """A cross-stage block on the second half of the channels: its inner map and its output, pooled."""
    x = _layer(b, x, channels, 3, "0")
    half = channels // 2
    _, second = b.split(x, (half, half))
    y = _layer(b, second, half, 3, "1")
    z = _layer(b, y, half, 3, "2")
    inner = _layer(b, b.concat([z, y]), channels, 1, "3")
    return inner, b.max_pool(b.concat([x, inner]), 2, stride=2)


def _yolov4_tiny(b: Builder, x: Tensor) -> None:
    with b.scope("backbone"):
        x = _layer(b, x, 32, 3, "stem.0", stride=2)
        x = _layer(b, x, 64, 3, "stem.1", stride=2)
        for stage, channels in enumerate((64, 128, 256), start=1):
            with b.scope(f"stage{stage}"):
                inner, x = _tiny_stage(b, x, channels)
        x = _layer(b, x, 512, 3, "last")
    with b.scope("neck"):
        coarse = _layer(b, x, 256, 1, "reduce")
        raised = b.upsample(_layer(b, coarse, 128, 1, "lateral"))
        fine = b.concat([raised, inner])
    _head(b, fine, 256, "p4")
    _head(b, coarse, 512, "p5")


NETWORKS = (
    image_network(
        "yolov4",
        "yolo",
        "YOLOv4 on 80 classes: CSPDarknet-53 with Mish, spatial pyramid pooling, path aggregation",
        "Bochkovskiy et al., YOLOv4: Optimal Speed and Accuracy of Object Detection, 2020",
        _yolov4,
        image=Size(416, smallest=32, multiple=32),
    ),
    image_network(
        "yolov4_tiny",
        "yolo",
        "YOLOv4-tiny on 80 classes",
        "Wang et al., Scaled-YOLOv4: Scaling Cross Stage Partial Network, CVPR 2021",
        _yolov4_tiny,
        image=Size(416, smallest=32, multiple=32),
    ),
)
