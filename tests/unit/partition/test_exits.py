"""Exits of nodes: where all paths behind them meet."""

from __future__ import annotations

import random

from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Graph, Node
from tilewright.partition.exits import Exits


def exits_of(graph: Graph) -> tuple[Exits, dict[Node, int]]:
    position = {node: i for i, node in enumerate(graph.nodes)}
    return Exits(graph.nodes, position, dict.fromkeys(graph.outputs)), position


def literal_exit(graph: Graph, start: Node) -> Node | None:
    """The first node without which no result is reached: every node behind is left out once."""

    def reaches_a_result(without: Node) -> bool:
        stack, seen = [start], {start}
        while stack:
            node = stack.pop()
            users = [u for v in node.results() for u in v.users]
            if not users or any(v in graph.outputs for v in node.results()):
                return True
            for user in users:
                if user not in seen and user is not without:
                    seen.add(user)
                    stack.append(user)
        return False

    behind = graph.nodes[graph.nodes.index(start) + 1 :]
    return next((node for node in behind if not reaches_a_result(node)), None)


def test_paths_of_a_diamond_meet_in_its_last_node() -> None:
    b = GraphBuilder()
    first = b.op("Relu", b.input(4))
    left = b.op("Neg", b.op("Tanh", first))
    last = b.op("Add", left, b.op("Sigmoid", first))
    exits, position = exits_of(b.finish(last))
    exit = exits.of(position[b.node(first)])
    assert exit == position[b.node(last)]
    assert exits.distance(position[b.node(first)], exit) == 3
    assert exits.of(position[b.node(last)]) is None


def test_exits_of_random_graphs_are_those_found_by_leaving_nodes_out() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        b = GraphBuilder()
        values = [b.input(4)]
        for _ in range(25):
            values.append(b.op("Add", *rng.choices(values[-rng.randint(1, 6) :], k=2)))
        graph = b.finish(*rng.sample(values[1:], rng.randint(1, 3)))
        exits, position = exits_of(graph)
        for node in graph.nodes:
            exit = exits.of(position[node])
            assert literal_exit(graph, node) is (None if exit is None else graph.nodes[exit])
