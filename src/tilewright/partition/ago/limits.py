"""What bounds a cluster: how much it takes to tune, how many complex operators it has, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.cost.base import Estimate
from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Node
from tilewright.partition.ago.weights import Weight
from tilewright.partition.base import PartitionProblem, make_subgraph
from tilewright.partition.quotient import QuotientGraph


class Limit(Protocol):
    """Says which clusters are too much together."""

    def is_beyond(self, weight: Weight, other: Weight) -> bool:
        """Whether a cluster can take neither one of this other weight nor any heavier one."""
        ...

    def allows(self, u: int, v: int) -> bool:
        """Whether two clusters may be one, as they are now."""
        ...

    def merged(self, u: int, v: int, merged: int) -> None:
        """Take note that two clusters have become one."""
        ...


@dataclass(frozen=True, slots=True)
class WeightLimit:
    """Together they weigh less than the threshold (Td); what weighs more alone stays alone."""

    threshold: float

    def is_beyond(self, weight: Weight, other: Weight) -> bool:
        """Whether both together reach the threshold."""
        return weight.total + other.total >= self.threshold

    def allows(self, u: int, v: int) -> bool:
        """Weights alone decide."""
        return True

    def merged(self, u: int, v: int, merged: int) -> None:
        """Nothing to note."""


class MiniLimit:
    """As a threshold, and no more than one complex operator: what SPLIT makes."""

    def __init__(self, threshold: float, weights: Sequence[Weight]) -> None:
        self._weights = WeightLimit(threshold)
        self._num_complex = [weight.num_complex for weight in weights]

    def is_beyond(self, weight: Weight, other: Weight) -> bool:
        """As the threshold."""
        return self._weights.is_beyond(weight, other)

    def allows(self, u: int, v: int) -> bool:
        """Whether there is at most one complex operator in both."""
        return self._num_complex[u] + self._num_complex[v] <= 1

    def merged(self, u: int, v: int, merged: int) -> None:
        """Count them together."""
        self._num_complex[merged] = self._num_complex[u] + self._num_complex[v]


@dataclass(slots=True)
class CostLimit:
    """Joining pays by the target's cost model.

    With `allows_equal` what brings no second complex operator may also cost the same: first all that pays is
    joined, so that an operator comes to the neighbour that gains by it. `spend` is asked before a pair is
    priced: once it says no, nothing more is joined.
    """

    problem: PartitionProblem
    quotient: QuotientGraph
    weights: Sequence[Weight]
    spend: Callable[[], bool]
    allows_equal: bool = False
    _nodes: tuple[Node, ...] = field(init=False)
    _num_complex: list[int] = field(init=False)
    _known: dict[int, Estimate] = field(init=False, default_factory=dict)
    _together: dict[tuple[int, int], Estimate] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = self.problem.graph.nodes
        self._num_complex = [weight.num_complex for weight in self.weights]

    def is_beyond(self, weight: Weight, other: Weight) -> bool:
        """No weight is too much."""
        return False

    def allows(self, u: int, v: int) -> bool:
        """Whether both as one subgraph cost less than one after the other, or no more."""
        if not self.spend():
            return False
        objective = self.problem.objective
        apart = self._alone(u).then(self._alone(v)).cost(objective)
        try:
            estimate = self._estimate((u, v))
        except InfeasibleMapping:
            return False
        self._together[min(u, v), max(u, v)] = estimate
        together = estimate.cost(objective)
        has_two = self._num_complex[u] > 0 and self._num_complex[v] > 0
        margin = 1e-9 * apart
        if self.allows_equal and not has_two:
            return together <= apart + margin
        return together < apart - margin

    def merged(self, u: int, v: int, merged: int) -> None:
        """What was priced is the new cluster's cost."""
        for cluster in (u, v):
            self._known.pop(cluster, None)
        self._known[merged] = self._together.pop((min(u, v), max(u, v)))
        self._together.clear()
        self._num_complex[merged] = self._num_complex[u] + self._num_complex[v]

    def _alone(self, cluster: int) -> Estimate:
        if cluster not in self._known:
            self._known[cluster] = self._estimate((cluster,))
        return self._known[cluster]

    def _estimate(self, clusters: Sequence[int]) -> Estimate:
        positions = sorted(n for c in clusters for n in self.quotient.members(c))
        nodes = [self._nodes[position] for position in positions]
        return self.problem.cost.fused(make_subgraph(0, nodes, self.problem.graph))
