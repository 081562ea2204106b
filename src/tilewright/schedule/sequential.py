"""One subgraph after another, each with the whole machine. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from tilewright.ir.graph import Value
from tilewright.partition.base import Partition, Subgraph
from tilewright.planning import Budget, Provenance, option
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule, ScheduleProblem, build_schedule, single


@dataclass(frozen=True, slots=True)
class Sequential:
    """A topological order: the graph's own, or the one that grows the live memory least at each step."""

    order: Literal["graph", "memory"] = option(
        "graph", "The order of the graph, or the one that grows the live memory least."
    )
    name: ClassVar[str] = "sequential"

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """One stage per subgraph; the budget is not needed."""
        partition = problem.partition
        ids = (
            range(len(partition.subgraphs)) if self.order == "graph" else list(least_growth_order(partition))
        )
        provenance = Provenance(self.name, num_evaluations=1, note=f"{self.order} order")
        return build_schedule(problem, tuple(single(i) for i in ids), provenance)


def least_growth_order(partition: Partition) -> Iterator[int]:
    """Among ready subgraphs, the one that adds fewest live bytes (made minus freed); ties by number.

    O(subgraphs x ready subgraphs).
    """
    waiting = {s.id: len(partition.predecessors(s)) for s in partition.subgraphs}
    readers = _num_readers(partition)
    ready = [i for i, count in waiting.items() if count == 0]
    while ready:
        checkpoint()
        chosen = min(ready, key=lambda i: (_growth_bytes(partition.subgraphs[i], readers), i))
        ready.remove(chosen)
        yield chosen
        subgraph = partition.subgraphs[chosen]
        for value in subgraph.inputs:
            readers[value] -= 1
        for successor in partition.successors(subgraph):
            waiting[successor.id] -= 1
            if waiting[successor.id] == 0:
                ready.append(successor.id)


def _num_readers(partition: Partition) -> dict[Value, int]:
    readers: dict[Value, int] = {}
    for subgraph in partition.subgraphs:
        for value in subgraph.inputs:
            readers[value] = readers.get(value, 0) + 1
    # What the user gave or gets is not freed.
    for value in (*partition.graph.inputs, *partition.graph.outputs):
        readers[value] = readers.get(value, 0) + 1
    return readers


def _growth_bytes(subgraph: Subgraph, readers: dict[Value, int]) -> int:
    made = sum(v.size_bytes for v in subgraph.outputs)
    return made - sum(v.size_bytes for v in subgraph.inputs if readers[v] == 1)
