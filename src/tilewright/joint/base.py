"""The joint problem: layers, blocks that run them, states between blocks, and what a target answers.

Layers are numbered; sets of them are bit masks. A block runs layers at once: it reads results of others,
makes its own, and stores some in main memory or keeps some near for the next block alone. A state is what has
been stored and what is kept. Where every block stores all that it makes, stored sets are the ideals of the
graph, closed under predecessors; where blocks may compute a result again instead of storing it, they are any
sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tilewright.bit_sets import bits, union
from tilewright.planning import Bound, Space

Mask = int
"""A set of layers."""


class Block(NamedTuple):
    """Layers that run at once, as a transition between states."""

    layers: Mask
    reads: Mask  # layers outside whose results it uses
    resident: Mask  # of these, the ones that the block before keeps for it
    stores: Mask  # results that are in main memory behind it
    keeps: Mask  # results that are near for the next block

    @classmethod
    def storing_all(cls, layers: Mask, predecessors: Sequence[Mask]) -> Block:
        """Layers whose results all go to main memory, and which read theirs from there."""
        reads = union(predecessors[layer] for layer in bits(layers))
        return cls(layers, reads & ~layers, 0, layers, 0)


class State(NamedTuple):
    """What is there between two blocks."""

    stored: Mask
    kept: Mask = 0

    def allows(self, block: Block) -> bool:
        """Whether a block can run: what it reads is stored or kept, and what is kept is read."""
        return block.resident == self.kept and not block.reads & ~(self.stored | self.kept)

    def after(self, block: Block) -> State:
        """The state behind a block."""
        return State(self.stored | block.stores, block.keeps)


class Pricer(Protocol):
    """What a target says of layers and blocks; costs are in one unit that adds up over blocks."""

    @property
    def num_layers(self) -> int:
        """Layers of the graph."""
        ...

    @property
    def goal(self) -> Mask:
        """Layers whose results must be stored at the end."""
        ...

    @property
    def space(self) -> Space:
        """The plans among which the search chooses."""
        ...

    @property
    def bound(self) -> Bound:
        """A lower bound of any plan's cost, cheap to ask."""
        ...

    def predecessors(self, layer: int) -> Mask:
        """Layers whose results a layer reads."""
        ...

    def neighbours(self, layer: int) -> Mask:
        """Layers that a block may hold because it holds this one: blocks are connected by these."""
        ...

    def floor(self, layer: int) -> float:
        """A cost of a layer such that no block costs less than the sum over its layers."""
        ...

    def blocks(self, layers: Mask) -> Iterable[Block]:
        """Blocks of the space that run exactly these layers."""
        ...

    def least(self, block: Block) -> float:
        """A lower bound of a block's cost, cheap to ask."""
        ...

    def price(self, block: Block) -> float:
        """The least cost of a block over all decisions within it; infinite if it cannot run."""
        ...


class SetPricer(Pricer, Protocol):
    """A pricer that bounds all blocks of a set of layers at once, without listing them."""

    def least_of(self, layers: Mask) -> float:
        """A lower bound of every block that runs exactly these layers; infinite if there is none."""
        ...

    @property
    def least_space(self) -> Space:
        """The plans for which these bounds hold: at least those among which the search chooses."""
        ...

    def tight_least(self, block: Block) -> float:
        """A lower bound of a block's cost that is close to it, cheaper to ask than its price."""
        ...


class Plan(NamedTuple):
    """Blocks in their order, and the sum of their costs."""

    cost: float
    blocks: tuple[Block, ...]


def plan_of(pricer: Pricer, blocks: Sequence[Block]) -> Plan:
    """A plan of these blocks."""
    return Plan(sum(map(pricer.price, blocks)), tuple(blocks))


def topological(pricer: Pricer) -> list[int]:
    """Layers in an order in which they can run, the lowest number first."""
    import heapq

    left = [pricer.predecessors(i).bit_count() for i in range(pricer.num_layers)]
    successors: list[list[int]] = [[] for _ in left]
    for i in range(pricer.num_layers):
        for j in bits(pricer.predecessors(i)):
            successors[j].append(i)
    ready = [i for i, count in enumerate(left) if not count]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in successors[i]:
            left[j] -= 1
            if not left[j]:
                heapq.heappush(ready, j)
    return order
