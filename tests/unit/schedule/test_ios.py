"""IOS's searches: the dynamic programme, lazy A*, the beam, and the scheduler around them."""

# mypy: disable-error-code="attr-defined, list-item"

import math
from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder, random_graph
from tests.support.published_stages import (
    PUBLISHED_NETWORK,
    published_schedules,
    published_stages,
    require_valid,
    unit_merge_sets,
)
from tests.support.synthetic_costs import SyntheticCosts

from tilewright import zoo
from tilewright.api.models import load
from tilewright.compiler import plan
from tilewright.cost.base import CostModel
from tilewright.cost.roofline import NOMINAL
from tilewright.errors import InternalError, UsageError
from tilewright.options import Options
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.partition.layerwise import Layerwise
from tilewright.planning import UNLIMITED, Budget, Limits, Provenance, Status
from tilewright.schedule import SCHEDULERS, ScheduleProblem, check_schedule
from tilewright.schedule.base import build_schedule
from tilewright.schedule.greedy import Greedy
from tilewright.schedule.ios import transitions
from tilewright.schedule.ios.beam import beam, one_by_one
from tilewright.schedule.ios.block import Block, BlockAnswer, Rules, Stop, Strategies
from tilewright.schedule.ios.blocks import Span, blocks
from tilewright.schedule.ios.costs import AskedCosts, ModelCosts, StageCosts
from tilewright.schedule.ios.counts import count
from tilewright.schedule.ios.dynamic import dynamic
from tilewright.schedule.ios.endings import EndingSpace, Grouping, Pruning
from tilewright.schedule.ios.graph import StageGraph
from tilewright.schedule.ios.lazy import LazyPaths
from tilewright.schedule.ios.network import BlockNetwork, SearchKind
from tilewright.schedule.ios.planner import Ios
from tilewright.schedule.ios.search import AStar
from tilewright.schedule.ios.settle import settled
from tilewright.schedule.ios.stages import StageChoice, signature
from tilewright.schedule.sequential import Sequential
from tilewright.target_ref import TargetRef
from tilewright.zoo.ios_blocks import load_blocks

NO_LIMIT = Budget(UNLIMITED)


def graph_of(network: str, label: str) -> StageGraph:
    return StageGraph.of_block(next(b for b in load_blocks(network).blocks if b.label == label))


def block_of(graph: StageGraph, costs: StageCosts, rules: Rules | None = None) -> tuple[Block, Stop]:
    asked = AskedCosts(costs, graph)
    return Block(graph, asked, rules or Rules("parallel")), Stop.of(NO_LIMIT, asked)


def lazy(graph: StageGraph, costs: StageCosts, rules: Rules | None = None) -> tuple[BlockAnswer, AskedCosts]:
    block, stop = block_of(graph, costs, rules)
    transitions = block.transitions(10_000_000)
    assert transitions is not None
    return LazyPaths(block, one_by_one(block), transitions, stop).run(), block.costs


def a_star(
    graph: StageGraph, costs: StageCosts, rules: Rules | None = None
) -> tuple[BlockAnswer, AskedCosts]:
    block, stop = block_of(graph, costs, rules)
    return AStar(block, beam(block, 1, stop), stop).run(), block.costs


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("network", "label", "r", "s", "expected"),
    [
        ("ios_inception_v3", "E1", None, None, 39),
        ("ios_squeezenet", "fire2_proj", None, None, 30),
        ("ios_inception_v3", "E1", 1, 3, 45),
        ("ios_nasnet_a", "first1", 1, 3, 59),
        ("ios_squeezenet", "fire2_proj", 1, 3, 32),
        ("ios_randwire", "ws32_c616", 1, 3, 122),
    ],
)
def test_whole_optima(network: str, label: str, r: int | None, s: int | None, expected: int) -> None:
    graph = graph_of(network, label)
    rules = Rules("parallel", "single-source", Pruning(r, s))
    block, _ = block_of(graph, SyntheticCosts(graph), rules)
    answer = dynamic(block)
    assert answer is not None
    assert answer.cost_ns == expected == a_star(graph, SyntheticCosts(graph), rules)[0].cost_ns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "label", "expected"), [("ios_nasnet_a", "first1", 43), ("ios_randwire", "ws32_c616", 98)]
)
def test_whole_optima_without_pruning(network: str, label: str, expected: int) -> None:
    graph = graph_of(network, label)
    block, _ = block_of(graph, SyntheticCosts(graph), Rules("parallel", "single-source", Pruning()))
    answer = dynamic(block)
    assert answer is not None
    assert answer.cost_ns == expected


def compare(network: str, label: str, noise: float) -> tuple[int, int, int]:
    """Stage costs that the dynamic programme, A* and lazy paths ask for, which come to the same cost."""
    graph = graph_of(network, label)
    costs = SyntheticCosts(graph, noise)
    block, _ = block_of(graph, costs)
    expected = dynamic(block)
    assert expected is not None
    num_asked = []
    for search in (a_star, lazy):
        answer, asked = search(graph, costs)
        num_asked.append(asked.num_asked)
        require_valid(graph, answer.stages)
        assert answer.is_closed
        assert asked.num_violations == 0
        assert answer.bound_ns == answer.cost_ns == pytest.approx(expected.cost_ns, rel=1e-12)
        assert sum(map(asked.cost_ns, answer.stages)) == pytest.approx(answer.cost_ns, rel=1e-12)
    of_a_star, of_lazy = num_asked
    return block.costs.num_asked, of_a_star, of_lazy


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.1, 0.3])
@pytest.mark.parametrize(("network", "label"), [("ios_inception_v3", "E1"), ("ios_nasnet_a", "stem1")])
def test_searches_equal_the_dynamic_programme_for_a_fifth_of_its_stage_costs(
    network: str, label: str, noise: float
) -> None:
    of_dynamic, *of_searches = compare(network, label, noise)
    assert all(5 * asked <= of_dynamic for asked in of_searches)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("network", ["ios_inception_v3", "ios_nasnet_a", "ios_randwire", "ios_squeezenet"])
def test_searches_equal_the_dynamic_programme_on_every_block(network: str, noise: float) -> None:
    """SqueezeNet has so few stages that those of its schedule alone are a seventh of all."""
    asked = [compare(network, block.label, noise) for block in load_blocks(network).blocks]
    of_dynamic, *of_searches = map(sum, zip(*asked, strict=True))
    factor = 3 if network == "ios_squeezenet" else 5
    assert all(factor * asked_for <= of_dynamic for asked_for in of_searches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("network", ["ios_inception_v3", "ios_squeezenet", "ios_randwire"])
def test_whole_networks_are_proven_in_no_time(network: str) -> None:
    for label in (block.label for block in load_blocks(network).blocks):
        graph = graph_of(network, label)
        costs = AskedCosts(SyntheticCosts(graph, 0.3), graph)
        answer = BlockNetwork(graph, costs, Rules("parallel"), 40).solve("lazy", 1, Stop.of(NO_LIMIT, costs))
        require_valid(graph, answer.stages)
        assert answer.is_closed
        assert answer.holds


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("r", "s"), [(1, 3), (2, 2), (3, 1), (3, 8)])
@pytest.mark.parametrize("grouping", ["component", "single-source"])
def test_listed_transitions_are_those_of_the_block(grouping: Grouping, r: int, s: int) -> None:
    graph = graph_of("ios_nasnet_a", "first1")
    rules = Rules("parallel", grouping, Pruning(r, s))
    block, _ = block_of(graph, SyntheticCosts(graph), rules)
    listed = block.transitions(1_000_000)
    assert listed is not None
    counts = count(EndingSpace(graph, grouping, rules.pruning))
    assert listed.num_transitions == counts.num_transitions
    assert listed.num_states == counts.num_states
    assert len(listed.masks) == len(set(listed.masks.tolist())) == counts.num_stages
    for mask, value in zip(listed.masks.tolist(), listed.values.tolist(), strict=True):
        assert value == pytest.approx(min(way.ns for way in block.ways(mask)))
    assert block.transitions(listed.num_transitions - 1) is None


@pytest.mark.parametrize("kinds", ["parallel", "both"])
def test_transitions_are_listed_in_pieces_of_any_size(
    kinds: Strategies, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of("ios_inception_v3", "E1")
    block, _ = block_of(graph, SyntheticCosts(graph), Rules(kinds))
    at_once = block.transitions(1_000_000)
    assert at_once is not None
    looked = 0

    def look() -> None:
        nonlocal looked
        looked += 1

    monkeypatch.setattr(transitions, "checkpoint", look)
    for size in (1, 7):
        monkeypatch.setattr(transitions, "_AT_ONCE", size)
        looked = 0
        in_pieces = block.transitions(1_000_000)
        assert in_pieces is not None
        assert looked >= in_pieces.num_transitions / size
        for name in ("order", "firsts", "targets", "stages", "masks", "values"):
            assert np.array_equal(getattr(in_pieces, name), getattr(at_once, name))
        assert block.transitions(at_once.num_transitions - 1) is None


def test_pruned_transitions_hold_every_better_path() -> None:
    graph = graph_of("ios_inception_v3", "E1")
    block, _ = block_of(graph, SyntheticCosts(graph, 0.3))
    listed = block.transitions(1_000_000)
    assert listed is not None
    length, path = listed.shortest()
    num_transitions = listed.num_transitions
    listed.prune(1.1 * length)
    assert 0 < listed.num_transitions < num_transitions / 2
    assert listed.shortest() == (length, path)
    listed.prune(length)
    assert listed.shortest() == (math.inf, [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["lazy", "a-star"])
def test_an_interrupted_search_has_a_schedule_and_a_bound(kind: SearchKind) -> None:
    graph = graph_of("ios_nasnet_a", "first1")
    costs = AskedCosts(SyntheticCosts(graph, 0.3), graph)
    whole = BlockNetwork(graph, costs, Rules("parallel"), 40).solve("lazy", 1, Stop.of(NO_LIMIT, costs))
    assert whole.is_closed
    gaps = []
    for max_asked in (0, 5, 20, 40, *((80, 320) if kind == "a-star" else ())):
        costs = AskedCosts(SyntheticCosts(graph, 0.3), graph)
        stop = Stop(Budget(1).start(), costs, UNLIMITED, max_asked)
        answer = BlockNetwork(graph, costs, Rules("parallel"), 40).solve(kind, 1, stop)
        require_valid(graph, answer.stages)
        assert not answer.is_closed
        assert answer.bound_ns <= whole.cost_ns <= answer.cost_ns
        gaps.append(answer.gap)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[1]


def test_a_deadline_holds_and_marks_the_schedule_as_cut_off() -> None:
    graph = graph_of("ios_randwire", "ws32_c616")
    costs = AskedCosts(SyntheticCosts(graph, 0.3), graph)
    now_s = iter(range(1_000_000))
    stop = Stop(Budget(1, deadline_s=50.0).start(lambda: float(next(now_s))), costs, UNLIMITED, UNLIMITED)
    answer = BlockNetwork(graph, costs, Rules("parallel"), 40).solve("a-star", 2, stop)
    require_valid(graph, answer.stages)
    assert answer.was_cut_off
    assert answer.bound_ns <= answer.cost_ns


class Interrupted(SyntheticCosts):
    """Ctrl-C comes while a stage is measured."""

    def __init__(self, graph: StageGraph, num_answers: int) -> None:
        super().__init__(graph, 0.3)
        self.num_left = num_answers

    def cost_ns(self, choice: StageChoice) -> float:
        self.num_left -= 1
        if self.num_left == 0:
            raise KeyboardInterrupt
        return super().cost_ns(choice)


def test_an_interrupt_keeps_what_was_found_before_a_deadline() -> None:
    graph = graph_of("ios_nasnet_a", "first1")
    costs = AskedCosts(Interrupted(graph, 50), graph)
    stop = Stop.of(Budget(1, deadline_s=1000.0), costs)
    answer = BlockNetwork(graph, costs, Rules("parallel"), 40).solve("a-star", 1, stop)
    require_valid(graph, answer.stages)
    assert answer.was_cut_off
    assert not answer.is_closed
    assert costs.num_asked == 49
    assert answer.cost_ns == pytest.approx(sum(map(costs.cost_ns, answer.stages)), rel=1e-12)
    costs = AskedCosts(Interrupted(graph, 50), graph)
    with pytest.raises(KeyboardInterrupt):
        BlockNetwork(graph, costs, Rules("parallel"), 40).solve("a-star", 1, Stop.of(NO_LIMIT, costs))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_cost_that_is_no_number_is_one_error(bad: float) -> None:
    graph = StageGraph.of_edges(["left", "right"], [])

    class Broken(SyntheticCosts):
        def cost_ns(self, choice: StageChoice) -> float:
            return bad if len(choice.groups) == 2 else super().cost_ns(choice)

    with pytest.raises(InternalError, match=r"a stage \(parallel: left \| right\) costs (nan|inf|-1.0) ns"):
        a_star(graph, Broken(graph))


def test_a_cost_below_its_bound_takes_the_certificate_away() -> None:
    graph = StageGraph.of_edges("abc", ["ab"])

    class Loose(SyntheticCosts):
        def cost_ns(self, choice: StageChoice) -> float:
            return super().cost_ns(choice) / 2

    costs = AskedCosts(Loose(graph), graph)
    answer = BlockNetwork(graph, costs, Rules("parallel"), 40).solve("a-star", 1, Stop.of(NO_LIMIT, costs))
    assert not answer.holds
    assert "estimated" in answer.text("ns")


def test_graphs_that_are_none_are_one_error() -> None:
    with pytest.raises(UsageError, match=r"wait for each other in a cycle: c, b, c"):
        StageGraph.of_edges("abc", ["ab", "bc", "cb"])
    with pytest.raises(UsageError, match="edge 'a' to 'z': there is no operator 'z'"):
        StageGraph.of_edges("a", ["az"])
    with pytest.raises(UsageError, match="operator 'a' is given twice"):
        StageGraph.of_edges("aa", [])
    with pytest.raises(UsageError, match="reads one that does not come before"):
        StageGraph(("a", "b"), (2, 0))
    block = load_blocks("ios_squeezenet").blocks[1]
    broken = type(block)(block.label, block.units, block.edges[1:])
    with pytest.raises(UsageError, match=r"block 'fire2_proj': 'op4' reads 'op3', but there is no edge"):
        StageGraph.of_block(broken)


def test_what_can_run_next_follows_from_what_could_before() -> None:
    rng = np.random.default_rng(0)
    for num_operators in (1, 6, 25):
        masks = tuple(int(rng.integers(1 << i)) & int(rng.integers(1 << i)) for i in range(num_operators))
        graph = StageGraph(tuple(map(str, range(num_operators))), masks)
        done, ready = 0, graph.sources()
        while done != graph.everything:
            can_run = [i for i, mask in enumerate(masks) if not done >> i & 1 and not mask & ~done]
            assert ready == sum(1 << i for i in can_run)
            chosen = int(rng.choice(can_run))
            done, ready = done | 1 << chosen, graph.ready_after(done, ready, chosen)
        assert not ready


def test_blocks_end_at_operators_that_all_others_come_before_or_after() -> None:
    two_diamonds = StageGraph.of_edges("abcdefg", ["ab", "ac", "bd", "cd", "de", "df", "eg", "fg"])
    assert blocks(two_diamonds, 40) == (Span(0, 1, True), Span(1, 4, True), Span(4, 7, True))
    assert [s.stop - s.start for s in blocks(StageGraph(tuple("ab"), (0, 0)), 40)] == [2]
    wide = StageGraph(tuple(map(str, range(30))), (0,) * 30)
    assert all(span.stop - span.start <= 12 for span in blocks(wide, 12))


def test_stages_may_join_across_blocks() -> None:
    """In a chain every operator is a block; a stage of three saves two starts of a stage."""
    names = [str(i) for i in range(7)]
    graph = StageGraph.of_edges(names, list(pairwise(names)))
    for size, num_stages in ((1, 7), (2, 4), (3, 3)):
        costs = AskedCosts(SyntheticCosts(graph), graph)
        rules = Rules("parallel", "component", Pruning(size, 8))
        network = BlockNetwork(graph, costs, rules, 40)
        assert len(network.blocks) == 7
        answer = network.solve("a-star", 1, Stop.of(NO_LIMIT, costs))
        require_valid(graph, answer.stages)
        assert len(answer.stages) == num_stages
        assert answer.apart_ns - answer.cost_ns == 2 * (7 - num_stages)
        expected = dynamic(Block(graph, costs, rules))
        assert expected is not None
        assert answer.cost_ns == expected.cost_ns
        assert answer.bound_ns <= answer.cost_ns


def test_published_schedules_are_valid_and_have_the_papers_form() -> None:
    network = load_blocks(PUBLISHED_NETWORK)
    totals = {}
    for name, by_block in published_schedules().items():
        for block, stages in zip(network.blocks, by_block, strict=True):
            graph = StageGraph.of_block(block)
            require_valid(graph, stages)
            sets = unit_merge_sets(block)
            for choice in stages:
                if choice.strategy == "merge":
                    assert any(choice.mask & members == choice.mask for members in sets)
        totals[name] = sum(map(len, by_block))
    assert totals == {"1": 55, "16": 43, "32": 45, "64": 44, "128": 40, "v100": 55, "k80": 46}
    assert sum(choice.strategy == "merge" for stages in published_schedules()["1"] for choice in stages) == 9


def test_published_schedules_cost_no_less_than_what_the_search_proves() -> None:
    graph = load(zoo.build(PUBLISHED_NETWORK)).graph
    partition = Layerwise().solve(PartitionProblem(graph), Budget(100))
    assert isinstance(partition, Partition)
    problem = ScheduleProblem(partition, limits=Limits(8))
    best = Ios().solve(problem, Budget(1000))
    assert "the least of its search space" in best.provenance.note
    for name in published_schedules():
        stages = published_stages(partition, name)
        schedule = build_schedule(problem, stages, Provenance(f"published for {name}"))
        assert check_schedule(problem, schedule) == ()
        assert best.quality.cost <= schedule.quality.cost * (1 + 1e-9)
    with pytest.raises(UsageError, match="no schedule was published for '2'"):
        published_stages(partition, "2")


def test_invalid_stages_are_named() -> None:
    graph = StageGraph.of_edges("abc", ["ab"])
    with pytest.raises(UsageError, match="stage 0: 'b' runs before a"):
        require_valid(graph, [StageChoice(((1,),), "alone")])
    with pytest.raises(UsageError, match="b, c never run"):
        require_valid(graph, [StageChoice(((0,),), "alone")])
    with pytest.raises(UsageError, match="'b' runs before a"):
        require_valid(graph, [StageChoice(((0,), (1,), (2,)), "parallel")])


def problem_of(seed: int, num_groups: int, cost: CostModel = NOMINAL) -> ScheduleProblem:
    partition = Layerwise().solve(PartitionProblem(random_graph(seed, 16)), Budget(100))
    assert isinstance(partition, Partition)
    return ScheduleProblem(partition, cost=cost, limits=Limits(num_groups))


def stages_of_pairs(graph: StageGraph) -> list[StageChoice]:
    """Every two operators in a row, and at the same time where neither needs the other."""
    stages = []
    for second in range(graph.num_operators):
        for first in range(second):
            stages.append(StageChoice(((first, second),), "parallel"))
            if not graph.descendants[first] >> second & 1:
                stages.append(StageChoice(((first,), (second,)), "parallel"))
                stages += [StageChoice(((third, first), (second,)), "parallel") for third in range(first)][:3]
    return stages


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["stcp920", "v100"])
def test_stages_with_one_signature_have_one_cost(target: str) -> None:
    """Whatever was asked before."""
    options = Options(target=TargetRef.parse(target), partition="layerwise", no_cache=True)
    planned = plan(load(zoo.build("bert_tiny")).graph, options)
    cost = planned.backend.costs  # type: ignore[attr-defined]  # described machines have some
    problem = ScheduleProblem(planned.program.partition, cost=cost, limits=Limits(2))
    graph = StageGraph.of_partition(problem.partition)
    costs = ModelCosts(problem, graph)
    asked = AskedCosts(costs, graph)
    choices = stages_of_pairs(graph)[:300]
    for choice in choices:
        assert asked.cost_ns(choice) == costs.cost_ns(choice), choice
    assert asked.num_asked < len(choices)
    by_structure: dict[Hashable, set[float]] = {}
    for choice in choices:
        structure = signature(choice, costs.operators, graph.predecessors, in_order=True)
        by_structure.setdefault(structure, set()).add(costs.cost_ns(choice))
    assert len(by_structure) < len(choices)
    if target == "v100":  # in one program what kernels share may decide
        assert all(len(known) == 1 for known in by_structure.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_scheduler_is_optimal_by_a_model_that_proves_bounds(seed: int) -> None:
    problem = problem_of(seed, 3)
    schedule = Ios().solve(problem, NO_LIMIT)
    assert check_schedule(problem, schedule) == ()
    assert schedule.quality.status is Status.OPTIMAL
    assert "the least of its search space" in schedule.provenance.note
    for planner in (Sequential(), Greedy(), Ios(search="beam"), Ios(max_group_size=1), Ios(strategy="merge")):
        assert schedule.quality.cost <= planner.solve(problem, NO_LIMIT).quality.cost * (1 + 1e-9)
    dynamic_schedule = Ios(search="dynamic").solve(problem, NO_LIMIT)
    assert dynamic_schedule.quality.cost == pytest.approx(schedule.quality.cost, rel=1e-9)


def test_merges_alone_run_nothing_at_the_same_time() -> None:
    problem = problem_of(3, 3)
    for schedule in (Ios(strategy="merge").solve(problem, b) for b in (NO_LIMIT, Budget(0))):
        assert all(len(s.groups) == 1 or s.strategy == "merge" for s in schedule.stages)


def test_estimates_do_not_prove() -> None:
    unproven = replace(NOMINAL, proves_bounds=False)
    schedule = Ios().solve(problem_of(1, 3, unproven), NO_LIMIT)
    assert schedule.quality.status is Status.FEASIBLE
    assert not schedule.quality.widest.is_proven


def test_without_a_budget_there_is_still_a_schedule() -> None:
    problem = problem_of(2, 3)
    schedule = Ios().solve(problem, Budget(0))
    assert check_schedule(problem, schedule) == ()
    assert schedule.quality.cost <= Greedy().solve(problem, Budget(0)).quality.cost


def test_its_options_are_texts_and_are_checked() -> None:
    member = SCHEDULERS.get("ios{strategy=merge, max_groups=3, search=dynamic}")
    assert (member.strategy, member.max_groups, member.search) == ("merge", 3, "dynamic")
    with pytest.raises(UsageError, match="ios: max_groups=0: expected at least 1"):
        SCHEDULERS.get("ios{max_groups=0}")


class Summed(SyntheticCosts):
    """Stages cost the sum of their operators less a share where there are several groups."""

    def __init__(self, graph: StageGraph, saved: float) -> None:
        super().__init__(graph)
        self.saved = saved
        self.bounds = replace(self.bounds, stage_ns=0.0, chain_ns=(0.0,) * graph.num_operators, areas_ns=())

    def cost_ns(self, choice: StageChoice) -> float:
        times = sum(1.0 + i % 3 for group in choice.groups for i in group)
        return times * (1 - self.saved) if len(choice.groups) > 1 else times


@pytest.mark.parametrize(
    ("saved", "least_gain", "num_together"),
    [(0.0, 0.0, 0), (0.005, 0.01, 0), (0.005, 0.0, 4), (0.2, 0.01, 4)],
)
def test_groups_have_to_pay(saved: float, least_gain: float, num_together: int) -> None:
    graph = StageGraph.of_edges("abcdefg", ["ab", "ac", "bd", "cd", "de", "df", "eg", "fg"])
    costs = AskedCosts(Summed(graph, saved), graph)
    rules = Rules("parallel", least_gain=least_gain)
    answer = BlockNetwork(graph, costs, rules, 40).solve("a-star", 2, Stop.of(NO_LIMIT, costs))
    require_valid(graph, answer.stages)
    together = [choice for choice in answer.stages if len(choice.groups) > 1]
    assert sum(choice.mask.bit_count() for choice in together) == num_together
    if not together:
        assert [choice.groups for choice in answer.stages] == [((i,),) for i in range(7)]


def test_a_group_that_does_not_pay_runs_alone() -> None:
    """Of three groups, two gain by each other's company and one does not."""
    graph = StageGraph(tuple("abc"), (0, 0, 0))

    class Pairs(SyntheticCosts):
        def cost_ns(self, choice: StageChoice) -> float:
            return 4.0 * choice.mask.bit_count() - (2.0 if choice.mask & 0b101 == 0b101 else 0.0)

    costs = AskedCosts(Pairs(graph), graph)
    stages = settled(graph, [StageChoice(((0,), (1,), (2,)), "parallel")], costs, 0.0)
    assert [choice.groups for choice in stages] == [((0,), (2,)), ((1,),)]


def test_without_cores_for_them_nothing_runs_together() -> None:
    problem = problem_of(2, 1)
    for planner in (Ios(), Greedy()):
        assert all(len(stage.groups) == 1 for stage in planner.solve(problem, NO_LIMIT).stages)
    sequential = Sequential().solve(problem, NO_LIMIT)
    assert Ios().solve(problem, NO_LIMIT).stages == sequential.stages


def test_a_closed_search_is_optimal_for_the_simulated_cost() -> None:
    """Kernels that are launched one by one make a schedule cost its stages, and the search prices these.

    Pools and softmaxes are priced without a search of mappings, which products would need.
    """
    builder = GraphBuilder()
    ends = []
    value = builder.input(1, 64, 28, 28)
    for windows in ((3, 5, 3), (5, 3), (7, None), (None,)):
        end = value
        for k in windows:
            if k is None:
                end = builder.op("Softmax", end)
            else:
                end = builder.op("AveragePool", end, kernel_shape=(k, k), pads=(k // 2,) * 4)
        ends.append(end)
    graph = builder.finish(builder.op("Concat", *ends, shape=(1, 256, 28, 28), axis=1))
    for schedule, status in (("ios", Status.OPTIMAL), ("ios{search=beam}", Status.FEASIBLE)):
        options = Options(target=TargetRef("v100"), partition="layerwise", schedule=schedule)
        found = plan(graph, options).program.schedule
        assert found.quality.status is status
        assert "stage costs by simulator" in found.provenance.note
        assert found.quality.widest.is_proven
