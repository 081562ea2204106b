from itertools import combinations, product

import pytest

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
