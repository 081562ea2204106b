"""What stages cost: the protocol that the search asks, and the memory that asks for each stage once."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.cost.base import KernelWork
from tilewright.errors import InternalError
from tilewright.schedule.base import Group, Instance, ScheduleProblem, Stage
from tilewright.schedule.ios.graph import StageGraph, bits
from tilewright.schedule.ios.stages import StageChoice, signature


@dataclass(frozen=True, slots=True)
class Bounds:
    """What stages take at least, in parts that add up.

    A stage takes `stage_ns`, and as long as `chain_ns` of dependent operators (of all operators of a group
    where `in_order`), or `area_ns` of all its operators together.
    """

    stage_ns: float
    chain_ns: tuple[float, ...]
    area_ns: tuple[float, ...]
    in_order: bool = False

    def part(self, start: int, stop: int) -> Bounds:
        """Of the operators [start, stop), numbered from 0."""
        chain_ns, area_ns = self.chain_ns[start:stop], self.area_ns[start:stop]
        return Bounds(self.stage_ns, chain_ns, area_ns, self.in_order)

    def group_ns(self, graph: StageGraph, group: int) -> float:
        """What a group of a stage takes at least, beside `stage_ns`."""
        if self.in_order:
            return sum(self.chain_ns[i] for i in bits(group))
        end: dict[int, float] = {}
        for i in bits(group):
            before = max((end[p] for p in bits(graph.predecessors[i] & group)), default=0.0)
            end[i] = before + self.chain_ns[i]
        return max(end.values())

    def stage_bound_ns(self, graph: StageGraph, mask: int) -> float:
        """What a stage of these operators takes at least."""
        longest = max(self.group_ns(graph, group) for group in graph.components(mask))
        return self.stage_ns + max(longest, sum(self.area_ns[i] for i in bits(mask)))


class StageCosts(Protocol):
    """What the stages of one graph cost. Equal questions get equal answers."""

    @property
    def bounds(self) -> Bounds:
        """What every stage takes at least."""
        ...

    def signature(self, choice: StageChoice) -> Hashable:
        """Equal for stages that cost the same."""
        ...

    def cost_ns(self, choice: StageChoice) -> float:
        """What a stage costs; may take long."""
        ...


@dataclass(slots=True)
class AskedCosts:
    """Stage costs that were asked for, each once. `num_violations`: how many lie below their bound."""

    costs: StageCosts
    graph: StageGraph
    num_asked: int = field(init=False, default=0)
    num_violations: int = field(init=False, default=0)
    _by_choice: dict[StageChoice, float] = field(init=False, default_factory=dict)
    _by_signature: dict[Hashable, float] = field(init=False, default_factory=dict)

    def known_ns(self, choice: StageChoice) -> float | None:
        """The cost, if the stage or one like it has been asked for."""
        cost = self._by_choice.get(choice)
        if cost is None:
            cost = self._by_signature.get(self.costs.signature(choice))
            if cost is not None:
                self._by_choice[choice] = cost
        return cost

    def cost_ns(self, choice: StageChoice) -> float:
        """The cost, asked for if it is not known.

        Raises:
            InternalError: it is no number, or negative.
        """
        cost = self.known_ns(choice)
        if cost is None:
            cost = self.costs.cost_ns(choice)
            if not (math.isfinite(cost) and cost >= 0):
                names = " | ".join(", ".join(self.graph.names[i] for i in group) for group in choice.groups)
                raise InternalError(
                    f"a stage ({choice.strategy}: {names}) costs {cost} ns; "
                    "expected a number that is not negative."
                )
            self.num_asked += 1
            if cost < self.bound_ns(choice) * (1 - 1e-9):
                self.num_violations += 1
            self._by_choice[choice] = self._by_signature[self.costs.signature(choice)] = cost
        return cost

    def bound_ns(self, choice: StageChoice) -> float:
        """What it costs at least."""
        return self.costs.bounds.stage_bound_ns(self.graph, choice.mask)


class ModelCosts:
    """Stages of a partition, priced by the target's cost model.

    Energies add up over stages, but none of the bounds speaks of them, nor of products of energy and time.
    """

    def __init__(self, problem: ScheduleProblem, graph: StageGraph) -> None:
        self._problem = problem
        self._graph = graph
        self._operators = [_structure(subgraph) for subgraph in problem.partition.subgraphs]
        self.bounds = self._bounds()

    def signature(self, choice: StageChoice) -> Hashable:
        """Groups by what their kernels do, in any order."""
        return signature(choice, self._operators, self._graph.predecessors)

    def cost_ns(self, choice: StageChoice) -> float:
        """By the model, under the objective; time for the product of time and energy."""
        estimate = self._problem.stage(stage_of(choice))
        return estimate.cost("energy" if self._problem.objective == "energy" else "latency")

    def _bounds(self) -> Bounds:
        problem, num_operators = self._problem, self._graph.num_operators
        nothing = (0.0,) * num_operators
        if problem.objective == "energy":
            return Bounds(0.0, nothing, nothing)
        subgraphs = problem.partition.subgraphs
        chain_ns = tuple(problem.kernel(i).bound_ns for i in range(num_operators))
        # Shares of a bound on all of them bound some of them only where nothing else goes into it.
        area_ns = tuple(problem.cost.least([s], problem.limits.num_groups).bound_ns for s in subgraphs)
        whole_ns = problem.cost.least(subgraphs, problem.limits.num_groups).bound_ns
        adds_up = sum(area_ns) <= whole_ns * (1 + 1e-9)
        return Bounds(0.0, chain_ns, area_ns if adds_up else nothing)


def stage_of(choice: StageChoice) -> Stage:
    """A choice as a stage of a schedule; operators are subgraphs."""
    cores = choice.num_cores or (None,) * len(choice.groups)
    return Stage(
        tuple(
            Group(tuple(Instance(i) for i in group), num_cores)
            for group, num_cores in zip(choice.groups, cores, strict=True)
        )
    )


def _structure(work: KernelWork) -> Hashable:
    """What the cost of a kernel depends on: its operators, what they touch and how they are connected."""
    from tilewright.ir.graph_regions import node_structure

    numbers: dict[object, int] = {}
    facts: list[Hashable] = []
    for node in work.nodes:
        operands = (*node.inputs, *node.captures, *node.outputs)
        places = tuple(None if v is None else numbers.setdefault(v, len(numbers)) for v in operands)
        kinds = tuple(None if v is None else (str(v.dtype), v.is_constant) for v in operands)
        facts.append((node.op_type, node_structure(node), places, kinds))
    return tuple(facts), tuple(numbers[v] for v in work.outputs if v in numbers)
