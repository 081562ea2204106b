"""The four networks of IOS (MLSys 2021) as its scheduler sees them, built from their block graphs.

Batch normalisation is folded into biased convolutions, as in the definitions. Node names start with block and
unit (`E1.op98.conv`), so a schedule over units can be read off the ONNX graph. Average pools count padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.ios_blocks import BlockStep, Piece, load_blocks
from tilewright.zoo.network import Size, image_network


def _join(b: Builder, values: dict[str, Tensor], terms: Sequence[Sequence[Piece]]) -> Tensor:
    parts = []
    for term in terms:
        total, *others = (_channels(b, values[piece.producer], piece) for piece in term)
        for other in others:
            total = b.add(total, other)
        parts.append(total)
    return parts[0] if len(parts) == 1 else b.concat(parts)


def _channels(b: Builder, x: Tensor, piece: Piece) -> Tensor:
    whole = (piece.begin, piece.end) == (0, x.channels)
    return x if whole else b.slice(x, 1, piece.begin, piece.end)


def _apply(b: Builder, x: Tensor, step: BlockStep) -> Tensor:
    match step.kind:
        case "relu":
            return b.relu(x)
        case "max_pool":
            return b.max_pool(x, step.kernel, stride=step.stride, padding=step.padding)
        case "avg_pool":
            return b.avg_pool(x, step.kernel, stride=step.stride, padding=step.padding)
        case "global_avg_pool":
            return b.global_avg_pool(x)
    y = b.conv(
        x,
        step.out_channels,
        step.kernel,
        stride=step.stride,
        padding=step.padding,
        groups=step.groups,
        bias=True,
        name="conv" if step.groups == 1 else "depthwise",
    )
    return b.relu(y) if step.relu else y


def _build(b: Builder, x: Tensor, *, name: str) -> None:
    network = load_blocks(name)
    values = {network.input_id: x}
    for block in network.blocks:
        for unit in block.units:
            with b.scope(f"{block.label}.{unit.id}"):
                x = _join(b, values, unit.terms)
                for step in unit.steps:
                    x = _apply(b, x, step)
                if not unit.steps and len(unit.terms) == len(unit.terms[0]) == 1:
                    x = b.unary("Identity", x)  # joins a single value, and is a unit all the same
            values[unit.id] = x
    b.output(x, "features")


NETWORKS = tuple(
    image_network(name, "ios", description, paper, partial(_build, name=name), image=image)
    for name, description, paper, image in (
        (
            "ios_inception_v3",
            "Inception v3 as IOS schedules it, 119 units",
            "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016",
            Size(299, smallest=75),
        ),
        (
            "ios_randwire",
            "RandWire, random Watts-Strogatz graphs, as IOS schedules it, 120 units",
            "Xie et al., Exploring Randomly Wired Neural Networks for Image Recognition, ICCV 2019",
            Size(224, smallest=32),
        ),
        (
            "ios_nasnet_a",
            "NasNet-A large as IOS schedules it, 374 units",
            "Zoph et al., Learning Transferable Architectures for Scalable Image Recognition, CVPR 2018",
            Size(331, smallest=35),
        ),
        (
            "ios_squeezenet",
            "SqueezeNet with complex bypass as IOS schedules it, 50 units",
            "Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters, 2016",
            Size(224, smallest=32),
        ),
    )
)
