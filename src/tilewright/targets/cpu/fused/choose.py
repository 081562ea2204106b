"""Which subgraphs become one fused kernel, and in which blocks.

A chain is fused only where the estimate is well ahead of the plain kernels, which are always the alternative.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nests_of
from tilewright.ir.fuse import FusedNodes, NestGroup
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.partition.base import Partition
from tilewright.partition.form import Form
from tilewright.partition.merge_chains import Chain, is_read_only_by
from tilewright.targets.cpu.fused.estimate import Estimate, Work, saved_cycles
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.repeats import nest_facts

# Subgraphs of one chain, and nests in it: longer ones have small tensors in the end.
_MAX_CHAIN = 6
_MAX_NESTS = 24
# Saved by the first and by the last tensor within a chain, at least.
_MIN_SAVED_CYCLES = 30_000.0


def find_chains(partition: Partition, isa: Isa, fuse: FusedNodes | None = None) -> tuple[Chain, ...]:
    """The subgraphs, alone or several in a row, that are worth computing block by block, by number.

    Schedules play no part: a chain has one reader for all that it makes on the way. `fuse` remembers groups
    of the graph's nodes.
    """
    estimates = _ChainEstimates(partition, isa, fuse or FusedNodes())
    chains = (chain for run in _runs(partition) for chain in _cut_run(run, estimates))
    return tuple(sorted(chains, key=lambda chain: chain.subgraph_ids[-1]))


def _runs(partition: Partition) -> Iterator[list[int]]:
    """All subgraphs, in rows as long as possible in which each makes what only the next reads.

    Of several subgraphs that make what only one reads, the last leads to it.
    """
    before: dict[int, int] = {}
    for subgraph in partition.subgraphs:
        for reader in partition.successors(subgraph)[:1]:
            if is_read_only_by(partition, subgraph.id, reader.id):
                before[reader.id] = subgraph.id
    has_next = set(before.values())
    for subgraph in partition.subgraphs:
        if subgraph.id not in has_next:
            run = [subgraph.id]
            while run[-1] in before:
                run.append(before[run[-1]])
            yield run[::-1]


def _cut_run(run: Sequence[int], estimates: _ChainEstimates) -> list[Chain]:
    """The chains of a run of subgraphs that feed one another, with the largest gain in all."""
    best: list[tuple[float, list[Chain]]] = [(0.0, [])]  # of the last 0, 1, ... subgraphs of the run
    for first in reversed(range(len(run))):
        most = best[-1]
        for last in range(first, min(first + _MAX_CHAIN, len(run))):
            ids = tuple(run[first : last + 1])
            estimate = estimates.of(ids)
            rest_gain, rest = best[len(run) - 1 - last]
            if estimate is not None and estimate.gain + rest_gain > most[0]:
                chain = Chain(ids, estimates.form(ids, estimate))
                most = (estimate.gain + rest_gain, [chain, *rest])
        best.append(most)
    return best[-1][1]


class _ChainEstimates:
    """What chains of a partition gain."""

    def __init__(self, partition: Partition, isa: Isa, fuse: FusedNodes) -> None:
        self._subgraphs = partition.subgraphs
        self._groups = GroupEstimates(isa, fuse)
        self._isa = isa

    def of(self, ids: Sequence[int]) -> Estimate | None:
        """Of these subgraphs, one after the other; None where no blocks of them can pay."""
        subgraphs = [self._subgraphs[i] for i in ids]
        between = [s.outputs[0].size_bytes for s in subgraphs[:-1]]
        ends = (between[0], between[-1]) if between else ()
        if any(saved_cycles(size, self._isa) < _MIN_SAVED_CYCLES for size in ends):
            return None  # without its first or its last subgraph the chain saves as much
        if not between:
            return self._groups.of_one(subgraphs[0].nodes, subgraphs[0].outputs)
        return self._groups.of([n for s in subgraphs for n in s.nodes], subgraphs[-1].outputs)

    def form(self, ids: Sequence[int], estimate: Estimate) -> Form:
        """That of the subgraph that these become."""
        num_nodes = sum(len(self._subgraphs[i].nodes) for i in ids)
        return Form.whole(num_nodes, estimate.blocking, estimate.saved_share)


class GroupEstimates:
    """What computing nodes block by block gains. Equal layers of a network are estimated once."""

    def __init__(self, isa: Isa, fuse: FusedNodes) -> None:
        self._fuse = fuse
        self._isa = isa
        self._known: dict[Hashable, Estimate | None] = {}

    def of_one(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> Estimate | None:
        """Of one subgraph; None where no blocks of it can pay, as where it has less than two products."""
        if sum(len(contractions(nests_of(node))) for node in nodes) < 2:
            return None
        return self.of(nodes, outputs)

    def of(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> Estimate | None:
        """Of any nodes in topological order; None where no blocks of them can pay."""
        group = self._fuse(nodes, outputs)
        if isinstance(group, Opaque):
            return None
        facts = tuple(nest_facts(nest, {}) for nest in group.nests)
        if None in facts:
            return choose_blocking(group, self._isa)
        key = facts, tuple(v.is_constant for v in group.inputs)
        if key not in self._known:
            self._known[key] = choose_blocking(group, self._isa)
        return self._known[key]


def choose_blocking(group: NestGroup, isa: Isa) -> Estimate | None:
    """The blocks of a group's result with the largest gain; None where none can pay."""
    if len(group.outputs) != 1 or len(group.nests) > _MAX_NESTS:
        return None
    work = Work(group, isa)
    return max(work.estimates(), key=lambda e: e.gain, default=None) if work.saved else None
