"""What kernels are put together from: mini-subgraphs, one heavy operator each and what follows it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tilewright.ir.graph import Graph, Node, Value
from tilewright.partition.base import Partition, Subgraph, make_subgraph
from tilewright.partition.layerwise import Layerwise, layerwise_clusters
from tilewright.partition.merge_chains import quotient_of
from tilewright.partition.quotient import QuotientGraph
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A mini-subgraph: what the layerwise rule would make one kernel of, as far as one subgraph holds it.

    Elements are numbered in topological order. `outputs` are the values that others read, or the user.
    """

    number: int
    subgraph: Subgraph
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


class Elements:
    """The elements of a partition, and which reads which."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        graph = partition.graph
        self.all: list[Element] = []
        self.of_subgraph: list[tuple[Element, ...]] = []
        layer_of = _layers(partition)
        for subgraph in partition.subgraphs:
            pieces: dict[int, list[Node]] = {}
            for node in subgraph.nodes:
                pieces.setdefault(layer_of.get(node, -1), []).append(node)
            place = {node: i for i, node in enumerate(subgraph.nodes)}
            # A layer stands where its last node does: by then all it reads is made.
            ordered = sorted(pieces.values(), key=lambda nodes: place[nodes[-1]])
            self.of_subgraph.append(tuple(self._element(subgraph, nodes, graph) for nodes in ordered))

    def _element(self, subgraph: Subgraph, nodes: list[Node], graph: Graph) -> Element:
        whole = len(nodes) == len(subgraph.nodes)
        outputs = subgraph.outputs if whole else make_subgraph(0, nodes, graph).outputs
        self.all.append(Element(len(self.all), subgraph, tuple(nodes), outputs))
        return self.all[-1]

    @cached_property
    def _home(self) -> dict[Node, Element]:
        return {node: element for element in self.all for node in element.nodes}

    @cached_property
    def _results(self) -> frozenset[Value]:
        return frozenset(self.partition.graph.outputs)

    def readers(self, element: Element) -> frozenset[int] | None:
        """Numbers of the elements that read what one makes; None where the user reads it, or nothing does."""
        if not element.outputs or not self._results.isdisjoint(element.outputs):
            return None
        return frozenset(self._home[user].number for value in element.outputs for user in value.users) - {
            element.number
        }

    def producers(self, element: Element) -> tuple[Element, ...]:
        """The elements that an element reads."""
        numbers = {
            self._home[value.producer].number
            for node in element.nodes
            for value in node.operands()
            if value.producer is not None
        }
        return tuple(self.all[number] for number in sorted(numbers - {element.number}))

    def may_meet(self, subgraph: Subgraph, others: Iterable[int]) -> bool:
        """Whether a subgraph and others that read it can become one: no path leaves them and comes back."""
        homes = {*others} - {subgraph.id}
        readers = {reader.id for reader in self.partition.successors(subgraph)}
        if not homes or (readers <= homes and len(homes) == 1):
            return True
        return self.quotient.can_contract_all([subgraph.id, *sorted(homes)])

    @cached_property
    def quotient(self) -> QuotientGraph:
        """Which subgraph reads which."""
        return quotient_of(self.partition)


def _layers(partition: Partition) -> dict[Node, int]:
    """The layer of each node, where subgraphs may hold several; layers of the rule itself are whole."""
    is_layerwise = partition.provenance.planner == Layerwise.name
    if is_layerwise or all(len(subgraph.nodes) == 1 for subgraph in partition.subgraphs):
        return {}
    return {node: i for i, nodes in enumerate(layerwise_clusters(partition.graph)) for node in nodes}
