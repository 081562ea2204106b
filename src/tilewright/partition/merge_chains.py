"""Chains of subgraphs become one subgraph each, whose kernels a form says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.ir.graph import Node
from tilewright.partition.base import (
    EdgeDecision,
    Partition,
    PartitionProblem,
    Price,
    Reason,
    Subgraph,
    make_subgraph,
)
from tilewright.partition.form import Form, KernelForm
from tilewright.partition.layers import Layer
from tilewright.partition.quotient import QuotientGraph
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Status
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Chain:
    """Subgraphs that can become one, ascending: no path leaves them and comes back.

    `form` is that of the subgraph that they become, whose nodes are theirs one after the other.
    """

    subgraph_ids: tuple[int, ...]
    form: Form


def quotient_of(partition: Partition) -> QuotientGraph:
    """Which subgraph reads which, by number."""
    edges = (
        (p.id, subgraph.id) for subgraph in partition.subgraphs for p in partition.predecessors(subgraph)
    )
    return QuotientGraph(len(partition.subgraphs), edges)


def merge_chains(problem: PartitionProblem, partition: Partition, chains: Iterable[Chain]) -> Partition:
    """The partition with each chain as one subgraph, in the place of the chain's last one where that can run.

    The decisions of edges that were cut become `Reason.BLOCKWISE` where one kernel computes both ends of them
    block by block, `Reason.SEPARATE` where they lie between kernels of a chain; a chain runs whole.

    Raises:
        ValueError: a path leaves the subgraphs of a chain and comes back.
    """
    ending = {chain.subgraph_ids[-1]: chain for chain in chains}
    if not ending:
        return partition
    subgraphs: list[Subgraph] = []
    splits: list[Split] = []
    layers: list[tuple[Layer, ...]] = []
    for subgraph in _in_order(partition, ending):
        chain = ending.get(subgraph.id)
        ids = (subgraph.id,) if chain is None else chain.subgraph_ids
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
        price=Price(lambda: problem.quality_of(subgraphs, cut_off=cut_off)),
        splits=tuple(splits),
        layers=None if partition.layers is None else tuple(layers),
        weighed=None,
    )


def _in_order(partition: Partition, ending: Mapping[int, Chain]) -> list[Subgraph]:
    """The last subgraph of each chain and all that are in none, in an order in which they can run."""
    absorbed = {i for chain in ending.values() for i in chain.subgraph_ids[:-1]}
    last = {i: chain.subgraph_ids[-1] for chain in ending.values() for i in chain.subgraph_ids}
    # Where only the chain reads what it makes, nothing waits for its last subgraph.
    if all(
        last.get(reader.id, reader.id) >= last[i]
        for i in absorbed
        for reader in partition.successors(partition.subgraphs[i])
    ):
        return [subgraph for subgraph in partition.subgraphs if subgraph.id not in absorbed]
    quotient = quotient_of(partition)
    for chain in ending.values():
        if len(chain.subgraph_ids) > 1:
            members = sorted({quotient.cluster_of(i) for i in chain.subgraph_ids})
            if not quotient.can_contract_all(members):
                raise ValueError(f"subgraphs {chain.subgraph_ids} do not follow one another")
            quotient.contract_all(members)
    return [partition.subgraphs[quotient.members(cluster)[-1]] for cluster in quotient.clusters]


def _decision(
    decision: EdgeDecision, home: Mapping[Node, int], kernel_of: Mapping[Node, KernelForm]
) -> EdgeDecision:
    producer, consumer = decision.producer, decision.consumer
    if home[producer] != home[consumer]:
        return decision
    if kernel_of[producer] is not kernel_of[consumer]:
        return replace(decision, reason=Reason.SEPARATE)
    if decision.reason.is_fused and decision.reason is not Reason.CLUSTER:
        return decision
    is_blockwise = kernel_of[producer].blocking is not None
    return replace(decision, reason=Reason.BLOCKWISE if is_blockwise else Reason.CLUSTER)
