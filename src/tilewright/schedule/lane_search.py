"""Which layers of a kernel run in lanes, by what it costs: parallelism inside of fused operators (PCGC, 3.4).

Of layers that directly follow each other those that hang together are a part, which a lane runs one after
another. A run of layers that falls apart into several parts may be a section; the parts get cores so that the
last one finishes early, or as many each. What that saves is seen by pricing the whole kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import InfeasibleMapping
from tilewright.ir.derive import flops
from tilewright.ir.graph import Node
from tilewright.partition.base import Subgraph, make_subgraph
from tilewright.partition.layers import Layer
from tilewright.planning import Meter
from tilewright.progress import checkpoint
from tilewright.schedule.base import ScheduleProblem, Stage
from tilewright.schedule.lanes import Lane, Section
from tilewright.schedule.moldable import allocation, core_counts, packing
from tilewright.schedule.units import needed_unit, virtual_units

_MAX_RUN = 32
"""Layers of a section at most."""

Parts = tuple[tuple[int, ...], ...]
"""Layers, by their numbers, that wait for nothing of other parts."""


@dataclass(frozen=True, slots=True)
class LaneSearch:
    """Lanes for the kernels of stages, as far as a budget goes."""

    problem: ScheduleProblem
    meter: Meter
    min_gain: float = 0.0

    def improved(self, stage: Stage) -> Stage:
        """The stage with sections of lanes wherever they make it cost less."""
        if stage.strategy == "merge":
            return stage
        best, least = stage, self.problem.stage(stage).cost(self.problem.objective)
        for number, group in enumerate(stage.groups):
            for place, instance in enumerate(group.instances):
                for parts in parts_of(self.problem.partition.layers_of(self._subgraph(instance.subgraph_id))):
                    start = best
                    for section in self._sections(instance.subgraph_id, parts, group.num_cores):
                        checkpoint()
                        if not self.meter.spend():
                            return best
                        changed = _with_section(start, number, place, section)
                        cost = self._cost(changed)
                        if cost is not None and cost < least * (1 - self.min_gain):
                            best, least = changed, cost
        return best

    def _subgraph(self, subgraph_id: int) -> Subgraph:
        return self.problem.partition.subgraphs[subgraph_id]

    def _cost(self, stage: Stage) -> float | None:
        """None: the cores of a lane hold too little for it."""
        try:
            return self.problem.stage(stage).cost(self.problem.objective)
        except InfeasibleMapping:
            return None

    def _sections(self, subgraph_id: int, parts: Parts, given: int | None) -> Iterator[Section]:
        """Ways to give the cores of a kernel to parts, several to a lane where these are fewer."""
        total = self.problem.limits.num_cores if given is None else given
        layers = self.problem.partition.layers_of(self._subgraph(subgraph_id))
        nodes = [[n for layer in part for n in layers[layer].nodes] for part in parts]
        units = virtual_units(self.problem.machine, total)
        num_lanes = min(total, *(units[needed_unit(of_part)] for of_part in nodes))
        if num_lanes < 2:
            return
        if len(parts) > num_lanes:
            packed = packing([self._time_ns(of_part, 1) for of_part in nodes], num_lanes)
            nodes = [[n for part in lane for n in nodes[part]] for lane in packed.cores]
            parts = tuple(tuple(sorted(i for part in lane for i in parts[part])) for lane in packed.cores)
        counts = [total // len(parts)] * len(parts)
        times = [{n: self._time_ns(of_part, n) for n in core_counts(total)} for of_part in nodes]
        given_out = allocation(times, total)
        for num_cores in dict.fromkeys((given_out.num_cores if given_out else tuple(counts), tuple(counts))):
            yield tuple(map(Lane, parts, num_cores))

    def _time_ns(self, nodes: Sequence[Node], num_cores: int) -> float:
        """Of a part as a kernel of its own."""
        part = make_subgraph(0, nodes, self.problem.partition.graph)
        return self.problem.cost.kernel(part, num_cores).time_ns


def _with_section(stage: Stage, number: int, place: int, section: Section) -> Stage:
    """A stage with one more section of lanes in a kernel."""
    group = stage.groups[number]
    inside = [*(lanes for _, lanes in group.sections())]
    inside[place] = (*inside[place], section)
    groups = [*stage.groups]
    groups[number] = replace(group, inside=tuple(inside))
    return replace(stage, groups=tuple(groups))


def parts_of(layers: Sequence[Layer]) -> Iterator[Parts]:
    """Runs of layers that fall apart, none of which meets another one: from each layer on the run with the
    most work beside that of its largest part."""
    maker = {value: i for i, layer in enumerate(layers) for value in layer.outputs}
    reads = [{maker[v] for v in layer.inputs if v in maker} for layer in layers]
    work = [sum(map(flops, layer.nodes)) for layer in layers]
    yield from parts_by_work(reads, work, [layer.is_opaque for layer in layers])


def parts_by_work(
    reads: Sequence[Collection[int]], work: Sequence[float], is_opaque: Sequence[bool]
) -> Iterator[Parts]:
    """The same of layers of which each reads results of others and does so much work."""
    start = 0
    while start < len(work):
        best: Parts = ()
        most = 0.0
        parts: list[tuple[int, ...]] = []
        for layer in range(start, min(start + _MAX_RUN, len(work))):
            if is_opaque[layer]:
                break
            met = [part for part in parts if not set(part).isdisjoint(reads[layer])]
            joined = tuple(sorted((*(i for part in met for i in part), layer)))
            parts = [*(part for part in parts if part not in met), joined]
            of_parts = [sum(work[i] for i in part) for part in parts]
            if sum(of_parts) - max(of_parts) > most:
                best, most = tuple(parts), sum(of_parts) - max(of_parts)
        if best:
            yield best
        start += max(1, sum(map(len, best)))
