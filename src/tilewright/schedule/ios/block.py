"""One block of a network as a search problem: its states, stages and bounds. Operators count from 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from tilewright.bit_sets import bits
from tilewright.hardware.probe import may_run_generated_code
from tilewright.planning import UNLIMITED, Budget, Meter
from tilewright.schedule.ios.costs import AskedCosts, Bounds
from tilewright.schedule.ios.endings import EndingSpace, Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.stages import StageChoice

if TYPE_CHECKING:
    from tilewright.schedule.ios.transitions import Transitions

Strategies = Literal["both", "parallel", "merge"]
"""What stages may be, apart from one operator alone: the paper's IOS-Both, IOS-Parallel and IOS-Merge."""

# A million transitions take about a second, two thousand stage costs of a model as long.
_TRANSITIONS_PER_EVALUATION = 2000
_COSTS_PER_EVALUATION = 20
# With a deadline; each that waits takes memory.
_MAX_TRANSITIONS = 20_000_000

MOST_MERGED = 6
"""Siblings of which any may merge; of more, those in a row."""
_MAX_LISTED = 62  # operators of a block whose transitions are listed: a state is one word

PAPERS_PRUNING = Pruning(3, 8)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which schedules there are to choose from. `is_moldable`: cores may be given out to groups.

    Stages that save no more than `least_gain` of their time run operator by operator.
    """

    strategy: Strategies = "both"
    grouping: Grouping = "component"
    pruning: Pruning = PAPERS_PRUNING
    is_moldable: bool = False
    least_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockAnswer:
    """The best stages known, in the order in which they run, and what any cost at least.

    `is_closed`: there are none that cost less, as far as bounds hold.
    """

    cost_ns: float
    bound_ns: float
    stages: tuple[StageChoice, ...]
    is_closed: bool
    num_states: int = 0
    num_transitions: int = 0


@dataclass(slots=True)
class Stop:
    """When searches end that have not closed: transitions, stage costs and time, shared by them.

    `ends_too` says when a search ends that these are a part of.
    """

    meter: Meter
    costs: AskedCosts
    max_transitions: int
    max_asked: int
    ends_too: Callable[[], bool] | None = None
    num_transitions: int = 0
    _until: tuple[float, float, float] = field(init=False)
    _is_interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.share(1)

    @classmethod
    def of(cls, budget: Budget, costs: AskedCosts) -> Stop:
        """What a budget pays for: time where it has a deadline, else stage costs and transitions."""
        most = budget.max_evaluations
        if budget.deadline_s is not None:
            return cls(budget.start(), costs, _MAX_TRANSITIONS, UNLIMITED)
        return cls(budget.start(), costs, most * _TRANSITIONS_PER_EVALUATION, most * _COSTS_PER_EVALUATION)

    def interrupt(self) -> None:
        """From now on every search is to end."""
        self.meter.cut_off = self._is_interrupted = True

    @property
    def is_interrupted(self) -> bool:
        """Whether it was an interrupt that ended the searches."""
        return self._is_interrupted

    def share(self, num_searches: int) -> None:
        """From now on the next of so many searches runs, for its share of what is left."""
        left_s = self.meter.left_s
        self._until = (
            self.num_transitions + (self.max_transitions - self.num_transitions) / num_searches,
            self.costs.num_asked + (self.max_asked - self.costs.num_asked) / num_searches,
            -float("inf") if left_s is None else left_s * (1 - 1 / num_searches),
        )

    def is_due(self, num_transitions: int) -> bool:
        """Whether the running search, which has made so many transitions, is to end now."""
        if self._is_interrupted or (self.ends_too is not None and self.ends_too()):
            return True
        until_transitions, until_asked, until_left_s = self._until
        if self.num_transitions + num_transitions > until_transitions or self.costs.num_asked > until_asked:
            return True
        left_s = self.meter.left_s
        if left_s is None or left_s > until_left_s:
            return False
        self.meter.cut_off = True
        return True


@dataclass(slots=True)
class Way:
    """One way to run an ending as a stage. `ns` is its cost where that is known, else its bound."""

    choice: StageChoice
    ns: float
    is_known: bool = False


@dataclass(slots=True)
class Block:
    """Operators [offset, offset + n) of a network, scheduled on their own.

    `merge_sets` are the sets of operators that may become one, any two or more of each.
    """

    graph: StageGraph
    costs: AskedCosts
    rules: Rules
    merge_sets: Sequence[int] = ()
    offset: int = 0
    _space: EndingSpace = field(init=False)
    _bounds: Bounds = field(init=False)
    _least: Bounds = field(init=False)
    _merges: dict[int, int] = field(init=False)
    _ways: dict[int, list[Way]] = field(init=False, default_factory=dict)
    _rest: dict[int, float] = field(init=False, default_factory=dict)
    _by_end: list[tuple[float, int]] = field(init=False)
    _by_depth: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        graph, rules = self.graph, self.rules
        self._space = EndingSpace(graph, rules.grouping, rules.pruning)
        self._bounds = self.costs.costs.bounds.part(self.offset, self.offset + graph.num_operators)
        subsets = {} if rules.strategy == "parallel" else dict.fromkeys(_subsets(self.merge_sets))
        self._merges = {mask: graph.with_readers(mask) for mask in subsets}
        self._least = self._with_merges()
        end_ns: list[float] = []
        depth: list[int] = []
        for i, mask in enumerate(graph.predecessors):
            before = list(bits(mask))
            end_ns.append(max((end_ns[p] for p in before), default=0.0) + self._least.chain_ns[i])
            depth.append(1 + max((depth[p] for p in before), default=0))
        self._by_end = sorted(((end, 1 << i) for i, end in enumerate(end_ns)), reverse=True)
        self._by_depth = sorted(((d, 1 << i) for i, d in enumerate(depth)), reverse=True)

    def endings(self, state: int) -> Iterator[int]:
        """What the last stage of a state may hold, each set once."""
        merges = [mask for mask, reach in self._merges.items() if reach & state == mask]
        if self.rules.strategy == "merge":
            yield from (1 << i for i in bits(self.graph.sinks(state)))
            yield from merges
            return
        yield from self._space.masks(state)
        # The others are endings of the pruned space, too.
        yield from (mask for mask in merges if not self._is_parallel(mask))

    def transitions(self, max_transitions: int) -> Transitions | None:
        """All transitions; None where they are too many, or no generated code may run here."""
        if self.graph.num_operators > _MAX_LISTED or not may_run_generated_code():
            return None
        from tilewright.schedule.ios.transitions import ListedGroups, transitions

        graph, bounds = self.graph, self._bounds
        if self.rules.strategy == "merge":
            listed = [(1 << i, graph.with_readers(1 << i)) for i in range(graph.num_operators)]
            most = 1
        else:
            listed = self._space.listed() or []
            most = min(self.rules.pruning.max_groups or graph.num_operators, graph.num_operators)
        if not listed:
            return None
        masks = [mask for mask, _ in listed]
        groups = ListedGroups(
            masks,
            [reach for _, reach in listed],
            [bounds.group_ns(graph, mask) for mask in masks],
            [[sum(area[i] for i in bits(mask)) for area in bounds.areas_ns] for mask in masks],
            most,
        )
        merges = [(mask, reach, self._bound_ns(_merge(mask))) for mask, reach in self._merges.items()]
        join_ns = 0.0 if self.rules.is_moldable else bounds.join_ns  # groups may run in a row, too
        return transitions(graph.everything, groups, bounds.stage_ns, join_ns, merges, max_transitions)

    def ways(self, mask: int) -> list[Way]:
        """The ways to run an ending as one stage."""
        known = self._ways.get(mask)
        if known is None:
            known = self._ways[mask] = [Way(choice, self._bound_ns(choice)) for choice in self._choices(mask)]
        return known

    def _bound_ns(self, choice: StageChoice) -> float:
        if choice.strategy == "merge":
            return self.costs.costs.bound_ns(choice.shifted(self.offset))
        return self._bounds.stage_bound_ns(self.graph, choice)

    def _with_merges(self) -> Bounds:
        """What operators add at least to schedules that may merge them: no more than a merged stage takes."""
        bounds = self._bounds
        chain_ns, areas_ns = list(bounds.chain_ns), list(map(list, bounds.areas_ns))
        stage_ns = bounds.stage_ns
        merged = {mask: self._bound_ns(_merge(mask)) for mask in self._merges}
        stage_ns = min([stage_ns, *merged.values()])
        for mask, bound_ns in merged.items():
            for i in bits(mask):
                chain_ns[i] = min(chain_ns[i], bound_ns - stage_ns)
                for area_ns in areas_ns:
                    area_ns[i] = min(area_ns[i], (bound_ns - stage_ns) / mask.bit_count())
        areas = tuple(map(tuple, areas_ns))
        return replace(bounds, stage_ns=stage_ns, chain_ns=tuple(chain_ns), areas_ns=areas)

    def cost_ns(self, way: Way) -> float:
        """What a stage costs, asked for if it is not known."""
        if not way.is_known:
            way.ns = self.costs.cost_ns(way.choice.shifted(self.offset))
            way.is_known = True
        return way.ns

    def rest_ns(self, state: int) -> float:
        """What any schedule of a state costs at least. A stage lowers it by no more than its own bound."""
        known = self._rest.get(state)
        if known is None:
            known = self._rest[state] = self._new_rest(state)
        return known

    def _new_rest(self, state: int) -> float:
        if not state:
            return 0.0
        chain_ns = next(end for end, bit in self._by_end if bit & state)
        deepest = next(depth for depth, bit in self._by_depth if bit & state)
        area_ns = self._least.area_ns(state)
        size = self.rules.pruning.max_group_size
        num_stages = 1 if size is None else -(-deepest // size)
        return num_stages * self._least.stage_ns + max(chain_ns, area_ns)

    def _choices(self, mask: int) -> Iterator[StageChoice]:
        members = tuple(bits(mask))
        if len(members) == 1:
            yield StageChoice((members,), "alone")
            return
        if self.rules.strategy != "merge" and self._is_parallel(mask):
            choice = StageChoice(tuple(tuple(bits(g)) for g in self.graph.components(mask)), "parallel")
            yield choice
            if self.rules.is_moldable and len(choice.groups) > 1:
                others = self.costs.costs.with_cores(choice.shifted(self.offset))
                yield from (other.shifted(-self.offset) for other in others)
        if mask in self._merges:
            yield _merge(mask)

    def _is_parallel(self, mask: int) -> bool:
        return self._space.allows(self.graph.components(mask))


def _merge(mask: int) -> StageChoice:
    return StageChoice(tuple((i,) for i in bits(mask)), "merge")


def _subsets(merge_sets: Iterable[int]) -> Iterator[int]:
    """All sets of two or more operators within one of the given ones; of many operators, those in a row."""
    for whole in merge_sets:
        members = [1 << i for i in bits(whole)]
        if len(members) > MOST_MERGED:
            for start in range(len(members)):
                for stop in range(start + 2, len(members) + 1):
                    yield sum(members[start:stop])
            continue
        subset = whole
        while subset:
            if subset & (subset - 1):
                yield subset
            subset = (subset - 1) & whole
