"""The partitioner: weights, clusters, and what it says of every edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.errors import UsageError
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.partition.ago.clusters import Accept, Clustering
from tilewright.partition.ago.limits import CostLimit, Limit, WeightLimit
from tilewright.partition.ago.weights import Weight, WeightRule
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.quotient import QuotientGraph
from tilewright.planning import Budget, Provenance, option


@dataclass(frozen=True, slots=True)
class Ago:
    """Subgraphs of any structure, each as heavy as tuning it allows.

    Neighbours are joined while they weigh less than a threshold together, or while the cost model says that
    it pays; any number of complex operators may meet, and a subgraph may have several results.
    """

    threshold: float | Literal["cost"] = option(
        500.0,
        "What a subgraph weighs at most (Td); cost: joined as long as the target's cost model says it pays.",
    )
    accept: Accept = option(
        "exact", "Neighbours that may join: between which no other path leads, or of neighbouring stages."
    )
    scale: float = option(0.37, "Weight of an operator (Eq. 1): factor of the product of its loops (c).")
    bias: float = option(2.5, "Weight of an operator: what is added to that (b).")
    simple_share: float = option(0.05, "Share of that product which operators count that sum no products.")
    name: ClassVar[str] = "ago"

    def __post_init__(self) -> None:
        if self.threshold != "cost" and not self.threshold > 0:
            raise UsageError(f"ago: threshold {self.threshold:g} is not positive; 500 is the paper's scale.")
        for what in ("scale", "bias", "simple_share"):
            value = getattr(self, what)
            if not 0 <= value < float("inf"):
                raise UsageError(f"ago: {what} {value:g} is no weight; give 0 or more.")

    @property
    def weights(self) -> WeightRule:
        """What operators weigh under these options."""
        return WeightRule(self.scale, self.bias, self.simple_share)

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """Join what may be joined; the budget counts subgraphs that the cost model prices."""
        graph = problem.graph
        nodes = graph.nodes
        meter = budget.start()
        quotient = QuotientGraph.of(graph)
        weights = [self.weights.of(node) for node in nodes]
        is_opaque = [isinstance(describe(node), Opaque) for node in nodes]
        limit: Limit
        if self.threshold == "cost":
            limit = CostLimit(problem, quotient, weights, meter.spend)
        else:
            limit = WeightLimit(self.threshold)
        clustering = Clustering(quotient, weights, limit, self.accept, lambda node: not is_opaque[node])
        clustering.run()
        if isinstance(limit, CostLimit):
            limit.allows_equal = True
            clustering.run()
        clusters = [[nodes[i] for i in quotient.members(c)] for c in quotient.clusters]
        reasons = _Reasons(clustering, {node: i for i, node in enumerate(nodes)}, is_opaque, self)
        provenance = Provenance(self.name, num_evaluations=meter.num_evaluations)
        return build_partition(problem, clusters, reasons, provenance, cut_off=meter.cut_off)


@dataclass(frozen=True, slots=True)
class _Reasons:
    """Why an edge lies inside a subgraph or between two."""

    clustering: Clustering
    position: Mapping[Node, int]
    is_opaque: list[bool]
    options: Ago

    def __call__(self, producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        """The reason of one edge."""
        if fused:
            return Reason.CLUSTER
        ends = self.position[producer], self.position[consumer]
        if any(self.is_opaque[end] for end in ends):
            return Reason.OPAQUE
        u, v = map(self.clustering.quotient.cluster_of, ends)
        threshold = self.options.threshold
        if threshold == "cost":
            return Reason.COST if self.clustering.may_join(u, v) else self._unsafe
        together: Weight = self.clustering.weights[u] + self.clustering.weights[v]
        return Reason.WEIGHT if together.total >= threshold else self._unsafe

    @property
    def _unsafe(self) -> Reason:
        return Reason.CYCLE if self.options.accept == "exact" else Reason.STAGE
