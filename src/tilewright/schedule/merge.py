"""Merged stages: which subgraphs may merge, what that costs, and the program in which they are one.

A scheduler marks a stage with `strategy="merge"` and lists its subgraphs as groups of one whole instance;
`ScheduleProblem` prices it. `apply_merges` then rewrites graph, partition and schedule, so that nothing
behind it knows of merges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.graph import Graph
from tilewright.partition.base import Partition
from tilewright.partition.merge_siblings import merge_sets, merged_work
from tilewright.schedule.base import Group, Instance, Schedule, ScheduleProblem, Stage, merges, without_merges

__all__ = ["apply_merges", "merge_remarks", "merge_sets", "merge_stage", "merged_work"]


def merge_stage(subgraph_ids: Iterable[int]) -> Stage:
    """The stage that computes these subgraphs, whole, as one operator."""
    return Stage(tuple(Group((Instance(i),)) for i in sorted(subgraph_ids)), "merge")


def merge_remarks(schedule: Schedule) -> tuple[str, ...]:
    """A line for each stage that merges: what becomes one kernel."""
    subgraphs = schedule.partition.subgraphs
    merged = (
        [subgraphs[i.subgraph_id].nodes[0].name for i in stage.instances()]
        for stage in schedule.stages
        if merges(stage)
    )
    return tuple(f"{', '.join(names[:-1])} and {names[-1]} run as one kernel." for names in merged)


def apply_merges(problem: ScheduleProblem, schedule: Schedule) -> tuple[Graph, Partition, Schedule]:
    """Graph, partition and schedule with the subgraphs of each stage that merges as one; as they are without.

    Stated costs stay those of before, whose prices hold here, too.

    Raises:
        ValueError: a stage merges subgraphs that may not.
    """
    if not any(map(merges, schedule.stages)):
        return schedule.partition.graph, schedule.partition, schedule
    partition, stages, splits = without_merges(
        problem, schedule.stages, schedule.splits, is_priced_only=False
    )
    return (partition.graph, partition, replace(schedule, partition=partition, stages=stages, splits=splits))
