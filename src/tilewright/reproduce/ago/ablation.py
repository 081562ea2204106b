"""Figure 13: subgraphs of two complex operators, tuned by AGO and by AGO without a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto

from tilewright.reproduce.ago.latency import AGO, Job, Raced, Variant, race_model
from tilewright.zoo.builder import Builder, Tensor
from tilewright.zoo.layers import relu6

NO_INTENSIVE, NO_REFORMER = "AGO-NI", "AGO-NR"
POINTWISE, DEPTHWISE = "pw", "dw"

# One subgraph, whatever it weighs.
_WHOLE = "ago{threshold=1e9}"
VARIANTS: Mapping[str, Variant] = {
    AGO: Variant(_WHOLE, "reformer"),
    NO_INTENSIVE: Variant(_WHOLE, "conventional"),
    NO_REFORMER: Variant(_WHOLE, "evolutionary"),
    "untuned": Variant(_WHOLE, None),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two complex operators in a row, each with a bias, and a ReLU6 between them; side of the image."""

    first: str
    second: str
    batch: int
    channels: tuple[int, int, int]
    image: int

    @property
    def name(self) -> str:
        """As the paper's figure names it."""
        return f"{self.first}+{self.second} B{self.batch}"

    def model(self) -> ModelProto:
        """The network that has nothing else."""
        b = Builder(f"{self.first}_{self.second}", seed=0)
        x = b.input("x", (self.batch, self.channels[0], self.image, self.image))
        y = relu6(b, self._operator(b, x, self.first, self.channels[1], "first"), name="between")
        b.output(self._operator(b, y, self.second, self.channels[2], "second"), "y")
        return b.finish()

    @staticmethod
    def _operator(b: Builder, x: Tensor, kind: str, channels: int, name: str) -> Tensor:
        if kind == POINTWISE:
            return b.conv(x, channels, 1, bias=True, name=name)
        return b.conv(x, channels, 3, padding=1, groups=channels, bias=True, name=name)


PAIRS = tuple(
    Pair(first, second, batch, channels, 28)
    for batch in (1, 4)
    for first, second, channels in (
        (POINTWISE, DEPTHWISE, (32, 192, 192)),
        (DEPTHWISE, POINTWISE, (192, 192, 32)),
        (POINTWISE, POINTWISE, (192, 32, 192)),
        (DEPTHWISE, DEPTHWISE, (192, 192, 192)),
    )
)
"""Of MobileNet-v2 where its image has 28 lines: an expansion with the depthwise convolution behind it, that
with the projection, a projection with the next expansion. No network has two depthwise ones in a row."""


def ablated(pair: Pair, job: Job) -> Raced:
    """A pair by every variant at equal budget, in turns."""
    return race_model(pair.model(), job, VARIANTS)
