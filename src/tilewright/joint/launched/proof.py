"""Lazy shortest paths over ideals: the cheapest plan of a declared space, or a bound where the budget ends.

Every set of layers counts with what it takes at least until it is priced; those on a shortest path are, and
others near it. When a shortest path is priced from end to end, no plan of the space costs less, and what
ideals have cost by then are the potentials that prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from math import inf
from typing import Any

import numpy as np

from tilewright.errors import InternalError
from tilewright.joint.base import Mask, bits
from tilewright.joint.launched.content import Content
from tilewright.joint.launched.ideals import IdealSpace, LayerGraph
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.partition.split import WHOLE
from tilewright.planning import Bound, Meter, Rule, Space
from tilewright.planning.checking import HOW_TO_REPORT
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import merges
from tilewright.schedule.space import SCHEDULES, WHOLE_SUBGRAPHS, WHOLE_SUMS, WITHOUT_MERGES

DECLARED = Rule(
    "of known blocks, kernels of whole layers, with or without the lanes that virtual units chooses, and "
    "stages of such kernels without lanes"
)
"""What every plan of the declared space keeps: each kernel that is no known block runs whole."""
WHOLE_LAYERS = Space(SCHEDULES.of, (WITHOUT_MERGES, WHOLE_SUMS, WHOLE_SUBGRAPHS, Rule("of whole layers")))
"""Plans whose kernels run in no slices, whatever stages and lanes they have."""
MOST_GROUPS = 8
"""Kernels side by side in a stage of the declared space, as many as IOS allows groups."""
MOST_IDEALS, MOST_PAIRS = 4000, 400_000
"""Ideals of a graph, and pairs of them, up to which a proof is tried."""
_ROUNDING = 1e-9  # of costs that are sums of floats
_PRICED_A_ROUND = 16
"""Sets beside those on the path that are priced before the next path is searched."""

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class Proof:
    """What was proven of a graph.

    `contents` are the cheapest blocks that were found. `bound` is of the declared space, `whole_bound` of all
    plans of whole layers without slices and merges. `is_closed`: the blocks are the best of the declared
    space. `potentials` are, by sets of nodes that are stored, what reaching them costs at least.
    """

    contents: tuple[Content, ...]
    cost: float
    bound: Bound
    whole_bound: Bound | None
    is_closed: bool
    num_ideals: int
    num_sets: int
    num_priced: int
    known: frozenset[Content] = field(repr=False)
    graph: LayerGraph = field(repr=False)
    potentials: dict[Mask, float] = field(repr=False, default_factory=dict)

    def bounds_of(self, contents: Sequence[Content]) -> Iterator[Bound]:
        """The bounds that hold for a plan of these blocks."""
        if self.whole_bound is not None and all(_is_whole(self.graph, content) for content in contents):
            yield self.whole_bound
        if all(content in self.known for content in contents):
            yield self.bound


def _is_whole(graph: LayerGraph, content: Content) -> bool:
    """Whether a block merges nothing and slices no kernel, each of whole layers."""
    kernels = [sum(1 << node for node in kernel.nodes) for kernel in content.kernels]
    return not any(map(merges, content.stages)) and all(
        kernel.split == WHOLE and graph.layers_of(nodes) is not None
        for kernel, nodes in zip(content.kernels, kernels, strict=True)
    )


def prove(
    pricer: LaunchedPricer,
    moves: Moves,
    best: tuple[Content, ...],
    cost: float,
    meter: Meter,
    is_due: Callable[[], bool],
    publish: Callable[[tuple[Content, ...], float], None],
) -> Proof | None:
    """The cheapest plan of the space that holds some blocks, as far as the budget goes; None: too large."""
    graph = LayerGraph.of(
        pricer.numbered,
        moves.layers_cut_by([content.mask for content in best]),
        moves.layers,
        pricer.machine.layer_times,
        has_lanes=pricer.machine.allows_lanes and pricer.machine.limits.num_cores > 1,
        launch_ns=pricer.machine.launch_ns,
        join_ns=pricer.machine.join_ns,
        most_groups=min(pricer.machine.limits.num_groups, MOST_GROUPS),
        floors_of_nodes_ns=pricer.machine.floors_ns,
    )
    space = graph.space(MOST_IDEALS, MOST_PAIRS)
    if space is None:
        return None
    return _Proving(pricer, moves, graph, space, meter, is_due, publish, best, cost).run()


@dataclass(slots=True, eq=False)
class _Proving:
    pricer: LaunchedPricer
    moves: Moves
    graph: LayerGraph
    space: IdealSpace
    meter: Meter
    is_due: Callable[[], bool]
    publish: Callable[[tuple[Content, ...], float], None]
    best: tuple[Content, ...]
    cost: float
    sets: list[Mask] = field(init=False)
    values: Array = field(init=False)
    is_priced: Array = field(init=False)
    bound: float = field(init=False, default=0.0)
    num_priced: int = field(init=False, default=0)
    _sources: Array = field(init=False)
    _targets: Array = field(init=False)
    _of_sets: Array = field(init=False)

    def run(self) -> Proof:
        self._list()
        # What is known by the time that the search ends, be it by an interrupt, bounds the space.
        with self.meter.ending_early():
            self._search()
        is_closed = self.bound >= self.cost * (1 - _ROUNDING)
        ahead, _ = self._from_start(self.values)
        if is_closed:
            self.bound = self.cost
        known = frozenset(c for c in self.pricer.contents if self.graph.layers_of(c.mask) is not None)
        return Proof(
            self.best,
            self.cost,
            self._declared_bound(),
            self._whole_bound(),
            is_closed,
            len(self.space.ideals),
            len(self.sets),
            self.num_priced,
            known,
            self.graph,
            {self.graph.nodes_of(i): float(v) for i, v in zip(self.space.ideals, ahead, strict=True)},
        )

    def _search(self) -> None:
        """Price what shortest paths need, until one is priced from end to end or the budget ends."""
        while True:
            checkpoint()
            ahead, via = self._from_start(self.values)
            if not self.num_priced and ahead[-1] > self.cost * (1 + _ROUNDING):
                raise InternalError(
                    f"joint plan of {self.cost} ns: its blocks take at least {ahead[-1]} ns; {HOW_TO_REPORT}."
                )
            # Where all cheaper paths are gone, none is left.
            self.bound = max(self.bound, min(float(ahead[-1]), self.cost))
            if self.bound >= self.cost * (1 - _ROUNDING):
                return
            if not self._price_near(self._path(via), ahead):
                return
            self._take_better()

    def _declared_bound(self) -> Bound:
        most, num_layers = self.space.most_layers, len(self.graph.members)
        rules = [DECLARED, Rule("kernels in a stage that is no known block", self.graph.most_groups)]
        if most < num_layers:
            rules.append(Rule("layers in a kernel that is no known block", most))
        return Bound(self.bound, Space(SCHEDULES.of, tuple(rules)), "shortest path over ideals")

    def _whole_bound(self) -> Bound | None:
        if not self.space.bound_ns:
            return None
        return Bound(self.space.bound_ns, WHOLE_LAYERS, "paths of layers between ideals")

    def _list(self) -> None:
        """Transitions in the order of their targets, those of known blocks included."""
        known: dict[Mask, Mask] = {}
        for nodes in self.pricer.sets:
            layers = self.graph.layers_of(nodes)
            if layers is not None:
                known[layers] = nodes
        least_ns = self.space.least_ns
        self.sets = [*least_ns, *(layers for layers in known if layers not in least_ns)]
        number = {layers: i for i, layers in enumerate(self.sets)}
        values = [least_ns.get(layers, inf) for layers in self.sets]
        for layers, nodes in known.items():
            (block,) = self.pricer.blocks(nodes)
            values[number[layers]] = min(values[number[layers]], self.pricer.least(block))
        self.values = np.array(values)
        self.is_priced = np.zeros(len(values), bool)
        listed = [(t.target, t.source, number[t.layers]) for t in self.space.transitions]
        place = {ideal: i for i, ideal in enumerate(self.space.ideals)}
        for layers in self.sets[len(least_ns) :]:
            before = 0
            for layer in bits(layers):
                before |= self.graph.predecessors[layer]
            before &= ~layers
            for source, ideal in enumerate(self.space.ideals):
                target = place.get(ideal | layers)
                if not before & ~ideal and not ideal & layers and target is not None:
                    listed.append((target, source, number[layers]))
        listed.sort()
        table = np.array(listed, np.int64).reshape(-1, 3)
        self._targets, self._sources, self._of_sets = table[:, 0], table[:, 1], table[:, 2]

    def _from_start(self, values: Array) -> tuple[Array, Array]:
        """What each ideal has cost at least, and the transition by which."""
        lengths = values[self._of_sets]
        found = np.full(len(self.space.ideals), inf)
        via = np.full(len(found), -1)
        found[0] = 0.0
        firsts = np.searchsorted(self._targets, np.arange(len(found) + 1))
        for target in range(1, len(found)):
            first, last = firsts[target], firsts[target + 1]
            if first < last:
                costs = found[self._sources[first:last]] + lengths[first:last]
                least = int(np.argmin(costs))
                found[target], via[target] = costs[least], first + least
        return found, via

    def _to_end(self) -> Array:
        """What is left from each ideal at least."""
        order = np.argsort(self._sources, kind="stable")
        sources, targets = self._sources[order], self._targets[order]
        lengths = self.values[self._of_sets[order]]
        found = np.full(len(self.space.ideals), inf)
        found[-1] = 0.0
        firsts = np.searchsorted(sources, np.arange(len(found) + 1))
        for source in range(len(found) - 2, -1, -1):
            first, last = firsts[source], firsts[source + 1]
            if first < last:
                found[source] = (lengths[first:last] + found[targets[first:last]]).min()
        return found

    def _path(self, via: Array) -> list[int]:
        """The transitions of the shortest path."""
        path = []
        place = len(self.space.ideals) - 1
        while place:
            path.append(int(via[place]))
            place = int(self._sources[via[place]])
        return path[::-1]

    def _price_near(self, path: list[int], ahead: Array) -> bool:
        """Price the sets of a path, and those of paths that are hardly longer; False: the budget ends."""
        through = ahead[self._sources] + self.values[self._of_sets] + self._to_end()[self._targets]
        is_left = through < self.cost * (1 - _ROUNDING)
        self._targets, self._sources, of_sets = (
            self._targets[is_left],
            self._sources[is_left],
            self._of_sets[is_left],
        )
        chosen = [int(self._of_sets[n]) for n in path]
        self._of_sets, through = of_sets, through[is_left]
        nearest = np.argsort(through, kind="stable")
        open_sets = dict.fromkeys(int(n) for n in of_sets[nearest] if not self.is_priced[n])
        chosen += [n for n, _ in zip(open_sets, range(_PRICED_A_ROUND), strict=False)]
        for number in dict.fromkeys(chosen):
            if not self.is_priced[number]:
                if self.is_due():
                    return False
                self.values[number] = self._price(self.sets[number])
                self.is_priced[number] = True
                self.num_priced += 1
        return True

    def _price(self, layers: Mask) -> float:
        """The least cost of a set: as it is known, as one kernel, in lanes if they may be cheaper, or as a
        stage of its parts."""
        nodes = self.graph.nodes_of(layers)
        least_ns = self.space.least_ns.get(layers)
        parts = self.graph.parts(layers)
        if least_ns is not None and len(parts) > 1:
            self.pricer.add(self.moves.side_by_side([self.graph.nodes_of(part) for part in parts]))
        elif least_ns is not None:
            kernel = self.moves.fused(nodes)
            self.pricer.add(kernel)
            if self.pricer.cost(kernel) > least_ns * (1 + _ROUNDING):
                laned = self.moves.laned(kernel, self.meter)
                if laned is not None:
                    self.pricer.add(laned)
        (block,) = self.pricer.blocks(nodes)
        return self.pricer.price(block)

    def _take_better(self) -> None:
        """The shortest path through what is priced, where it is cheaper than what is known."""
        known = np.where(self.is_priced, self.values, inf)
        ahead, via = self._from_start(known)
        if ahead[-1] >= self.cost * (1 - _ROUNDING):
            return
        masks = [self.graph.nodes_of(self.sets[int(self._of_sets[n])]) for n in self._path(via)]
        contents = []
        for mask in masks:
            content = self.pricer.best(mask)[1]
            assert content is not None, "it has a finite cost"
            contents.append(content)
        self.best, self.cost = tuple(contents), float(ahead[-1])
        self.publish(self.best, self.cost)
