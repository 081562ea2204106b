"""What computing nodes of a graph block by block gains, by estimate; equal groups are estimated once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nests_of
from tilewright.ir.fuse import FusedNodes, NestGroup
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.records import dataclass
from tilewright.targets.cpu.fused.estimate import Estimate, Work
from tilewright.targets.cpu.fused.gain_bound import GainBound
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.repeats import nest_facts

# Nests of one kernel: longer ones have small tensors in the end.
_MAX_NESTS = 24
# Nodes before a group in which one is looked for that reads the same value, as a gate's mean of its channels.
_MAX_LED = 24


@dataclass(frozen=True, slots=True)
class Trust:
    """How far estimates of blocks are believed: what must win a race besides needs no certain gain.

    A gain is `factor` times the cycles that blocks are estimated to save, less those that they pay; None is
    for what is certain. Of blocks of other extents those of the `rank`-th largest gain are taken.
    """

    factor: float | None = None
    rank: int = 0

    def gain(self, estimate: Estimate) -> float:
        """Cycles won, 0 where that is not believed."""
        if self.factor is None:
            return estimate.gain
        return max(0.0, self.factor * estimate.saved - estimate.paid)


CERTAIN = Trust()


class GroupEstimates:
    """What computing nodes block by block gains. Equal layers of a network are estimated once."""

    def __init__(self, isa: Isa, fuse: FusedNodes, trust: Trust = CERTAIN) -> None:
        self.fuse = fuse
        self.isa = isa
        self.trust = trust
        self._known: dict[Hashable, Estimate | None] = {}

    def trusting(self, trust: Trust) -> GroupEstimates:
        """The same estimates, believed otherwise."""
        return GroupEstimates(self.isa, self.fuse, trust)

    def of_one(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> Estimate | None:
        """Of one subgraph; None where no blocks of it can pay, as where it has less than two products."""
        if sum(len(contractions(nests_of(node))) for node in nodes) < 2:
            return None
        return self.of(nodes, outputs)

    def of(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> Estimate | None:
        """Of any nodes in topological order; None where no blocks of them can pay."""
        group = self.fuse(nodes, outputs)
        if isinstance(group, Opaque):
            return None
        # A run's inputs are not its own to write over.
        last = frozenset(v for v in group.inputs if v.producer is not None and _is_last_read(v, nodes))
        facts = tuple(nest_facts(nest, {}) for nest in group.nests)
        if None in facts:
            return choose_blocking(group, self.isa, self.trust, last)
        kinds = tuple((v.is_constant, v in last) for v in group.inputs)
        key = facts, kinds, len(group.outputs)
        if key not in self._known:
            self._known[key] = choose_blocking(group, self.isa, self.trust, last)
        return self._known[key]

    def gain_bound_of(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> GainBound | None:
        """What nodes bring into any group; None where no nests describe them."""
        return GainBound.of(self.fuse(nodes, outputs), self.isa)

    def all_of(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> tuple[Estimate, ...]:
        """Of any nodes in all blocks that fit the cache, promising or not."""
        group = self.fuse(nodes, outputs)
        return () if isinstance(group, Opaque) else estimates_of(group, self.isa, only_promising=False)


def _is_last_read(value: Value, nodes: Sequence[Node]) -> bool:
    """Whether nodes read a value last: all else that reads it leads to them, as far as a few steps show."""
    others = set(value.users).difference(nodes)
    if len(others) > 1:
        return False
    before = list(nodes)
    for node in before:
        if not others or len(before) > len(nodes) + _MAX_LED:
            break
        others.discard(node)
        made = (v.producer for v in node.operands() if v is not value and v.producer is not None)
        before += [producer for producer in made if producer not in before]
    return not others


def choose_blocking(
    group: NestGroup, isa: Isa, trust: Trust = CERTAIN, last: frozenset[Value] = frozenset()
) -> Estimate | None:
    """The blocks of a group's result with the largest gain; None where none can pay.

    Nothing reads the inputs of `last` again.
    """
    found = estimates_of(group, isa, only_promising=trust == CERTAIN, last=last)
    best: dict[tuple[int, ...], Estimate] = {}
    for estimate in sorted(found, key=trust.gain, reverse=True):
        if trust.gain(estimate):
            best.setdefault(estimate.blocking.block, estimate)
    return next(islice(best.values(), trust.rank, None), None)


def estimates_of(
    group: NestGroup, isa: Isa, *, only_promising: bool = True, last: frozenset[Value] = frozenset()
) -> tuple[Estimate, ...]:
    """Of all blocks of a group's result that may be worth it; none where it is no work for blocks."""
    if not group.outputs or len(group.nests) > _MAX_NESTS or 0 in group.outputs[-1].shape:
        return ()
    work = Work(group, isa, last)
    return tuple(work.estimates(only_promising=only_promising)) if work.saved else ()
