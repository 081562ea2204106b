"""Lazy shortest paths over ideals: the cheapest plan of a declared space, or a bound where the budget ends.

Every set of layers counts with what it takes at least until it is priced; those on a shortest path are, and
others near it. When a shortest path is priced from end to end, no plan of the space costs less, and what
ideals have cost by then are the potentials that prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import accumulate, pairwise
from math import inf
from operator import or_
from typing import Any, Literal, NamedTuple

import numpy as np

from tilewright.bit_sets import bits, union
from tilewright.errors import InternalError
from tilewright.joint.base import Mask
from tilewright.joint.launched.content import Content
from tilewright.joint.launched.ideals import IdealSpace, LayerGraph
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.partition.split import WHOLE
from tilewright.planning import UNLIMITED, Bound, Meter, Rule, Space
from tilewright.planning.checking import HOW_TO_REPORT
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.base import merges
from tilewright.schedule.space import SCHEDULES, WHOLE_SUBGRAPHS, WHOLE_SUMS, WITHOUT_MERGES

WITHOUT_LANES = Rule("of known blocks, kernels of whole layers without lanes, and stages of such kernels")
WITH_LANES = Rule(
    "of known blocks, kernels of whole layers, with or without the lanes that virtual units chooses, and "
    "stages of such kernels without lanes"
)
"""What every plan of a declared space keeps: each kernel that is no known block runs whole."""
IN_ORDER = Rule("whose blocks run layers that follow each other in the plan")
WHOLE_LAYERS = Space(SCHEDULES.of, (WITHOUT_MERGES, WHOLE_SUMS, WHOLE_SUBGRAPHS, Rule("of whole layers")))
"""Plans whose kernels run in no slices, whatever stages and lanes they have."""
MOST_GROUPS = 8
"""Kernels side by side in a stage of the declared space, as many as IOS allows groups."""
MOST_IDEALS, MOST_PAIRS = 4000, 400_000
"""Ideals of a graph, and pairs of them, up to which a proof is tried."""
_FEW_LAYERS = 4
"""Layers in a block of the first space, which is proven before spaces of twice as many."""
SMALL_BLOCKS = 2 * _FEW_LAYERS
"""Layers in a block of the spaces that are searched before anything that takes long."""
_ROUNDING = 1e-9  # of costs that are sums of floats

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A declared space: what is `known`, and blocks of at most `most_layers`; and a bound of its plans."""

    bound: Bound
    most_layers: int
    known: frozenset[Content] = field(repr=False)


@dataclass(slots=True, eq=False)
class Proof:
    """What was proven of a graph.

    `contents` are the cheapest blocks that were found. `largest` is the largest declared space that was
    looked at, `closed` the largest one of which the blocks are the best: its shortest path is simulated from
    end to end. `whole_bound` is of all plans of whole layers without slices and merges. `potentials` are, by
    sets of nodes that are stored, what reaching them costs at least.
    """

    contents: tuple[Content, ...]
    cost: float
    largest: Declared
    closed: Declared | None
    whole_bound: Bound | None
    num_ideals: int
    num_sets: int
    num_priced: int
    graph: LayerGraph = field(repr=False)
    moves: Moves = field(repr=False)
    potentials: dict[Mask, float] = field(repr=False, default_factory=dict)

    @property
    def bound(self) -> Bound:
        """The bound of the largest space."""
        return self.largest.bound

    @property
    def is_closed(self) -> bool:
        """Whether the blocks are the best of the largest space."""
        return self.closed is self.largest

    def bounds_of(
        self, contents: Sequence[Content], rules: Sequence[Rule] = (), *, is_sum: bool = True
    ) -> Iterator[Bound]:
        """The bounds that hold for a plan of these blocks in this order, which keeps some more rules;
        `is_sum`: it costs no less than its blocks do."""
        if self.whole_bound is not None and all(_is_whole(self.graph, content) for content in contents):
            yield self.whole_bound
        reached = accumulate((content.mask for content in contents), or_)
        if not is_sum or not all(ideal in self.potentials for ideal in reached):
            return
        for space in dict.fromkeys((self.largest, self.closed)):
            if space is not None and all(self._is_in(space, content) for content in contents):
                yield replace(space.bound, space=space.bound.space.keeping(*rules))

    def _is_in(self, space: Declared, content: Content) -> bool:
        if content in space.known:
            return True
        layers = self.graph.layers_of(content.mask)
        return (
            layers is not None
            and layers.bit_count() <= space.most_layers
            and content == _plain(self.graph, self.moves, layers)
        )


def _plain(graph: LayerGraph, moves: Moves, layers: Mask) -> Content:
    """A set as one kernel, or as a stage of a kernel for each of its parts."""
    parts = [graph.nodes_of(part) for part in graph.parts(layers)]
    return moves.side_by_side(parts) if len(parts) > 1 else moves.fused(parts[0])


def _is_whole(graph: LayerGraph, content: Content) -> bool:
    """Whether a block merges nothing and slices no kernel, each of whole layers."""
    return not any(map(merges, content.stages)) and all(
        kernel.split == WHOLE and graph.layers_of(kernel.mask) is not None for kernel in content.kernels
    )


def prove(
    pricer: LaunchedPricer,
    moves: Moves,
    best: tuple[Content, ...],
    cost: float,
    meter: Meter,
    is_due: Callable[[], bool],
    publish: Callable[[tuple[Content, ...], float], None],
    most_layers: int = UNLIMITED,
    is_late: Callable[[], bool] = lambda: False,
) -> Proof | None:
    """The cheapest plan of the space that holds some blocks, as far as the budget goes, and so far as blocks
    that are not known have at most so many layers; None: too large. Better plans are published when a space
    is proven or the budget ends, and at once when `is_late`, that found before included: what publishes them
    needs a part of it."""
    graph = _layer_graph(pricer, moves, moves.layers_cut_by([content.mask for content in best]))
    ideals = graph.ideals(MOST_IDEALS)
    rules = () if ideals is not None else (IN_ORDER,)
    if ideals is None:
        ideals = graph.along([graph.layers_of(content.mask) or 0 for content in best])
    proving = _Proving(
        pricer, moves, graph, ideals, rules, meter, is_due, publish, most_layers, is_late, best, cost
    )
    return proving.run()


def _layer_graph(pricer: LaunchedPricer, moves: Moves, members: Sequence[tuple[int, ...]]) -> LayerGraph:
    machine = pricer.machine
    return LayerGraph.of(
        pricer.numbered,
        members,
        moves.layers,
        machine.layer_times,
        has_lanes=machine.allows_lanes and machine.limits.num_cores > 1,
        launch_ns=machine.launch_ns,
        join_ns=machine.join_ns,
        most_groups=min(machine.limits.num_groups, MOST_GROUPS),
        floors_of_nodes_ns=machine.floors_ns,
    )


def path_bound(pricer: LaunchedPricer) -> Bound:
    """The bound of plans of whole layers that the longest path of layers on any unit gives, however many
    ideals the network has: kernels run one after another, each of a part of any path."""
    moves = Moves(pricer, 1)
    path_ns = _layer_graph(pricer, moves, moves.layers).longest_path_ns
    return Bound(pricer.machine.launch_ns + path_ns, WHOLE_LAYERS, "longest path of layers on a unit")


class _Level(NamedTuple):
    """A declared space: how many layers a block has that is not known, and whether kernels may have lanes."""

    most_layers: int
    has_lanes: bool


@dataclass(slots=True, eq=False)
class _Proving:
    """What is left to be found of each set of layers, `least_ns` in a kernel or a stage and `laned_ns` in
    lanes, is infinite when that is priced; `known_ns` is what its known blocks cost, or cost at least."""

    pricer: LaunchedPricer
    moves: Moves
    graph: LayerGraph
    ideals: tuple[Mask, ...]
    rules: tuple[Rule, ...]
    meter: Meter
    is_due: Callable[[], bool]
    publish: Callable[[tuple[Content, ...], float], None]
    most_layers: int
    is_late: Callable[[], bool]
    best: tuple[Content, ...]
    cost: float
    sets: list[Mask] = field(init=False, default_factory=list)
    sizes: Array = field(init=False)
    known_ns: Array = field(init=False)
    least_ns: Array = field(init=False)
    laned_ns: Array = field(init=False)
    is_priced: Array = field(init=False)
    level: _Level | None = field(init=False, default=None)
    space: IdealSpace | None = field(init=False, default=None)
    num_priced: int = field(init=False, default=0)
    published: tuple[Content, ...] = field(init=False)
    _closed: Declared | None = field(init=False, default=None)
    _sources: Array = field(init=False)
    _targets: Array = field(init=False)
    _firsts: Array = field(init=False)
    _of_sets: Array = field(init=False)

    def run(self) -> Proof | None:
        self.published = self.best
        # What is known by the time that the search ends, be it by an interrupt, bounds the space.
        with self.meter.ending_early():
            self._search()
        if self.level is None:
            return None
        ahead, _ = self._from_start(self._lengths(self.level))
        largest = self._declared(self.level, min(float(ahead[-1]), self.cost))
        closed = self._closed
        if ahead[-1] >= self.cost * (1 - _ROUNDING):
            closed = largest
        return Proof(
            self.best,
            self.cost,
            largest,
            closed,
            self._whole_bound(),
            len(self.ideals),
            len(self.sets),
            self.num_priced,
            self.graph,
            self.moves,
            dict(zip(self.graph.nodes_of_each(self.ideals), map(float, ahead), strict=True)),
        )

    def _levels(self) -> Iterator[_Level]:
        """Declared spaces, each of which holds the ones before."""
        most, num_layers = _FEW_LAYERS, len(self.graph.members)
        while most < num_layers:
            if most > self.most_layers:
                return
            yield _Level(most, has_lanes=False)
            most *= 2
        if num_layers > self.most_layers:
            return
        yield _Level(num_layers, has_lanes=False)
        if self.graph.has_lanes:
            yield _Level(num_layers, has_lanes=True)

    def _search(self) -> None:
        """Prove the best of one space after another, until the budget ends."""
        before: list[_Level] = []
        for level in self._levels():
            if not self._list(level.most_layers):
                return
            self.level = level
            before.append(level)
            number = len(before) - 1
            while number < len(before):
                found = self._round(before[number])
                # A better plan has to be proven in smaller spaces first.
                number = 0 if found == "better" else number + (found == "closed")
                if found in ("closed", "ends") or (self.best != self.published and self.is_late()):
                    self._publish()
                if found == "ends":
                    return

    def _round(self, level: _Level) -> Literal["closed", "better", "open", "ends"]:
        """Price what the shortest path of a space needs."""
        checkpoint()
        ahead, via = self._from_start(self._lengths(level))
        if not self.num_priced and ahead[-1] > self.cost * (1 + _ROUNDING):
            raise InternalError(
                f"joint plan of {self.cost} ns: its blocks take at least {ahead[-1]} ns; {HOW_TO_REPORT}."
            )
        # Where all cheaper paths are gone, none is left.
        if ahead[-1] >= self.cost * (1 - _ROUNDING):
            self._closed = self._declared(level, self.cost)
            return "closed"
        for number in dict.fromkeys(int(self._of_sets[n]) for n in self._path(via)):
            if not self.is_priced[number] or min(self._open_ns(number, level)) < self.known_ns[number]:
                if self.is_due():
                    return "ends"
                self._price(number, level)
        return "better" if self._take_better() else "open"

    def _declared(self, level: _Level, bound_ns: float) -> Declared:
        rules = [WITH_LANES if level.has_lanes else WITHOUT_LANES, *self.rules]
        rules.append(Rule("kernels in a stage that is no known block", self.graph.most_groups))
        if level.most_layers < len(self.graph.members):
            rules.append(Rule("layers in a block that is not known", level.most_layers))
        bound = Bound(bound_ns, Space(SCHEDULES.of, tuple(rules)), "shortest path over ideals")
        known = frozenset(c for c in self.pricer.contents if self.graph.layers_of(c.mask) is not None)
        return Declared(bound, level.most_layers, known)

    def _whole_bound(self) -> Bound | None:
        if self.space is None or not self.space.bound_ns or self.rules:
            return None
        return Bound(self.space.bound_ns, WHOLE_LAYERS, "paths of layers between ideals")

    def _list(self, most_layers: int) -> bool:
        """Note sets of so many layers, and transitions in the order of their targets, those of known blocks
        included; False: there are too many, or the budget ends."""
        if self.space is not None and self.space.most_layers >= most_layers:
            return True
        space = self.graph.space(self.ideals, most_layers, MOST_PAIRS, self.is_due)
        if space is None:
            return False
        known: dict[Mask, Mask] = {}
        for nodes in self.pricer.sets:
            layers = self.graph.layers_of(nodes)
            if layers is not None:
                known[layers] = nodes
        sets = [*space.least_ns, *(layers for layers in known if layers not in space.least_ns)]
        number = {layers: i for i, layers in enumerate(sets)}
        table = self._transitions(space, number, sets[len(space.least_ns) :])
        # Where an interrupt comes before this, what was listed last holds; within it, nothing is stated.
        level, self.level = self.level, None
        self.space, self.sets = space, sets
        self._targets, self._sources, self._of_sets = table[:, 0], table[:, 1], table[:, 2]
        self._firsts = np.searchsorted(self._targets, np.arange(len(space.ideals) + 1))
        self.sizes = np.array([layers.bit_count() for layers in self.sets])
        self.least_ns = np.array([space.least_ns.get(layers, inf) for layers in self.sets])
        self.laned_ns = np.array([space.laned_ns.get(layers, inf) for layers in self.sets])
        self.known_ns = np.full(len(self.sets), inf)
        self.is_priced = np.ones(len(self.sets), bool)
        priced = set(self.pricer.priced_sets())
        for layers, nodes in known.items():
            place = number[layers]
            for block in self.pricer.blocks(nodes):
                self.known_ns[place] = self.pricer.least(block)
            self.is_priced[place] = nodes in priced
            plain = _plain(self.graph, self.moves, layers)
            if self.pricer.knows(plain):
                self.least_ns[place] = inf
            if self.moves.was_laned(plain):
                self.laned_ns[place] = inf
        self.level = level
        return True

    def _transitions(self, space: IdealSpace, number: dict[Mask, int], others: Sequence[Mask]) -> Array:
        """Target, source and set of each transition, in this order: of the space and by `others`."""
        listed = [(t.target, t.source, number[t.layers]) for t in space.transitions]
        place = {ideal: i for i, ideal in enumerate(space.ideals)}
        for layers in others:
            checkpoint()
            before = union(self.graph.predecessors[layer] for layer in bits(layers)) & ~layers
            for source, ideal in enumerate(space.ideals):
                target = place.get(ideal | layers)
                if not before & ~ideal and not ideal & layers and target is not None:
                    listed.append((target, source, number[layers]))
        listed.sort()
        return np.array(listed, np.int64).reshape(-1, 3)

    def _lengths(self, level: _Level) -> Array:
        """What each set takes at least in a space."""
        is_in = self.sizes <= level.most_layers
        found = np.where(is_in, np.minimum(self.known_ns, self.least_ns), self.known_ns)
        return np.where(is_in, np.minimum(found, self.laned_ns), found) if level.has_lanes else found

    def _open_ns(self, number: int, level: _Level) -> tuple[float, float]:
        """What the ways to run a set that are not priced take at least."""
        if self.sizes[number] > level.most_layers:
            return inf, inf
        return float(self.least_ns[number]), float(self.laned_ns[number]) if level.has_lanes else inf

    def _from_start(self, values: Array) -> tuple[Array, Array]:
        """What each ideal has cost at least, and the transition by which."""
        lengths = values[self._of_sets]
        found = np.full(len(self.ideals), inf)
        via = np.full(len(found), -1)
        found[0] = 0.0
        for target, (first, last) in enumerate(pairwise(self._firsts.tolist())):
            if first < last:
                costs = found[self._sources[first:last]] + lengths[first:last]
                least = int(np.argmin(costs))
                found[target], via[target] = costs[least], first + least
        return found, via

    def _path(self, via: Array) -> list[int]:
        """The transitions of the shortest path."""
        path = []
        place = len(self.ideals) - 1
        while place:
            path.append(int(via[place]))
            place = int(self._sources[via[place]])
        return path[::-1]

    def _price(self, number: int, level: _Level) -> None:
        """Simulate the known ways to run a set, and of the others the one that may take least: one kernel, or
        a stage of its parts; or the kernel in lanes."""
        layers = self.sets[number]
        nodes = self.graph.nodes_of(layers)
        least_ns, laned_ns = self._open_ns(number, level)
        is_plain = least_ns < inf and least_ns <= min(laned_ns, self.known_ns[number])
        is_laned = not is_plain and bool(self.is_priced[number])
        plain = _plain(self.graph, self.moves, layers)
        if is_plain:
            self.pricer.add(plain)
        elif is_laned and (laned := self.moves.laned(plain, self.meter)) is not None:
            self.pricer.add(laned)
        self.known_ns[number] = min(map(self.pricer.price, self.pricer.blocks(nodes)), default=inf)
        # An interrupt comes before all of it is known, and the end of the time before all lanes are.
        self.is_priced[number] = True
        self.least_ns[number] = inf if is_plain else self.least_ns[number]
        if is_laned and not self.meter.is_over:
            self.laned_ns[number] = inf
        self.num_priced += 1

    def _take_better(self) -> bool:
        """The shortest path through what is priced, where it is cheaper than what is known."""
        ahead, via = self._from_start(np.where(self.is_priced, self.known_ns, inf))
        if ahead[-1] >= self.cost * (1 - _ROUNDING):
            return False
        masks = [self.graph.nodes_of(self.sets[int(self._of_sets[n])]) for n in self._path(via)]
        contents = []
        for mask in masks:
            content = self.pricer.best(mask)[1]
            assert content is not None, "it has a finite cost"
            contents.append(content)
        self.best, self.cost = tuple(contents), float(ahead[-1])
        return True

    def _publish(self) -> None:
        """Hand out the best blocks, if they were not."""
        if self.best != self.published:
            self.published = self.best
            self.publish(self.best, self.cost)
