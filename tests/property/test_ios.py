"""What holds for IOS on any graph: endings each once, searches that agree, schedules that are valid."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graphs import random_graph
from tests.support.published_stages import require_valid

from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.random import RandomPartitioner
from tilewright.planning import UNLIMITED, Budget, Limits
from tilewright.schedule import Schedule, ScheduleProblem, check_schedule
from tilewright.schedule.ios.beam import beam
from tilewright.schedule.ios.block import Block, BlockAnswer, Rules, Stop, Strategies
from tilewright.schedule.ios.costs import AskedCosts, Bounds
from tilewright.schedule.ios.dynamic import dynamic
from tilewright.schedule.ios.endings import EndingSpace, Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.network import BlockNetwork
from tilewright.schedule.ios.planner import Ios
from tilewright.schedule.ios.search import AStar
from tilewright.schedule.ios.stages import StageChoice

groupings = st.sampled_from(("component", "single-source"))
prunings = st.builds(Pruning, st.none() | st.integers(1, 5), st.none() | st.integers(1, 4))


@st.composite
def graphs(draw: st.DrawFn, max_operators: int = 8) -> StageGraph:
    size = draw(st.integers(1, max_operators))
    masks = [draw(st.integers(0, (1 << i) - 1)) & draw(st.integers(0, (1 << i) - 1)) for i in range(size)]
    return StageGraph(tuple(map(str, range(size))), tuple(masks))


def down_sets(graph: StageGraph) -> Iterator[int]:
    for state in range(1 << graph.num_operators):
        if all(not state >> i & 1 or mask & ~state == 0 for i, mask in enumerate(graph.predecessors)):
            yield state


def groups_of(graph: StageGraph, mask: int) -> list[set[int]]:
    """The connected parts, by joining ends of edges until nothing changes."""
    parts = [{i} for i in range(graph.num_operators) if mask >> i & 1]
    for target, sources in enumerate(graph.predecessors):
        for source in range(target):
            if sources >> source & 1 and mask >> source & 1 and mask >> target & 1:
                joined = [p for p in parts if source in p or target in p]
                parts = [p for p in parts if p not in joined] + [set().union(*joined)]
    return parts


def is_ending(graph: StageGraph, state: int, mask: int, grouping: Grouping, pruning: Pruning) -> bool:
    kept = state & ~mask
    if any(kept >> i & 1 and sources & mask for i, sources in enumerate(graph.predecessors)):
        return False
    groups = groups_of(graph, mask)
    if grouping == "single-source":
        for group in groups:
            inside = sum(1 << i for i in group)
            if sum(1 for i in group if not graph.predecessors[i] & inside) != 1:
                return False
    size, most = pruning.max_group_size, pruning.max_groups
    return (most is None or len(groups) <= most) and (size is None or max(map(len, groups)) <= size)


@given(graphs(7), groupings, prunings)
@settings(max_examples=150, deadline=None)
def test_every_ending_comes_exactly_once(graph: StageGraph, grouping: Grouping, pruning: Pruning) -> None:
    for state in down_sets(graph):
        masks = list(EndingSpace(graph, grouping, pruning).masks(state))
        assert len(set(masks)) == len(masks)
        subsets = (mask for mask in range(1, state + 1) if mask & state == mask)
        assert set(masks) == {m for m in subsets if is_ending(graph, state, m, grouping, pruning)}
        for mask in masks:
            parts = {frozenset(p) for p in groups_of(graph, mask)}
            groups = ({i for i in range(graph.num_operators) if g >> i & 1} for g in graph.components(mask))
            assert {frozenset(g) for g in groups} == parts


class DrawnCosts:
    """Times of operators that are drawn; a stage costs its bound to twice that, by its operators."""

    def __init__(self, graph: StageGraph, times: tuple[int, ...], stage_ns: int, salt: int) -> None:
        self._graph = graph
        self._salt = salt
        areas = tuple(time / 3 for time in times)
        chain, join_ns = tuple(map(float, times)), float(salt % 3 * 4)
        self.bounds = Bounds(float(stage_ns), chain, (areas,), in_order=bool(salt % 2), join_ns=join_ns)

    def signature(self, choice: StageChoice) -> StageChoice:
        return choice

    def bound_ns(self, choice: StageChoice) -> float:
        bound = self.bounds.stage_bound_ns(self._graph, choice)
        return bound / 2 if choice.strategy == "merge" else bound

    def with_cores(self, choice: StageChoice) -> tuple[StageChoice, ...]:
        """In a row, and with a core more for each group."""
        row = tuple(sorted(i for group in choice.groups for i in group))
        cores = tuple(range(1, len(choice.groups) + 1))
        return StageChoice((row,), "parallel"), StageChoice(choice.groups, "parallel", cores)

    def cost_ns(self, choice: StageChoice) -> float:
        salt = self._salt + 7 * sum(choice.num_cores or (len(choice.groups),))
        return self.bound_ns(choice) * (1 + (choice.mask * 2654435761 + salt) % 1009 / 1009)


@st.composite
def priced(draw: st.DrawFn) -> tuple[StageGraph, DrawnCosts, tuple[int, ...]]:
    graph = draw(graphs())
    size = graph.num_operators
    times = tuple(draw(st.lists(st.integers(0, 20), min_size=size, max_size=size)))
    costs = DrawnCosts(graph, times, draw(st.integers(0, 5)), draw(st.integers(0, 1000)))
    # Operators that read the same may merge.
    alike: dict[int, int] = {}
    for i, sources in enumerate(graph.predecessors):
        alike[sources] = alike.get(sources, 0) | 1 << i
    return graph, costs, tuple(mask for mask in alike.values() if mask.bit_count() > 1)


def search(
    case: tuple[StageGraph, DrawnCosts, tuple[int, ...]], rules: Rules, width: int | None
) -> tuple[BlockAnswer, AskedCosts]:
    graph, costs, merge_sets = case
    asked = AskedCosts(costs, graph)
    block = Block(graph, asked, rules, merge_sets)
    stop = Stop.of(Budget(UNLIMITED), asked)
    if width is None:
        answer = dynamic(block)
        assert answer is not None
        return answer, asked
    return AStar(block, beam(block, width, stop), stop).run(), asked


@given(
    priced(),
    st.sampled_from(("both", "parallel", "merge")),
    groupings,
    prunings,
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_star_equals_the_dynamic_programme(
    case: tuple[StageGraph, DrawnCosts, tuple[int, ...]],
    strategy: Strategies,
    grouping: Grouping,
    pruning: Pruning,
    width: int,
    is_moldable: bool,
) -> None:
    rules = Rules(strategy, grouping, pruning, is_moldable)
    expected, asked_of_dynamic = search(case, rules, None)
    answer, asked = search(case, rules, width)
    assert answer.is_closed
    assert asked.num_violations == 0
    assert answer.cost_ns == pytest.approx(expected.cost_ns, rel=1e-9)
    assert answer.bound_ns == answer.cost_ns
    assert asked.num_asked <= asked_of_dynamic.num_asked
    require_valid(case[0], answer.stages)
    require_valid(case[0], expected.stages)
    assert search(case, rules, width)[0].stages == answer.stages


@given(priced(), groupings, prunings)
@settings(max_examples=80, deadline=None)
def test_ios_is_the_special_case_in_which_no_cores_are_given_out(
    case: tuple[StageGraph, DrawnCosts, tuple[int, ...]], grouping: Grouping, pruning: Pruning
) -> None:
    plain, _ = search(case, Rules("parallel", grouping, pruning), 2)
    moldable, _ = search(case, Rules("parallel", grouping, pruning, is_moldable=True), 2)
    assert moldable.cost_ns <= plain.cost_ns * (1 + 1e-12)
    graph, costs, merge_sets = case
    without = type("Without", (DrawnCosts,), {"with_cores": lambda self, choice: ()})
    twin = without(graph, (), 0, 0)
    twin.bounds, twin._salt = costs.bounds, costs._salt
    same, _ = search((graph, twin, merge_sets), Rules("parallel", grouping, pruning, is_moldable=True), 2)
    assert same.stages == plain.stages
    assert same.cost_ns == plain.cost_ns


@given(priced(), st.integers(0, 12), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_any_interruption_leaves_a_schedule_between_its_bound_and_its_cost(
    case: tuple[StageGraph, DrawnCosts, tuple[int, ...]], max_asked: int, max_block_size: int
) -> None:
    graph, costs, merge_sets = case
    whole = AskedCosts(costs, graph)
    best = BlockNetwork(graph, whole, Rules(), max_block_size, merge_sets).solve(
        "a-star", 2, Stop.of(Budget(UNLIMITED), whole)
    )
    asked = AskedCosts(costs, graph)
    stop = Stop(Budget(1).start(), asked, UNLIMITED, max_asked)
    answer = BlockNetwork(graph, asked, Rules(), max_block_size, merge_sets).solve("a-star", 2, stop)
    require_valid(graph, answer.stages)
    require_valid(graph, best.stages)
    assert best.is_closed
    assert answer.bound_ns <= best.apart_ns * (1 + 1e-9)
    assert best.apart_ns <= answer.apart_ns * (1 + 1e-9)
    for network in (best, answer):
        assert network.cost_ns <= network.apart_ns * (1 + 1e-9)
        assert network.bound_ns <= network.cost_ns * (1 + 1e-9)


@given(st.integers(0, 400), st.integers(1, 4), st.integers(1, 3), groupings)
@settings(max_examples=40, deadline=None)
def test_schedules_of_any_partition_are_valid(
    seed: int, max_groups: int, max_group_size: int, grouping: Grouping
) -> None:
    partition = RandomPartitioner(seed).solve(PartitionProblem(random_graph(seed, 14)), Budget(10))
    assert isinstance(partition, Partition)
    problem = ScheduleProblem(partition, limits=Limits(max_groups))
    schedule = Ios(grouping=grouping, max_group_size=max_group_size).solve(problem, Budget(100))
    assert isinstance(schedule, Schedule)
    assert check_schedule(problem, schedule) == ()
