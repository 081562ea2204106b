"""What stages cost: the protocol that the search asks, and the memory that asks for each stage once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilewright.bit_sets import bits
from tilewright.cost.base import DistinguishesStages, SharesMachine
from tilewright.errors import InternalError
from tilewright.ir.graph_regions import kernel_structure
from tilewright.schedule.base import Group, Instance, ScheduleProblem, Stage
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice, signature
from tilewright.schedule.moldable import allocation, core_counts, packing

_ROUNDING = 1e-9  # of costs that are sums of floats
_NUM_SAMPLES = 32
_MORE_CORES = (1, 2, 4)
"""How many times the cores groups of a stage get together, where their kernels are queued."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What stages take at least, in parts that add up.

    A stage takes `stage_ns`, and as long as `chain_ns` of dependent operators (of all operators of a group
    where `in_order`), or as all its operators together occupy one of the resources that they share:
    `areas_ns` has for each resource the time of each operator. Several groups take `join_ns` beside that.
    """

    stage_ns: float
    chain_ns: tuple[float, ...]
    areas_ns: tuple[tuple[float, ...], ...] = ()
    in_order: bool = False
    join_ns: float = 0.0

    def part(self, start: int, stop: int) -> Bounds:
        """Of the operators [start, stop), numbered from 0."""
        areas_ns = tuple(area[start:stop] for area in self.areas_ns)
        return replace(self, chain_ns=self.chain_ns[start:stop], areas_ns=areas_ns)

    def area_ns(self, mask: int) -> float:
        """How long a set of operators occupies the resource that it occupies longest."""
        members = list(bits(mask))
        return max((sum(area[i] for i in members) for area in self.areas_ns), default=0.0)

    def group_ns(self, graph: StageGraph, group: int) -> float:
        """What a group of a stage takes at least, beside `stage_ns`."""
        if self.in_order:
            return sum(self.chain_ns[i] for i in bits(group))
        end: dict[int, float] = {}
        for i in bits(group):
            before = max((end[p] for p in bits(graph.predecessors[i] & group)), default=0.0)
            end[i] = before + self.chain_ns[i]
        return max(end.values())

    def stage_bound_ns(self, graph: StageGraph, choice: StageChoice) -> float:
        """What a stage that does not merge takes at least."""
        mask = choice.mask
        longest_ns = max(self.group_ns(graph, part) for part in graph.components(mask))
        join_ns = self.join_ns if len(choice.groups) > 1 else 0.0
        return self.stage_ns + join_ns + max(longest_ns, self.area_ns(mask))


class StageCosts(Protocol):
    """What the stages of one graph cost. Equal questions get equal answers."""

    @property
    def bounds(self) -> Bounds:
        """What every stage takes at least."""
        ...

    def signature(self, choice: StageChoice) -> Hashable:
        """Equal for stages that cost the same."""
        ...

    def bound_ns(self, choice: StageChoice) -> float:
        """What a stage costs at least; asked of many more stages than are priced."""
        ...

    def cost_ns(self, choice: StageChoice) -> float:
        """What a stage costs; may take long."""
        ...

    def with_cores(self, choice: StageChoice) -> Iterable[StageChoice]:
        """Other ways to run the groups of a stage, on cores that are given out to them."""
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

    def correct(self, choice: StageChoice, cost_ns: float) -> None:
        """A stage costs other than was said; those like it may still cost that."""
        self._by_choice[choice] = cost_ns

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
            if cost < self.costs.bound_ns(choice) * (1 - _ROUNDING):
                self.num_violations += 1
            self._by_choice[choice] = self._by_signature[self.costs.signature(choice)] = cost
        return cost


class ModelCosts:
    """Stages of a partition, priced by the target's cost model.

    Energies add up over stages, but none of the bounds speaks of them, nor of products of energy and time.
    """

    def __init__(self, problem: ScheduleProblem, graph: StageGraph, *, is_moldable: bool = False) -> None:
        self._problem = problem
        self._is_moldable = is_moldable
        self._graph = graph
        numbers: dict[Hashable, int] = {}  # instead of structures, which take long to compare
        self.operators = [
            numbers.setdefault(kernel_structure(s.nodes, s.outputs), len(numbers))
            for s in problem.partition.subgraphs
        ]
        self._distinguishing = problem.cost if isinstance(problem.cost, DistinguishesStages) else None
        self._on_cores: dict[tuple[int, int], float] = {}
        self.bounds = self._bounds()

    def signature(self, choice: StageChoice) -> Hashable:
        """Groups by what their kernels do, in their order: the first one may get cores first.

        What the model sees beside that, such as values that kernels share, goes with it.
        """
        structure = signature(choice, self.operators, self._graph.predecessors, in_order=True)
        if self._distinguishing is None:
            return structure
        subgraphs = self._problem.partition.subgraphs
        groups = [[subgraphs[i] for i in group] for group in choice.groups]
        return structure, self._distinguishing.stage_facts(groups)

    def cost_ns(self, choice: StageChoice) -> float:
        """By the model, under the objective; time for the product of time and energy."""
        estimate = self._problem.stage(stage_of(choice))
        return estimate.cost("energy" if self._problem.objective == "energy" else "latency")

    def with_cores(self, choice: StageChoice) -> Iterator[StageChoice]:
        """All operators in a row on all cores, and groups at the same time on cores by their times."""
        yield StageChoice((tuple(sorted(i for group in choice.groups for i in group)),), "parallel")
        num_cores = self._problem.limits.num_cores
        if len(choice.groups) > num_cores:
            packed = packing([self._group_ns(group, 1) for group in choice.groups], num_cores)
            rows = (sorted(i for g in core for i in choice.groups[g]) for core in packed.cores)
            groups = tuple(sorted(map(tuple, rows)))
            if len(groups) > 1:
                yield StageChoice(groups, "parallel", (1,) * len(groups))
            return
        counts = core_counts(num_cores)
        times_ns = [{k: self._group_ns(group, k) for k in counts} for group in choice.groups]
        factors = _MORE_CORES if self._problem.limits.queued else (1,)
        allocations = (allocation(times_ns, factor * num_cores) for factor in factors)
        for given in dict.fromkeys(a.num_cores for a in allocations if a is not None):
            yield StageChoice(choice.groups, "parallel", given)

    def _group_ns(self, group: tuple[int, ...], num_cores: int) -> float:
        return sum(self._kernel_ns(i, num_cores) for i in group)

    def _kernel_ns(self, i: int, num_cores: int) -> float:
        if (i, num_cores) not in self._on_cores:
            subgraph = self._problem.partition.subgraphs[i]
            self._on_cores[i, num_cores] = self._problem.cost.kernel(subgraph, num_cores).time_ns
        return self._on_cores[i, num_cores]

    def bound_ns(self, choice: StageChoice) -> float:
        """By operators; of a merged stage what the model says of the merged kernel."""
        if choice.strategy != "merge":
            return self.bounds.stage_bound_ns(self._graph, choice)
        if self._problem.objective == "energy":
            return 0.0
        merged = self._problem.merged_kernel([i for group in choice.groups for i in group])
        return merged.bound_ns if self._problem.cost.proves_bounds else merged.time_ns

    def _bounds(self) -> Bounds:
        problem, num_operators = self._problem, self._graph.num_operators
        nothing = (0.0,) * num_operators
        if problem.objective == "energy":
            return Bounds(0.0, nothing)
        if not problem.cost.proves_bounds:
            return self._estimated_bounds()
        subgraphs = problem.partition.subgraphs
        chain_ns = tuple(problem.kernel(i).bound_ns for i in range(num_operators))
        if isinstance(problem.cost, SharesMachine):
            occupied_ns = [problem.cost.occupied_ns(s) for s in subgraphs]
            each = [occupied for occupied in occupied_ns if occupied is not None]
            if len(each) == num_operators:
                join_ns = 0.0 if problem.machine is None else problem.machine.overheads.join_ns
                bounds = Bounds(0.0, chain_ns, tuple(zip(*each, strict=True)), True, join_ns)
                return self._on_any_cores(bounds) if self._is_moldable else bounds
        # Shares of a bound on all of them bound some of them only where nothing else goes into it.
        area_ns = tuple(problem.cost.least([s], problem.limits.num_groups).bound_ns for s in subgraphs)
        whole_ns = problem.cost.least(subgraphs, problem.limits.num_groups).bound_ns
        adds_up = sum(area_ns) <= whole_ns * (1 + _ROUNDING)
        return Bounds(0.0, chain_ns, (area_ns,) if adds_up else ())

    def _on_any_cores(self, bounds: Bounds) -> Bounds:
        """Of kernels that may get fewer cores: they may keep these for less time in all.

        The first resource are the cores, the second is main memory; the others count cores, too.
        """
        num_cores = self._problem.limits.num_cores
        chain_ns, area_ns = list(bounds.chain_ns), list(bounds.areas_ns[0])
        for i in range(len(chain_ns)):
            for count in core_counts(num_cores):
                time_ns = self._kernel_ns(i, count)
                chain_ns[i] = min(chain_ns[i], time_ns)
                area_ns[i] = min(area_ns[i], time_ns * count / num_cores)
        return replace(bounds, chain_ns=tuple(chain_ns), areas_ns=(tuple(area_ns), bounds.areas_ns[1]))

    def _estimated_bounds(self) -> Bounds:
        """Of a model that proves nothing: kernels alone tell more than bounds that are far away.

        Work spreads over the cores as well as the kernel that gains most from them, without what every
        kernel takes.
        """
        problem, subgraphs = self._problem, self._problem.partition.subgraphs
        least_saved_ns, most_saved_ns = self._saved_ns()
        alone_ns = [problem.kernel(s.id).time_ns for s in subgraphs]
        one_core_ns = [problem.cost.kernel(s, 1).time_ns for s in subgraphs]
        start_ns = min((time for time in one_core_ns if time > 0), default=0.0)
        gains = [one / alone for one, alone in zip(one_core_ns, alone_ns, strict=True) if alone > 0]
        num_cores = math.ceil(max(gains, default=1.0))
        return Bounds(
            least_saved_ns,
            tuple(
                max(0.0, min(alone, one / num_cores) - most_saved_ns)
                for alone, one in zip(alone_ns, one_core_ns, strict=True)
            ),
            (tuple(max(0.0, one - start_ns) / num_cores for one in one_core_ns),),
            in_order=True,
        )

    def _saved_ns(self) -> tuple[float, float]:
        """What one stage for two operators that follow each other saves, at least and at most: a sample."""
        problem, subgraphs = self._problem, self._problem.partition.subgraphs
        pairs = [(source, i) for i, mask in enumerate(self._graph.predecessors) for source in bits(mask)]
        step = max(1, len(pairs) // _NUM_SAMPLES)
        saved = [0.0] if not pairs else []
        for first, second in pairs[::step]:
            apart_ns = problem.kernel(first).time_ns + problem.kernel(second).time_ns
            saved.append(apart_ns - problem.cost.stage([[subgraphs[first], subgraphs[second]]]).time_ns)
        return max(0.0, min(saved)), max(0.0, *saved)


def stage_of(choice: StageChoice) -> Stage:
    """A choice as a stage of a schedule; operators are subgraphs."""
    cores = choice.num_cores or (None,) * len(choice.groups)
    return Stage(
        tuple(
            Group(tuple(Instance(i) for i in group), num_cores)
            for group, num_cores in zip(choice.groups, cores, strict=True)
        ),
        "merge" if choice.strategy == "merge" else "parallel",
    )
