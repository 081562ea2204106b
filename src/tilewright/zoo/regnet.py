"""RegNets in torchvision's form: widths follow a quantised line, groups have one width throughout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import classifier, conv_bn, excite
from tilewright.zoo.network import Size, image_network

_BRANCH_SCALE = 0.5
_STEM = 32
_MULTIPLE = 8  # of every width


@dataclass(frozen=True, slots=True)
class _Design:
    """What decides a network: blocks, first width, slope, ratio of neighbouring widths, group width.

    `squeeze` is the excitation's share of the width, 0 for none.
    """

    depth: int
    first: int
    slope: float
    ratio: float
    group: int
    squeeze: float = 0.0

    def stages(self) -> Iterator[tuple[int, int]]:
        """(Width, blocks) of each stage: the line of widths, rounded to powers of the ratio."""
        powers = [
            round(math.log((self.first + self.slope * i) / self.first) / math.log(self.ratio))
            for i in range(self.depth)
        ]
        widths = [_MULTIPLE * round(self.first * self.ratio**power / _MULTIPLE) for power in powers]
        for width, blocks in groupby(widths):
            group = min(self.group, width)
            yield max(group, group * int((width + group / 2) // group)), len(list(blocks))


def _block(b: Builder, x: Tensor, width: int, stride: int, design: _Design) -> Tensor:
    shortcut = x
    if stride != 1 or x.channels != width:
        shortcut = conv_bn(b, x, width, 1, stride=stride, names=("proj.0", "proj.1"))
    with b.scope("f"):
        y = b.relu(conv_bn(b, x, width, 1, names=("a.0", "a.1")), name="a.2")
        groups = width // min(design.group, width)
        y = conv_bn(b, y, width, 3, stride=stride, padding=1, groups=groups, names=("b.0", "b.1"))
        y = b.relu(y, name="b.2")
        if design.squeeze:
            with b.scope("se"):
                y = excite(b, y, round(design.squeeze * x.channels), Builder.relu)
        y = conv_bn(b, y, width, 1, scale=_BRANCH_SCALE, names=("c.0", "c.1"))
    total = b.relu(b.add(y, shortcut), name="activation")
    return replace(total, power=shortcut.power + 0.5 * y.power) if shortcut is x else total


def _regnet(b: Builder, x: Tensor, *, design: _Design) -> None:
    x = b.relu(conv_bn(b, x, _STEM, 3, stride=2, padding=1, names=("stem.0", "stem.1")), name="stem.2")
    for stage, (width, blocks) in enumerate(design.stages(), start=1):
        for index in range(blocks):
            with b.scope(f"trunk_output.block{stage}.block{stage}-{index}"):
                x = _block(b, x, width, 2 if index == 0 else 1, design)
    classifier(b, x)


_PAPER = "Radosavovic et al., Designing Network Design Spaces, CVPR 2020"
_IMAGE = Size(224, smallest=32)

NETWORKS = (
    image_network(
        "regnet_x_400mf",
        "regnet",
        "RegNetX-400MF, groups of 16 channels",
        _PAPER,
        partial(_regnet, design=_Design(depth=22, first=24, slope=24.48, ratio=2.54, group=16)),
        image=_IMAGE,
    ),
    image_network(
        "regnet_y_1_6gf",
        "regnet",
        "RegNetY-1.6GF, groups of 24 channels and squeeze-and-excitation",
        _PAPER,
        partial(_regnet, design=_Design(depth=27, first=48, slope=20.71, ratio=2.65, group=24, squeeze=0.25)),
        image=_IMAGE,
    ),
)
