import random
from itertools import combinations, pairwise, product

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.partition import quotient as quotient_module
from tilewright.partition.quotient import QuotientGraph

# Counterexamples to weaker tests than the exact one (AGO, made precise).


def is_acyclic(num_nodes: int, edges: list[tuple[int, int]], cluster_of: list[int]) -> bool:
    """By removing sources of the quotient until none is left."""
    remaining = set(cluster_of)
    crossing = {(cluster_of[u], cluster_of[v]) for u, v in edges if cluster_of[u] != cluster_of[v]}
    while remaining:
        sources = {c for c in remaining if not any(t == c and s in remaining for s, t in crossing)}
        if not sources:
            return False
        remaining -= sources
    return True


def merged(cluster_of: list[int], clusters: tuple[int, ...]) -> list[int]:
    return [min(clusters) if c in clusters else c for c in cluster_of]


def assert_valid(quotient: QuotientGraph, edges: list[tuple[int, int]]) -> None:
    """The order is topological, members and neighbours agree with the clusters."""
    clusters = quotient.clusters
    place = {c: i for i, c in enumerate(clusters)}
    members = [n for c in clusters for n in quotient.members(c)]
    assert sorted(members) == list(range(len(members)))
    crossing = {
        (quotient.cluster_of(u), quotient.cluster_of(v))
        for u, v in edges
        if quotient.cluster_of(u) != quotient.cluster_of(v)
    }
    assert all(place[a] < place[b] for a, b in crossing)
    assert {(c, s) for c in clusters for s in quotient.successors(c)} == crossing
    assert {(p, c) for c in clusters for p in quotient.predecessors(c)} == crossing


def test_pairs_without_mutual_paths_can_still_deadlock() -> None:
    """AGO's Definition 1 allows V1={a1,a2}, V2={b1,b2}, V3={c1,c2}; the quotient is a cycle of three."""
    a1, b1, b2, c1, c2, a2 = range(6)
    edges = [(a1, b1), (b2, c1), (c2, a2)]
    quotient = QuotientGraph(6, edges)
    quotient.contract(a1, a2)
    quotient.contract(b1, b2)
    assert not quotient.can_contract(c1, c2)
    assert not is_acyclic(6, edges, [0, 1, 1, 2, 2, 0])


def test_merging_affix_nodes_of_both_sides_traps_what_lies_between() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    quotient = QuotientGraph(4, edges)
    assert not quotient.can_contract_all((0, 1, 3))
    assert quotient.can_contract_all((0, 1, 2, 3))
    assert not is_acyclic(4, edges, [0, 0, 2, 0])


@pytest.mark.parametrize(
    ("edges", "first", "second"),
    [
        ([(0, 2), (0, 3), (1, 2), (1, 3)], (1, 3), (0, 2)),  # stages not propagated, minimum kept
        ([(0, 1), (0, 2), (0, 3), (1, 2)], (0, 3), (0, 2)),  # stages not propagated, maximum kept
        ([(0, 1), (0, 3), (1, 2)], (2, 3), (0, 2)),  # stale stages of nodes that are not adjacent
    ],
)
def test_stale_stages_would_allow_a_cycle(
    edges: list[tuple[int, int]], first: tuple[int, int], second: tuple[int, int]
) -> None:
    quotient = QuotientGraph(4, edges)
    assert quotient.can_contract(*first)
    quotient.contract(*first)
    a, b = (quotient.cluster_of(n) for n in second)
    assert not quotient.can_contract(a, b)
    assert not is_acyclic(4, edges, merged(merged([0, 1, 2, 3], first), (a, b)))


def test_every_merge_of_every_graph_of_four_nodes_is_judged_exactly() -> None:
    possible = list(combinations(range(4), 2))
    for chosen in product((False, True), repeat=len(possible)):
        edges = [e for e, taken in zip(possible, chosen, strict=True) if taken]
        for first in possible:
            for second in possible:
                quotient = QuotientGraph(4, edges)
                cluster_of = list(range(4))
                for u, v in (first, second):
                    a, b = quotient.cluster_of(u), quotient.cluster_of(v)
                    if a == b:
                        continue
                    expected = is_acyclic(4, edges, merged(cluster_of, (a, b)))
                    assert quotient.can_contract(a, b) == expected, (edges, first, second)
                    if expected:
                        cluster_of = merged(cluster_of, (a, b))
                        assert quotient.contract(a, b) == min(a, b)
                        assert_valid(quotient, edges)


def test_contracting_an_unsafe_pair_is_refused_and_changes_nothing() -> None:
    quotient = QuotientGraph(3, [(0, 1), (1, 2), (0, 2)])
    with pytest.raises(ValueError, match="cycle"):
        quotient.contract(0, 2)
    assert quotient.clusters == (0, 1, 2)


def test_edges_must_follow_the_numbering() -> None:
    with pytest.raises(ValueError, match="2->1"):
        QuotientGraph(3, [(2, 1)])


def test_stages_count_the_longest_path() -> None:
    quotient = QuotientGraph(4, [(0, 1), (1, 2), (0, 3)])
    assert quotient.stages() == {0: 1, 1: 2, 2: 3, 3: 2}
    quotient.contract(0, 1)
    assert quotient.stages() == {0: 1, 2: 2, 3: 2}
    assert QuotientGraph(4, [(0, 1), (1, 2), (2, 3), (0, 3)]).stages()[3] == 4


def test_a_set_contracts_only_if_convex() -> None:
    quotient = QuotientGraph(4, [(0, 1), (1, 2), (0, 3)])
    with pytest.raises(ValueError, match="cannot be merged"):
        quotient.contract_all([2, 0])
    assert quotient.contract_all([2, 0, 1]) == 0
    assert quotient.members(0) == (0, 1, 2)


def test_a_copy_is_contracted_on_its_own_in_the_same_order() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    quotient = QuotientGraph(5, edges)
    quotient.contract(3, 4)
    before = quotient.clusters
    copied = quotient.copy()
    assert copied.clusters == before
    copied.contract_all(before)
    assert copied.clusters == (0,)
    assert quotient.clusters == before
    assert_valid(quotient, edges)
    assert_valid(copied, edges)


def reached(cluster: int, neighbours: dict[int, set[int]]) -> set[int]:
    """What paths of one edge or more lead to."""
    found: set[int] = set()
    stack = [cluster]
    while stack:
        new = neighbours[stack.pop()] - found
        found |= new
        stack += new
    return found


@pytest.mark.parametrize("gap", [None, 2, 6])
def test_merges_of_random_graphs_are_judged_as_by_removing_sources(
    gap: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small gaps between labels make the order number itself anew every few merges."""
    if gap is not None:
        monkeypatch.setattr(quotient_module, "_GAP", gap)
    rng = random.Random(gap or 0)
    for _ in range(100):
        num_nodes = rng.randint(6, 20)
        density = rng.choice((0.05, 0.1, 0.2))
        edges = [e for e in combinations(range(num_nodes), 2) if rng.random() < density]
        rng.shuffle(edges)
        quotient, cluster_of = QuotientGraph(num_nodes, edges), list(range(num_nodes))
        while len(clusters := quotient.clusters) > 2:
            successors: dict[int, set[int]] = {c: set() for c in clusters}
            predecessors: dict[int, set[int]] = {c: set() for c in clusters}
            for a, b in edges:
                if cluster_of[a] != cluster_of[b]:
                    successors[cluster_of[a]].add(cluster_of[b])
                    predecessors[cluster_of[b]].add(cluster_of[a])
            chosen = rng.sample(clusters, rng.choice((2, 2, 2, 3, 4)) if len(clusters) > 3 else 2)
            is_safe = is_acyclic(num_nodes, edges, merged(cluster_of, tuple(chosen)))
            assert quotient.can_contract_all(chosen) == is_safe
            if len(chosen) == 2:
                u, v = chosen
                assert quotient.can_contract(u, v) == is_safe
                if (witness := quotient.between(u, v)) is not None:
                    first, last = (u, v) if v in reached(u, successors) else (v, u)
                    assert witness in reached(first, successors)
                    assert witness in reached(last, predecessors)
            if is_safe:
                kept = quotient.contract(*chosen) if len(chosen) == 2 else quotient.contract_all(chosen)
                assert kept == min(chosen)
                cluster_of = merged(cluster_of, tuple(chosen))
                assert_valid(quotient, edges)
                assert [quotient.cluster_of(n) for n in range(num_nodes)] == cluster_of
            elif rng.random() < 0.1:
                break


def test_many_paths_between_two_clusters_are_searched_once() -> None:
    """Two to the sixtieth paths, and none from the source to what is merged with it."""
    num_diamonds = 60
    edges = [(3 * i + a, 3 * i + b) for i in range(num_diamonds) for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))]
    end = 3 * num_diamonds
    quotient = QuotientGraph(end + 3, [*edges, (end + 1, end + 2)])
    assert quotient.can_contract(0, end + 2)
    assert quotient.can_contract_all((0, end + 2))
    assert not quotient.can_contract(0, end)
    assert not quotient.can_contract_all((0, end))


@pytest.mark.parametrize("clusters", [(), (1,), (1, 1), (1, 0)])
def test_what_is_merged_is_named_by_its_smallest_cluster(clusters: tuple[int, ...]) -> None:
    quotient = QuotientGraph(2, [(0, 1)])
    assert quotient.can_contract_all(clusters)
    if clusters:
        assert quotient.contract_all(clusters) == min(clusters)
        assert quotient.members(min(clusters)) == tuple(sorted(set(clusters)))
    else:
        with pytest.raises(ValueError, match="cannot be merged"):
            quotient.contract_all(clusters)


def test_a_cluster_is_not_merged_with_itself() -> None:
    quotient = QuotientGraph(2, [(0, 1)])
    assert not quotient.can_contract(1, 1)
    with pytest.raises(ValueError, match="1 and 1"):
        quotient.contract(1, 1)
    assert quotient.successors(0) == (1,)


@pytest.mark.parametrize("edge", [(-1, 1), (0, 0), (1, 2)])
def test_edges_join_different_nodes_that_exist(edge: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="does not follow the numbering of 2 nodes"):
        QuotientGraph(2, [edge])


def test_neighbours_are_given_as_they_were_met() -> None:
    quotient = QuotientGraph(4, [(0, 3), (0, 1), (0, 2), (2, 3), (1, 3)])
    assert list(quotient.each_successor(0)) == [3, 1, 2]
    assert list(quotient.each_predecessor(3)) == [0, 2, 1]
    assert quotient.successors(0) == (1, 2, 3)
    assert quotient.predecessors(3) == (0, 1, 2)


def test_order_stays_right_however_often_it_grows_in_one_place() -> None:
    """Each merge moves a cluster between the merged one and what was moved before: gaps are halved."""
    num_merges = 200
    last_before, last = 2 * num_merges, 2 * num_merges + 1
    reader = [2 * num_merges - 1 - i for i in range(num_merges)]
    edges = [(i, reader[i]) for i in range(num_merges)] + [(last_before, last)]
    edges += [(later, earlier) for earlier, later in pairwise(reader)]
    quotient = QuotientGraph(last + 1, edges)
    for i in range(num_merges):
        last = quotient.contract(i, last)
    assert quotient.clusters == (last_before, last, *reversed(reader))
    assert [quotient.can_contract(last, r) for r in reader] == [False] * (num_merges - 1) + [True]
    assert_valid(quotient, edges)


def test_clusters_of_a_graph_are_its_nodes_and_their_values_edges() -> None:
    b = GraphBuilder()
    x = b.input(4)
    y = b.op("Relu", x)
    graph = b.finish(b.op("Add", y, b.op("Mul", y, b.constant(4))))
    quotient = QuotientGraph.of(graph)
    place = {node.op_type: i for i, node in enumerate(graph.nodes)}
    relu, mul, add = place["Relu"], place["Mul"], place["Add"]
    assert quotient.clusters == (0, 1, 2)
    assert quotient.successors(relu) == (mul, add)
    assert quotient.successors(mul) == (add,)
    assert quotient.predecessors(relu) == ()
