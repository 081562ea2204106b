"""Lower bound of one program's plans whose layers are computed in grids of boxes: what units take at least.

The bound of all plans (`lower_bound.py`) counts products as if cores and their units were always full, since
some box might fill them. Here the boxes are declared: a layer is computed whole, cut along one axis, or in a
grid along two axes of rows where these are short. What a box of each size takes of a unit the cost model
says, on the best distribution over a group of cores; halos only make boxes larger. So the cheapest boxes that
cover an axis are a knapsack, and two axes are one of knapsacks.

Besides, what needs all of a value begins when everything that makes it has ended: where each element of a
result needs all of an operand, the busiest units before and behind follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np

from tilewright.hardware.machine import Machine
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, kernel_structure, value_regions
from tilewright.ir.region import Region, full_region
from tilewright.planning import Bound, Rule
from tilewright.progress import checkpoint
from tilewright.schedule.binding import extents
from tilewright.schedule.space import SCHEDULES, WITHOUT_MERGES
from tilewright.targets.npu.node_work import has_products
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.work import UnitWork, Works

Array = np.ndarray[Any, np.dtype[np.float64]]

SPACE = SCHEDULES.keeping(
    WITHOUT_MERGES,
    Rule("of one program"),
    Rule("whose layers are cut along one axis, or two of up to 64 rows together"),
    Rule("on all cores, or on groups of half or a quarter of them"),
    Rule("none of which runs from main memory to main memory as one mapping"),
)
"""What the bound is of. Rows of a product are all axes of its result that are none of its columns."""
_SHARES = 1, 2, 4
_MOST_BOXES = 64
"""Sizes of boxes of a layer along two axes; with more it is cut along one."""


def box_bound(
    works: Works,
    graph: Graph,
    maps: RegionMaps,
    machine: Machine,
    input_s: float,
    is_over: Callable[[], bool] = lambda: False,
) -> Bound:
    """Nanoseconds that any plan of the space takes at least. `input_s` are seconds that the network's inputs
    pass main memory's port. When it `is_over`, boxes that are not mapped yet count with the tiles that they
    fill: a lower bound, too. O(sizes of boxes of layers of different structure)."""
    wanted = {value: full_region(value.shape) for value in graph.outputs}
    regions = value_regions(graph.nodes, wanted, maps)
    boxes = _Boxes(works, machine, is_over)
    nodes = [node for node in graph.nodes if node.output in regions]
    least = {node: boxes.least(node, regions[node.output]) for node in nodes}
    seconds = _busiest(least.values())
    for before, behind in _sections(graph, regions, maps):
        come_s = input_s if all(v in before for v in graph.inputs if v in regions) else 0.0
        # What comes before is no more than the operand needs; the rest of a layer may run behind.
        made = (boxes.least(n, before[n.output]) for n in nodes if n.output in before)
        made_s = max(come_s, _busiest(made))
        seconds = max(seconds, made_s + _busiest(least[n] for n in nodes if n in behind))
    launch_ns = machine.overheads.kernel_launch_ns
    return Bound(launch_ns + seconds * 1e9, SPACE, "least work of boxes")


def is_in_space(plan: SimulatedPlan, works: Works) -> bool:
    """Whether a plan keeps the rules of the space."""
    graph, maps = plan.partition.graph, plan.instances.maps
    regions = value_regions(graph.nodes, {v: full_region(v.shape) for v in graph.outputs}, maps)
    for step, lowered in zip(plan.scopes.steps, plan.simulation.steps, strict=True):
        if lowered.tiling.is_mapped or (lowered.group and 1 / lowered.group.share not in _SHARES):
            return False
        made = {plan.scopes.buffers[i].value: plan.scopes.buffers[i].region for i in step.writes}
        touched = value_regions(step.operators, made, maps)
        for node in filter(has_products, step.operators):
            whole, own = regions.get(node.output), touched.get(node.output)
            if whole is None or own is None:
                continue
            sizes = extents(whole)
            cut = {a for a, (size, part) in enumerate(zip(sizes, extents(own), strict=True)) if part < size}
            if not any(cut <= set(axes) for axes in _cuts(works, node, sizes)):
                return False
    return True


def _cuts(works: Works, node: Node, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Sets of axes along which boxes of a result may be cut."""
    shape = works.shape(node)
    columns = frozenset() if shape is None else shape.columns
    long = [axis for axis, size in enumerate(sizes) if size > 1]
    rows = [axis for axis in long if axis not in columns]
    pairs = [(a, b) for a, b in combinations(rows, 2) if sizes[a] * sizes[b] <= _MOST_BOXES]
    return [*pairs, *((axis,) for axis in long)] or [()]


def _busiest(works: Iterable[Mapping[str, float]]) -> float:
    """Seconds of the unit that has most to do."""
    total: dict[str, float] = {}
    for work in works:
        for unit, seconds in work.items():
            total[unit] = total.get(unit, 0.0) + seconds
    return max(total.values(), default=0.0)


class _Boxes:
    """Least work of layers over covers of their results by boxes; layers of equal structure are looked at
    once."""

    def __init__(self, works: Works, machine: Machine, is_over: Callable[[], bool]) -> None:
        self.works, self.machine, self.is_over = works, machine, is_over
        self.known: dict[Hashable, Mapping[str, float]] = {}

    def least(self, node: Node, region: Region) -> Mapping[str, float]:
        """Seconds of each unit, at least, to make a region of a node's result."""
        key = kernel_structure((node,), (node.output,)), node.outputs.index(node.output), region
        if key not in self.known:
            is_cut = has_products(node) and self.machine.threads is None
            self.known[key] = (
                self._covered(node, region) if is_cut else _summed(self.works.at_least(node, region))
            )
        return self.known[key]

    def _covered(self, node: Node, region: Region) -> Mapping[str, float]:
        """The same over grids of boxes, of the unit that multiplies. Boxes count with the tiles that they
        fill until a least cover holds them; then they are mapped."""
        main, *rest = self.works.at_least(node, region)
        covers = [_Cover(self, node, region, axes) for axes in _cuts(self.works, node, extents(region))]
        cover = min(covers, key=lambda c: c.least)
        while not self.is_over() and cover.refine():
            cover = min(covers, key=lambda c: c.least)
        return _summed([replace(main, seconds=cover.least), *rest])

    def of_box(self, node: Node, box: Region) -> float:
        """Seconds of the unit that multiplies for a box on the group of cores that has least to do, as all
        cores' work."""
        num_cores, works = self.machine.num_cores_per_cluster, self.works
        return min(
            works.of(node, box, works.fewest_cores(node, box, num_cores // share))[0].seconds / share
            for share in _SHARES
            if num_cores % share == 0
        )


class _Cover:
    """The least sum of boxes that cover a region along some axes, as far as boxes are mapped."""

    def __init__(self, boxes: _Boxes, node: Node, region: Region, axes: tuple[int, ...]) -> None:
        self.boxes, self.node, self.region, self.axes = boxes, node, region, axes
        shape = tuple(region[axis][1] - region[axis][0] for axis in axes)
        self.table = np.zeros(shape)
        self.is_mapped = np.zeros(shape, bool)
        for place in np.ndindex(shape):
            self.table[place] = boxes.works.at_least(node, self._box(place))[0].seconds
        self.least, self.used = _cover(self.table)

    def _box(self, place: tuple[int, ...]) -> Region:
        box = list(self.region)
        for axis, last in zip(self.axes, place, strict=True):
            box[axis] = (box[axis][0], box[axis][0] + last + 1)
        return tuple(box)

    def refine(self) -> bool:
        """Map the boxes of the least cover; False if they are."""
        found = [place for place in self.used if not self.is_mapped[place]]
        for place in found:
            checkpoint()
            seconds = self.boxes.of_box(self.node, self._box(place))
            self.table[place] = max(self.table[place], seconds)
            self.is_mapped[place] = True
        self.least, self.used = _cover(self.table)
        return bool(found)


def _summed(works: Iterable[UnitWork]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for work in works:
        seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds
    return seconds


def _cover(table: Array) -> tuple[float, list[tuple[int, ...]]]:
    """The least sum of boxes that cover a line, or a rectangle in a grid, by their sizes along each axis, and
    the places of these in the table; of covers that are as good one of large boxes."""
    if table.ndim == 0:
        return float(table), [()]
    strips: Sequence[tuple[float, list[tuple[int, ...]]]] = [_cover(row) for row in table]
    costs = np.array([seconds for seconds, _ in strips])[::-1]  # the largest first
    number = len(costs)
    least, last = np.zeros(number + 1), np.zeros(number + 1, int)
    left = np.arange(number + 1)[:, None] - np.arange(number, 0, -1)  # what a box of each size leaves
    np.maximum(left, 0, out=left)
    for length in range(1, number + 1):
        sums = costs + least[left[length]]
        last[length] = np.argmin(sums)
        least[length] = sums[last[length]]
    used: dict[tuple[int, ...], None] = {}
    length = number
    while length > 0:
        size = number - int(last[length])
        used.update(((size - 1, *place), None) for place in strips[size - 1][1])
        length -= size
    return float(least[-1]), list(used)


def _sections(
    graph: Graph, regions: Mapping[Value, Region], maps: RegionMaps
) -> Iterator[tuple[Mapping[Value, Region], Mapping[Node, None]]]:
    """What an operand needs, and the nodes that run when it is whole: of each operand of a sum of products of
    which every element of the result needs all."""
    for node in filter(has_products, graph.nodes):
        if node.output not in regions or len(nests_of(node)) != 1:
            continue
        needs = _needs_of_corners(node, regions, maps)
        for position, operand in enumerate(node.inputs):
            if operand is None or operand.producer is None or operand not in regions:
                continue
            if all(need[position] == regions[operand] for need in needs):
                before = value_regions(graph.nodes, {operand: regions[operand]}, maps)
                yield before, _behind(graph, node, regions, maps)


def _needs_of_corners(
    node: Node, regions: Mapping[Value, Region], maps: RegionMaps
) -> list[Sequence[Region | None]]:
    """What the first and last elements of a result along each axis read: where accesses are affine, all
    between read no less than these do."""
    corners = product(*(sorted({0, size - 1}) for size in extents(regions[node.output])))
    return [maps.inputs_of(node, 0, tuple((at, at + 1) for at in corner)) for corner in corners]


def _behind(graph: Graph, first: Node, regions: Mapping[Value, Region], maps: RegionMaps) -> dict[Node, None]:
    """A node and those of which every element needs some of its result."""
    found: dict[Node, None] = {first: None}
    for node in graph.nodes:
        read = [i for i, v in enumerate(node.inputs) if v is not None and v.producer in found]
        if not read or node in found or node.output not in regions or len(nests_of(node)) != 1:
            continue
        needs = _needs_of_corners(node, regions, maps)
        if any(all(need[position] is not None for need in needs) for position in read):
            found[node] = None
    return found
