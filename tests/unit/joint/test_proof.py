"""Proofs of joint plans on machines that launch kernels: held against plain enumeration of small graphs."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, isclose

import pytest
from tests.support.effort import num_instructions
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import (
    RECIPES,
    chain,
    diamond,
    fork,
    planner_of,
    pricer_of,
    product,
    siblings,
)

from tilewright.bit_sets import bits
from tilewright.compiler import plan_optimised
from tilewright.errors import InternalError
from tilewright.ir.graph import Graph
from tilewright.joint.additive import Part, shortest
from tilewright.joint.check import check_potentials
from tilewright.joint.launched import proof as proof_module
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.ideals import LayerGraph
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer, Machine
from tilewright.joint.launched.proof import (
    IN_ORDER,
    SMALL_BLOCKS,
    WHOLE_LAYERS,
    WITH_LANES,
    WITHOUT_LANES,
    Declared,
    Proof,
    _Level,
    _Proving,
    prove,
)
from tilewright.joint.launched.search import LaunchedSearch
from tilewright.joint_blocks import Blocks, with_bounds
from tilewright.joint_plan import _Found, begun
from tilewright.options import Options
from tilewright.planner import LEFT_OPEN, cost_of, machine_of
from tilewright.planning import UNLIMITED, Bound, Budget, Quality, Rule, Status
from tilewright.planning.portfolio import Best, Recipe
from tilewright.progress import SearchEnded
from tilewright.schedule.base import Group, Instance, Stage
from tilewright.schedule.space import SCHEDULES
from tilewright.target_ref import TargetRef

MACHINES = ("v100", "jetson-nano", "a310")
MEMORIES = ("longest-liveness", "longest-liveness{pack=next-fit}", "largest-size{most_bytes=4096+4096}")


def two_inputs() -> Graph:
    b = GraphBuilder()
    left, right = product(b, b.input(64, 96), 64, 64, 96), product(b, b.input(64, 32), 64, 64, 32)
    return b.finish(product(b, b.op("Add", left, right), 64, 128, 64))


def interleaved() -> Graph:
    """Two chains whose layers are in turns, so that neither lies between two ideals in the order."""
    b = GraphBuilder()
    left, right = product(b, b.input(64, 96), 64, 64, 96), product(b, b.input(64, 32), 64, 64, 32)
    return b.finish(product(b, left, 64, 64, 64), product(b, right, 64, 32, 64))


def moves() -> Graph:
    """Nothing that a unit does."""
    b = GraphBuilder()
    y = b.op("Transpose", b.input(4, 6), shape=(6, 4), perm=(1, 0))
    return b.finish(*(b.op("Transpose", y, shape=(4, 6), perm=(1, 0)) for _ in range(2)))


GRAPHS = {"chain": chain, "fork": fork, "diamond": diamond, "two inputs": two_inputs, "siblings": siblings}
CASES = [(name, machine) for name in GRAPHS for machine in MACHINES]
GRAPHS |= {"interleaved": interleaved, "moves": moves}


class Case:
    """A graph on a machine, and all sets of its layers that can run at once, by plain enumeration."""

    def __init__(self, name: str, machine: str) -> None:
        graph = GRAPHS[name]()
        self.planner, self.numbered = planner_of(graph, machine), Numbered(graph)
        self.pricer = self.fresh()
        self.moves = Moves(self.pricer, 4)
        self.layers = sorted(self.moves.layers)  # as nodes are: paths may alternate
        self.masks = [sum(1 << node for node in layer) for layer in self.layers]
        self.published: list[float] = []
        self._ways: dict[int, list[Content]] = {}

    def fresh(self) -> LaunchedPricer:
        return pricer_of(self.planner, self.numbered)

    def sets(self) -> Iterator[int]:
        """Sets of layers, as nodes, that no layer outside lies between."""
        for size in range(1, len(self.masks) + 1):
            for chosen in itertools.combinations(self.masks, size):
                nodes = sum(chosen)
                if not self._is_left(nodes):
                    yield nodes

    def parts(self, nodes: int) -> list[int]:
        """The layers of a set that hang together."""
        found: list[int] = []
        for mask in self.masks:
            if mask & nodes:
                met = [p for p in found if any(self.pricer.neighbours(node) & p for node in bits(mask))]
                found = [*(p for p in found if p not in met), mask | sum(met)]
        return found

    def _is_left(self, nodes: int) -> bool:
        """Whether a path leaves a set and comes back."""
        behind = 0
        for node in range(len(self.numbered.nodes)):
            if not nodes >> node & 1 and self.pricer.predecessors(node) & (nodes | behind):
                behind |= 1 << node
        return any(self.pricer.predecessors(node) & behind for node in bits(nodes))

    def ways(self, nodes: int) -> list[Content]:
        """One kernel, whole or in lanes; of several parts a stage with a kernel for each."""
        if nodes not in self._ways:
            self._ways[nodes] = self._found_ways(nodes)
        return self._ways[nodes]

    def _found_ways(self, nodes: int) -> list[Content]:
        parts = self.parts(nodes)
        if len(parts) > 1:
            return [self.moves.side_by_side(parts)]
        kernel = self.moves.fused(nodes)
        laned = Moves(self.pricer, 4).laned(kernel, Budget(UNLIMITED).start())
        return [kernel] if laned is None else [kernel, laned]

    def proof(
        self,
        *,
        most_priced: float = inf,
        most_layers: int = UNLIMITED,
        is_interrupted: bool = False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> Proof:
        layers = [Content.of_kernel([layer]) for layer in self.layers]
        cost = sum(map(self.pricer.cost, layers))
        for content in layers:
            self.pricer.add(content)
        before = self.pricer.num_simulated

        def is_due() -> bool:
            is_last = self.pricer.num_simulated - before >= most_priced
            if is_last and is_interrupted:
                raise SearchEnded
            return is_last

        found = prove(
            self.pricer,
            self.moves,
            tuple(layers),
            cost,
            Budget(UNLIMITED).start(),
            is_due,
            lambda contents, cost: self.published.append(cost),
            most_layers,
            is_late,
        )
        assert found is not None
        return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "machine"), CASES)
def test_the_proven_plan_is_the_least_of_all_cuts_into_kernels(name: str, machine: str) -> None:
    case = Case(name, machine)
    least_ns = {nodes: min(map(case.pricer.cost, case.ways(nodes))) for nodes in case.sets()}
    everything = (1 << len(case.numbered.nodes)) - 1
    known = {0: 0.0}
    for stored in range(1, everything + 1):
        costs = (
            known[stored & ~nodes] + ns
            for nodes, ns in least_ns.items()
            if not nodes & ~stored and stored & ~nodes in known and _may_follow(case, nodes, stored)
        )
        least = min(costs, default=inf)
        if least < inf:
            known[stored] = least
    proof = case.proof()
    assert proof.is_closed
    assert isclose(proof.cost, known[everything], rel_tol=1e-12)
    assert proof.bound.value == proof.cost
    assert isclose(sum(map(case.fresh().cost, proof.contents)), proof.cost, rel_tol=1e-12)


def _may_follow(case: Case, nodes: int, stored: int) -> bool:
    """Whether a set can run when all else that is stored is there."""
    return all(not case.pricer.predecessors(node) & ~stored for node in bits(nodes))


def layer_graph(moves: Moves, asked: Machine) -> LayerGraph:
    return LayerGraph.of(
        moves.pricer.numbered,
        moves.layers,
        moves.layers,
        asked.layer_times,
        has_lanes=asked.allows_lanes and asked.limits.num_cores > 1,
        launch_ns=asked.launch_ns,
        join_ns=asked.join_ns,
        most_groups=8,
        floors_of_nodes_ns=asked.floors_ns,
    )


def test_ideals_of_a_chain_are_listed_in_time_that_grows_with_its_layers() -> None:
    counts = []
    for num_layers in (20, 40, 60):
        b = GraphBuilder()
        x = b.input(2, 2)
        for _ in range(num_layers):
            x = product(b, x, 2, 2, 2)
        graph = b.finish(x)
        pricer = pricer_of(planner_of(graph, "v100"), Numbered(graph))
        listed = layer_graph(Moves(pricer, 1), pricer.machine)

        def list_all(listed: LayerGraph = listed, num_layers: int = num_layers) -> None:
            ideals = listed.ideals(1000)
            assert ideals is not None
            assert len(list(listed.nodes_of_each(ideals))) == len(ideals) == num_layers + 1

        counts.append(num_instructions(list_all))
    first, second, third = counts
    assert third - second < 1.004 * (second - first)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("name", "machine"), CASES)
def test_no_kernel_costs_less_than_its_bound(name: str, machine: str, memory: str) -> None:
    case = Case(name, machine)
    asked = machine_of(case.planner.backend, case.planner.options, memory)
    case.pricer = LaunchedPricer(case.numbered, asked)
    graph = layer_graph(case.moves, asked)
    ideals = graph.ideals(1000)
    assert ideals is not None
    stored = list(graph.nodes_of_each(ideals))
    assert stored == list(map(graph.nodes_of, ideals))
    assert tuple(map(graph.layers_of, stored)) == ideals
    space = graph.space(ideals, len(graph.members), 10_000, lambda: False)
    assert space is not None
    bounds = {graph.nodes_of(layers): least_ns for layers, least_ns in space.least_ns.items()}
    assert set(bounds) == set(case.sets())
    for nodes, least_ns in bounds.items():
        plain, *laned = case.ways(nodes)
        assert case.pricer.cost(plain) >= least_ns * (1 - 1e-9)
        for content in laned:
            least_laned_ns = space.laned_ns[graph.layers_of(nodes) or 0]
            assert case.pricer.cost(content) >= least_laned_ns * (1 - 1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "machine"), CASES[::2])
def test_potentials_of_ideals_prove_the_bound(name: str, machine: str) -> None:
    case = Case(name, machine)
    proof = case.proof()
    plain = case.fresh()
    for nodes in case.sets():
        for content in case.ways(nodes):
            plain.add(content)
    for layer in case.moves.layers:
        plain.add(Content.of_kernel([layer]))

    def potential(stored: int, kept: int) -> float:
        return proof.potentials[stored]

    assert check_potentials(plain, potential, proof.bound.value) == []
    raised = dict(proof.potentials)
    raised[max(raised)] += 1.0
    assert check_potentials(plain, lambda stored, kept: raised[stored], proof.bound.value + 1.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "machine"), CASES[1::2])
def test_no_schedule_of_whole_layers_costs_less_than_their_bound(name: str, machine: str) -> None:
    case = Case(name, machine)
    proof = case.proof()
    num_held = 0
    for recipe in RECIPES:
        schedule = case.planner.schedule(case.planner.partition(recipe.partition), recipe)
        held = {bound.space for bound in proof.bounds_of(list(case.numbered.contents(schedule)))}
        if WHOLE_LAYERS in held:
            num_held += 1
            assert proof.whole_bound is not None
            assert schedule.quality.cost >= proof.whole_bound.value * (1 - 1e-9)
    assert num_held


def test_a_proof_whose_budget_ends_says_what_is_known() -> None:
    cut = Case("siblings", "v100").proof(most_priced=1)
    assert not cut.is_closed
    assert cut.closed is None
    assert 0 < cut.bound.value < cut.cost


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "machine"), [*CASES, ("interleaved", "v100")])
@pytest.mark.parametrize("is_in_order", [False, True])
def test_each_bound_is_that_of_its_space(
    name: str, machine: str, is_in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "_FEW_LAYERS", 1)
    if is_in_order:
        monkeypatch.setattr(proof_module, "MOST_IDEALS", 0)
    num_closed, judge = 0, Case(name, machine)
    for most_priced, most_layers in ((1, 99), (4, 99), (8, 99), (inf, 2), (inf, 99)):
        case = Case(name, machine)
        proof = case.proof(most_priced=most_priced, most_layers=most_layers)
        assert proof.largest.most_layers <= most_layers
        assert least_of(judge, proof.largest) >= proof.bound.value * (1 - 1e-12)
        if proof.closed is not None:
            num_closed += 1
            assert isclose(least_of(judge, proof.closed), proof.closed.bound.value, rel_tol=1e-12)
            assert proof.cost == proof.closed.bound.value or most_priced < inf
    assert num_closed


@pytest.mark.parametrize("name", ["moves", "interleaved"])
def test_sets_without_work_or_with_parts_between_no_ideals_have_bounds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "MOST_IDEALS", 0)
    case = Case(name, "v100")
    proof = case.proof(most_priced=4)
    assert 0 < proof.bound.value <= least_of(case, proof.largest) * (1 + 1e-12)


def test_the_best_plan_of_small_blocks_needs_no_other_recipe() -> None:
    case = Case("diamond", "jetson-nano")
    case.planner.options = replace(case.planner.options, plan="joint")
    best = begun(case.planner, LEFT_OPEN, Budget(1))
    found = _Found(case.planner, best, None)
    search, _ = next(found.steps())  # before anything that takes long
    search(Budget(UNLIMITED).start())
    assert found.cost < cost_of(best.plan)
    assert found.cost <= case.proof(most_layers=SMALL_BLOCKS).cost * (1 + 1e-9)


def least_of(case: Case, space: Declared) -> float:
    """The least cost of all plans of a declared space, by plain enumeration."""
    rules = {rule.text: rule.most for rule in space.bound.space.rules}
    most = rules.get("layers in a block that is not known")
    everything = (1 << len(case.numbered.nodes)) - 1
    costs: dict[int, float] = {}
    for content in space.known:
        costs[content.mask] = min(costs.get(content.mask, inf), case.pricer.cost(content))
    for nodes in case.sets():
        num_layers = sum(bool(mask & nodes) for mask in case.masks)
        ways = case.ways(nodes)[: None if WITH_LANES.text in rules else 1]
        if most is None or num_layers <= most:
            costs[nodes] = min(costs.get(nodes, inf), *map(case.pricer.cost, ways))
    prefixes = list(itertools.accumulate(case.masks, initial=0))  # as the plan was given: layer by layer
    found = {0: 0.0}
    for stored in prefixes if IN_ORDER.text in rules else range(everything + 1):
        paths = (
            found[stored & ~nodes] + ns
            for nodes, ns in costs.items()
            if not nodes & ~stored and stored & ~nodes in found and _may_follow(case, nodes, stored)
        )
        least = min(paths, default=inf)
        if stored and least < inf:
            found[stored] = least
    return found[everything]


def test_a_joint_plan_says_of_which_space_it_is_the_best() -> None:
    options = Options(target=TargetRef.parse("a310"), plan="joint", only=("kernels", "lanes"))
    quality = plan_optimised(diamond(), options, portfolio=Budget(400)).program.schedule.quality
    assert quality.status is Status.OPTIMAL
    assert quality.optimal_among is not None
    assert {WITH_LANES, WITHOUT_LANES, *WHOLE_LAYERS.rules} & set(quality.optimal_among.rules)


def test_a_late_proof_publishes_each_better_plan_at_once() -> None:
    early, late = Case("siblings", "jetson-nano"), Case("siblings", "jetson-nano")
    cost = early.proof().cost
    assert late.proof(is_late=lambda: True).cost == cost
    assert early.published[-1] == late.published[-1] == cost
    assert len(early.published) < len(late.published)
    assert late.published == sorted(late.published, reverse=True)


def test_a_better_plan_found_before_it_gets_late_is_published_then(monkeypatch: pytest.MonkeyPatch) -> None:
    case, rounds, num_published = Case("fork", "a310"), list[str](), list[int]()
    search = _Proving._round

    def noted(self: _Proving, level: _Level) -> str:
        num_published.append(len(case.published))
        rounds.append(search(self, level))
        return rounds[-1]

    monkeypatch.setattr(_Proving, "_round", noted)
    case.proof(is_late=lambda: rounds[-1] == "open")
    assert (rounds[:2], num_published[:3]) == (["better", "open"], [0, 0, 1])


def test_decisions_are_of_blocks_that_are_placed_as_in_the_plan() -> None:
    for memory, is_told in ((MEMORIES[0], True), (MEMORIES[1], False)):
        case, recipe = Case("diamond", "a310"), Recipe("layerwise", "sequential", memory)
        best, blocks = Best(case.planner.program(recipe), recipe), Blocks(case.planner, None, MEMORIES[0])
        blocks.proven(best, Budget(UNLIMITED).start())
        over = Budget(UNLIMITED, deadline_s=1e-9).start()
        case.planner.decisions = ()
        blocks.proven(best, over)
        assert bool(case.planner.decisions) == is_told


def test_a_plan_is_proven_among_blocks_that_are_placed_as_its_own() -> None:
    case, memory = Case("diamond", "a310"), "longest-liveness{pack=next-fit}"
    recipe = Recipe("layerwise", "sequential", memory)
    best = Best(case.planner.program(recipe), recipe, ())
    unlimited = Budget(UNLIMITED).start
    quality = Blocks(case.planner, None, memory).proven(best, unlimited()).plan.schedule.quality
    assert quality.optimal_among is not None
    assert Rule(f"placed by {memory}") in quality.optimal_among.rules
    case.pricer = LaunchedPricer(
        case.numbered, machine_of(case.planner.backend, case.planner.options, memory)
    )
    assert isclose(quality.cost, case.proof().cost, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["fork", "diamond", "two inputs"])
def test_with_stages_of_layers_alone_the_search_proves_what_ios_does(name: str) -> None:
    case = Case(name, "v100")
    recipe = Recipe("layerwise", "ios{strategy=parallel}", "longest-liveness")
    partition = case.planner.partition(recipe.partition)
    proven = case.planner.schedule(partition, recipe).quality
    plain = case.fresh()
    sequential = case.planner.schedule(partition, replace(recipe, schedule="sequential"))
    kernels = {c.mask: c.kernels[0] for c in case.numbered.contents(sequential)}
    case.masks = list(kernels)
    for nodes in case.sets():
        groups = [[kernels[mask] for mask in kernels if mask & part] for part in case.parts(nodes)]
        if all(len(group) <= 3 for group in groups) and len(groups) <= 8:
            plain.add(_stage_of(groups))
    everything = (1 << len(case.numbered.nodes)) - 1
    part = Part(everything, 0, everything)
    found = shortest(plain, part, list(plain.sets), inf, is_once=True)
    assert found.plan is not None
    assert proven.status is Status.OPTIMAL
    assert isclose(found.plan.cost, proven.cost, rel_tol=1e-9)


def _stage_of(groups: list[list[Kernel]]) -> Content:
    """Groups of kernels that run at the same time."""
    kernels = tuple(kernel for group in groups for kernel in group)
    numbers = iter(range(len(kernels)))
    stage = Stage(tuple(Group(tuple(Instance(next(numbers)) for _ in group)) for group in groups))
    return Content(kernels, (stage,))


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_bound_above_the_plan_is_no_bound_or_our_mistake(share: float) -> None:
    case = Case("diamond", "v100")
    proof = case.proof()
    cost = proof.cost * share
    stated = Quality(cost, "ns", Status.FEASIBLE, (Bound(0.0, SCHEDULES, "nothing"),))
    recipe = Recipe("layerwise", "sequential", "longest-liveness")
    made = case.planner.program(recipe)
    program = replace(made, schedule=replace(made.schedule, quality=stated))
    best = Best(program, recipe)
    largest = replace(proof.largest, bound=replace(proof.bound, value=proof.cost * 3))
    wrong = replace(proof, whole_bound=None, largest=largest, closed=None)
    if share < 1:  # it costs less than its blocks alone
        quality = with_bounds(best, wrong, case.pricer, recipe).schedule.quality
        assert quality.bounds == stated.bounds
    else:
        with pytest.raises(InternalError, match="is above a cost"):
            with_bounds(best, wrong, case.pricer, recipe)


def test_lanes_that_time_cut_short_are_not_taken_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("siblings", "v100")
    kernel = case.moves.fused(sum(case.masks))
    late, unlimited = Budget(UNLIMITED, 1e-9).start(), Budget(UNLIMITED).start()
    with monkeypatch.context() as patched:
        patched.setattr("tilewright.joint.launched.moves.lane_meter", lambda meter: late)
        case.moves.laned(kernel, late)
    assert not case.moves.was_laned(kernel)
    case.moves.laned(kernel, unlimited)
    assert case.moves.was_laned(kernel)


def test_an_interrupted_proof_keeps_its_bound() -> None:
    ended, interrupted = (
        Case("siblings", "v100").proof(most_priced=1, is_interrupted=is_interrupted)
        for is_interrupted in (False, True)
    )
    assert 0 < interrupted.bound.value == ended.bound.value < interrupted.cost
    assert not interrupted.is_closed


def test_what_is_proven_when_larger_sets_are_half_listed_is_of_the_space_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof_module, "_FEW_LAYERS", 1)
    case = Case("siblings", "v100")
    case.pricer.add(case.moves.fused(sum(case.masks)))
    everything, num_listed = (1 << len(case.masks)) - 1, itertools.count(1)

    def ending(layers: int) -> Iterator[int]:
        if layers == everything and next(num_listed) == 2:
            raise SearchEnded
        return bits(layers)

    monkeypatch.setattr(proof_module, "bits", ending)
    proof = case.proof()
    assert proof.largest.most_layers == 1
    assert proof.closed is not None
    assert isclose(least_of(case, proof.closed), proof.bound.value, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("is_settled", "of_near", "proofs"),
    [
        (True, 1.0, ["forget", (1.0, UNLIMITED, 1.0)]),
        (False, 0.992, [(0.5, SMALL_BLOCKS, 1.0), "forget", (1.0, UNLIMITED, 1.0)]),
        (False, 0.988, [(0.5, SMALL_BLOCKS, 1.0), (1.0, UNLIMITED, 0.988)]),
    ],
)
def test_half_a_proof_looks_near_an_unfinished_plan_and_the_rest_where_that_gains_a_hundredth(
    monkeypatch: pytest.MonkeyPatch, is_settled: bool, of_near: float, proofs: list[object]
) -> None:
    """Else a new proof begins, of blocks that are priced alone."""
    case, recipe = Case("diamond", "a310"), Recipe("layerwise", "sequential", MEMORIES[0])
    best, blocks = Best(case.planner.program(recipe), recipe), Blocks(case.planner, None, MEMORIES[0])
    blocks._is_settled = is_settled
    found: list[object] = []
    begun_ns: list[float] = []

    def proven(search: LaunchedSearch, publish: object, share: float, most_layers: int = UNLIMITED) -> None:
        begun_ns.append(search.cost)
        found.append((share, most_layers, search.cost / begun_ns[0]))
        search.cost *= of_near

    monkeypatch.setattr(LaunchedSearch, "prove", proven)
    monkeypatch.setattr(LaunchedPricer, "forget_unpriced", lambda _: found.append("forget"))
    blocks.proven(best, Budget(UNLIMITED).start())
    assert found == [pytest.approx(one) if isinstance(one, tuple) else one for one in proofs]
