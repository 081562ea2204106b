"""The paper's own numbers: its networks, and what the text says of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.reproduce.base import DRAWING, Printed


@dataclass(frozen=True, slots=True)
class Distribution:
    """What the text says of the weights of a partition's subgraphs; None where it says nothing."""

    num_subgraphs: int
    mean: float
    median: float
    jain: float
    num_trivial: int | None = None


NETWORK, SIZE = "mobilevit_s", {"image": 224}
"""Of figure 14, as the zoo has it. Which of the three sizes of MobileViT it is, the paper does not say; all
have the same operators."""

TRIVIAL = 20.0
"""What weighs less is trivial."""

FIGURE_14: Mapping[str, Distribution] = {
    "layerwise": Distribution(259, 138, 23, 0.19, 105),
    "ago": Distribution(82, 437, 350, 0.55),
}
"""By partitioner; `layerwise` is Relay's rule."""

SIZES = (56, 112, 224)
"""Sides of the images of figures 10 and 11."""

FIGURE_10: Mapping[int, tuple[float, float]] = {56: (1.5, 1.2), 112: (1.6, 1.2), 224: (1.8, 1.2)}
FIGURE_11: Mapping[int, tuple[float, float]] = {56: (1.9, 2.6), 112: (2.1, 1.6), 224: (1.5, 1.1)}
"""What the text says of Qsd 810 and of Kirin 990: by size, how many times faster AGO is than Torch Mobile and
than Ansor, on the average of the networks."""

FIGURE_12: Mapping[str, tuple[float, float]] = {
    "bert_tiny": (1 / (1 - 0.382), 1 / (1 - 0.205)),
    "mobilevit_s": (1 / (1 - 0.343), 1 / (1 - 0.291)),
}
"""The same of the two new networks: the text says by how much they improve, which we take for time saved."""

FIGURE_13: Mapping[str, float] = {"AGO-NI": 0.17, "AGO-NR": 0.27}
"""What the text says that is lost without intensive fusion, and without the reformer, on the average."""

PRINTED = (
    Printed("Figure 1", "a computational graph with complex and simple operators", DRAWING),
    Printed("Figure 2", "overview of the system", DRAWING),
    Printed("Figure 3", "loop nest of a mini-subgraph without fusion", DRAWING),
    Printed("Figure 4", "the same with conventional fusion", DRAWING),
    Printed("Figure 5", "loop nest of two fused convolutions", f"{DRAWING} Its tiles are in figure 6."),
    Printed("Figure 6", "what is computed again after tiling and fusion"),
    Printed("Figure 7", "which tiles a downstream depthwise or pointwise convolution reads"),
    Printed("Figure 8", "measurements that tuning needs, by subgraph"),
    Printed("Figure 9", "a cycle between subgraphs"),
    Printed("Figure 10", "latency of classical networks, Qsd 810"),
    Printed("Figure 11", "latency of classical networks, Kirin 990"),
    Printed("Figure 12", "latency of BERT-tiny and MobileViT"),
    Printed("Figure 13", "subgraphs of complex operators by AGO and without parts of it"),
    Printed("Figure 14", "weights of the subgraphs of MobileViT"),
)
"""Every figure; the paper has no tables."""
