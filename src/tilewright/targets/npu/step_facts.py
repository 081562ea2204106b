"""What the steps of a plan touch and need, whatever their tiles are: regions of values, and weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps, value_regions
from tilewright.ir.region import Region, full_region, hull, volume
from tilewright.known_facts import KnownFacts
from tilewright.memory.instances import InstanceStep
from tilewright.memory.scopes import ScopePlan
from tilewright.progress import checkpoint
from tilewright.schedule.binding import Bindings, extents
from tilewright.targets.npu.kernels import ProgramCores, StepCores
from tilewright.targets.npu.node_work import is_read, is_table
from tilewright.targets.npu.simulated_step import Weight
from tilewright.targets.npu.tile_requests import RequestPart
from tilewright.targets.npu.work import Works


@dataclass(frozen=True, slots=True, eq=False)
class StepRegions:
    """The regions of all values of a step, of which `main` is the largest that it makes, and the `shapes` of
    what its operators make. Steps of the same operators that make the same regions share one: what follows
    from these is known by it."""

    regions: Mapping[Value, Region]
    main: Value
    shapes: tuple[tuple[int, ...], ...]


class StepFacts:
    """Facts of the steps of one plan, whose operators `cores` distribute; `known` are those of steps of other
    plans of the graph, too."""

    def __init__(
        self,
        plan: ScopePlan,
        bindings: Bindings,
        works: Works,
        cores: StepCores | ProgramCores,
        known: KnownFacts,
    ) -> None:
        self.plan, self.graph, self.bindings = plan, plan.graph, bindings
        self.works, self.cores, self.known = works, cores, known
        sizes = plan.graph.partition.element_bytes
        self.sizes = None if sizes is None else tuple(sizes.items())
        self.regions: dict[InstanceStep, StepRegions] = {}

    def made(self, step: InstanceStep) -> dict[Value, Region]:
        """What a step writes."""
        written = (self.plan.buffers[i] for i in step.writes)
        return {buffer.value: buffer.region for buffer in written}

    def regions_of(self, step: InstanceStep) -> StepRegions:
        """The regions of all values of a step."""
        found = self.regions.get(step)
        if found is None:
            made = self.made(step)
            key = ("regions", self.sizes, step.operators, *made.items())
            found = self.known.of(key, lambda: _step_regions(step.operators, made, self.graph.maps))
            self.regions[step] = found
        return found

    def spread(self, step: InstanceStep) -> Hashable:
        """What, beside the regions that it makes, the distribution of a step over cores follows from."""
        num_cores = self.bindings.cores_of(step.node, step.layer)
        if self.bindings.launches:
            return num_cores
        node = self.graph.nodes[step.node]
        split = self.graph.splits[node.subgraph_id]
        return tuple(node.outputs), self.bindings.bindings[step.node], bool(split.cores), num_cores

    def weights_of(self, step: InstanceStep) -> list[tuple[Weight, RequestPart]]:
        """The constants that a step needs; two operators that read the same part of one share it."""
        exact = self.regions_of(step)
        key = ("weights", exact, self.spread(step))
        return self.known.of(key, lambda: self._new_weights(step, exact.regions))

    def _new_weights(
        self, step: InstanceStep, regions: Mapping[Value, Region]
    ) -> list[tuple[Weight, RequestPart]]:
        found: dict[tuple[object, ...], tuple[Weight, RequestPart]] = {}
        for node in step.operators:
            value = next((v for v in node.results() if v in regions), None)
            if value is None:
                continue  # it makes nothing here
            copies = 0
            for position, operand in enumerate(node.inputs):
                if operand is None or not operand.is_constant or operand.num_elements <= 1:
                    continue
                if not is_read(node, position):
                    continue
                if is_table(node, position):
                    whole = self.graph.bytes_of(operand, full_region(operand.shape))
                    size = min(whole, self.graph.bytes_of(value, regions[value]))
                    # Of a table as much as is made of it comes, wherever it lies.
                    rows = RequestPart(value, regions[value], size)
                    found[node, position] = Weight(None, size), rows
                    continue
                part = _part_of_constant(node, position, regions, self.graph.maps)
                if part is not None:
                    copies = copies or self._copies(step, node, regions)
                    known = found.get((operand.name, part))
                    most = copies if known is None else max(copies, known[0].num_copies)
                    size = self.graph.bytes_of(operand, part)
                    weight = Weight(operand.name, size, part, most)
                    found[operand.name, part] = (
                        weight,
                        RequestPart(operand, part, size, reader=(node, position)),
                    )
        return list(found.values())

    def _copies(self, step: InstanceStep, node: Node, regions: Mapping[Value, Region]) -> int:
        """How many cores hold the same part of a node's weights."""
        binding = self.cores.of(step, node, regions).binding
        shape = self.works.shape(node)
        columns = frozenset() if shape is None else shape.columns
        return max(1, prod(b for axis, b in enumerate(binding) if axis not in columns))


def fetches(
    plan: ScopePlan, bindings: Bindings, works: Works, known: KnownFacts
) -> Iterator[tuple[int, Weight]]:
    """The weights that the steps of one program need, as often as they need them, with the number of the
    group of cores that runs the step, 0 where all cores do."""
    facts = StepFacts(plan, bindings, works, ProgramCores(plan, bindings, works, known), known)
    for step in plan.steps:
        if step.operators:
            checkpoint()
            group = 0 if bindings.cores is None else bindings.cores.of_nodes[step.node]
            yield from ((group, weight) for weight, _ in facts.weights_of(step) if weight.key is not None)


def _step_regions(operators: Sequence[Node], made: Mapping[Value, Region], maps: RegionMaps) -> StepRegions:
    """The regions of operators that make some of some values."""
    regions = value_regions(operators, made, maps)
    main = max(made, key=lambda v: volume(made[v]))
    shapes = (extents(regions[v]) for n in operators for v in n.results() if v in regions)
    return StepRegions(regions, main, tuple(shapes))


def _part_of_constant(
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
