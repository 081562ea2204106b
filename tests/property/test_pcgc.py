"""PCGC on random graphs: valid, within the rules, never dearer for being cut; exact against brute force."""

import itertools
import random
from math import inf

import pytest
from tests.support.graphs import random_graph

from tilewright.bit_sets import bits
from tilewright.cost.roofline import Roofline
from tilewright.ir.derive import operator_class
from tilewright.partition import Partition, PartitionProblem, check_partition
from tilewright.partition.fusion_records import Verdict
from tilewright.partition.pcgc import Pcgc
from tilewright.partition.pcgc.fuse import NO_LIMIT, StaticFusion
from tilewright.partition.pcgc.pieces import FREE, Cost, Pieces
from tilewright.partition.pcgc.planner import PcgcWork
from tilewright.partition.pcgc.recut import Exact, apart, frontier, greedy, splits_of, whole
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.planning import Budget

ROOFLINE = Roofline(1.0, 1.0, 30.0, "by hand")


def solve(problem: PartitionProblem, pcgc: Pcgc) -> Partition:
    partition = pcgc.solve(problem, Budget())
    assert isinstance(partition, Partition)
    assert check_partition(problem, partition) == ()
    return partition


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(30))
def test_partitions_keep_to_the_rules_and_cost_no_more_than_any_candidate(seed: int) -> None:
    graph = random_graph(seed, 3 + seed)
    problem = PartitionProblem(graph, cost=ROOFLINE)
    rng = random.Random(seed)
    capacity = rng.choice((None, 0, 100, 1000))
    static = solve(problem, Pcgc("none", capacity_bytes=capacity))
    recut = solve(problem, Pcgc("exact", capacity_bytes=capacity, start="static-fusion"))
    step = solve(problem, Pcgc("greedy", capacity_bytes=capacity, start="static-fusion"))
    best = solve(problem, Pcgc(capacity_bytes=capacity))
    alone = solve(problem, Pcgc(start="rules-alone", capacity_bytes=capacity))
    assert best.quality.cost <= recut.quality.cost * (1 + 1e-9)
    assert recut.quality.cost <= static.quality.cost * (1 + 1e-9)
    assert step.quality.cost <= static.quality.cost * (1 + 1e-9)
    table = RuleTable.default()
    for partition in (static, recut, step, alone):
        records = {(r.producer, r.consumer, r.value): r for r in partition.fusions}
        for decision in partition.decisions:
            classes = operator_class(decision.producer), operator_class(decision.consumer)
            record = records.get((decision.producer, decision.consumer, decision.value))
            if decision.reason.is_fused:
                assert table.of(*classes) is not Verdict.PROHIBITED
                assert record is not None
            elif record is not None:
                assert record.verdict is Verdict.EVALUATE  # what is stable is never cut


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_what_is_fused_after_known_clusters_is_as_if_nothing_had_been_fused_before(seed: int) -> None:
    graph = random_graph(seed, 3 + seed)
    problem = PartitionProblem(graph, cost=ROOFLINE)
    rng = random.Random(seed)
    known = [sorted(rng.sample(range(len(graph.nodes)), 2)) for _ in range(3)]
    fusion = StaticFusion(problem, RuleTable.default(), NO_LIMIT)
    plain = fusion.run()
    found = fusion.with_known(known)
    again = StaticFusion(problem, RuleTable.default(), NO_LIMIT)
    again.run()
    assert again.with_known(known) == found
    assert fusion.with_known(()) == plain
    assert {n for atom in found.atoms for n in atom} == set(range(len(graph.nodes)))
    assert found.atoms == plain.atoms


class Priced(Pieces):
    """Pieces whose parts cost what a table of masks says."""

    def __init__(self, num_atoms: int, edges: list[tuple[int, int]], rng: random.Random) -> None:
        super().__init__([(i,) for i in range(num_atoms)], edges, None)  # type: ignore[arg-type]
        self.rng = rng
        self.said: dict[int, Cost] = {}

    def cost(self, mask: int, *, is_needed: bool = False) -> Cost:
        if mask not in self.said:
            size = mask.bit_count()
            self.said[mask] = Cost(
                size * self.rng.choice((5, 8, 10, 14)) + 3.0, size * self.rng.choice((1, 2, 5, 9)) + 1.0
            )
        return self.said[mask]


def tree(rng: random.Random, *, is_chain: bool) -> list[Pieces]:
    clusters: list[Pieces] = []
    for _ in range(rng.choice((1, 2))):
        num_atoms = rng.randint(1, 5)
        edges = []
        for atom in range(1, num_atoms):
            other = atom - 1 if is_chain else rng.randrange(atom)
            edges.append((other, atom))
        clusters.append(Priced(num_atoms, edges, rng))
    return clusters


def test_atoms_of_which_one_hangs_on_none_are_no_tree_though_edges_are_as_few() -> None:
    diamond_and_one = Priced(5, [(0, 1), (0, 2), (1, 3), (2, 3)], random.Random(0))
    assert not diamond_and_one.is_tree
    parts = Exact([diamond_and_one]).at(0.0).parts[0]
    assert sorted(i for part in parts for i in bits(part)) == [0, 1, 2, 3, 4]


def every_cut(pieces: Pieces) -> list[tuple[int, ...]]:
    """Each set of edges of a tree cut."""
    found = []
    for kept in itertools.product((False, True), repeat=len(pieces.edges)):
        edges = [edge for edge, is_kept in zip(pieces.edges, kept, strict=True) if is_kept]
        inside = Pieces(pieces.atoms, edges, pieces.pricer)
        found.append(tuple(inside.components(pieces.all)))
    return found


def total(clusters: list[Pieces], parts: tuple[tuple[int, ...], ...]) -> Cost:
    cost = FREE
    for pieces, chosen in zip(clusters, parts, strict=True):
        for part in chosen:
            known = pieces.cost(part)
            assert known is not None
            cost += known
    return cost


@pytest.mark.sampled(20)
@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_trees_are_cut_as_brute_force_would_and_greedy_is_no_better(seed: int, is_chain: bool) -> None:
    rng = random.Random(seed)
    clusters = tree(rng, is_chain=is_chain)
    everything = [total(clusters, parts) for parts in itertools.product(*map(every_cut, clusters))]
    exact = Exact(clusters)
    assert exact.is_exact
    best = exact.at(0.0)
    assert total(clusters, best.parts) == best.cost
    assert best.cost.target == min(cost.target for cost in everything)
    step = greedy(clusters)
    assert total(clusters, step.parts) == step.cost
    assert best.cost.target <= step.cost.target <= whole(clusters).cost.target
    # The frontier is the convex hull of all: nothing lies below any of its lines.
    corners = [cutting.cost for cutting in frontier(exact.at)]
    assert corners[0].target == best.cost.target
    assert corners[-1].secondary == min(cost.secondary for cost in everything)
    for price in (0.3, 1.0, 3.0):
        least = min(cost.weighted(price) for cost in everything)
        assert min(cost.weighted(price) for cost in corners) == pytest.approx(least)
    # Within a bound: no better than the best there is, and within it; none where there is none.
    for most in sorted({cost.secondary for cost in everything})[:: max(1, len(everything) // 5)]:
        found = exact.within(most)
        assert found is not None
        assert found.cost.secondary <= most
        assert found.cost.target >= min(c.target for c in everything if c.secondary <= most)
    assert exact.within(corners[-1].secondary - 0.5) is None


@pytest.mark.parametrize("seed", range(20))
def test_what_is_no_tree_is_cut_at_least_as_well_as_by_the_greedy_algorithm(seed: int) -> None:
    rng = random.Random(seed)
    num_atoms = rng.randint(4, 14)
    edges = [(u, v) for v in range(1, num_atoms) for u in range(v) if u == v - 1 or rng.random() < 0.2]
    clusters: list[Pieces] = [Priced(num_atoms, edges, rng)]
    exact = Exact(clusters)
    for price in (0.0, 1.0, inf):
        best = exact.at(price)
        assert total(clusters, best.parts) == best.cost
        assert best.cost.weighted(price) <= greedy(clusters, price=price).cost.weighted(price)


@pytest.mark.parametrize("seed", range(40))
def test_greedy_keeps_to_its_threshold_as_soon_as_it_is_below(seed: int) -> None:
    clusters = tree(random.Random(seed), is_chain=False)
    start = whole(clusters).cost.secondary
    for most in (0.0, start - 1, start, start + 3, inf):
        assert greedy(clusters, most).cost.secondary <= max(most, start)


@pytest.mark.parametrize("seed", range(30))
def test_splits_are_parts_that_can_run_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    num_atoms = rng.randint(2, 7)
    edges = [(u, v) for v in range(num_atoms) for u in range(v) if rng.random() < 0.5]
    pieces = Priced(num_atoms, edges, rng)
    for mask in pieces.components(pieces.all):
        for limit in (None, 2):
            for split in splits_of(pieces, mask, limit):
                assert sum(split) == mask
                assert len(split) >= 2
                home = {i: n for n, part in enumerate(split) for i in range(num_atoms) if part >> i & 1}
                passing = {(home[u], home[v]) for u, v in edges if u in home and v in home}
                readers = {consumer for producer, consumer in passing if producer != consumer}
                # A part that reads from another one is read by none.
                assert not readers & {producer for producer, consumer in passing if producer != consumer}


def test_the_whole_is_what_static_fusion_made_and_apart_its_atoms() -> None:
    problem = PartitionProblem(random_graph(3, 20), cost=ROOFLINE)
    work = PcgcWork.of(problem, Pcgc(), Budget().start())
    (pieces,) = (start.pieces for start in work.starts if start.name == "static-fusion")
    assert list(whole(pieces).parts) == [(p.all,) for p in pieces]
    assert sum(map(len, apart(pieces).parts)) == len(work.fused.atoms)
