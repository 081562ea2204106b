"""Groups of cores that work side by side within one program: which of them runs which instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tilewright.errors import UsageError
from tilewright.schedule.base import Instance, Schedule
from tilewright.schedule.instances import Edge, InstanceGraph, Kind


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """Neighbouring cores of a cluster, from `first_core` on."""

    number: int
    first_core: int
    num_cores: int


@dataclass(frozen=True, slots=True)
class CoreGroups:
    """Disjoint groups of cores, and the number of the one that runs each node, by its place.

    What a node of one group makes for another one passes through a level that both share. `crossing` are the
    places of the nodes that make something for another group.
    """

    groups: tuple[CoreGroup, ...]
    of_nodes: tuple[int, ...]
    crossing: frozenset[int] = field(default=frozenset(), repr=False)

    def of(self, place: int) -> CoreGroup:
        """The group that runs a node."""
        return self.groups[self.of_nodes[place]]

    def is_crossed(self, edge: Edge) -> bool:
        """Whether an edge leads from one group to another."""
        return self.of_nodes[edge.producer] != self.of_nodes[edge.consumer]


def core_groups_of(schedule: Schedule, graph: InstanceGraph, num_cores: int) -> CoreGroups | None:
    """The groups of cores that a schedule names, of a cluster of so many cores; None if it names none.

    What collects slices for an instance runs where that instance does.

    Raises:
        UsageError: layers are to run in lanes, groups overlap without being equal, lie outside the cluster,
            are named for some instances alone, or take apart instances that keep rows for each other.
    """
    laned = next((i for s in schedule.stages for g in s.groups for i, lanes in g.sections() if lanes), None)
    if laned is not None:
        raise UsageError(
            f"schedule: layers of {laned} are to run at the same time on groups of their kernel's cores, but "
            "one program runs all; simulate with launches=each subgraph, or virtual-units{inside=false}."
        )
    ranges = {
        instance: None if group.first_core is None else (group.first_core, group.num_cores or 1)
        for stage in schedule.stages
        for group in stage.groups
        for instance in group.instances
    }
    named = sorted({cores for cores in ranges.values() if cores is not None})
    if not named:
        return None
    if None in ranges.values():
        without = next(str(instance) for instance, cores in ranges.items() if cores is None)
        raise UsageError(
            f"schedule: instance {without} runs on no group of cores, others do; name one for it."
        )
    for (first, count), (behind, _) in pairwise([*named, (num_cores, 0)]):
        if first < 0 or first + count > behind:
            raise UsageError(
                f"schedule: cores {first} to {first + count - 1} are a group that reaches beyond core "
                f"{behind - 1}, where the next group or the cluster's end lies; give disjoint groups of "
                f"the {num_cores} cores."
            )
    numbers = {cores: number for number, cores in enumerate(named)}
    of_nodes = tuple(
        numbers[cores]
        for node in graph.nodes
        if (cores := ranges[Instance(node.subgraph_id, node.index)]) is not None
    )
    _require_whole_chains(graph, of_nodes)
    groups = tuple(CoreGroup(number, *cores) for number, cores in enumerate(named))
    crossing = (e.producer for e in graph.edges if of_nodes[e.producer] != of_nodes[e.consumer])
    return CoreGroups(groups, of_nodes, frozenset(crossing))


def _require_whole_chains(graph: InstanceGraph, of_nodes: Sequence[int]) -> None:
    """Rows that are kept stay in the buffers of the cores that made them."""
    for before, behind in graph.waits:
        earlier, later = graph.nodes[before], graph.nodes[behind]
        keeps_rows = earlier.kind is Kind.INSTANCE and earlier.rows is not None
        if keeps_rows and earlier.subgraph_id == later.subgraph_id and of_nodes[before] != of_nodes[behind]:
            raise UsageError(
                f"schedule: instance {later} reads rows that {earlier} keeps on other cores; run both there."
            )
