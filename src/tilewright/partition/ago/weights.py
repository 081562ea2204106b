"""What an operator takes to tune (Eq. 1), from its loop nests alone.

The paper's formula multiplies `log(s)` over the loops, which a single loop of extent 1 would make 0; read as
`log2(1 + s)` such a loop changes nothing. Operators that sum no products have few schedules worth trying for
their size, so they count a small share of their product: without that, no choice of the other coefficients
comes near the distribution of weights that the paper shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2, prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Node
from tilewright.ir.nest import Nest


@dataclass(frozen=True, slots=True)
class Weight:
    """Of operators together: how much they take to tune, and how many of them are complex."""

    total: float
    num_complex: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.total + other.total, self.num_complex + other.num_complex)


@dataclass(frozen=True, slots=True)
class WeightRule:
    """`scale * product of log2(1 + extent) + bias` of each nest, its reductions included.

    The product of a nest that is no contraction counts `simple_share`. An operator of several nests weighs as
    much as operators of one nest each, so that a network weighs the same however it is spelled out.
    """

    scale: float = 0.37
    bias: float = 2.5
    simple_share: float = 0.05

    def of(self, node: Node) -> Weight:
        """Of one operator; without nests there is nothing to tune, and only the bias is left."""
        nests = nests_of(node)
        if not nests:
            return Weight(self.bias)
        is_complex = [contraction_of(nest) is not None for nest in nests]
        shares = (1.0 if product else self.simple_share for product in is_complex)
        total = sum(
            share * self.scale * _size(nest) + self.bias for share, nest in zip(shares, nests, strict=True)
        )
        return Weight(total, int(any(is_complex)))

    def of_all(self, nodes: Iterable[Node]) -> Weight:
        """Of several operators, as a subgraph."""
        return sum(map(self.of, nodes), Weight(0.0))


def _size(nest: Nest) -> float:
    return prod(log2(1 + dim.extent) for dim in nest.dims)
