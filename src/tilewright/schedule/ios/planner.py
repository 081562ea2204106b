"""The scheduler `ios`: blocks, a seed for each, and the search that proves it. Ding et al., MLSys 2021."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from tilewright.cost.base import SharesMachine
from tilewright.errors import UsageError
from tilewright.partition.merge_siblings import merge_sets
from tilewright.planning import Bound, Budget, Provenance, Quality, Rule, Space, option
from tilewright.schedule.base import NotMeasured, Schedule, ScheduleProblem, Stage, build_schedule
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.ios.block import Rules, Stop, Strategies
from tilewright.schedule.ios.blocks import MOST_IN_BLOCK
from tilewright.schedule.ios.costs import AskedCosts, ModelCosts, StageCosts, stage_of
from tilewright.schedule.ios.endings import Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.measured import INTERRUPTED, MeasuredSearch
from tilewright.schedule.ios.network import BlockNetwork, NetworkAnswer, SearchKind
from tilewright.schedule.ios.stages import StageChoice
from tilewright.schedule.sequential import Sequential
from tilewright.schedule.space import (
    CONNECTED,
    GROUP_SIZE,
    GROUPS,
    IN_ORDER,
    OF_PARTITION,
    SCHEDULES,
    SHARED_CORES,
    WHOLE_SUBGRAPHS,
    WITHOUT_LANES,
    WITHOUT_MERGES,
    within_blocks,
)

CostSource = Literal["auto", "estimated", "measured"]
_Plan = Callable[[StageCosts, Budget], tuple[NetworkAnswer, AskedCosts, Stop]]
# With less time the process that measures would hardly have started.
_MIN_MEASURING_S = 4.0

_EVALUATIONS_PER_ESTIMATED = 10
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
        "lazy", "How to search: two ways with proof, the paper's dynamic programme, or a beam."
    )
    beam_width: int = option(4, "States that the beam keeps; A* starts from it.")
    max_block_size: int = option(MOST_IN_BLOCK, "Blocks of more subgraphs are cut where least crosses.")
    costs: CostSource = option(
        "auto", "Whose stage costs: the model's, or measured ones (auto: where the budget is a time)."
    )
    name: ClassVar[str] = "ios"

    def __post_init__(self) -> None:
        for field in ("max_group_size", "max_groups", "beam_width", "max_block_size"):
            if getattr(self, field) < 1:
                raise UsageError(f"ios: {field}={getattr(self, field)}: expected at least 1.")

    def solve(self, problem: ScheduleProblem, budget: Budget) -> Schedule:
        """The best schedule within the budget, with its bound; optimal where the search has closed."""
        graph = StageGraph.of_partition(problem.partition)
        model = ModelCosts(problem, graph, is_moldable=self.moldable)
        pruning = Pruning(self.max_group_size, min(self.max_groups, problem.limits.num_groups))
        rules = Rules(self.strategy, self.grouping, pruning, self.moldable, _least_gain(problem))
        merge_sets = self._merge_sets(problem)

        def plan(stage_costs: StageCosts, effort: Budget) -> tuple[NetworkAnswer, AskedCosts, Stop]:
            costs = AskedCosts(stage_costs, graph)
            network = BlockNetwork(graph, costs, rules, self.max_block_size, merge_sets)
            stop = Stop.of(effort, costs)
            return network.solve(self.search, self.beam_width, stop), costs, stop

        remark, was_interrupted = "", False
        if self._is_measured(problem, budget):
            measured = self._measured(problem, budget, graph, model, plan)
            if not isinstance(measured, NotMeasured):
                return measured
            remark = f"nothing was measured: {measured.detail}"
            was_interrupted = measured.reason == INTERRUPTED
        answer, costs, stop = plan(model, _effort(problem, budget))
        schedule = self._best(problem, answer, costs, remark)
        was_interrupted = was_interrupted or stop.is_interrupted
        provenance = replace(schedule.provenance, is_interrupted=was_interrupted)
        return replace(schedule, provenance=provenance)

    def _is_measured(self, problem: ScheduleProblem, budget: Budget) -> bool:
        """Whether stages are measured, which needs a bench and, without being asked for, time."""
        if self.costs == "auto":
            has_time = budget.deadline_s is not None and budget.deadline_s >= _MIN_MEASURING_S
            return has_time and problem.bench is not None and problem.objective == "latency"
        if self.costs == "measured" and (problem.bench is None or problem.objective != "latency"):
            raise UsageError(
                "ios: costs=measured: nothing measures stages here; compile for the cpu target, for latency "
                "and without --frozen, or leave it out."
            )
        return self.costs == "measured"

    def _measured(
        self, problem: ScheduleProblem, budget: Budget, graph: StageGraph, model: ModelCosts, plan: _Plan
    ) -> Schedule | NotMeasured:
        """The best schedule by measured stages and a race, or why nothing could be measured."""
        assert problem.bench is not None

        def planned(costs: StageCosts, effort: Budget) -> Sequence[StageChoice]:
            answer, _, stop = plan(costs, effort)
            if stop.is_interrupted:
                raise KeyboardInterrupt
            return answer.stages

        greedy = [_choice_of(schedule.stages) for schedule in self._greedy(problem)]
        try:
            outcome = MeasuredSearch(graph, model, problem.bench, planned, budget.start(), greedy).run()
        finally:
            problem.bench.close()
        if isinstance(outcome, NotMeasured):
            return outcome
        provenance = Provenance(
            self.name,
            num_evaluations=outcome.num_measured,
            note=outcome.text,
            is_interrupted=outcome.is_interrupted,
        )
        return build_schedule(problem, outcome.stages, provenance, cut_off=outcome.was_cut_off)

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

    def _best(
        self, problem: ScheduleProblem, answer: NetworkAnswer, costs: AskedCosts, remark: str = ""
    ) -> Schedule:
        """The schedule that was found, or a simple one: one after another where that costs no more."""
        limits = f"groups of {self.max_group_size}, {self.max_groups} of them"
        note = f"{answer.text('ns')} ({limits}); {costs.num_asked} stage costs by {problem.cost.source}"
        note = f"{note}; {remark}" if remark else note
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
        quality = self._quality(problem, best.quality, answer)
        return replace(best, quality=quality, provenance=replace(provenance, note=note))

    def _space(self, problem: ScheduleProblem, answer: NetworkAnswer) -> Space:
        """The space that is searched."""
        rules = [OF_PARTITION, WHOLE_SUBGRAPHS, WITHOUT_LANES]
        if self.strategy == "parallel":
            rules.append(WITHOUT_MERGES)
        if self.strategy == "merge":
            rules.append(Rule(GROUPS, 1))
        else:
            rules += [Rule(GROUPS, min(self.max_groups, problem.limits.num_groups)), CONNECTED, IN_ORDER]
        rules.append(Rule(GROUP_SIZE, 1 if self.strategy == "merge" else self.max_group_size))
        if self.grouping == "single-source" and self.strategy != "merge":
            rules.append(Rule("with groups that follow from one subgraph"))
        rules.append(Rule("with the cores that a search gives groups") if self.moldable else SHARED_CORES)
        if not answer.crosses_blocks and len(answer.blocks) > 1:
            rules.append(within_blocks(self.max_block_size))
        return SCHEDULES.keeping(*rules)

    def _quality(self, problem: ScheduleProblem, quality: Quality, answer: NetworkAnswer) -> Quality:
        """With the bound of the search, where that is about the cost of the schedule."""
        is_about_cost = (
            _adds_up(problem)
            and problem.objective != "edp"
            and abs(answer.cost_ns - quality.cost) <= _ROUNDING * max(1.0, quality.cost)
        )
        if not is_about_cost:
            return quality
        value, is_proven = min(answer.bound_ns, quality.cost), problem.cost.proves_bounds and answer.holds
        bounds = quality.bounds
        if value > quality.highest.value:
            bounds = (*bounds, Bound(value, self._space(problem, answer), "search", is_proven))
        return Quality.of(quality.cost, *bounds, unit=quality.unit, cut_off=answer.was_cut_off)


def _adds_up(problem: ScheduleProblem) -> bool:
    """Whether schedules cost the sum of their stages: also on machines that launch kernel after kernel."""
    if problem.price is None:
        return True
    cost, subgraphs = problem.cost, problem.partition.subgraphs
    return isinstance(cost, SharesMachine) and all(cost.occupied_ns(s) is not None for s in subgraphs[:1])


def _effort(problem: ScheduleProblem, budget: Budget) -> Budget:
    """The budget, or a part of it where all that it buys is a smaller gap by estimates."""
    if problem.cost.proves_bounds or budget.deadline_s is not None:
        return budget
    return replace(budget, max_evaluations=budget.max_evaluations // _EVALUATIONS_PER_ESTIMATED)


def _least_gain(problem: ScheduleProblem) -> float:
    """What must be saved so that operators run at the same time: more than what the model cannot know."""
    return 0.0 if problem.cost.proves_bounds else LEAST_ESTIMATED_GAIN


def _choice_of(stages: Sequence[Stage]) -> tuple[StageChoice, ...]:
    """Stages of whole subgraphs as choices."""
    groups = (tuple(tuple(i.subgraph_id for i in group.instances) for group in s.groups) for s in stages)
    return tuple(StageChoice(g, "alone" if sum(map(len, g)) == 1 else "parallel") for g in groups)
