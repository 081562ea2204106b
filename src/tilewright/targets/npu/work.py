"""What a node costs the units of one cluster: cycles of the unit that takes its class of work.

What class of work that is follows from the node (`node_work.py`); which unit takes it, how fast and at what
energy says the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import gcd, prod

from tilewright.cost.sparsity import effectual_share, skipped_share
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine, Unit, Work
from tilewright.hardware.parts import MULTIPLYING
from tilewright.ir.derive import macs, nests_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.nest import Description
from tilewright.ir.ops.registry import describe
from tilewright.ir.region import Region, full_region, volume
from tilewright.records import dataclass
from tilewright.schedule.binding import extents
from tilewright.targets.npu.blocks import Blocks, blocks_of_elements, blocks_of_products
from tilewright.targets.npu.mapped_products import MappedBy, NodeProducts, product_mapper
from tilewright.targets.npu.node_work import (
    Rest,
    Shape,
    dtypes_of,
    is_table,
    is_view,
    rest_of,
    shape_of,
    work_of,
)
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.rates import Rate, Rates

_MOST_WORDS = 8  # in which a unit computes an integer that no type of it holds
_AS_GOOD = 1.1  # times the cycles: a mapping that whole tiles slow down by no more is kept
_MOST_LEAST = 1 << 15  # bounds of parts of results that are remembered

_NodeKey = tuple[int, int, DType]


Summed = tuple[tuple[str, int, int], ...]
"""Of loops of a sum, by their dims, how many iterations a part of the sum has, and how many there are."""


@dataclass(frozen=True, slots=True)
class UnitWork:
    """Work of one node on one unit of every core: how long it takes, what it computes, and in which type.

    `products` are its sums of products as they are mapped, if it has any.
    """

    unit: str
    seconds: float
    macs: float
    ops: float
    energy_pj: float
    dtype: str
    products: NodeProducts | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """What a node does: its operation class with the types of what it takes, and what it does besides."""

    work: Work
    dtypes: tuple[DType, ...]
    macs: int
    shape: Shape | None
    rest: Rest | None


class Works:
    """The work of nodes, and of copies of them, on a machine that keeps elements as `types` say; of sums of
    products as they are mapped so."""

    def __init__(self, machine: Machine, types: ElementTypes, mapped_by: MappedBy = "search") -> None:
        self.machine, self.types = machine, types
        self.ports = ports_of(machine)
        assert machine.clock_hz is not None, "ports are only of machines that lack nothing"
        self.clock_hz = machine.clock_hz
        self.rates = Rates(machine, types)
        # By description, which copies of a node share and which is kept here so that no other takes its name.
        self._tasks: dict[_NodeKey, tuple[_Task, Description]] = {}
        self._busy: dict[_NodeKey, float] = {}
        self._least: dict[Hashable, tuple[UnitWork, ...]] = {}
        self._mapper = product_mapper(machine, mapped_by)
        self._products: dict[tuple[object, ...], NodeProducts | None] = {}

    def of(
        self,
        node: Node,
        region: Region,
        binding: tuple[int, ...] | None,
        blocks: Blocks | None = None,
        *,
        is_whole: bool = False,
        summed: Summed = (),
    ) -> tuple[UnitWork, ...]:
        """The work to make a region of a node's result, on cores as bound; none if nothing is computed.

        A node that multiplies matrices and does more, as attention does, has a share on each of two units.
        Without a binding: on all cores, with nothing left over in any tile. Blocks of threads take the place
        of the binding. Sums of products on cores as bound keep no more of a core's units busy than their
        mapping does; where `is_whole`, the mapping of the only sums says which cores have which part, too. Of
        its sums so many iterations of each loop that is `summed`, else all.
        """
        task = self._task(node)
        if task.work is Work.MOVEMENT or not volume(region):
            return ()
        elements = volume(region)
        share = elements / max(1, node.output.num_elements)
        share *= prod(length / extent for _, length, extent in summed)
        cores: float = self.machine.num_cores_per_cluster
        if binding is not None:
            # The core with the largest part decides.
            cores = elements / prod(_part(region, binding)) if blocks is None else blocks.cores_worth
        rate = self.rates.of(task.work, task.dtypes, node)
        if task.work not in MULTIPLYING:
            return (self._plain(rate, self._operations(node, rate.unit, share, elements), cores),)
        products = task.macs * share
        filled = 1.0
        if (
            task.work is Work.CONTRACTION
            and task.shape is not None
            and binding is not None
            and blocks is None
        ):
            filled = _filled(rate.unit, task.shape, region, binding)
        mapped = None if binding is None else self.products(node, region, is_whole=is_whole, summed=summed)
        if is_whole and mapped is not None and len(mapped.parts) == 1 and blocks is None:
            cores = mapped.cores_used
            filled = self._filled_whole(task, rate, region, mapped)
        pj = products * (rate.unit.mac_pj or 0.0) * effectual_share(self.machine, rate.unit)
        if mapped is not None:
            filled = min(filled, mapped.utilization)
            pj = mapped.mac_energy_pj
        cycles = products * skipped_share(self.machine, rate.unit) / (rate.of_core * cores * filled)
        main = UnitWork(rate.unit.name, cycles / self.clock_hz, products, 0.0, pj, str(rate.dtype), mapped)
        if task.rest is None:
            return (main,)
        rest = self.rates.of(task.rest.work, task.rest.dtypes, node)
        return main, self._plain(rest, task.rest.ops * share, cores)

    def products(
        self, node: Node, region: Region, *, is_whole: bool, summed: Summed = ()
    ) -> NodeProducts | None:
        """The sums of products that make a region of a node's result, mapped onto all cores; None of a node
        that has none, or that finds no mapping. `is_whole`: from main memory to main memory; else what the
        cores do, wherever operands come from. `summed` as of `of`."""
        task = self._task(node)
        if task.work not in MULTIPLYING:
            return None
        key = (id(describe(node)), node.outputs.index(node.output), extents(region), is_whole, summed)
        if key not in self._products:
            self._products[key] = self._mapped(task, node, region, is_whole=is_whole, summed=summed)
        return self._products[key]

    def _mapped(
        self, task: _Task, node: Node, region: Region, *, is_whole: bool, summed: Summed
    ) -> NodeProducts | None:
        """A mapping onto all cores; a whole one that the tiles of matrix units slow down gives way to one in
        the parts that fill these, or to none."""
        rate = self.rates.of(task.work, task.dtypes, node)
        element_bytes = self.types.stored(task.dtypes[0]).size_bytes
        num_cores = self.machine.num_cores_per_cluster
        lengths = {name: length for name, length, _ in summed}
        found = self._mapper.of_node(
            node, region, rate, element_bytes, num_cores, is_inner=not is_whole, summed=lengths
        )
        if not is_whole or found is None or len(found.parts) > 1 or self.machine.threads is not None:
            return found
        cycles = self._tiled_cycles(task, rate, region, found)
        if cycles <= found.parts[0].cost.cycles * _AS_GOOD:
            return found
        binding = self.fewest_cores(node, region, num_cores)
        spread = self._mapper.in_parts(node, region, rate, element_bytes, num_cores, binding)
        if spread is not None and (fewer := self._tiled_cycles(task, rate, region, spread)) < cycles:
            found, cycles = spread, fewer
        inner = self.products(node, region, is_whole=False)
        assert task.shape is not None, "only tiles take longer"
        filled = _filled(rate.unit, task.shape, region, binding)
        busy = min(filled, 1.0 if inner is None else inner.utilization)
        busy *= volume(region) / prod(_part(region, binding))
        (part,) = found.parts
        in_parts = max(
            [part.cycles * part.utilization * part.cores_used / busy, *(x.cycles for x in part.outer)]
        )
        return found if cycles <= in_parts * _AS_GOOD else None

    def _filled_whole(self, task: _Task, rate: Rate, region: Region, mapped: NodeProducts) -> float:
        """The share of a matrix unit's tiles that the part of a core fills, of those that have one."""
        if task.shape is None or task.work is not Work.CONTRACTION:
            return 1.0
        return _filled_by(rate.unit, task.shape, mapped.own_extents(len(region)))

    def _tiled_cycles(self, task: _Task, rate: Rate, region: Region, mapped: NodeProducts) -> float:
        """Cycles of a whole mapping of the only sums of products where units compute whole tiles."""
        (part,) = mapped.parts
        filled = self._filled_whole(task, rate, region, mapped)
        return max(float(part.cost.cycles), part.cycles * part.utilization / min(filled, part.utilization))

    def require(self, node: Node) -> None:
        """Raise if no unit has a rate for what a node does.

        Raises:
            MachineError: names unit, type and node, and the line to add.
        """
        task = self._task(node)
        rest = () if task.rest is None else ((task.rest.work, task.rest.dtypes),)
        for work, dtypes in ((task.work, task.dtypes), *rest):
            if work is not Work.MOVEMENT:
                self.rates.of(work, dtypes, node)

    def least_seconds(
        self, graph: Graph, maps: RegionMaps, *, converts: bool, in_blocks: bool = False
    ) -> dict[str, float]:
        """Seconds that each unit takes at least for a graph's results, however the graph is cut; the port of
        main memory, for those parts of the inputs that they need.

        `converts`: inputs and results keep the file's types, and are converted on their way. `in_blocks` as
        of `at_least`.
        """
        wanted = {value: full_region(value.shape) for value in graph.outputs}
        regions = value_regions(graph.nodes, wanted, maps)
        input_bytes = sum(
            volume(regions[v]) * (v.dtype if converts else self.types.stored(v.dtype)).size_bytes
            for v in graph.inputs
            if v in regions
        )
        found = {DMA: input_bytes / self.ports.main_bytes_per_s}
        works = list(self.least(graph.nodes, graph.outputs, maps, in_blocks=in_blocks))
        if converts:
            border = dict.fromkeys((*graph.inputs, *(v for v in graph.outputs if v.producer is not None)))
            works += [w for v in border if v in regions for w in self.of_conversion(v.dtype, regions[v])]
        for work in works:
            found[work.unit] = found.get(work.unit, 0.0) + work.seconds
        return found

    def least(
        self, nodes: Sequence[Node], outputs: Sequence[Value], maps: RegionMaps, *, in_blocks: bool = False
    ) -> Iterator[UnitWork]:
        """The work that results of nodes in topological order need at least, without conversions."""
        for _, works in self.least_of_nodes(nodes, outputs, maps, in_blocks=in_blocks):
            yield from works

    def least_of_nodes(
        self, nodes: Sequence[Node], outputs: Sequence[Value], maps: RegionMaps, *, in_blocks: bool = False
    ) -> Iterator[tuple[Node, tuple[UnitWork, ...]]]:
        """The same node by node, without those that results do not need."""
        wanted = {value: full_region(value.shape) for value in outputs}
        regions = maps.values_of(nodes, wanted)
        for node in nodes:
            region = regions.get(node.output)
            if region is not None:
                yield node, self.at_least(node, region, in_blocks=in_blocks)

    def at_least(self, node: Node, region: Region, *, in_blocks: bool = False) -> tuple[UnitWork, ...]:
        """The work to make a region at least, in whatever boxes it is computed, on however many cores.

        Nothing is faster than the units' tiles, nor than what the cores' buffers deliver (`busy_share`).
        `in_blocks`: where the machine has blocks of threads, sums of products are computed in these, as those
        of kernels that are launched separately are.
        """
        key = (*self._key(node), extents(region), in_blocks)
        if key not in self._least:
            if len(self._least) >= _MOST_LEAST:
                self._least.clear()
            self._least[key] = self._at_least(node, region, in_blocks)
        return self._least[key]

    def _at_least(self, node: Node, region: Region, in_blocks: bool) -> tuple[UnitWork, ...]:
        works = self.of(node, region, None)
        if not works or self._task(node).work not in MULTIPLYING:
            return works
        times = max(self._tiles_times(node, region, in_blocks), 1 / self.busy_share(node))
        return replace(works[0], seconds=works[0].seconds * times), *works[1:]

    def busy_share(self, node: Node) -> float:
        """What of the products that units could do meanwhile they do at most, whatever part of a node's sums
        they make and however it is mapped; 1 of a node that has none."""
        task = self._task(node)
        if task.work not in MULTIPLYING:
            return 1.0
        key = self._key(node)
        if key not in self._busy:
            rate = self.rates.of(task.work, task.dtypes, node)
            element_bytes = self.types.stored(task.dtypes[0]).size_bytes
            num_cores = self.machine.num_cores_per_cluster
            self._busy[key] = self._mapper.most_utilization(node, rate, element_bytes, num_cores)
        return self._busy[key]

    def _tiles_times(self, node: Node, region: Region, in_blocks: bool) -> float:
        """How many times as many elements as a region has whole tiles have at least, in whatever boxes.

        A box fills whole tiles, of a matrix unit or of blocks of threads. Boxes that cover R rows fill at
        least ceil(R / r) tiles of r rows, for each column. Where columns are one axis (or rows are, with both
        exchanged), every c-th of C columns is covered, and a box has at most ceil(own columns / c) of these.
        So all boxes fill at least ceil(R / r) * ceil(C / c) tiles. Of tiles of several shapes r and c are
        what divides all of them; and no box fills more of one than R rows and C columns would.
        """
        task = self._task(node)
        tiles = self._tiles_of(node, in_blocks)
        if not tiles or task.shape is None:
            return 1.0
        lengths = extents(region)
        axes_of = task.shape.rows, task.shape.columns
        sizes = [prod(lengths[axis] for axis in axes) for axes in axes_of]
        steps = [gcd(*sides) for sides in zip(*tiles, strict=True)]
        over = [_rounded(size, step) / size for size, step in zip(sizes, steps, strict=True)]
        is_line = any(sum(lengths[a] > 1 for a in axes) <= 1 for axes in axes_of)
        filled = max(
            prod(min(1.0, size / side) for size, side in zip(sizes, tile, strict=True)) for tile in tiles
        )
        return max(prod(over) if is_line else max(over), 1 / filled)

    def _tiles_of(self, node: Node, in_blocks: bool) -> tuple[tuple[int, ...], ...]:
        """The tiles of rows and columns in which a node's contraction is computed, whatever shares its step;
        none where it fills none."""
        task, threads = self._task(node), self.machine.threads
        if task.work is not Work.CONTRACTION or task.shape is None:
            return ()
        rate = self.rates.of(task.work, task.dtypes, node)
        if threads is None or not threads.block_tiles:
            return (rate.unit.tile[:2],) if len(rate.unit.tile) > 1 else ()
        # The operator of a step that has most to do says which blocks there are; others are element-wise.
        element_cycles = task.macs / max(1, node.output.num_elements) / rate.of_core
        if not in_blocks or task.shape.lengths or element_cycles < self._slowest_cycles:
            return ()
        return tuple(dict.fromkeys(tile for a, b in threads.block_tiles for tile in ((a, b), (b, a))))

    @cached_property
    def _slowest_cycles(self) -> float:
        """Cycles of a core's units that an element-wise operator takes at most for an element."""
        most = 0.0
        for unit in self.machine.units:
            if unit.ops_per_cycle:
                rate = min(unit.ops_per_cycle.values()) / _MOST_WORDS * unit.efficiency
                rate *= self.machine.num_units(unit) / self.machine.num_cores
                most = max(most, max([1.0, *unit.ops_per_element.values()]) / rate)
        return most

    def only_moves(self, nodes: Sequence[Node]) -> bool:
        """Whether nodes together only bring elements to other places within the cores' buffers.

        Views move nothing, nor do look-ups in a constant table, whose rows arrive where they are wanted.
        """
        if any(self._task(node).work is not Work.MOVEMENT or _looks_up(node) for node in nodes):
            return False
        return not all(node.remembered(is_view) for node in nodes)

    def of_movement(
        self, nodes: Sequence[Node], dtype: DType, elements: int, size_bytes: int, num_cores: int
    ) -> UnitWork:
        """The work to lay out anew, within so many cores, what nodes that compute nothing make together.

        A unit that computes does it where the machine says so, else what moves data between the cores.
        """
        rate = self.rates.copying(dtype)
        if rate is None:
            seconds = self.ports.local_s(size_bytes, num_cores / self.machine.num_cores_per_cluster)
            energy_pj = size_bytes * self.ports.pj_per_byte.get(CORE_DMA, 0.0)
            return UnitWork(CORE_DMA, seconds, 0.0, 0.0, energy_pj, str(self.types.stored(dtype)))
        each = max(rate.unit.ops_per_element.get(node.op_type, 1.0) for node in nodes)
        return self._plain(rate, each * elements, num_cores)

    def of_conversion(
        self, dtype: DType, region: Region, num_cores: int | None = None
    ) -> tuple[UnitWork, ...]:
        """The work to convert a region of an input or result of the network; none where it is kept so."""
        if self.types.stored(dtype) is dtype or not volume(region):
            return ()
        rate = self.rates.converting(dtype)
        each = rate.unit.ops_per_element.get("Cast", 1.0)
        cores = self.machine.num_cores_per_cluster if num_cores is None else num_cores
        return (self._plain(rate, each * volume(region), cores),)

    def fewest_cores(
        self,
        node: Node,
        region: Region,
        num_cores: int,
        along: Collection[int] | None = None,
        *,
        is_mapped: bool = True,
    ) -> tuple[int, ...]:
        """How to distribute a region of a node's result where nothing else has a say: the fewest cores among
        the fastest ways, in parts that may be uneven. More than can fill their units' tiles do not help. Cut
        `along` some axes, None: any. Without a mapping a core's units are taken to do all that their tiles
        allow."""
        task = self._task(node)
        tile: tuple[int, ...] = ()
        if task.work is Work.CONTRACTION:
            tile = self.rates.of(task.work, task.dtypes, node).unit.tile[:2]
        kinds = [""] * len(region)
        if task.shape is not None and len(tile) == 2:
            for kind, axes in (("row", task.shape.rows), ("column", task.shape.columns)):
                for axis in axes:
                    kinds[axis] = kind
        # Where no tile is to be filled what a core's units can do makes all ways as much slower.
        mapped = self.products(node, region, is_whole=False) if tile and is_mapped else None
        most = 1.0 if mapped is None else mapped.utilization
        cut = tuple(along is None or axis in along for axis in range(len(region)))
        return fewest_parts(extents(region), tuple(kinds), tile, num_cores, most, cut)

    def blocks(self, node: Node, region: Region, num_cores: int) -> Blocks | None:
        """How blocks of threads that make a region of a node's result fill cores; None where the machine does
        not say which blocks there are."""
        threads = self.machine.threads
        if threads is None or not threads.block_tiles:
            return None
        task, shape = self._task(node), self._task(node).shape
        if task.work is not Work.CONTRACTION or shape is None:
            return blocks_of_elements(threads, volume(region), num_cores)
        rows, columns = shape.product(extents(region))
        # What is neither a row nor a column counts products: the heads of attention, the samples of a batch.
        others = -(-volume(region) // max(1, rows * columns))
        return blocks_of_products(threads, rows, columns, num_cores, others)

    def cores_worth(self, node: Node) -> float:
        """How many cores would take as long for a node's result in equal parts, full tiles and no waste."""
        region, num_cores = full_region(node.output.shape), self.machine.num_cores_per_cluster
        blocks = self.blocks(node, region, num_cores)
        if blocks is not None:
            return blocks.cores_worth
        task = self._task(node)
        binding = self.fewest_cores(node, region, num_cores, is_mapped=False)
        cores = volume(region) / prod(_part(region, binding))
        if task.work is not Work.CONTRACTION or task.shape is None:
            return cores
        return cores * _filled(self.rates.of(task.work, task.dtypes, node).unit, task.shape, region, binding)

    def axes_of(self, node: Node) -> tuple[int, ...]:
        """Axes of a result in the order in which they get cores: columns last, which fill a unit's tile."""
        shape = self.shape(node)
        columns = frozenset() if shape is None else shape.columns
        return tuple(sorted(range(len(node.output.shape)), key=lambda axis: axis in columns))

    def shape(self, node: Node) -> Shape | None:
        """Rows and columns of a node's largest contraction; as `shape_of`."""
        return self._task(node).shape

    def sum_tile(self, node: Node) -> int | None:
        """How many products of a sum the tile of the matrix unit that makes a node takes; None of others."""
        task = self._task(node)
        if task.work is not Work.CONTRACTION:
            return None
        tile = self.rates.of(task.work, task.dtypes, node).unit.tile
        return tile[2] if len(tile) > 2 else None

    def _task(self, node: Node) -> _Task:
        key = self._key(node)
        if key not in self._tasks:
            work = work_of(node, self.types)
            rest = rest_of(node) if work in MULTIPLYING else None
            task = _Task(work, dtypes_of(node), macs(node), shape_of(node), rest)
            self._tasks[key] = task, describe(node)
        return self._tasks[key][0]

    @staticmethod
    def _key(node: Node) -> _NodeKey:
        """What a node has in common with its copies."""
        return id(describe(node)), node.outputs.index(node.output), node.output.dtype

    def _plain(self, rate: Rate, ops: float, cores: float) -> UnitWork:
        cycles = ops / (rate.of_core * cores)
        pj = ops * (rate.unit.op_pj or 0.0)
        return UnitWork(rate.unit.name, cycles / self.clock_hz, 0.0, ops, pj, str(rate.dtype))

    def _operations(self, node: Node, unit: Unit, share: float, elements: int) -> float:
        """Of each element that a reduction reads, else of the result, as the machine weighs the operator."""
        each = unit.ops_per_element.get(node.op_type, 1.0)
        reduced = [n.num_iterations for n in nests_of(node) if n.combine is not None]
        is_listed = node.op_type in unit.ops_per_element
        return each * (elements if is_listed or not reduced else max(reduced) * share)


def _looks_up(node: Node) -> bool:
    return any(is_table(node, position) for position, v in enumerate(node.inputs) if v and v.is_constant)


def _filled(unit: Unit, shape: Shape, region: Region, binding: tuple[int, ...]) -> float:
    """The share of a matrix unit's tile that the part of one core fills."""
    return _filled_by(unit, shape, _part(region, binding))


def _filled_by(unit: Unit, shape: Shape, own: Sequence[int]) -> float:
    """The share of a matrix unit's tile that so many elements along each axis fill."""
    if len(unit.tile) < 2:
        return 1.0
    rows, columns = shape.product(own)
    full = _rounded(rows, unit.tile[0]) * _rounded(columns, unit.tile[1])
    return rows * columns / full


def _part(region: Region, binding: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of the largest part that a core has of a region."""
    return tuple(-(-(stop - start) // b) for (start, stop), b in zip(region, binding, strict=True))


_KINDS = ("row", "column", "")
"""What axes of a result are of a product."""


@lru_cache(maxsize=1 << 14)
def fewest_parts(
    extents: tuple[int, ...],
    kinds: tuple[str, ...],
    tile: tuple[int, ...],
    num_cores: int,
    most_utilization: float,
    is_cut: tuple[bool, ...],
) -> tuple[int, ...]:
    """Parts along each axis that is cut: of those whose largest part takes least time, the fewest; of these
    the most along the first axis.

    A core's units do no more than `most_utilization` of what they could, however full their tiles are: then
    even parts count for more than full tiles.
    """
    last = max((axis for axis, is_free in enumerate(is_cut) if is_free), default=0)
    best: tuple[tuple[float, int], tuple[int, ...]] | None = None
    places = [_KINDS.index(kind) for kind in kinds]
    row, column = tile or (1, 1)

    def cost_of(sizes: Sequence[int]) -> float:
        """Elements of a part of so many rows, columns and others, of a product rounded up to whole tiles."""
        rows, columns, others = sizes
        full = _rounded(rows, row) * _rounded(columns, column) * others
        work = max(full, rows * columns * others / most_utilization)
        return float(f"{work:.12g}")  # floats that are equal but for rounding tie

    def cut(sizes: Sequence[int], axis: int, count: int) -> list[int]:
        found = list(sizes)
        found[places[axis]] *= -(-extents[axis] // count)
        return found

    def search(axis: int, counts: tuple[int, ...], left: int, sizes: Sequence[int]) -> None:
        nonlocal best
        choices = _part_counts(extents[axis], left) if is_cut[axis] else (1,)
        if axis < last:
            for count in choices:
                search(axis + 1, (*counts, count), left // count, cut(sizes, axis, count))
            return
        # More parts along the last axis that is cut never take longer: of those, the fewest as fast as most.
        least = cost_of(cut(sizes, axis, choices[-1]))
        if best is not None and least > best[0][0]:
            return
        place = bisect_left(choices, True, key=lambda count: cost_of(cut(sizes, axis, count)) <= least)
        found = (*counts, choices[place], *((1,) * (len(extents) - axis - 1)))
        cost = least, prod(found)
        if best is None or cost < best[0] or (cost == best[0] and found > best[1]):
            best = cost, found

    if not extents:
        return ()
    whole: list[int] = [1, 1, 1]
    for axis in range(last + 1, len(extents)):
        whole = cut(whole, axis, 1)
    search(0, (), num_cores, whole)
    assert best is not None
    return best[1]


@lru_cache(maxsize=1 << 12)
def _part_counts(extent: int, most: int) -> tuple[int, ...]:
    """In how many parts an axis may be cut: for each size of the largest part the fewest."""
    sizes = dict.fromkeys(-(-extent // count) for count in range(1, max(1, min(extent, most)) + 1))
    return tuple(max(1, -(-extent // max(1, size))) for size in sizes)


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step
