"""No fusion: every node is a subgraph of its own. The baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.planning import Budget, Provenance


@dataclass(frozen=True, slots=True)
class NonePartitioner:
    """One subgraph per node."""

    name: ClassVar[str] = "none"

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """Cut every edge."""
        clusters = ([node] for node in problem.graph.nodes)
        return build_partition(
            problem, clusters, lambda *edge: Reason.NO_FUSION, Provenance(self.name, num_evaluations=1)
        )
