"""Seconds that a layer takes of each unit at least, in any kernel that runs it whole.

In such a kernel the units do what the distribution of the layer's own result asks for, wherever operands
lie; whether products run from main memory or from the cores, the faster counts. A layer of which others may
need only a part of the result is left out: within a kernel only that part may be made.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from tilewright.hardware.capacity import local_capacity_bytes, shared_capacity_bytes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps, kernel_structure, value_regions
from tilewright.ir.region import Region, full_region, volume
from tilewright.joint.launched.times import NOTHING, LayerTime
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.binding import extents
from tilewright.targets.npu.kernels import distribution_of, leading_of
from tilewright.targets.npu.node_work import has_products, is_read, is_table
from tilewright.targets.npu.work import Works


@dataclass(frozen=True, slots=True, eq=False)
class LayerTimes:
    """Times of layers of one graph."""

    works: Works
    graph: Graph
    maps: RegionMaps

    def of(self, layers: Sequence[Sequence[Node]], in_lanes: bool) -> list[LayerTime]:
        """What each layer takes, given by its nodes in order, `in_lanes` of any number of cores, too."""
        wanted = {value: full_region(value.shape) for value in self.graph.outputs}
        needed = value_regions(self.graph.nodes, wanted, self.maps)
        known: dict[Hashable, tuple[dict[str, float], dict[str, float]]] = {}
        return [self._of_layer(nodes, needed, known, in_lanes) for nodes in layers]

    def _of_layer(
        self,
        nodes: Sequence[Node],
        needed: Mapping[Value, Region],
        known: dict[Hashable, tuple[dict[str, float], dict[str, float]]],
        in_lanes: bool,
    ) -> LayerTime:
        checkpoint()
        inside, results = set(nodes), set(self.graph.outputs)
        made = [
            v
            for node in nodes
            for v in node.results()
            if v in results or any(user not in inside for user in v.users)
        ]
        if not made or any(needed.get(v) != full_region(v.shape) for v in made):
            return NOTHING
        regions = value_regions(nodes, {v: full_region(v.shape) for v in made}, self.maps)
        outside = [v for v in regions if v.producer not in inside]
        structure = kernel_structure(nodes, made)
        if structure not in known:
            known[structure] = self._all_unit_ns(nodes, regions, in_lanes)
        whole, laned = known[structure]
        return LayerTime(
            whole,
            laned,
            {v: self._main_ns(v, regions[v]) for v in outside},
            {v: self._main_ns(v, regions[v]) for v in made},
            {name: self._main_ns(v, region) for name, v, region in self._constants(nodes, regions)},
            frozenset(v for v in made if self._is_off_chip(v)),
        )

    def _all_unit_ns(
        self, nodes: Sequence[Node], regions: Mapping[Value, Region], in_lanes: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """On all cores, and the least on any number of them where these are asked for."""
        num_cores = self.works.machine.num_cores_per_cluster
        whole = self._unit_ns(nodes, regions, num_cores)
        if not in_lanes:
            return whole, {}
        laned = dict(whole)
        for cores in range(1, num_cores):
            for unit, time_ns in self._unit_ns(nodes, regions, cores).items():
                laned[unit] = min(laned[unit], time_ns)
        return whole, laned

    def _unit_ns(
        self, nodes: Sequence[Node], regions: Mapping[Value, Region], num_cores: int
    ) -> dict[str, float]:
        if self.works.only_moves(nodes):
            return {}
        parts = [(n, regions[v]) for n in nodes for v in n.results() if v in regions]
        shape, leading = leading_of(self.works, parts, num_cores)
        found: dict[str, float] = {}
        for node in dict(parts):
            region = next(regions[v] for v in node.results() if v in regions)
            spread = leading
            if extents(region) != shape:
                spread = distribution_of(self.works, node, region, leading.num_cores)
            choices = [
                {
                    work.unit: work.seconds * 1e9
                    for work in self.works.of(node, region, spread.binding, spread.blocks, is_whole=is_whole)
                }
                for is_whole in ((False, True) if self._may_run_whole(node, region) else (False,))
            ]
            for unit in choices[0]:
                least = min(of_units.get(unit, 0.0) for of_units in choices)
                found[unit] = found.get(unit, 0.0) + least
        return found

    def _may_run_whole(self, node: Node, region: Region) -> bool:
        """Whether a step may run the mapping of its products from main memory to main memory: not of several
        sums."""
        products = self.works.products(node, region, is_whole=True) if has_products(node) else None
        return products is not None and len(products.parts) == 1

    def _constants(
        self, nodes: Sequence[Node], regions: Mapping[Value, Region]
    ) -> Iterator[tuple[str, Value, Region]]:
        """Parts of constants that are read; of tables it is not known which."""
        for node in nodes:
            value = next((v for v in node.results() if v in regions), None)
            if value is None:
                continue
            needs = self.maps.inputs_of(node, node.outputs.index(value), regions[value])
            for position, (operand, need) in enumerate(zip(node.inputs, needs, strict=True)):
                if operand is None or need is None or not operand.is_constant or operand.num_elements <= 1:
                    continue
                if is_read(node, position) and not is_table(node, position):
                    yield operand.name, operand, need

    def _is_off_chip(self, value: Value) -> bool:
        """Whether no level but main memory holds all of a value."""
        machine = self.works.machine
        shared_bytes = shared_capacity_bytes(machine)
        size_bytes = value.num_elements * self.works.types.stored(value.dtype).size_bytes
        return shared_bytes is not None and size_bytes > max(shared_bytes, local_capacity_bytes(machine))

    def _main_ns(self, value: Value, region: Region) -> float:
        element_bytes = self.works.types.stored(value.dtype).size_bytes
        if value in self.graph.inputs or value in self.graph.outputs:
            element_bytes = min(element_bytes, value.dtype.size_bytes)  # it may lie as in the file
        size_bytes = volume(region) * element_bytes
        return size_bytes / self.works.ports.main_bytes_per_s * 1e9
