"""Graph → subgraphs. `PARTITIONERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright import families
from tilewright.partition.base import EdgeDecision, Partition, Partitioner, PartitionProblem, Reason, Subgraph
from tilewright.partition.check import check_cut, check_partition
from tilewright.registry import Registry

__all__ = [
    "PARTITIONERS",
    "EdgeDecision",
    "Partition",
    "PartitionProblem",
    "Partitioner",
    "Reason",
    "Subgraph",
    "check_cut",
    "check_partition",
]

PARTITIONERS: Registry[Partitioner] = families.PARTITIONERS
