"""The kernels of a schedule on a machine that launches each of them: what runs when, on how many cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.records import dataclass
from tilewright.schedule.base import Instance, Schedule
from tilewright.schedule.instances import InstanceGraph, Kind
from tilewright.schedule.lanes import LanePlace, Sections, places_of


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that is launched on its own: instances of one subgraph in sequence, by their places.

    What they collect slices into is among `nodes`. Launches of a group follow each other; groups of a stage
    run at the same time, stages in sequence. `num_cores` is the most that the kernel may take; None: all.
    `is_alone`: its stage has no other group. `sections` of lanes are those of the last of the nodes.
    """

    stage: int
    group: int
    nodes: tuple[int, ...]
    num_cores: int | None = None
    is_alone: bool = True
    sections: Sections = ()


def launches_of(schedule: Schedule, graph: InstanceGraph) -> tuple[Launch, ...]:
    """The kernels of a schedule whose subgraphs are launched separately, in the order of `instances_of`.

    Instances of a subgraph that directly follow each other are one kernel.
    """
    places = {Instance(n.subgraph_id, n.index): n.id for n in graph.nodes if n.kind is Kind.INSTANCE}
    launches: list[tuple[Launch, list[int]]] = []
    for instance, launch in _launched(schedule):
        place = places[instance]
        collects = (p for p in graph.predecessors(place) if graph.nodes[p].kind is not Kind.INSTANCE)
        nodes = (*collects, place)
        last, before = launches[-1] if launches else (None, [])
        follows = last is not None and _follows(launch, last) and not launch.sections
        if follows and graph.nodes[before[-1]].subgraph_id == instance.subgraph_id:
            before += nodes
        else:
            launches.append((launch, [*nodes]))
    return tuple(replace(launch, nodes=tuple(nodes)) for launch, nodes in launches)


def _follows(launch: Launch, last: Launch) -> bool:
    """Whether nothing but the other runs just before, on as many cores."""
    is_same_group = (launch.stage, launch.group) == (last.stage, last.group)
    return launch.num_cores == last.num_cores and (is_same_group or (launch.is_alone and last.is_alone))


def _launched(schedule: Schedule) -> Iterator[tuple[Instance, Launch]]:
    """Each instance, and where it is launched."""
    for number, stage in enumerate(schedule.stages):
        for place, group in enumerate(stage.groups):
            launch = Launch(number, place, (), group.num_cores, is_alone=len(stage.groups) == 1)
            for instance, lanes in group.sections():
                yield instance, replace(launch, sections=lanes) if lanes else launch


def most_cores(launches: Sequence[Launch]) -> Mapping[int, int]:
    """How many cores nodes may take, by their places: those of kernels that may not take all."""
    return {p: launch.num_cores for launch in launches if launch.num_cores is not None for p in launch.nodes}


def lane_places(launches: Sequence[Launch]) -> Mapping[tuple[int, int], LanePlace]:
    """Where layers run that have a lane of their kernel, by their node's place and their number."""
    return {
        (launch.nodes[-1], layer): place for launch in launches for layer, place in places_of(launch.sections)
    }
