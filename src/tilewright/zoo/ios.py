"""The four networks of IOS (MLSys 2021) as its scheduler sees them, built from their block graphs.

Batch normalisation is folded into biased convolutions, as in the definitions. Node names start with block and
unit (`E1.op98.conv`), so a schedule over units can be read off the ONNX graph. Average pools count padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.ios_blocks import Piece, Step, Unit, load_blocks
from tilewright.zoo.network import Size, image_network

# Mean squares that a value of mean square 1 has after each step; they only choose the scale of the weights.
_AFTER_RELU = 0.5
_AFTER_AVG_POOL = 0.5
_AFTER_MAX_POOL = 1.5


class _Values:
    """Values made so far, with an estimate of each one's mean square."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._made: dict[str, tuple[Tensor, float]] = {}

    def put(self, producer: str, tensor: Tensor, mean_square: float) -> None:
        self._made[producer] = (tensor, mean_square)

    def get(self, piece: Piece) -> tuple[Tensor, float]:
        tensor, mean_square = self._made[piece.producer]
        if (piece.begin, piece.end) != (0, tensor.channels):
            tensor = self.builder.slice(tensor, 1, piece.begin, piece.end)
        return tensor, mean_square


def _join(values: _Values, terms: Sequence[Sequence[Piece]]) -> tuple[Tensor, float]:
    b = values.builder
    parts = []
    for term in terms:
        total, mean_square = values.get(term[0])
        for piece in term[1:]:
            other, more = values.get(piece)
            total, mean_square = b.add(total, other), mean_square + more
        parts.append((total, mean_square))
    if len(parts) == 1:
        return parts[0]
    joined = b.concat([tensor for tensor, _ in parts])
    weighted = sum(tensor.channels * mean_square for tensor, mean_square in parts)
    return joined, weighted / joined.channels


def _apply(b: Builder, x: Tensor, mean_square: float, step: Step) -> tuple[Tensor, float]:
    match step.kind:
        case "relu":
            return b.relu(x), mean_square * _AFTER_RELU
        case "max_pool":
            pooled = b.max_pool(x, step.kernel[0], stride=step.stride[0], padding=step.padding[0])
            return pooled, mean_square * _AFTER_MAX_POOL
        case "avg_pool":
            pooled = b.avg_pool(x, step.kernel[0], stride=step.stride[0], padding=step.padding[0])
            return pooled, mean_square * _AFTER_AVG_POOL
        case "global_avg_pool":
            return b.global_avg_pool(x), mean_square
    y = b.conv(
        x,
        step.out_channels,
        step.kernel,
        stride=step.stride,
        padding=step.padding,
        groups=step.groups,
        bias=True,
        gain=1.0 / mean_square,
        name="conv" if step.groups == 1 else "depthwise",
    )
    return (b.relu(y), _AFTER_RELU) if step.relu else (y, 1.0)


def _add_unit(values: _Values, unit: Unit) -> Tensor:
    x, mean_square = _join(values, unit.terms)
    for step in unit.steps:
        x, mean_square = _apply(values.builder, x, mean_square, step)
    values.put(unit.id, x, mean_square)
    return x


def _build(b: Builder, x: Tensor, *, name: str) -> None:
    network = load_blocks(name)
    values = _Values(b)
    values.put(network.input_id, x, 1.0)
    for block in network.blocks:
        for unit in block.units:
            with b.scope(f"{block.label}.{unit.id}"):
                x = _add_unit(values, unit)
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
