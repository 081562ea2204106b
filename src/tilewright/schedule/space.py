"""Spaces of schedules that bounds are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose

from tilewright.planning.quality import Bound, Quality, Rule, Space

OF_PARTITION = Rule("of this partition")
SAME_MERGES = Rule("that merge as this one")
SAME_SUMS = Rule("that split sums as this one")
BEFORE_MERGES = Rule("of the partition before merges")
WITHOUT_MERGES = Rule("without merges")
WHOLE_SUMS = Rule("of whole sums")
WHOLE_SUBGRAPHS = Rule("of whole subgraphs")
WITHOUT_LANES = Rule("without lanes")
SHARED_CORES = Rule("without cores of their own for groups")
CONNECTED = Rule("with connected groups")
IN_ORDER = Rule("with groups in the order of the network")
GROUPS = "groups in a stage"
GROUP_SIZE = "subgraphs in a group"

_PLAIN = OF_PARTITION, WITHOUT_MERGES, WHOLE_SUBGRAPHS, WITHOUT_LANES, SHARED_CORES, CONNECTED, IN_ORDER
CHECKABLE = frozenset((*(rule.text for rule in _PLAIN), GROUPS, GROUP_SIZE))
"""Rules, by their texts, of which `space_of` (`base.py`) sees whether a schedule keeps them."""

SCHEDULES = Space("schedules")
"""All schedules of the network, whatever its partition; run as the target was asked to run it."""


def within_blocks(most: int) -> Rule:
    """Of schedules found block by block."""
    return Rule(f"without stages across blocks of at most {most}")


def bounds_with_merges(merged: Quality, planned: Quality) -> Iterator[Bound]:
    """Bounds of a schedule whose merges have been made: of schedules that make the same ones, then what its
    scheduler proved of those of the partition before, where that is higher and costs are equal."""
    for bound in merged.bounds:
        yield _renamed(bound, WITHOUT_MERGES, SAME_MERGES)
    if isclose(merged.cost, planned.cost, rel_tol=1e-9):
        for bound in planned.bounds:
            if bound.value > merged.highest.value:
                yield _renamed(bound, OF_PARTITION, BEFORE_MERGES)


def _renamed(bound: Bound, rule: Rule, new: Rule) -> Bound:
    rules = tuple(new if kept == rule else kept for kept in bound.space.rules)
    return replace(bound, space=Space(bound.space.of, rules))
