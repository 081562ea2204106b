"""A statically fused cluster as atoms that can be taken apart, and what its parts cost.

Sets of atoms are bit masks, bit i for the cluster's i-th atom; atoms are numbered in an order in which they
can run. What the model says of parts includes that they write and read again what crosses, so the cost of a
cut is that of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from tilewright.bit_sets import bits, components, reached
from tilewright.cost.base import Estimate
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.ir.graph import Value
from tilewright.partition.base import PartitionProblem, make_subgraph
from tilewright.planning import Meter


@dataclass(frozen=True, slots=True)
class Cost:
    """What is minimised, and the other one of time and energy."""

    target: float
    secondary: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.target + other.target, self.secondary + other.secondary)

    def weighted(self, price: float) -> float:
        """Both as one number, at a price of the secondary; at an infinite one the secondary alone."""
        if price == inf:
            return self.secondary
        return self.target + price * self.secondary if price else self.target

    def rank(self, price: float) -> tuple[float, float]:
        """That number, then what decides between equals."""
        return self.weighted(price), self.target if price == inf else self.secondary


FREE = Cost(0.0, 0.0)
_NODES_OF_EVALUATION = 3


class Pricer:
    """What sets of nodes cost as one subgraph each, every one asked once, as far as a budget goes.

    An evaluation of the budget is that of a few operators: large subgraphs take longer to price. With
    `needs_energy` a model that knows none is refused; else it is 0.
    """

    def __init__(self, problem: PartitionProblem, meter: Meter, *, needs_energy: bool = False) -> None:
        self._needs_energy = needs_energy
        self._problem = problem
        self._nodes = problem.graph.nodes
        self._meter = meter
        self._known: dict[tuple[int, ...], Cost | None] = {}
        self.num_priced = 0

    def known(self, nodes: tuple[int, ...]) -> Cost | None:
        """What was found out already; None: nothing, or that it is impossible."""
        return self._known.get(nodes)

    def of(self, nodes: tuple[int, ...], *, is_needed: bool = False) -> Cost | None:
        """None: the budget is used up, or they cannot run as one. What is needed is priced in any case."""
        if nodes not in self._known:
            num_evaluations = -(-len(nodes) // _NODES_OF_EVALUATION)
            is_paid = all(self._meter.spend() for _ in range(num_evaluations))
            if not is_paid and not is_needed:
                return None
            self.num_priced += 1
            self._known[nodes] = self._priced(nodes)
        return self._known[nodes]

    def _priced(self, nodes: tuple[int, ...]) -> Cost | None:
        subgraph = make_subgraph(0, [self._nodes[n] for n in nodes], self._problem.graph)
        try:
            return self.cost_of(self._problem.cost.fused(subgraph))
        except InfeasibleMapping:
            return None

    def cost_of(self, estimate: Estimate) -> Cost:
        """An estimate under the problem's objective."""
        objective = self._problem.objective
        if objective == "energy":
            return Cost(estimate.cost("energy"), estimate.time_ns)
        if objective == "edp":
            return Cost(estimate.time_ns, estimate.cost("energy"))
        if self._needs_energy and estimate.energy_pj is None:
            raise UsageError(
                f"pcgc: limit bounds energy, but the cost model ({estimate.source}) knows none; leave it out."
            )
        return Cost(estimate.time_ns, estimate.energy_pj or 0.0)


@dataclass(eq=False)
class Pieces:
    """One cluster: the nodes of each atom, the pairs of atoms between which values pass, and these values
    with the nodes that make and read them.

    `known_splits` are the ways to take parts in two that were worked out, by the part and how many are tried.
    """

    atoms: Sequence[tuple[int, ...]]
    edges: Sequence[tuple[int, int]]
    pricer: Pricer
    values: Sequence[tuple[int, int, Value]] = ()
    known_splits: dict[tuple[int, int | None], Sequence[tuple[int, ...]]] = field(
        init=False, repr=False, default_factory=dict
    )
    _nodes: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)

    @property
    def num_atoms(self) -> int:
        """How many atoms there are."""
        return len(self.atoms)

    @property
    def all(self) -> int:
        """All atoms."""
        return (1 << len(self.atoms)) - 1

    def nodes_of(self, mask: int) -> tuple[int, ...]:
        """The nodes of some atoms, in order."""
        if mask not in self._nodes:
            self._nodes[mask] = tuple(sorted(n for i in bits(mask) for n in self.atoms[i]))
        return self._nodes[mask]

    def cost(self, mask: int, *, is_needed: bool = False) -> Cost | None:
        """What some atoms cost as one subgraph; see `Pricer.of`."""
        return self.pricer.of(self.nodes_of(mask), is_needed=is_needed)

    @cached_property
    def successors(self) -> tuple[int, ...]:
        """By atom, those that read from it."""
        masks = [0] * self.num_atoms
        for u, v in self.edges:
            masks[u] |= 1 << v
        return tuple(masks)

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """By atom, those that it reads from."""
        masks = [0] * self.num_atoms
        for u, v in self.edges:
            masks[v] |= 1 << u
        return tuple(masks)

    @property
    def is_tree(self) -> bool:
        """Whether any set of edges may be cut without the parts waiting for each other."""
        is_connected = next(self.components(self.all), 0) == self.all
        return is_connected and len(set(self.edges)) == self.num_atoms - 1

    def behind(self, atom: int, mask: int) -> int:
        """An atom and all that follow from it, within some atoms."""
        return reached(1 << atom, mask, self.successors.__getitem__)

    def before(self, atom: int, mask: int) -> int:
        """An atom and all that it follows from, within some atoms."""
        return reached(1 << atom, mask, self.predecessors.__getitem__)

    def crossing_bytes(self, mask: int, other: int) -> int:
        """Bytes that pass from one to the other of two sets of atoms, either way."""
        nodes, others = set(self.nodes_of(mask)), set(self.nodes_of(other))
        return sum(
            value.size_bytes
            for producer, consumer, value in self.values
            if (producer in nodes and consumer in others) or (producer in others and consumer in nodes)
        )

    def components(self, mask: int) -> Iterator[int]:
        """Parts between which nothing passes."""
        return components(mask, lambda atom: self.successors[atom] | self.predecessors[atom])
