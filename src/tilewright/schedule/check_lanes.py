"""Independent check of what runs at the same time inside of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tilewright.ir.graph import Value
from tilewright.partition.layers import Layer
from tilewright.planning import Violation
from tilewright.schedule.base import Schedule, ScheduleProblem
from tilewright.schedule.lanes import Section, Sections


def check_lanes(problem: ScheduleProblem, schedule: Schedule) -> Iterator[Violation]:
    """Lanes where none may be; layers that there are not, that run twice, or not with their neighbours; lanes
    of one section that read from each other, or that together take more cores than there are."""
    for number, stage in enumerate(schedule.stages):
        for group in stage.groups:
            if not group.inside:
                continue
            if len(group.inside) != len(group.instances):
                yield Violation("lanes", f"stage {number}: {len(group.inside)} of {len(group.instances)}")
                continue
            for instance, sections in zip(group.instances, group.inside, strict=True):
                if not sections:
                    continue
                where = f"subgraph {instance.subgraph_id}"
                if not problem.allows_lanes:
                    yield Violation("lanes", f"{where} has lanes, which the problem does not allow")
                if stage.strategy == "merge" or not schedule.splits[instance.subgraph_id].is_whole:
                    yield Violation("lanes", f"{where} has lanes but runs in slices, or merged")
                    continue
                subgraph = schedule.partition.subgraphs[instance.subgraph_id]
                most = problem.limits.num_cores if group.num_cores is None else group.num_cores
                for what in _wrong(schedule.partition.layers_of(subgraph), sections, most):
                    yield Violation("lanes", f"{where}: {what}")


def _wrong(layers: tuple[Layer, ...], sections: Sections, most_cores: int) -> Iterator[str]:
    last = -1
    for section in sections:
        listed = sorted(layer for lane in section for layer in lane.layers)
        if len(section) < 2 or any(not lane.layers or lane.num_cores < 1 for lane in section):
            yield "a section has fewer than two lanes, or one without a layer or a core"
            continue
        if listed[0] <= last or listed[-1] >= len(layers) or any(b != a + 1 for a, b in pairwise(listed)):
            yield f"a section has layers {listed} of {len(layers)}, which do not directly follow each other"
            continue
        last = listed[-1]
        if any(a > b for lane in section for a, b in pairwise(lane.layers)):
            yield f"a lane of {listed} runs layers in another order"
        if sum(lane.num_cores for lane in section) > most_cores:
            yield f"lanes of layers {listed} take more than {most_cores} cores"
        yield from _crossed(layers, section)


def _crossed(layers: tuple[Layer, ...], section: Section) -> Iterator[str]:
    maker: dict[Value, int] = {
        value: number
        for number, lane in enumerate(section)
        for layer in lane.layers
        for value in layers[layer].outputs
    }
    for number, lane in enumerate(section):
        for layer in lane.layers:
            other = next((v for v in layers[layer].inputs if maker.get(v, number) != number), None)
            if other is not None:
                yield f"layer {layer} reads {other.name}, which another lane makes at the same time"
