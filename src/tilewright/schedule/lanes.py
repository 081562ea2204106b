"""Inside of a kernel: layers that wait for nothing of each other, on groups of its cores at the same time.

A lane is a group of cores of a kernel, and the layers that it runs one after another. Lanes that run at the
same time are a section, whose layers directly follow each other among those of the subgraph; layers of no
section have all cores of the kernel. A section begins when all before it has left the cores, and ends with
its last lane. What one lane makes for another one, or for all cores, passes a level that both share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.graph import Node, Value
from tilewright.partition.base import Partition, Subgraph
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """Layers of a subgraph by their numbers, in order, on so many cores of its kernel."""

    layers: tuple[int, ...]
    num_cores: int

    def __str__(self) -> str:
        return f"{'+'.join(map(str, self.layers))} on {self.num_cores}"


Section = tuple[Lane, ...]
"""Lanes that run at the same time, the first one on the first cores."""

Sections = tuple[Section, ...]
"""Of one subgraph, in the order of their layers; none: each layer has all cores."""


@dataclass(frozen=True, slots=True, eq=False)
class LanedWork:
    """A subgraph whose kernel runs layers in lanes: one kernel, as `KernelWork`.

    `layers` are the places of each layer's nodes among `nodes`.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    layers: tuple[tuple[int, ...], ...]
    sections: Sections


def laned_work(partition: Partition, subgraph: Subgraph, sections: Sections) -> LanedWork:
    """The work of a subgraph whose layers run so."""
    place = {node: i for i, node in enumerate(subgraph.nodes)}
    layers = tuple(tuple(place[n] for n in layer.nodes) for layer in partition.layers_of(subgraph))
    return LanedWork(subgraph.nodes, subgraph.outputs, layers, sections)


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where a layer runs within its kernel: in which lane of which section, and on which of its cores."""

    section: int
    number: int
    first_core: int
    num_cores: int


def places_of(sections: Sequence[Section]) -> Iterator[tuple[int, LanePlace]]:
    """Each layer that runs in a lane, by its number, and where.

    >>> [(layer, place.first_core) for layer, place in places_of([(Lane((1, 2), 2), Lane((3,), 1))])]
    [(1, 0), (2, 0), (3, 2)]
    """
    for number, section in enumerate(sections):
        first_core = 0
        for lane_number, lane in enumerate(section):
            place = LanePlace(number, lane_number, first_core, lane.num_cores)
            yield from ((layer, place) for layer in lane.layers)
            first_core += lane.num_cores
