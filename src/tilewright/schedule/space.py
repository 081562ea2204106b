"""Spaces of schedules that bounds are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.planning.quality import Bound, Quality, Rule, Space

OF_PARTITION = Rule("of this partition")
BEFORE_MERGES = Rule("of the partition before merges")
WITHOUT_MERGES = Rule("without merges")
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


def bounds_before_merges(planned: Quality, above: float) -> Iterator[Bound]:
    """What a scheduler proved of a partition whose merges have since been made, where that is higher."""
    for bound in planned.bounds:
        if bound.value > above:
            rules = tuple(BEFORE_MERGES if rule == OF_PARTITION else rule for rule in bound.space.rules)
            yield replace(bound, space=Space(bound.space.of, rules))
