"""What a layer takes at least of each unit, within any kernel that runs it whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.mapping.chains.plan import ChainPlan
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """Of a layer that runs whole: ns of each unit, on all cores that its kernel has or on those of a lane;
    the latter none where they were not asked for.

    `reads_ns` and `makes_ns` are what main memory's port takes at least for a value that lies there,
    `constants_ns` what it takes for constants, by their names, once a kernel. What the layer makes `off_chip`
    is too large for any other level.
    """

    whole_ns: Mapping[str, float]
    laned_ns: Mapping[str, float]
    reads_ns: Mapping[Value, float]
    makes_ns: Mapping[Value, float]
    constants_ns: Mapping[str, float]
    off_chip: frozenset[Value] = frozenset()


NOTHING = LayerTime({}, {}, {}, {}, {})
"""Of a layer of which no time is known."""

TileJointly = Callable[[Sequence[Node], Sequence[Value]], Sequence[ChainPlan]]
"""Asks a target for joint tilings of nodes from which these values leave, the most promising ones first."""

TimeLayers = Callable[[Sequence[Sequence[Node]], bool], Sequence[LayerTime]]
"""Asks a target for the times of layers, each given by its nodes in order, in lanes of any number of cores,
too, or not: on machines of many cores these take long."""
