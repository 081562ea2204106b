"""YOLOv5 (release 6) and YOLOX, whose sizes differ by multipliers of depth and width."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tilewright.records import dataclass
from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import conv_layer, silu
from tilewright.zoo.network import Size, image_network

_CLASSES = 80
# Gamma of the layers. Well above 1 SiLU acts like a ReLU, whose gain does not depend on its input: errors of
# scale then stay constant through depth instead of growing. Residual branches are damped.
_SCALE, _BRANCH_SCALE = 3.0, 1.5
_EPS = 1e-3


@dataclass(frozen=True, slots=True)
class _Scale:
    """Multipliers of depth and width; `depthwise` separates the 3 x 3 convolutions of YOLOX-nano."""

    depth: float
    width: float
    depthwise: bool = False

    def blocks(self, count: int) -> int:
        return max(round(count * self.depth), 1)

    def channels(self, count: int) -> int:
        """Width in multiples of 8."""
        return math.ceil(count * self.width / 8) * 8


_layer = partial(conv_layer, activation=silu, scale=_SCALE, eps=_EPS)


def _maybe_separate(
    b: Builder, x: Tensor, channels: int, name: str, size: _Scale, *, stride: int = 1, scale: float = _SCALE
) -> Tensor:
    """A 3 x 3 layer, or a depthwise one and a pointwise one."""
    if not size.depthwise:
        return _layer(b, x, channels, 3, name, stride=stride, scale=scale)
    with b.scope(name):
        y = _layer(b, x, x.channels, 3, "dconv", stride=stride, groups=x.channels)
        return _layer(b, y, channels, 1, "pconv", scale=scale)


def _cross_stage(
    b: Builder, x: Tensor, channels: int, blocks: int, name: str, size: _Scale, *, shortcut: bool
) -> Tensor:
    """YOLOv5's C3 and YOLOX's CSPLayer: bottlenecks on one of two half-wide branches."""
    half = channels // 2
    with b.scope(name):
        y = _layer(b, x, half, 1, "cv1")
        kept = _layer(b, x, half, 1, "cv2")
        for block in range(blocks):
            z = _layer(b, y, half, 1, f"m.{block}.cv1")
            z = _maybe_separate(
                b, z, half, f"m.{block}.cv2", size, scale=_BRANCH_SCALE if shortcut else _SCALE
            )
            y = b.add(y, z, name=f"m.{block}.add") if shortcut else z
        return _layer(b, b.concat([y, kept]), channels, 1, "cv3")


# YOLOv5


def _fast_pyramid(b: Builder, x: Tensor, channels: int, name: str) -> Tensor:
    """Three 5 x 5 max pools in a row, all kept."""
    with b.scope(name):
        maps = [_layer(b, x, x.channels // 2, 1, "cv1")]
        for _ in range(3):
            maps.append(b.max_pool(maps[-1], 5, stride=1, padding=2))
        return _layer(b, b.concat(maps), channels, 1, "cv2")


_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


def _detect(b: Builder, x: Tensor, level: int) -> Tensor:
    """Boxes in pixels, objectness and class scores of one level: [N, 3 * H * W, 85]."""
    n, _, h, w = x.shape
    fields = 5 + _CLASSES
    stride = 8 << level
    x = b.conv(x, 3 * fields, 1, bias=True, name=f"m.{level}")
    x = b.transpose(b.reshape(x, (n, 3, fields, h, w)), (0, 1, 3, 4, 2))
    centre, extent, scores = b.split(b.unary("Sigmoid", x), (2, 2, 1 + _CLASSES), axis=4)
    rows, columns = np.mgrid[0:h, 0:w].astype(np.float32)
    grid = np.broadcast_to(np.stack([columns, rows], axis=-1) - 0.5, (1, 3, h, w, 2))
    anchors = np.broadcast_to(np.array(_ANCHORS[level], np.float32)[None, :, None, None], (1, 3, h, w, 2))
    centre = b.mul(b.add(b.mul(centre, 2.0), b.buffer(f"grid.{level}", grid)), float(stride), name="xy")
    extent = b.binary("Pow", b.mul(extent, 2.0), 2.0)
    extent = b.mul(extent, b.buffer(f"anchor_grid.{level}", anchors), name="wh")
    return b.reshape(b.concat([centre, extent, scores], axis=4), (n, 3 * h * w, fields))


def _yolov5(b: Builder, x: Tensor, *, size: _Scale) -> None:
    c3, c4, c5 = size.channels(256), size.channels(512), size.channels(1024)
    with b.scope("model"):
        x = _layer(b, x, size.channels(64), 6, "0", stride=2, padding=2)
        x = _layer(b, x, size.channels(128), 3, "1", stride=2)
        x = _cross_stage(b, x, size.channels(128), size.blocks(3), "2", size, shortcut=True)
        x = _layer(b, x, c3, 3, "3", stride=2)
        p3 = _cross_stage(b, x, c3, size.blocks(6), "4", size, shortcut=True)
        x = _layer(b, p3, c4, 3, "5", stride=2)
        p4 = _cross_stage(b, x, c4, size.blocks(9), "6", size, shortcut=True)
        x = _layer(b, p4, c5, 3, "7", stride=2)
        x = _cross_stage(b, x, c5, size.blocks(3), "8", size, shortcut=True)
        x = _fast_pyramid(b, x, c5, "9")

        neck = partial(_cross_stage, b, blocks=size.blocks(3), size=size, shortcut=False)
        top = _layer(b, x, c4, 1, "10")
        x = neck(b.concat([b.upsample(top, name="11"), p4], name="12"), c4, name="13")
        middle = _layer(b, x, c3, 1, "14")
        fine = neck(b.concat([b.upsample(middle, name="15"), p3], name="16"), c3, name="17")
        x = _layer(b, fine, c3, 3, "18", stride=2)
        medium = neck(b.concat([x, middle], name="19"), c4, name="20")
        x = _layer(b, medium, c4, 3, "21", stride=2)
        coarse = neck(b.concat([x, top], name="22"), c5, name="23")
        with b.scope("24"):
            levels = [_detect(b, features, level) for level, features in enumerate((fine, medium, coarse))]
            detections = b.concat(levels, axis=1)
    b.output(detections, "detections")


# YOLOX


def _focus(b: Builder, x: Tensor) -> Tensor:
    """Every second pixel of every second row, four times over: [N, 12, H / 2, W / 2]."""
    parts = []
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        rows = b.slice(x, 2, row, x.shape[2], step=2)
        parts.append(b.slice(rows, 3, column, x.shape[3], step=2))
    return b.concat(parts)


def _pyramid(b: Builder, x: Tensor, channels: int, name: str) -> Tensor:
    """Max pools of 5, 9 and 13 side by side."""
    with b.scope(name):
        x = _layer(b, x, x.channels // 2, 1, "conv1")
        pools = [b.max_pool(x, kernel, stride=1, padding=kernel // 2) for kernel in (5, 9, 13)]
        return _layer(b, b.concat([x, *pools]), channels, 1, "conv2")


def _yolox_backbone(b: Builder, x: Tensor, size: _Scale) -> tuple[Tensor, Tensor, Tensor]:
    base, depth = int(64 * size.width), size.blocks(3)
    x = _layer(b, _focus(b, x), base, 3, "stem.conv")
    maps = []
    for stage, blocks in ((2, depth), (3, 3 * depth), (4, 3 * depth), (5, depth)):
        channels = base << (stage - 1)
        with b.scope(f"dark{stage}"):
            x = _maybe_separate(b, x, channels, "0", size, stride=2)
            if stage == 5:
                x = _pyramid(b, x, channels, "1")
            x = _cross_stage(b, x, channels, blocks, "csp", size, shortcut=stage != 5)
        maps.append(x)
    return maps[1], maps[2], maps[3]


def _yolox_head(b: Builder, x: Tensor, level: int, size: _Scale) -> Tensor:
    """Box, objectness and class maps of one level: [N, 85, H * W]."""
    hidden = int(256 * size.width)
    x = _layer(b, x, hidden, 1, f"stems.{level}")
    branches = []
    for kind in ("cls_convs", "reg_convs"):
        y = x
        for index in range(2):
            y = _maybe_separate(b, y, hidden, f"{kind}.{level}.{index}", size)
        branches.append(y)
    classes, box = branches
    scores = b.conv(classes, _CLASSES, 1, bias=True, name=f"cls_preds.{level}")
    offsets = b.conv(box, 4, 1, bias=True, name=f"reg_preds.{level}")
    objectness = b.conv(box, 1, 1, bias=True, name=f"obj_preds.{level}")
    y = b.concat([offsets, b.unary("Sigmoid", objectness), b.unary("Sigmoid", scores)])
    n, fields, h, w = y.shape
    return b.reshape(y, (n, fields, h * w))


def _yolox(b: Builder, x: Tensor, *, size: _Scale) -> None:
    c3, c4, c5 = (int(count * size.width) for count in (256, 512, 1024))
    with b.scope("backbone.backbone"):
        p3, p4, p5 = _yolox_backbone(b, x, size)
    with b.scope("backbone"):
        neck = partial(_cross_stage, b, blocks=size.blocks(3), size=size, shortcut=False)
        top = _layer(b, p5, c4, 1, "lateral_conv0")
        x = neck(b.concat([b.upsample(top), p4]), c4, name="C3_p4")
        middle = _layer(b, x, c3, 1, "reduce_conv1")
        fine = neck(b.concat([b.upsample(middle), p3]), c3, name="C3_p3")
        x = _maybe_separate(b, fine, c3, "bu_conv2", size, stride=2)
        medium = neck(b.concat([x, middle]), c4, name="C3_n3")
        x = _maybe_separate(b, medium, c4, "bu_conv1", size, stride=2)
        coarse = neck(b.concat([x, top]), c5, name="C3_n4")
    with b.scope("head"):
        maps = (fine, medium, coarse)
        levels = [_yolox_head(b, features, level, size) for level, features in enumerate(maps)]
        detections = b.transpose(b.concat(levels, axis=2), (0, 2, 1))
    b.output(detections, "detections")


_YOLOV5 = "Jocher, YOLOv5 by Ultralytics, 2020, https://doi.org/10.5281/zenodo.3908559"
_YOLOX = "Ge et al., YOLOX: Exceeding YOLO Series in 2021, 2021"

NETWORKS = (
    *(
        image_network(
            f"yolov5{letter}",
            "yolo",
            f"YOLOv5{letter} release 6 on 80 classes, boxes decoded",
            _YOLOV5,
            partial(_yolov5, size=size),
            image=Size(640, smallest=32, multiple=32),
        )
        for letter, size in (("s", _Scale(0.33, 0.5)), ("x", _Scale(1.33, 1.25)))
    ),
    *(
        image_network(
            f"yolox_{word}",
            "yolo",
            f"YOLOX-{word} on 80 classes, boxes relative to their cells",
            _YOLOX,
            partial(_yolox, size=size),
            image=Size(side, smallest=32, multiple=32),
        )
        for word, size, side in (
            ("nano", _Scale(0.33, 0.25, depthwise=True), 416),
            ("tiny", _Scale(0.33, 0.375), 416),
            ("s", _Scale(0.33, 0.5), 640),
            ("x", _Scale(1.33, 1.25), 640),
        )
    ),
)
