"""Which axis the tiles of a step cut, and up to which tile of an operand each of them needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.region import Region, volume
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import ScopePlan
from tilewright.schedule.binding import extents
from tilewright.targets.npu.node_work import has_products
from tilewright.targets.npu.tiles import NUM_TILES, Tiling


def axis_of_tiles(
    plan: ScopePlan, tilings: Sequence[Tiling], step: InstanceStep, region: Region
) -> int | None:
    """The axis along which the largest operand of a step without products is made tile by tile, if the
    result has the extents for it; `tilings` are those of the steps before."""
    if any(map(has_products, step.operators)):
        return None
    reads = [(volume(read.region), read.buffer) for read in step.reads if read.buffer is not None]
    if not reads:
        return None
    _, buffer = max(reads)
    source = plan.buffers[buffer]
    made = tilings[source.first_step]
    if made.axis is None or made.num_tiles == 1 or len(source.region) != len(region):
        return None
    return made.axis if extents(region)[made.axis] >= NUM_TILES else None


def tiles_needed(
    operators: Sequence[Node],
    value: Value,
    main: Value,
    written: Mapping[Value, Region],
    source: Region,
    own: Tiling,
    made: Tiling,
    maps: RegionMaps,
) -> tuple[int, ...]:
    """Up to which tile of a value's `source`, made in the tiles `made`, each tile of a step needs it; none:
    all of it. `main` is the largest result that the step has `written`."""
    axis, source_axis = own.axis, made.axis
    if axis is None or source_axis is None or 1 in (own.num_tiles, made.num_tiles):
        return ()
    # Results as large as the main one are made tile by tile beside it, others with the last tile.
    beside = {result: r for result, r in written.items() if extents(r) == extents(written[main])}
    low, high = source[source_axis]
    needs: list[int] = []
    for tile in range(own.num_tiles):
        if tile == own.num_tiles - 1 and len(beside) < len(written):
            needs.append(made.num_tiles - 1)
            continue
        parts = {result: _cut(r, axis, tile, own.num_tiles) for result, r in beside.items()}
        region = value_regions(operators, parts, maps).get(value)
        end = low if region is None else region[source_axis][1]
        needs.append(max(0, -(-(end - low) * made.num_tiles // (high - low)) - 1))
    return tuple(needs)


def _cut(region: Region, axis: int, tile: int, num_tiles: int) -> Region:
    """A tile of a region along an axis; the element that it is a part of where others cut it further."""
    start, stop = region[axis]
    first, end = (start + (stop - start) * t // num_tiles for t in (tile, tile + 1))
    return (*region[:axis], (first, max(end, min(first + 1, stop))), *region[axis + 1 :])
