"""The regions of values that a step touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.region import Region, hull, volume
from tilewright.schedule.binding import extents


@dataclass(frozen=True, slots=True, eq=False)
class StepRegions:
    """The regions of all values of a step, of which `main` is the largest that it makes, and the `shapes` of
    what its operators make. Steps of the same operators that make the same regions share one: what follows
    from these is known by it."""

    regions: Mapping[Value, Region]
    main: Value
    shapes: tuple[tuple[int, ...], ...]


def step_regions(operators: Sequence[Node], made: Mapping[Value, Region], maps: RegionMaps) -> StepRegions:
    """The regions of operators that make some of some values."""
    regions = value_regions(operators, made, maps)
    main = max(made, key=lambda v: volume(made[v]))
    shapes = (extents(regions[v]) for n in operators for v in n.results() if v in regions)
    return StepRegions(regions, main, tuple(shapes))


def part_of_constant(
    node: Node, position: int, regions: Mapping[Value, Region], maps: RegionMaps
) -> Region | None:
    """The part of a constant operand that makes these regions of results: of some channels, their own."""
    found: Region | None = None
    for number, value in enumerate(node.outputs):
        if value is None or value not in regions:
            continue
        need = maps.inputs_of(node, number, regions[value])[position]
        if need is not None:
            found = need if found is None else hull(found, need)
    return found
