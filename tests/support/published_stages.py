"""IOS's block graphs as the paper has them: which units merge, what schedules its authors published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from tilewright.bit_sets import bits
from tilewright.errors import UsageError
from tilewright.partition.base import Partition
from tilewright.schedule.base import Stage
from tilewright.schedule.ios.costs import stage_of
from tilewright.schedule.ios.endings import EndingSpace
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice
from tilewright.zoo.ios_blocks import Unit, ZooBlock, load_blocks

PUBLISHED_NETWORK = "ios_inception_v3"


def unit_merge_sets(block: ZooBlock) -> tuple[int, ...]:
    """The sets of units of which any two or more may merge, by the rule of the released code.

    Convolutions without groups of one value, of equal stride and activation, with results of equal extents.
    """
    by_kind: dict[tuple[object, ...], int] = {}
    for number, unit in enumerate(block.units):
        kind = _merge_kind(unit)
        if kind is not None:
            by_kind[kind] = by_kind.get(kind, 0) | 1 << number
    return tuple(mask for mask in by_kind.values() if mask & (mask - 1))


def _merge_kind(unit: Unit) -> tuple[object, ...] | None:
    if len(unit.steps) != 1 or len(unit.terms) != 1 or len(unit.terms[0]) != 1:
        return None
    step = unit.steps[0]
    if step.kind != "conv" or step.groups != 1:
        return None
    return unit.terms[0][0], step.stride, step.relu, unit.out_shape[1:]


@cache
def published_schedules() -> Mapping[str, tuple[tuple[StageChoice, ...], ...]]:
    """The stages of every block of Inception V3, by what they were found for: a batch size, or a GPU.

    Operator i of a block is its unit i.

    >>> sum(len(stages) for stages in published_schedules()["1"])
    55
    """
    data = resources.files("tilewright.zoo").joinpath("data", "ios_published_inception_v3.json")
    network = load_blocks(PUBLISHED_NETWORK)
    return {
        name: tuple(
            tuple(_choice(block, stage) for stage in stages)
            for block, stages in zip(network.blocks, by_block, strict=True)
        )
        for name, by_block in json.loads(data.read_text("utf-8"))["schedules"].items()
    }


def published_stages(partition: Partition, name: str) -> tuple[Stage, ...]:
    """One of them as stages of a partition of `ios_inception_v3` whose subgraphs lie in one unit each.

    Raises:
        UsageError: there is none of this name, or the subgraphs are not such.
    """
    schedules = published_schedules()
    if name not in schedules:
        raise UsageError(f"no schedule was published for {name!r}; there are {', '.join(schedules)}.")
    subgraphs_of: dict[str, tuple[int, ...]] = {}
    for subgraph in partition.subgraphs:
        # The zoo names a node by its block, its unit and what it does.
        units = {node.name.split(".")[1] for node in subgraph.nodes if node.name.count(".") > 1}
        if len(units) != 1:
            raise UsageError(f"subgraph {subgraph.name!r} is not of one unit of {PUBLISHED_NETWORK}.")
        unit = units.pop()
        subgraphs_of[unit] = (*subgraphs_of.get(unit, ()), subgraph.id)
    stages: list[Stage] = []
    for block, choices in zip(load_blocks(PUBLISHED_NETWORK).blocks, schedules[name], strict=True):
        for choice in choices:
            units_of_groups = ([block.units[i].id for i in group] for group in choice.groups)
            groups = (tuple(i for u in units for i in subgraphs_of.get(u, ())) for units in units_of_groups)
            present = tuple(group for group in groups if group)
            if present:
                stages.append(stage_of(StageChoice(present, choice.strategy)))
    return tuple(stages)


def _choice(block: ZooBlock, stage: Mapping[str, Any]) -> StageChoice:
    numbers = {unit.id: i for i, unit in enumerate(block.units)}
    if "merge" in stage:
        return StageChoice(tuple((numbers[name],) for name in stage["merge"]), "merge")
    groups = tuple(tuple(numbers[name] for name in group) for group in stage["groups"])
    return StageChoice(groups, "alone" if sum(map(len, groups)) == 1 else "parallel")


def require_valid(graph: StageGraph, stages: Sequence[StageChoice]) -> None:
    """Checks that stages run every operator once, after all that it reads, in groups without edges between.

    Raises:
        UsageError: they do not; says which operator.
    """
    done = 0
    for number, choice in enumerate(stages):
        for group in choice.groups:
            here = done
            for i in group:
                if i >= graph.num_operators or here >> i & 1 or choice.mask & done:
                    raise UsageError(f"stage {number}: operator {i} is unknown or runs twice.")
                missing = graph.predecessors[i] & ~here
                if missing:
                    names = ", ".join(graph.names[p] for p in bits(missing))
                    raise UsageError(f"stage {number}: {graph.names[i]!r} runs before {names}.")
                here |= 1 << i
        if choice.mask.bit_count() != sum(map(len, choice.groups)):
            raise UsageError(f"stage {number}: an operator runs twice.")
        done |= choice.mask
    if done != graph.everything:
        names = ", ".join(graph.names[i] for i in bits(graph.everything & ~done))
        raise UsageError(f"{names} never run.")


def count_merges(space: EndingSpace, merge_sets: Sequence[int]) -> tuple[int, int]:
    """Transitions that take one last operator, and several that merge, over all states of an unpruned graph.

    The released code counts both beside those of groups.
    """
    graph = space.graph
    states = [graph.everything]
    seen = set(states)
    num_single = num_merged = 0
    for state in states:
        sinks = graph.sinks(state)
        num_single += sinks.bit_count()
        num_merged += sum(
            2 ** (sinks & members).bit_count() - 1 - (sinks & members).bit_count() for members in merge_sets
        )
        for i in bits(sinks):
            rest = state & ~(1 << i)
            if rest and rest not in seen:
                seen.add(rest)
                states.append(rest)
    return num_single, num_merged
