"""Layers that a bound of effort has cut are put together again.

A bound on what a subgraph may weigh cuts wherever it is reached, also between an operator and what follows it
element by element. That costs a pass over memory and spares a tuner nothing: it decides how the operator is
made, and what follows goes along.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.graph import Node, Value
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.layerwise import layerwise_clusters
from tilewright.partition.quotient import QuotientGraph

_EFFORT = (Reason.WEIGHT, Reason.STAGE, Reason.CYCLE)


def join_layers(problem: PartitionProblem, partition: Partition) -> Partition:
    """The partition with subgraphs merged that share a layer, where that makes no cycle.

    Only where the partitioner stopped at a bound: what was kept apart for another reason stays apart.
    """
    is_bounded = any(decision.reason is Reason.WEIGHT for decision in partition.decisions)
    if not is_bounded or partition.is_split or partition.layers is not None:
        return partition
    layer_of = {node: i for i, layer in enumerate(layerwise_clusters(partition.graph)) for node in layer}
    home = {node: subgraph.id for subgraph in partition.subgraphs for node in subgraph.nodes}
    edges = [(home[d.producer], home[d.consumer]) for d in partition.decisions]
    quotient = QuotientGraph(len(partition.subgraphs), [(u, v) for u, v in edges if u != v])
    cut = [
        (home[decision.producer], home[decision.consumer])
        for decision in partition.decisions
        if decision.reason in _EFFORT and layer_of[decision.producer] == layer_of[decision.consumer]
    ]
    num_clusters = 0
    while num_clusters != len(quotient.clusters):  # a merge may take away what stood in another's way
        num_clusters = len(quotient.clusters)
        for ends in cut:
            u, v = map(quotient.cluster_of, ends)
            if u != v and quotient.can_contract(u, v):
                quotient.contract(u, v)
    if len(quotient.clusters) == len(partition.subgraphs):
        return partition
    known = {(d.producer, d.consumer, d.value): d.reason for d in partition.decisions}

    def reason(producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        stated = known[producer, consumer, value]
        return Reason.CLUSTER if fused and not stated.is_fused else stated

    clusters = [
        [node for i in quotient.members(cluster) for node in partition.subgraphs[i].nodes]
        for cluster in quotient.clusters
    ]
    joined = build_partition(problem, clusters, reason, partition.provenance)
    return replace(joined, element_bytes=partition.element_bytes, border_bytes=partition.border_bytes)
