"""Which operators become one fused kernel, and in which blocks.

A chain is fused only where the estimate is well ahead of the plain kernels, which are always the alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.derive import is_contraction, nests_of
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.nest import Opaque
from tilewright.partition.base import Partition
from tilewright.schedule.base import Schedule
from tilewright.targets.cpu.fused.blocks import Blocking
from tilewright.targets.cpu.fused.estimate import Estimate, Work, saved_cycles
from tilewright.targets.cpu.isa import Isa

# Subgraphs of one chain, and nests in it: longer ones have small tensors in the end.
_MAX_CHAIN = 6
_MAX_NESTS = 24
# Saved by the first and by the last tensor within a chain, at least.
_MIN_SAVED_CYCLES = 30_000.0


@dataclass(frozen=True, slots=True)
class Chain:
    """Subgraphs that follow one another and are lowered together; `blocking` where that is as one kernel."""

    subgraph_ids: tuple[int, ...]
    blocking: Blocking | None = None


def find_chains(schedule: Schedule, isa: Isa) -> list[list[list[Chain]]]:
    """The schedule's stages, groups and instances, with the chains that fused kernels compute as one."""
    stages: list[list[list[Chain]]] = []
    run: list[int] = []

    def end_run() -> None:
        stages.extend([[chain]] for chain in _cut_run(schedule.partition, run, isa))
        run.clear()

    for stage in schedule.stages:
        ids = [[i.subgraph_id for i in group.instances] for group in stage.groups]
        if len(ids) == 1 and len(ids[0]) == 1:
            if run and not _feeds(schedule.partition, run[-1], ids[0][0]):
                end_run()
            run.append(ids[0][0])
        else:
            end_run()
            stages.append([[Chain((i,)) for i in group] for group in ids])
    end_run()
    return stages


def _feeds(partition: Partition, first: int, second: int) -> bool:
    """Whether all that the first subgraph makes is read by the second and by nobody else."""
    made = partition.subgraphs[first].outputs
    if len(made) != 1 or made[0] in partition.graph.outputs:
        return False
    return all(partition.subgraph_of(user).id == second for user in made[0].users)


def _cut_run(partition: Partition, run: Sequence[int], isa: Isa) -> list[Chain]:
    """The chains of a run of subgraphs that feed one another, with the largest gain in all."""
    best: list[tuple[float, list[Chain]]] = [(0.0, [])]  # of the last 0, 1, ... subgraphs of the run
    for first in reversed(range(len(run))):
        gain, chains = best[-1]
        found = (gain, [Chain((run[first],)), *chains])
        for last in range(first, min(first + _MAX_CHAIN, len(run))):
            ids = tuple(run[first : last + 1])
            estimate = _estimate_chain(partition, ids, isa)
            rest_gain, rest = best[len(run) - 1 - last]
            if estimate is not None and estimate.gain + rest_gain > found[0]:
                found = (estimate.gain + rest_gain, [Chain(ids, estimate.blocking), *rest])
        best.append(found)
    return best[-1][1]


def _estimate_chain(partition: Partition, ids: Sequence[int], isa: Isa) -> Estimate | None:
    subgraphs = [partition.subgraphs[i] for i in ids]
    between = [s.outputs[0].size_bytes for s in subgraphs[:-1]]
    if between and min(saved_cycles(size, isa) for size in (between[0], between[-1])) < _MIN_SAVED_CYCLES:
        return None  # without its first or its last subgraph the chain saves as much
    if not between and sum(is_contraction(n) for node in subgraphs[0].nodes for n in nests_of(node)) < 2:
        return None
    group = fuse_nodes([n for s in subgraphs for n in s.nodes], subgraphs[-1].outputs)
    return None if isinstance(group, Opaque) else choose_blocking(group, isa)


def choose_blocking(group: NestGroup, isa: Isa) -> Estimate | None:
    """The blocks of a group's result with the largest gain; None where none can pay."""
    if len(group.outputs) != 1 or len(group.nests) > _MAX_NESTS:
        return None
    work = Work(group, isa)
    return max(work.estimates(), key=lambda e: e.gain, default=None) if work.saved else None
