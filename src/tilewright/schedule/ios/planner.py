"""The scheduler `ios`: blocks, a seed for each, and the search that proves it. Ding et al., MLSys 2021."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.errors import UsageError
from tilewright.partition.merge_siblings import merge_sets
from tilewright.planning import Budget, Provenance, Quality, option
from tilewright.schedule.base import Schedule, ScheduleProblem, build_schedule
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.ios.block import Rules, Stop, Strategies
from tilewright.schedule.ios.costs import AskedCosts, ModelCosts, stage_of
from tilewright.schedule.ios.endings import Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.network import Network, NetworkAnswer, SearchKind
from tilewright.schedule.sequential import Sequential

LEAST_ESTIMATED_GAIN = 0.01
"""Share of its time that a stage saves at least to run its operators together, where costs are estimates."""
_ROUNDING = 1e-9  # of costs that are sums of floats


@dataclass(frozen=True, slots=True)
class Ios:
    """The cheapest stages: which subgraphs run side by side, which merge, which run alone (IOS)."""

    strategy: Strategies = option(
        "both", "What a stage may be beside one subgraph: groups, a merge, or both."
    )
    grouping: Grouping = option(
        "component", "Groups are any connected subgraphs, or those that follow from one, as in the paper."
    )
    max_group_size: int = option(3, "Most subgraphs of a group: the paper's r.")
    max_groups: int = option(8, "Most groups of a stage: the paper's s.")
    moldable: bool = option(False, "Whether stages may give out cores to groups, or run them in a row.")
    search: SearchKind = option(
        "a-star", "How to search: with proof, the paper's dynamic programme, or a beam."
    )
    beam_width: int = option(4, "States that the beam keeps, which is what the search starts from.")
    max_block_size: int = option(40, "Blocks of more subgraphs are cut where least crosses.")
    name: ClassVar[str] = "ios"

    def __post_init__(self) -> None:
        for field in ("max_group_size", "max_groups", "beam_width", "max_block_size"):
            if getattr(self, field) < 1:
                raise UsageError(f"ios: {field}={getattr(self, field)}: expected at least 1.")

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The best schedule within the budget, with its bound; optimal where the search has closed."""
        graph = StageGraph.of_partition(problem.partition)
        costs = AskedCosts(ModelCosts(problem, graph, is_moldable=self.moldable), graph)
        pruning = Pruning(self.max_group_size, min(self.max_groups, problem.limits.num_groups))
        rules = Rules(self.strategy, self.grouping, pruning, self.moldable, _least_gain(problem))
        network = Network(graph, costs, rules, self.max_block_size, self._merge_sets(problem))
        answer = network.solve(self.search, self.beam_width, Stop.of(budget, costs))
        return self._best(problem, answer, costs)

    def _greedy(self, problem: ScheduleProblem) -> Iterator[Schedule]:
        """The greedy schedule if it is within the rules: a search that was cut off may have missed it."""
        greedy = Greedy().solve(problem, Budget(1))
        widest = max((len(stage.groups) for stage in greedy.stages), default=0)
        if self.strategy != "merge" and widest <= self.max_groups:
            yield greedy

    def _merge_sets(self, problem: ScheduleProblem) -> list[int]:
        if self.strategy == "parallel":
            return []
        sets = merge_sets(problem.partition, pads_kernels=problem.pads_kernels)
        return [sum(1 << i for i in members) for members in sets]

    def _best(self, problem: ScheduleProblem, answer: NetworkAnswer, costs: AskedCosts) -> Schedule:
        """The schedule that was found, or a simple one: one after another where that costs no more."""
        limits = f"groups of {self.max_group_size}, {self.max_groups} of them"
        note = f"{answer.text('ns')} ({limits}); {costs.num_asked} stage costs by {problem.cost.source}"
        provenance = Provenance(self.name, num_evaluations=costs.num_asked, note=note)
        stages = tuple(stage_of(choice) for choice in answer.stages)
        schedule = build_schedule(problem, stages, provenance, cut_off=answer.was_cut_off)
        sequential = Sequential().solve(problem, Budget(1))
        candidates = [sequential, schedule, *self._greedy(problem)]
        limit = min(s.quality.cost for s in candidates) * (1 + max(_least_gain(problem), _ROUNDING))
        best = next(s for s in candidates if s.quality.cost <= limit)
        if best is not schedule:
            costs_less = "costs no more" if best is sequential else "costs less"
            note = f"{note}; {best.provenance.planner} {costs_less}"
        quality = _quality(problem, best.quality, answer)
        return replace(best, quality=quality, provenance=replace(provenance, note=note))


def _least_gain(problem: ScheduleProblem) -> float:
    """What must be saved so that operators run at the same time: more than what the model cannot know."""
    return 0.0 if problem.cost.proves_bounds else LEAST_ESTIMATED_GAIN


def _quality(problem: ScheduleProblem, quality: Quality, answer: NetworkAnswer) -> Quality:
    """With the bound of the search, where that is about the cost of the schedule."""
    is_about_cost = (
        problem.price is None
        and problem.objective != "edp"
        and abs(answer.cost_ns - quality.cost) <= _ROUNDING * max(1.0, quality.cost)
    )
    if not is_about_cost:
        return quality
    return Quality.of(
        quality.cost,
        bound=max(quality.bound, min(answer.bound_ns, quality.cost)),
        unit=quality.unit,
        cut_off=answer.was_cut_off,
        is_proven=quality.is_proven and answer.holds,
    )
