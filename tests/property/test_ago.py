"""AGO's clusters on random graphs: those of a literal reading of the algorithm, and never in a circle."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from tests.support.graphs import random_graph

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Graph
from tilewright.partition import Partition, PartitionProblem, check_partition
from tilewright.partition.ago import Ago, join, split
from tilewright.partition.ago.clusters import Accept, Clustering
from tilewright.partition.ago.limits import MiniLimit, WeightLimit
from tilewright.partition.ago.stages import Stages
from tilewright.partition.ago.weights import Weight
from tilewright.partition.quotient import QuotientGraph
from tilewright.planning import Budget

Edges = list[tuple[int, int]]
RULES: tuple[Accept, ...] = ("exact", "affix")


@dataclass(frozen=True)
class Case:
    """A graph with weights; with `mini` at most one complex operator may be in a cluster."""

    num_nodes: int
    edges: Edges
    weights: list[Weight]
    threshold: float
    mini: bool

    @classmethod
    def of(cls, seed: int) -> "Case":
        rng = random.Random(seed)
        num_nodes, density = rng.randint(2, 14), rng.choice((0.1, 0.2, 0.4, 0.7))
        edges = [(u, v) for v in range(num_nodes) for u in range(v) if rng.random() < density]
        totals = [rng.choice((1, 1, 2, 3, 5, 20)) for _ in range(num_nodes)]
        weights = [Weight(total, int(total >= 5)) for total in totals]
        return cls(num_nodes, edges, weights, rng.choice((5, 8, 15, 30, 1000)), rng.random() < 0.3)

    def clustering(self, accept: Accept) -> Clustering:
        limit = MiniLimit(self.threshold, self.weights) if self.mini else WeightLimit(self.threshold)
        clustering = Clustering(QuotientGraph(self.num_nodes, self.edges), self.weights, limit, accept)
        clustering.run()
        return clustering


class Literal:
    """The algorithm as it is written, with everything found out anew in each round."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.members = {node: {node} for node in range(case.num_nodes)}
        self.weights = dict(enumerate(case.weights))

    def run(self, accept: Accept) -> list[list[int]]:
        candidates = set(self.members)
        while candidates:
            v = min(candidates, key=lambda c: (-self.weights[c].total, c))
            edges = self.edges()
            stages = stages_of(self.members, edges)
            neighbours = {b for a, b in edges if a == v} | {a for a, b in edges if b == v}
            joinable = [
                u
                for u in neighbours
                if self.fits(u, v)
                and (abs(stages[u] - stages[v]) == 1 if accept == "affix" else not detour(edges, u, v))
            ]
            if not joinable:
                candidates.discard(v)
                continue
            u = min(joinable, key=lambda c: (self.weights[c].total, c))
            kept, dropped = min(u, v), max(u, v)
            self.members[kept] |= self.members.pop(dropped)
            self.weights[kept] = self.weights[kept] + self.weights.pop(dropped)
            candidates = candidates - {u, v} | {kept}
        return sorted(sorted(members) for members in self.members.values())

    def fits(self, u: int, v: int) -> bool:
        both = self.weights[u] + self.weights[v]
        return both.total < self.case.threshold and not (self.case.mini and both.num_complex > 1)

    def edges(self) -> set[tuple[int, int]]:
        home = {node: cluster for cluster, nodes in self.members.items() for node in nodes}
        return {(home[a], home[b]) for a, b in self.case.edges if home[a] != home[b]}


def stages_of(clusters: Iterable[int], edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By going along all edges until nothing changes; that ends only where there is no cycle."""
    stages = dict.fromkeys(clusters, 1)
    for _ in range(len(stages) + 1):
        late = [(a, b) for a, b in edges if stages[b] <= stages[a]]
        if not late:
            return stages
        for a, b in late:
            stages[b] = max(stages[b], stages[a] + 1)
    raise AssertionError("the clusters wait for each other")


def detour(edges: Iterable[tuple[int, int]], u: int, v: int) -> bool:
    """Whether a path of two or more edges joins both, in either direction."""
    pairs = set(edges)
    for start, end in ((u, v), (v, u)):
        reached = {b for a, b in pairs if a == start} - {end}
        while more := {b for a, b in pairs if a in reached} - reached - {end}:
            reached |= more
        if any((a, end) in pairs for a in reached):
            return True
    return False


def check_clusters(case: Case, accept: Accept) -> None:
    clustering = case.clustering(accept)
    quotient = clustering.quotient
    place = {cluster: i for i, cluster in enumerate(quotient.clusters)}
    assert all(place[quotient.cluster_of(u)] <= place[quotient.cluster_of(v)] for u, v in case.edges)
    found = sorted(list(quotient.members(c)) for c in quotient.clusters)
    assert found == Literal(case).run(accept)
    for cluster in quotient.clusters:
        members = [case.weights[n] for n in quotient.members(cluster)]
        total = sum(members, Weight(0.0))
        assert clustering.weights[cluster] == total
        assert len(members) == 1 or total.total < case.threshold
        assert len(members) == 1 or not case.mini or total.num_complex <= 1


@pytest.mark.parametrize("accept", RULES)
def test_clusters_are_those_of_the_algorithm_as_it_is_written(accept: Accept) -> None:
    for seed in range(300):
        check_clusters(Case.of(seed), accept)


@pytest.mark.slow
@pytest.mark.parametrize("accept", RULES)
def test_ten_thousand_graphs_have_the_clusters_of_the_algorithm(accept: Accept) -> None:
    for seed in range(10_000):
        check_clusters(Case.of(seed), accept)


def test_stages_are_right_after_every_merge_that_neighbours_allow() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        case = Case.of(seed)
        quotient = QuotientGraph(case.num_nodes, case.edges)
        stages = Stages(quotient)
        while True:
            expected = quotient.stages()
            pairs = [(u, v) for u in quotient.clusters for v in quotient.clusters if u < v]
            rng.shuffle(pairs)
            # Some are asked and some are not: what nobody asked for settles later.
            for u, v in pairs[: rng.randint(0, len(pairs))]:
                assert stages.are_neighbours(u, v) == (abs(expected[u] - expected[v]) == 1)
            allowed = [(u, v) for u, v in pairs if abs(expected[u] - expected[v]) == 1]
            if not allowed:
                break
            stages.merge(*allowed[0])
        assert {c: stages.of(c) for c in quotient.clusters} == quotient.stages()


def partition_of(graph: Graph, ago: Ago) -> Partition:
    problem = PartitionProblem(graph)
    partition = ago.solve(problem, Budget())
    assert check_partition(problem, partition) == ()
    return partition


def num_complex(subgraph_nodes: Sequence[object]) -> int:
    return sum(bool(contractions(nests_of(node))) for node in subgraph_nodes)  # type: ignore[arg-type]


def check_graph(graph: Graph, ago: Ago) -> None:
    """The partition is valid, and each of its subgraphs comes apart and together again."""
    partition = partition_of(graph, ago)
    assert isinstance(ago.threshold, float)
    for subgraph in partition.subgraphs:
        weight = ago.weights.of_all(subgraph.nodes)
        assert len(subgraph.nodes) == 1 or weight.total < ago.threshold
        minis = split(graph, subgraph, ago.threshold, accept=ago.accept, weights=ago.weights)
        made = set(subgraph.inputs)
        for mini in minis:
            assert num_complex(mini.nodes) <= 1
            assert made.issuperset(mini.inputs)
            made.update(mini.outputs)
        whole = join(graph, minis, subgraph.id)
        assert set(whole.nodes) == set(subgraph.nodes)
        assert (whole.inputs, whole.outputs) == (subgraph.inputs, subgraph.outputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accept", RULES)
def test_random_networks_are_partitioned_and_taken_apart(accept: Accept) -> None:
    for seed in range(60):
        check_graph(
            random_graph(seed, 3 + seed % 30), Ago(threshold=(20.0, 60.0, 500.0)[seed % 3], accept=accept)
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accept", RULES)
@pytest.mark.parametrize("network", ["squeezenet1_1", "bert_tiny"])
def test_networks_are_partitioned_and_taken_apart(network: str, accept: Accept) -> None:
    check_graph(load_onnx(zoo.build(network)), Ago(accept=accept))


@pytest.mark.slow
@pytest.mark.parametrize("network", zoo.names())
def test_every_network_is_partitioned_and_taken_apart(network: str) -> None:
    graph = load_onnx(zoo.build(network))
    for accept in RULES:
        check_graph(graph, Ago(accept=accept))
