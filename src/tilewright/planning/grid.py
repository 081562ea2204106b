"""Every partitioner with every scheduler as recipes of one loop, and other placements where they matter.

Planners were published one by one. The best of their combinations is what a search that decides all their
questions together has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tilewright.planning.portfolio import Recipe
from tilewright.records import dataclass

CHANCE = "random"
"""The member of a family that tests compare with: no method."""


PAPERS: Sequence[tuple[str, str, str]] = (
    ("ago", "sequential", ""),
    ("graphturbo", "depth-or-breadth-first", ""),
    ("layerwise", "sequential", "mapper=cosa"),
    ("pcgc", "virtual-units", ""),
    ("layerwise", "ios", ""),
)
"""Partitioner, scheduler and execution of each paper whose method is here."""
FAST: Sequence[tuple[str, str]] = (
    ("ago", "sequential"),
    ("graphturbo{alpha=1.25}", "depth-first{split=false}"),
)
"""What takes about as long as layers one by one to plan: of GraphTurbo whole subgraphs, grouped for a little
more than the buffers hold. Slices are many more instances, and PCGC's cheapest plan is often one of these."""
PROMISING: Sequence[tuple[str, str]] = (
    ("pcgc", "ios"),
    ("pcgc", "virtual-units"),
    ("ago", "virtual-units"),
    ("graphturbo", "virtual-units"),
    ("ago", "ios"),
    ("graphturbo", "ios"),
    ("pcgc", "sequential"),
    ("layerwise", "virtual-units"),
)
"""Pairs of methods that often are better than each alone where kernels are launched one by one."""


def of_papers(memory: str) -> Iterator[Recipe]:
    """The recipe of each paper."""
    return (Recipe(partition, schedule, memory, execution) for partition, schedule, execution in PAPERS)


def of_fast(memory: str) -> Iterator[Recipe]:
    """What is planned fastest."""
    return (Recipe(partition, schedule, memory) for partition, schedule in FAST)


def of_pairs(memory: str) -> Iterator[Recipe]:
    """Promising pairs of their methods."""
    return (Recipe(partition, schedule, memory) for partition, schedule in PROMISING)


def methods(names: Iterable[str], first: str) -> tuple[str, ...]:
    """The members of a family that are methods, the `first` of them first.

    >>> methods(("greedy", "random", "sequential"), "sequential")
    ('sequential', 'greedy')
    """
    return (first, *(name for name in names if name not in (first, CHANCE)))


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Combinations of planners by name; its length counts partitioners times schedulers.

    `others` gives the same partition and order under other memory planners and mappers. It is asked behind
    each recipe, when its plan is known, as most plans are the same under all of them.
    """

    partitions: Sequence[str]
    schedules: Sequence[str]
    memory: str
    others: Callable[[Recipe], Iterable[Recipe]]

    def __len__(self) -> int:
        return len(self.partitions) * len(self.schedules)

    def __iter__(self) -> Iterator[Recipe]:
        for partition in self.partitions:
            for schedule in self.schedules:
                recipe = Recipe(partition, schedule, self.memory)
                yield recipe
                yield from self.others(recipe)
