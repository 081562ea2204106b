"""Figure 13: subgraphs of two and three complex operators, tuned by AGO and by AGO without a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto

from tilewright.reproduce.ago.latency import AGO, Job, Raced, Variant, race_model
from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import relu6

NO_INTENSIVE, NO_REFORMER = "AGO-NI", "AGO-NR"
POINTWISE, DEPTHWISE, PRODUCT = "pw", "dw", "product"

# One subgraph, whatever it weighs.
_WHOLE = "ago{threshold=1e9}"
VARIANTS: Mapping[str, Variant] = {
    AGO: Variant(_WHOLE, "reformer"),
    NO_INTENSIVE: Variant(_WHOLE, "conventional"),
    NO_REFORMER: Variant(_WHOLE, "evolutionary"),
    "untuned": Variant(_WHOLE, None),
}


@dataclass(frozen=True, slots=True)
class Stack:
    """Complex operators in a row, each with a bias, and a ReLU6 between two; side of the image.

    `channels` are those of the input and of every operator's result. A product has a row for each element of
    the image.
    """

    operators: tuple[str, ...]
    batch: int
    channels: tuple[int, ...]
    image: int

    @property
    def name(self) -> str:
        """As the paper's figure names it."""
        return f"{'+'.join(self.operators)} B{self.batch}"

    @property
    def is_papers(self) -> bool:
        """Whether the paper's figure has it: two of pointwise and depthwise convolutions."""
        return len(self.operators) == 2 and set(self.operators) <= {POINTWISE, DEPTHWISE}

    def model(self) -> ModelProto:
        """The network that has nothing else."""
        b = Builder("_".join(self.operators), seed=0)
        rows = (self.image**2,) if PRODUCT in self.operators else (self.image, self.image)
        first = self.channels[0]
        shape = (self.batch, *rows, first) if PRODUCT in self.operators else (self.batch, first, *rows)
        value = b.input("x", shape)
        for number, (kind, channels) in enumerate(zip(self.operators, self.channels[1:], strict=True)):
            value = relu6(b, value, name=f"between{number}") if number else value
            value = self._operator(b, value, kind, channels, f"operator{number}")
        b.output(value, "y")
        return b.finish()

    @staticmethod
    def _operator(b: Builder, x: Tensor, kind: str, channels: int, name: str) -> Tensor:
        if kind == POINTWISE:
            return b.conv(x, channels, 1, bias=True, name=name)
        if kind == DEPTHWISE:
            return b.conv(x, channels, 3, padding=1, groups=channels, bias=True, name=name)
        with b.scope(name):
            width = x.shape[-1]
            weights = b.parameter("weight", (width, channels), deviation=width**-0.5)
            return b.add(b.matmul(x, weights), b.parameter("bias", (channels,), deviation=0.1))


STACKS = tuple(
    Stack(operators, batch, channels, 28)
    for batch in (1, 4)
    for operators, channels in (
        ((POINTWISE, DEPTHWISE), (32, 192, 192)),
        ((DEPTHWISE, POINTWISE), (192, 192, 32)),
        ((POINTWISE, POINTWISE), (192, 32, 192)),
        ((DEPTHWISE, DEPTHWISE), (192, 192, 192)),
        ((PRODUCT, PRODUCT), (144, 288, 144)),
        ((POINTWISE, DEPTHWISE, POINTWISE), (32, 192, 192, 32)),
    )
)
"""Of MobileNet-v2 where its image has 28 lines: an expansion with the depthwise convolution behind it, that
with the projection, a projection with the next expansion, a whole block; of MobileViT-S there: the two
products behind an attention. No network has two depthwise convolutions in a row."""


def ablated(stack: Stack, job: Job) -> Raced:
    """A stack by every variant at equal budget, in turns."""
    return race_model(stack.model(), job, VARIANTS)
