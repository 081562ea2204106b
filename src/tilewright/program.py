"""What a target receives: a graph, how it is cut, in which order it runs, and where its values lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.graph import Graph
from tilewright.memory.base import MemoryPlan, MemoryProblem
from tilewright.options import Options
from tilewright.partition.base import Partition
from tilewright.partition.form import Form
from tilewright.planning.portfolio import PLAIN_RECIPE, Recipe
from tilewright.records import dataclass
from tilewright.schedule.base import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Every decision that was taken before code is generated.

    `memory` is None where the target plans its own memory, because only it knows its workspaces and layouts;
    `memory_problem` is what the plan solves.
    `remarks` are lines for the report, in the order of the flow; `tuned` has one for each subgraph whose form
    was searched; `recipe` names the planners.
    """

    graph: Graph
    partition: Partition
    schedule: Schedule
    options: Options
    memory: MemoryPlan | None = None
    memory_problem: MemoryProblem | None = None
    remarks: tuple[str, ...] = ()
    recipe: Recipe = PLAIN_RECIPE
    tuned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.partition.graph is not self.graph or self.schedule.partition is not self.partition:
            raise ValueError("graph, partition and schedule of a program belong together")
        if (self.memory is None) != (self.memory_problem is None):
            raise ValueError("a program has a memory plan and its problem, or neither")

    def with_partition(self, partition: Partition) -> Program:
        """The same program with another account of the same subgraphs: their forms, the reasons of edges."""
        if partition is self.partition:
            return self
        return replace(self, partition=partition, schedule=replace(self.schedule, partition=partition))

    def with_forms(self, forms: Mapping[int, Form]) -> Program:
        """The same program with these forms of subgraphs, by number; the others keep theirs."""
        if not forms:
            return self
        subgraphs = tuple(
            s if s.id not in forms else replace(s, form=None if forms[s.id].is_plain else forms[s.id])
            for s in self.partition.subgraphs
        )
        return self.with_partition(replace(self.partition, subgraphs=subgraphs))

    def unmeasured(self) -> Program:
        """The same program without measured choices in its forms, which say nothing of other instructions.

        How forms cut subgraphs stays.
        """
        chosen = {
            subgraph.id: subgraph.form.unmeasured()
            for subgraph in self.partition.subgraphs
            if subgraph.form is not None and any(kernel.choices for kernel in subgraph.form.kernels)
        }
        return self.with_forms(chosen)
