"""Lower bound of one program's plans whose layers are computed in grids of boxes: what units take at least.

The bound of all plans (`lower_bound.py`) counts products as if cores and their units were always full, since
some box might fill them. Here the boxes are declared: a layer is computed whole, cut along one axis, or in a
grid along two axes of rows where these are short. What a box of each size takes of a unit the cost model
says, on the best distribution over a group of cores; halos only make boxes larger. So the cheapest boxes that
cover an axis are a knapsack, and two axes are one of knapsacks.

Besides, what units have to do waits for other work, and for the network's inputs (`waits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from typing import Any

import numpy as np

from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, kernel_structure, value_regions
from tilewright.ir.receptive import needed_elements
from tilewright.ir.region import Region, full_region, volume
from tilewright.planning import Bound, Meter, Rule
from tilewright.progress import checkpoint, interrupt_search
from tilewright.schedule.binding import extents
from tilewright.schedule.space import SCHEDULES, WITHOUT_MERGES
from tilewright.targets.npu.lower_bound import lower_bound
from tilewright.targets.npu.node_work import has_products
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.waits import Waits, deciding_axes
from tilewright.targets.npu.work import UnitWork, Works

Array = np.ndarray[Any, np.dtype[np.float64]]

ONE_PROGRAM = SCHEDULES.keeping(WITHOUT_MERGES, Rule("of one program"))
SPACE = ONE_PROGRAM.keeping(
    Rule("whose layers are cut along one axis, or two of up to 64 rows together"),
    Rule("on all cores, or on groups of half or a quarter of them"),
    Rule("none of which runs from main memory to main memory as one mapping"),
)
"""What the bound is of. Rows of a product are all axes of its result that are none of its columns."""
ON_ALL_CORES = ONE_PROGRAM.keeping(Rule("that run every step on all cores"))
BEGINS_WHOLE = Rule(
    "in which sums of products wait for parts of layers along no axis of the network's inputs"
)
_SHARES = 1, 2, 4
_SHARE_BEHIND = 0.25
"""Of the time for bounds: what is left for waits when boxes have been mapped."""
_MOST_BOXES = 64
"""Sizes of boxes of a layer along two axes; with more it is cut along one."""


def box_bounds(
    works: Works,
    graph: Graph,
    maps: RegionMaps,
    *,
    is_late: Callable[[], bool] = lambda: False,
    may_map: Callable[[], bool] = lambda: True,
    is_boxed: Callable[[], bool] = lambda: True,
    begins_whole: Callable[[], bool] = lambda: False,
) -> Iterator[Bound]:
    """Nanoseconds that any plan of `SPACE` takes at least, of `ONE_PROGRAM` where layers are not `is_boxed`,
    then those with more waits, and with those of plans that keep to `BEGINS_WHOLE` if asked for: all of them
    hold. Inputs come in the file's types where the machine converts them. First layers count as a whole, then
    as boxes: when it `is_late`, those that are not mapped yet with the tiles that they fill, and layers that
    are not cut yet as before; each that is mapped asks whether it `may_map`. O(sizes of boxes of layers of
    different structure)."""
    wanted = {value: full_region(value.shape) for value in graph.outputs}
    regions = value_regions(graph.nodes, wanted, maps)
    boxes = _Boxes(works, regions, is_late, may_map)
    waits = Waits(graph, regions, needed_elements(graph.nodes, wanted), maps, boxes.least, boxes.part)
    rate = works.ports.main_bytes_per_s
    elements_s = {
        v: (v.dtype if works.types.keeps_border else works.types.stored(v.dtype)).size_bytes / rate
        for v in graph.inputs
        if v in regions
    }
    launch_ns = works.machine.overheads.kernel_launch_ns
    begins = cache(begins_whole)
    for in_boxes in (False, True):
        if in_boxes:
            if is_late() or not is_boxed():
                return
            boxes.cut(graph.nodes)
        space = SPACE if in_boxes else ONE_PROGRAM
        why = "least work of boxes" if in_boxes else "least work and waits"
        for seconds in waits.barriers_s(elements_s):
            yield Bound(launch_ns + seconds * 1e9, space, why)
        if begins():
            for value, element_s in elements_s.items():
                for seconds in waits.arrivals_s(value, element_s):
                    yield Bound(launch_ns + seconds * 1e9, space.keeping(BEGINS_WHOLE), why)


def bound_in_time(plan: SimulatedPlan, works: Works, graph: Graph, meter: Meter) -> Bound | None:
    """The highest of the bounds of all plans that keep to what this one does, as far as they are there when
    the meter is over, or the user interrupts; None: none is. What is left of the time is for mappings, but a
    part; of evaluations a box that is mapped is one."""
    most_s, most = (meter.left_s or 0.0) * _SHARE_BEHIND, meter.budget.max_evaluations

    def is_late() -> bool:
        left_s = meter.left_s
        return meter.num_evaluations >= most if left_s is None else left_s < most_s

    best: Bound | None = None
    with meter.ending_early():
        try:
            for bound in chain(
                _on_all_cores(plan, works, graph),
                box_bounds(
                    works,
                    graph,
                    plan.instances.maps,
                    is_late=is_late,
                    may_map=meter.spend,
                    is_boxed=lambda: is_in_space(plan, works),
                    begins_whole=lambda: begins_whole(plan),
                ),
            ):
                if best is None or bound.value > best.value:
                    best = bound
        except KeyboardInterrupt:  # the search before ends, too, and its answer stands
            if not interrupt_search():
                raise
    return best


def _on_all_cores(plan: SimulatedPlan, works: Works, graph: Graph) -> Iterator[Bound]:
    """The bound of all plans for those that run each step on all cores, if this one does and weights stay on
    the chip: less of them do where no groups hold some."""
    steps = plan.simulation.steps
    if plan.simulation.residents.scopes and all(step.group is None for step in steps):
        policy = Policy(resident_weights=True)
        least = works.least_seconds(graph, plan.instances.maps, converts=works.types.keeps_border)
        seconds, unit = lower_bound(steps, works.machine, policy, least, in_groups=False)
        yield Bound(
            seconds * 1e9, SCHEDULES.keeping(WITHOUT_MERGES, Rule("on all cores")), f"least work of {unit}"
        )


def begins_whole(plan: SimulatedPlan) -> bool:
    """Whether a plan keeps the rule `BEGINS_WHOLE`: tiles of steps that multiply wait for the last tile of
    whatever else makes what they read, or all are for the same part of the inputs; and steps that read a
    network input tile by tile read it once, no more of it than they need, and complete what each tile is
    for."""
    steps = plan.simulation.steps
    decided = cache(lambda: deciding_axes(plan.partition.graph))
    for step, lowered in zip(plan.scopes.steps, steps, strict=True):
        checkpoint()
        multiplying = [node.output for node in step.operators if has_products(node)]
        num_tiles, axis = lowered.tiling.num_tiles, lowered.tiling.axis
        for load, passage in zip(lowered.loads, lowered.tiling.loads, strict=True):
            if load.producer is not None:
                last = steps[load.producer].tiling.num_tiles - 1
                waits_whole = not load.tiles or num_tiles == 1 or min(load.tiles) >= last
                if not waits_whole and any(axis is None or axis in decided().get(v, ()) for v in multiplying):
                    return False
            elif not (passage.is_kept or num_tiles == 1):
                if axis is None or lowered.tiling.is_summed or _num_reads(step.operators, load.value) > 1:
                    return False
                if not (multiplying or len(step.operators) == 1):
                    return False
                made = {plan.scopes.buffers[i].value: plan.scopes.buffers[i].region for i in step.writes}
                needed = value_regions(step.operators, made, plan.instances.maps)
                if (load.value, load.region) not in {(v.name, region) for v, region in needed.items()}:
                    return False
    return True


def _num_reads(operators: Iterable[Node], name: str) -> int:
    """How many accesses of operators are to a value of a name."""
    return sum(
        operand is not None and operand.name == name and access.operand.key == ("input", place)
        for node in operators
        for place, operand in enumerate(node.inputs)
        for nest in nests_of(node)
        for access in nest.reads
    )


def is_in_space(plan: SimulatedPlan, works: Works) -> bool:
    """Whether a plan keeps the rules of the space."""
    graph, maps = plan.partition.graph, plan.instances.maps
    regions = value_regions(graph.nodes, {v: full_region(v.shape) for v in graph.outputs}, maps)
    for step, lowered in zip(plan.scopes.steps, plan.simulation.steps, strict=True):
        checkpoint()
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


class _Boxes:
    """Least work of layers, and once they are cut over covers of their results by boxes; layers of equal
    structure are looked at once."""

    def __init__(
        self,
        works: Works,
        regions: Mapping[Value, Region],
        is_late: Callable[[], bool],
        may_map: Callable[[], bool],
    ) -> None:
        self.works, self.regions, self.is_late, self.may_map = works, regions, is_late, may_map
        self.known: dict[Hashable, dict[int, Mapping[str, float]]] = {}
        self.covers: dict[Hashable, Sequence[_Cover]] = {}

    def cut(self, nodes: Iterable[Node]) -> None:
        """Cut layers into boxes as long as there is time, those that take most first."""
        work_of: dict[Hashable, tuple[float, Node]] = {}
        for node in nodes:
            if node.output in self.regions and has_products(node) and self.works.machine.threads is None:
                key, region = self._key(node), self.regions[node.output]
                before, _ = work_of.get(key, (0.0, node))
                work_of[key] = before + self.works.at_least(node, region)[0].seconds, node
        for key, (_, node) in sorted(work_of.items(), key=lambda item: -item[1][0]):
            if self.is_late():
                break
            covers = self.covers[key] = self._covers(node, self.regions[node.output])
            while not self.is_late() and min(covers, key=lambda c: c.least).refine():
                pass
        self.known.clear()

    def least(self, node: Node, num_elements: int) -> Mapping[str, float]:
        """Seconds of each unit, at least, of all boxes that hold any so many elements of a node's result;
        where nothing is multiplied, of the tiles that do."""
        region = self.regions[node.output]
        if not has_products(node) and num_elements < volume(region):
            return self.part(node, num_elements)
        key = self._key(node)
        known = self.known.setdefault(key, {})
        if num_elements not in known:
            is_whole = num_elements == volume(region)
            works = [*self.works.at_least(node, region)] if is_whole else self._shared(node, num_elements)
            if works and key in self.covers:
                seconds = min(cover.least_of(num_elements) for cover in self.covers[key])
                works[0] = replace(works[0], seconds=max(works[0].seconds, seconds))
            known[num_elements] = _summed(works)
        return known[num_elements]

    def _key(self, node: Node) -> Hashable:
        structure = kernel_structure((node,), (node.output,))
        return structure, node.outputs.index(node.output), self.regions[node.output]

    def part(self, node: Node, num_elements: int) -> Mapping[str, float]:
        """Seconds of tiles that hold so many elements: tiles of a box take equal times, but one of them may
        hold nearly twice as much as another one."""
        return {unit: seconds / 2 for unit, seconds in _summed(self._shared(node, num_elements)).items()}

    def _shared(self, node: Node, num_elements: int) -> list[UnitWork]:
        region = self.regions[node.output]
        share = num_elements / max(1, volume(region))
        works = [replace(w, seconds=w.seconds * share) for w in self.works.of(node, region, None)]
        busy = self.works.busy_share(node)
        return [replace(w, seconds=w.seconds / busy) for w in works[:1]] + works[1:]

    def _covers(self, node: Node, region: Region) -> Sequence[_Cover]:
        """All ways to cut a region. Boxes count with the tiles that they fill until a least cover of all of
        it holds them; then they are mapped."""
        return [_Cover(self, node, region, axes) for axes in _cuts(self.works, node, extents(region))]

    def of_box(self, node: Node, box: Region) -> float:
        """Seconds of the unit that multiplies for a box on the group of cores that has least to do, as all
        cores' work."""
        works = self.works
        num_cores = works.machine.num_cores_per_cluster
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
            checkpoint()
            self.table[place] = boxes.works.at_least(node, self._box(place))[0].seconds
        self.least, self.used = _cover(self.table)

    def least_of(self, num_elements: int) -> float:
        """Seconds of boxes that hold so many elements of the region, whichever."""
        if num_elements <= 0:
            return 0.0
        if num_elements == volume(self.region):
            return self.least
        if self.table.ndim != 1:
            sizes = np.array([volume(self._box(place)) for place in np.ndindex(self.table.shape)])
            each = self.table.ravel() / sizes
            return float(max(num_elements * each.min(), self.table.min(initial=np.inf)))
        at_least = np.minimum.accumulate(self.table[::-1])[::-1]  # of boxes as large, or larger
        count = -(-num_elements * len(self.table) // volume(self.region))
        return float(_knapsack(at_least[:count])[0][-1])

    def _box(self, place: tuple[int, ...]) -> Region:
        box = list(self.region)
        for axis, last in zip(self.axes, place, strict=True):
            box[axis] = (box[axis][0], box[axis][0] + last + 1)
        return tuple(box)

    def refine(self) -> bool:
        """Map the boxes of the least cover as long as there is time; False if they are."""
        found = [place for place in self.used if not self.is_mapped[place]]
        for place in found:
            if self.boxes.is_late() or not self.boxes.may_map():
                break
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
    least, last = _knapsack(np.array([seconds for seconds, _ in strips]))
    number = len(strips)
    used: dict[tuple[int, ...], None] = {}
    length = number
    while length > 0:
        size = number - int(last[length])
        used.update(((size - 1, *place), None) for place in strips[size - 1][1])
        length -= size
    return float(least[-1]), list(used)


def _knapsack(costs: Array) -> tuple[Array, np.ndarray[Any, np.dtype[np.int_]]]:
    """The least sum of boxes that cover each length, where boxes of 1, 2 and more cost so much, and which box
    is the last, counted from the largest on."""
    number = len(costs)
    last = np.zeros(number + 1, int)
    # Of lengths from -number on, so that what boxes of all sizes leave of a length lies in a row: what is
    # covered beyond the end costs nothing.
    least, of_largest_first = np.zeros(2 * number + 1), costs[::-1].copy()
    for length in range(1, number + 1):
        sums = of_largest_first + least[length : length + number]
        last[length] = place = sums.argmin()
        least[number + length] = sums[place]
    return least[number:], last
