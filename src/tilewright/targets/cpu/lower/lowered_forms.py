"""What became of a partition's forms and edges when its kernels were made."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tilewright.ir.graph import Value
from tilewright.partition.base import EdgeDecision, Partition, Reason, Subgraph
from tilewright.partition.form import Form, KernelForm


def partition_as_lowered(
    partition: Partition, declined: Set[tuple[int, KernelForm]], separate: Set[Value]
) -> Partition:
    """The partition with what really became of its forms and edges.

    `declined` are kernels that are not computed block by block after all, `separate` values that lie between
    kernels of one subgraph.
    """
    if not declined and not separate and all(d.reason is not Reason.SEPARATE for d in partition.decisions):
        return partition
    subgraphs = tuple(_formed(subgraph, declined) for subgraph in partition.subgraphs)
    blockwise = {
        subgraph.nodes[position]: kernel
        for subgraph in subgraphs
        for kernel in subgraph.kernels
        if kernel.blocking is not None
        for position in kernel.nodes
    }

    def reason(decision: EdgeDecision) -> Reason:
        kernel = blockwise.get(decision.producer)
        if not decision.reason.is_fused:
            return decision.reason
        if kernel is not None and kernel is blockwise.get(decision.consumer):
            return Reason.BLOCKWISE if decision.reason is Reason.SEPARATE else decision.reason
        if decision.value in separate:
            return Reason.SEPARATE
        is_other = decision.reason in (Reason.BLOCKWISE, Reason.SEPARATE)
        return Reason.CLUSTER if is_other else decision.reason

    decisions = tuple(replace(d, reason=reason(d)) for d in partition.decisions)
    return replace(partition, subgraphs=subgraphs, decisions=decisions)


def _formed(subgraph: Subgraph, declined: Set[tuple[int, KernelForm]]) -> Subgraph:
    """The subgraph without the blocks that could not be made."""
    refused = [kernel for kernel in subgraph.kernels if (subgraph.id, kernel) in declined]
    if not refused:
        return subgraph
    plain = (
        replace(kernel, blocking=None, saved_share=0.0) if kernel in refused else kernel
        for kernel in subgraph.kernels
    )
    form = Form(tuple(plain))
    return replace(subgraph, form=None if form.is_plain else form)
