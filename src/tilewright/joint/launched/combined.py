"""Blocks of several schedules of one graph combined: the cheapest path where the costs of stages add up."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from math import inf

from tilewright.bit_sets import bits
from tilewright.joint.additive import Part, shortest
from tilewright.joint.base import Block, Mask
from tilewright.joint.launched.content import Content, Numbered
from tilewright.planning import Bound, Rule, Space

_MOST_STEPS = 20_000
"""Steps of the search before it ends without an answer, the same on every machine."""


def combined(numbered: Numbered, priced: Iterable[tuple[Content, float]]) -> tuple[Content, ...] | None:
    """The cheapest sequence of these blocks that holds every node once; None where it takes too long to
    find, as in networks of very many branches.

    Of blocks that cost the same the first is taken.
    """
    known = KnownBlocks(numbered, priced)
    steps = itertools.count()
    found = shortest(
        known,
        Part(known.goal, 0, known.goal),
        known.cheapest,
        inf,
        is_once=True,
        is_due=lambda: next(steps) > _MOST_STEPS,
    )
    return None if found.plan is None else tuple(known.cheapest[b.layers][1] for b in found.plan.blocks)


class KnownBlocks:
    """Blocks that were priced, as the search asks for them: of each set of nodes the cheapest."""

    def __init__(self, numbered: Numbered, priced: Iterable[tuple[Content, float]]) -> None:
        self.num_layers = len(numbered.nodes)
        self.goal = (1 << self.num_layers) - 1
        self.cheapest: dict[Mask, tuple[float, Content]] = {}
        for content, cost in priced:
            if cost < self.cheapest.get(content.mask, (inf,))[0]:
                self.cheapest[content.mask] = cost, content
        numbers = numbered.numbers
        self._predecessors = [
            sum({1 << numbers[v.producer] for v in node.operands() if v.producer is not None})
            for node in numbered.nodes
        ]
        self._floors = [inf] * self.num_layers
        for mask, (cost, _) in self.cheapest.items():
            share = cost / mask.bit_count()
            for layer in bits(mask):
                self._floors[layer] = min(self._floors[layer], share)

    @property
    def space(self) -> Space:
        """Their combinations."""
        return Space("schedules", (Rule("blocks of these schedules"),))

    @property
    def bound(self) -> Bound:
        """Each node's share of the cheapest block that holds it."""
        return Bound(sum(self._floors), self.space, "shares of blocks")

    def predecessors(self, layer: int) -> Mask:
        """Nodes whose results a node reads."""
        return self._predecessors[layer]

    def neighbours(self, layer: int) -> Mask:
        """None: sets of nodes are those of the blocks."""
        return 0

    def floor(self, layer: int) -> float:
        """The least share of a block that holds the node: no block costs less than its nodes' shares."""
        return self._floors[layer]

    def blocks(self, layers: Mask) -> Iterator[Block]:
        """The set as a block that leaves nothing for the next one alone."""
        yield Block.storing_all(layers, self._predecessors)

    def least(self, block: Block) -> float:
        """What it costs."""
        return self.cheapest[block.layers][0]

    def price(self, block: Block) -> float:
        """What it costs."""
        return self.cheapest[block.layers][0]
