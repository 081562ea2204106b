"""A subgraph taken apart for the tuner and put together again (SPLIT and JOIN, section V).

Mini-subgraphs have at most one complex operator each, so each is tuned fast. When the tuning of all of them
has settled, they become one again, and what was chosen for each is where the tuning of the whole begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Graph, Node
from tilewright.partition.ago.clusters import Accept, Clustering
from tilewright.partition.ago.limits import MiniLimit
from tilewright.partition.ago.weights import WeightRule
from tilewright.partition.base import Subgraph, make_subgraph
from tilewright.partition.quotient import QuotientGraph

DEFAULT_WEIGHTS = WeightRule()


def split(
    graph: Graph,
    subgraph: Subgraph,
    threshold: float,
    *,
    accept: Accept = "exact",
    weights: WeightRule = DEFAULT_WEIGHTS,
) -> tuple[Subgraph, ...]:
    """The mini-subgraphs of a subgraph, in an order in which they can run; numbered from 0.

    Each has at most one complex operator, and weighs less than the threshold unless it is a single operator.
    """
    nodes = subgraph.nodes
    position = {node: i for i, node in enumerate(nodes)}
    quotient = QuotientGraph(
        len(nodes),
        (
            (position[value.producer], position[node])
            for node in nodes
            for value in node.operands()
            if value.producer in position
        ),
    )
    weighed = [weights.of(node) for node in nodes]
    Clustering(quotient, weighed, MiniLimit(threshold, weighed), accept).run()
    return tuple(
        make_subgraph(number, [nodes[i] for i in quotient.members(cluster)], graph)
        for number, cluster in enumerate(quotient.clusters)
    )


def join(graph: Graph, minis: Sequence[Subgraph], number: int = 0) -> Subgraph:
    """Mini-subgraphs as the subgraph of this number that they were split from."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    nodes: list[Node] = [node for mini in minis for node in mini.nodes]
    return make_subgraph(number, sorted(nodes, key=position.__getitem__), graph)
