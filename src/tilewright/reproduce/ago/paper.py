"""The paper's own numbers: its networks, and what the text says of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
