"""Tables 1 and 2: how large networks are, and the search for the largest block of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """Of a network: its blocks and units. Of its largest block: operators, width, transitions and schedules,
    where groups follow from one operator each, as in the released code.
    """

    num_blocks: int
    num_units: int
    num_operators: int
    width: int
    num_transitions: int
    num_schedules: int


def network_counts(network: str, label: str) -> NetworkCounts:
    """Of a network of the zoo, and its block of that label."""
    from tilewright.schedule.ios.counts import count
    from tilewright.schedule.ios.endings import EndingSpace
    from tilewright.schedule.ios.graph import StageGraph
    from tilewright.zoo.ios_blocks import load_blocks

    loaded = load_blocks(network)
    (block,) = [block for block in loaded.blocks if block.label == label]
    found = count(EndingSpace(StageGraph.of_block(block), "single-source"))
    return NetworkCounts(
        len(loaded.blocks),
        loaded.num_units,
        found.num_operators,
        found.width,
        found.num_transitions,
        found.num_schedules,
    )
