"""What an operator takes to tune (Eq. 1), from its loop nests alone.

The paper's formula multiplies `log(s)` over the loops, which a single loop of extent 1 would make 0; read as
`log2(1 + s)` such a loop changes nothing. Operators that sum no products have few schedules worth trying for
their size, so they count a small share of their product: without that, no choice of the other coefficients
comes near the distribution of weights that the paper shows. Loops of a product of matrices that could be one
are one: its rows weigh the same whether they come as one axis or as a batch of several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2, prod

from tilewright.ir.contraction import contraction_of
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Dim, Nest, access_dims


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
        is_contraction = [contraction_of(nest) is not None for nest in nests]
        total = sum(
            (1.0 if product else self.simple_share) * self.scale * _size(nest, product) + self.bias
            for product, nest in zip(is_contraction, nests, strict=True)
        )
        return Weight(total, int(any(is_contraction)))

    def of_all(self, nodes: Iterable[Node]) -> Weight:
        """Of several operators, as a subgraph."""
        return sum(map(self.of, nodes), Weight(0.0))


def _size(nest: Nest, is_contraction: bool) -> float:
    extents = _joined_extents(nest) if is_contraction else [dim.extent for dim in nest.dims]
    return prod(log2(1 + extent) for extent in extents)


def _joined_extents(nest: Nest) -> list[int]:
    """Extents of the loops, neighbours as one loop where every operand is walked alike by one loop."""
    joined: list[int] = []
    before: Dim | None = None
    for dim in nest.dims:
        if before is not None and _are_one(nest, before, dim):
            joined[-1] *= dim.extent
        else:
            joined.append(dim.extent)
        before = dim
    return joined


def _are_one(nest: Nest, outer: Dim, inner: Dim) -> bool:
    """Whether two loops go through neighbouring axes of all that they move along, row by row."""
    moved = [
        a for a in (*nest.reads, nest.write) if {outer.name, inner.name}.intersection(access_dims(nest, a))
    ]
    return all(_goes_row_by_row(access, outer, inner) for access in moved)


def _goes_row_by_row(access: Access, outer: Dim, inner: Dim) -> bool:
    rows, elements = (Affine(((dim.name, 1),)) for dim in (outer, inner))
    if access.fill is not None or rows not in access.index:
        return False
    axis = access.index.index(rows)
    others = (*access.index[:axis], *access.index[axis + 2 :])
    return (
        access.index[axis + 1 : axis + 2] == (elements,)
        and access.shape[axis + 1] == inner.extent
        and not any(isinstance(i, Affine) and {outer.name, inner.name}.intersection(i.dims()) for i in others)
    )
