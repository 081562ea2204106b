"""Random valid partitions: what a test or a comparison uses where any partition must do."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir.graph import Node, Value
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.quotient import QuotientGraph
from tilewright.planning import Budget, Provenance, option


@dataclass(frozen=True, slots=True)
class RandomPartitioner:
    """Merges random adjacent clusters where that is safe, each edge with probability `merge`."""

    seed: int = option(0, "Seed of the choices.")
    merge: float = option(0.5, "Probability that an edge is tried.")
    name: ClassVar[str] = "random"

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """One random partition; any set of adjacent nodes may meet in a subgraph, opaque ones included."""
        rng = random.Random(self.seed)
        nodes = problem.graph.nodes
        quotient = QuotientGraph.of(problem.graph)
        edges = [(u, v) for u in range(len(nodes)) for v in quotient.successors(u)]
        rng.shuffle(edges)
        meter = budget.start()
        refused: set[tuple[int, int]] = set()
        for u, v in edges:
            a, b = quotient.cluster_of(u), quotient.cluster_of(v)
            if a == b or rng.random() >= self.merge or not meter.spend():
                continue
            if quotient.can_contract(a, b):
                quotient.contract(a, b)
            else:
                refused.add((u, v))
        position = {node: i for i, node in enumerate(nodes)}

        def reason(producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
            if fused:
                return Reason.CLUSTER
            edge = (position[producer], position[consumer])
            return Reason.CYCLE if edge in refused else Reason.CHANCE

        clusters = [[nodes[i] for i in quotient.members(c)] for c in quotient.clusters]
        provenance = Provenance(self.name, self.seed, meter.num_evaluations)
        return build_partition(problem, clusters, reason, provenance, cut_off=meter.cut_off)
