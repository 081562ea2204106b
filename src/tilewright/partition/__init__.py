"""Graph → subgraphs. `PARTITIONERS` names the members; each is one file here."""

from __future__ import annotations

from tilewright.partition.base import (
    EdgeDecision,
    Partition,
    Partitioner,
    PartitionProblem,
    Reason,
    Subgraph,
)
from tilewright.partition.check import check_partition
from tilewright.registry import Registry

__all__ = [
    "PARTITIONERS",
    "EdgeDecision",
    "Partition",
    "PartitionProblem",
    "Partitioner",
    "Reason",
    "Subgraph",
    "check_partition",
]

PARTITIONERS: Registry[Partitioner] = Registry(
    "partitioner", entry_point_group="tilewright.partition", protocol="tilewright.partition.base:Partitioner"
)
PARTITIONERS.add_class("none", "tilewright.partition.none:NonePartitioner")
PARTITIONERS.add_class("layerwise", "tilewright.partition.layerwise:Layerwise")
PARTITIONERS.add_class("graphturbo", "tilewright.partition.graphturbo:GraphTurbo")
PARTITIONERS.add_class("random", "tilewright.partition.random:RandomPartitioner")
