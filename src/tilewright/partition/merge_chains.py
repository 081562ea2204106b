"""Chains of subgraphs become one subgraph each, whose kernels a form says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node
from tilewright.partition.base import (
    EdgeDecision,
    Partition,
    PartitionProblem,
    Reason,
    Subgraph,
    make_subgraph,
)
from tilewright.partition.form import Form, KernelForm
from tilewright.partition.layers import Layer
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Status


@dataclass(frozen=True, slots=True)
class Chain:
    """Subgraphs of which each makes what only the next reads, or a single one; in topological order.

    `form` is that of the subgraph that they become, whose nodes are theirs one after the other.
    """

    subgraph_ids: tuple[int, ...]
    form: Form


def is_read_only_by(partition: Partition, first: int, second: int) -> bool:
    """Whether all that the first subgraph makes is read by the second and by nobody else.

    Then no path leads from the first to the second but the direct one, and merging both makes no cycle.
    """
    made = partition.subgraphs[first].outputs
    if len(made) != 1 or made[0] in partition.graph.outputs:
        return False
    return all(partition.subgraph_of(user).id == second for user in made[0].users)


def merge_chains(problem: PartitionProblem, partition: Partition, chains: Iterable[Chain]) -> Partition:
    """The partition with each chain as one subgraph, in the place of the chain's last one.

    The decisions of edges that were cut become `Reason.BLOCKWISE` where one kernel computes both ends of them
    block by block, `Reason.SEPARATE` where they lie between kernels of a chain; a chain runs whole.

    Raises:
        ValueError: the subgraphs of a chain do not follow one another.
    """
    ending = {chain.subgraph_ids[-1]: chain for chain in chains}
    if not ending:
        return partition
    absorbed = {i for chain in ending.values() for i in chain.subgraph_ids[:-1]}
    subgraphs: list[Subgraph] = []
    splits: list[Split] = []
    layers: list[tuple[Layer, ...]] = []
    for subgraph in partition.subgraphs:
        if subgraph.id in absorbed:
            continue
        chain = ending.get(subgraph.id)
        ids = (subgraph.id,) if chain is None else chain.subgraph_ids
        if not all(is_read_only_by(partition, a, b) for a, b in itertools.pairwise(ids)):
            raise ValueError(f"subgraphs {ids} do not follow one another")
        nodes = [node for i in ids for node in partition.subgraphs[i].nodes]
        splits.append(partition.splits[subgraph.id] if len(ids) == 1 else WHOLE)
        if partition.layers is not None:
            layers.append(tuple(layer for i in ids for layer in partition.layers[i]))
        merged = make_subgraph(len(subgraphs), nodes, partition.graph)
        subgraphs.append(replace(merged, form=subgraph.form if chain is None else chain.form))
    home = {node: s.id for s in subgraphs for node in s.nodes}
    kernel_of = {
        s.nodes[position]: kernel for s in subgraphs for kernel in s.kernels for position in kernel.nodes
    }
    cut_off = partition.quality.status is Status.CUT_OFF
    return replace(
        partition,
        subgraphs=tuple(subgraphs),
        decisions=tuple(_decision(d, home, kernel_of) for d in partition.decisions),
        quality=problem.quality_of(subgraphs, cut_off=cut_off),
        splits=tuple(splits),
        layers=None if partition.layers is None else tuple(layers),
        weighed=None,
    )


def _decision(
    decision: EdgeDecision, home: Mapping[Node, int], kernel_of: Mapping[Node, KernelForm]
) -> EdgeDecision:
    producer, consumer = decision.producer, decision.consumer
    if home[producer] != home[consumer]:
        return decision
    if kernel_of[producer] is not kernel_of[consumer]:
        return replace(decision, reason=Reason.SEPARATE)
    if decision.reason.is_fused:
        return decision
    is_blockwise = kernel_of[producer].blocking is not None
    return replace(decision, reason=Reason.BLOCKWISE if is_blockwise else Reason.CLUSTER)
