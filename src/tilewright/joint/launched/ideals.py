"""Ideals of a graph's layers, the sets of layers between two of them, and what these cost at least.

Plans of kernels that are launched one by one are paths over ideals, sets of layers that are closed under
predecessors. A kernel of whole layers takes no less than its launch and what any unit does for all of them,
with layers in lanes along any path of them, or main memory's port for what comes and goes, or finds no place
on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from math import inf
from operator import add
from typing import NamedTuple

from tilewright.bit_sets import bits, union
from tilewright.ir.graph import Value
from tilewright.joint.base import Mask
from tilewright.joint.launched.content import Numbered
from tilewright.joint.launched.times import NOTHING, LayerTime, TimeLayers
from tilewright.progress import checkpoint
from tilewright.records import dataclass
from tilewright.schedule.ios.graph import StageGraph


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """A step between two ideals, by their places, that runs a set of layers."""

    source: int
    target: int
    layers: Mask


@dataclass(frozen=True, slots=True, eq=False)
class IdealSpace:
    """Ideals in the order of their sizes, and transitions by sets of at most `most_layers`.

    `least_ns` is what each of these sets takes at least as one kernel without lanes, or where it falls apart
    into no more parts than a stage may have groups, as a stage of such a kernel for each. Where all layers
    may be in a set, `laned_ns` is what those take in lanes that may have some, and `bound_ns` what any plan
    of whole layers takes at least, whatever stages and lanes it has; 0 where larger sets were left out.
    """

    ideals: tuple[Mask, ...]
    transitions: tuple[Transition, ...]
    least_ns: dict[Mask, float]
    laned_ns: dict[Mask, float]
    most_layers: int
    bound_ns: float


class _Least(NamedTuple):
    """Of a set of layers, ns of each unit for all of them and along a path in lanes (none where it is not
    asked for), of the busiest one in all, and of main memory's port for what comes. `is_chain`: each layer
    but the first reads a result of the last."""

    units_ns: tuple[float, ...]
    paths_ns: tuple[float, ...] | None
    floors_ns: float
    main_ns: float
    is_chain: bool


@dataclass(slots=True, eq=False)
class LayerGraph:
    """Layers that blocks run as a whole, in an order in which they can run; sets of them are bit masks.

    `members` are the numbers of each layer's nodes. A kernel takes what all of its layers do, where it
    `has_lanes` what the longest path of them does; and no less than the sum of their `floors_ns`.
    """

    numbered: Numbered
    members: tuple[tuple[int, ...], ...]
    has_lanes: bool
    launch_ns: float
    join_ns: float
    most_groups: int
    floors_ns: tuple[float, ...]
    nodes: list[Mask] = field(init=False)
    times: Sequence[LayerTime] = field(init=False)
    _laned_times: Callable[[], Sequence[LayerTime]] = field(init=False)
    _home: dict[int, int] = field(init=False)  # the layer of each node
    _order: StageGraph = field(init=False)
    _units: list[tuple[float, ...]] = field(init=False)
    _reads: list[list[tuple[Mask, float]]] = field(init=False)
    _always_ns: list[float] = field(init=False)
    _made: list[list[tuple[Mask, float]]] = field(init=False)

    @classmethod
    def of(
        cls,
        numbered: Numbered,
        members: Sequence[tuple[int, ...]],
        layers: Sequence[tuple[int, ...]],
        times_of: TimeLayers,
        *,
        has_lanes: bool,
        launch_ns: float,
        join_ns: float,
        most_groups: int,
        floors_of_nodes_ns: Sequence[float],
    ) -> LayerGraph:
        """The graph of these layers, or parts of `layers`, with the times that a target says."""
        floors_ns = tuple(sum(floors_of_nodes_ns[i] for i in nodes) for nodes in members)
        graph = cls(numbered, tuple(members), has_lanes, launch_ns, join_ns, most_groups, floors_ns)
        graph._connect()
        # Of a part of a layer nothing is known: others of it may run in the same step.

        def times(in_lanes: bool) -> Sequence[LayerTime]:
            found = times_of([[numbered.nodes[i] for i in nodes] for nodes in layers], in_lanes)
            known = dict(zip(layers, found, strict=True))
            return [known.get(nodes, NOTHING) for nodes in members]

        graph.times, graph._laned_times = times(in_lanes=False), lambda: times(in_lanes=True)
        graph._note_times()
        return graph

    @property
    def predecessors(self) -> Sequence[Mask]:
        """Of each layer the ones whose results it reads."""
        return self._order.predecessors

    @property
    def everything(self) -> Mask:
        """All layers."""
        return (1 << len(self.members)) - 1

    @property
    def longest_path_ns(self) -> float:
        """What any unit does along a path of layers, in lanes or not."""
        longest: list[tuple[float, ...]] = []
        for own, predecessors in zip(self._laned_units(), self.predecessors, strict=True):
            before = [longest[layer] for layer in bits(predecessors)]
            longest.append(tuple(map(add, own, map(max, zip(*before, strict=True)))) if before else own)
        return max(chain.from_iterable(longest), default=0.0)

    def nodes_of(self, layers: Mask) -> Mask:
        """The nodes of a set of layers."""
        return union(self.nodes[layer] for layer in bits(layers))

    def nodes_of_each(self, sets: Iterable[Mask]) -> Iterator[Mask]:
        """The same of sets in a row: fast where neighbours have most layers in common."""
        before = nodes = 0
        for layers in sets:
            nodes ^= self.nodes_of(before ^ layers)
            before = layers
            yield nodes

    def layers_of(self, nodes: Mask) -> Mask | None:
        """The layers that a set of nodes holds; None if it holds a part of one."""
        found = 0
        while nodes:
            layer = self._home[(nodes & -nodes).bit_length() - 1]
            own = self.nodes[layer]
            if own & ~nodes:
                return None
            nodes ^= own
            found |= 1 << layer
        return found

    def _connect(self) -> None:
        home = self._home = {node: layer for layer, nodes in enumerate(self.members) for node in nodes}
        self.nodes = [sum(1 << node for node in nodes) for nodes in self.members]
        predecessors = [0] * len(self.members)
        for layer, nodes in enumerate(self.members):
            for node in nodes:
                for value in self.numbered.nodes[node].operands():
                    if value.producer is None:
                        continue
                    before = home[self.numbered.numbers[value.producer]]
                    if before != layer:
                        predecessors[layer] |= 1 << before
        names = tuple(self.numbered.nodes[nodes[0]].name for nodes in self.members)
        self._order = StageGraph(names, tuple(predecessors))

    def _note_times(self) -> None:
        """What each layer adds to the bound of a kernel."""
        names = self._names()
        self._units = [tuple(time.whole_ns.get(name, 0.0) for name in names) for time in self.times]
        num_readers: dict[str, int] = {}
        for time in self.times:
            for name in time.constants_ns:
                num_readers[name] = num_readers.get(name, 0) + 1
        home = self._home
        off_chip = {value for time in self.times for value in time.off_chip}
        self._reads, self._made, self._always_ns = [], [], []
        for time, nodes in zip(self.times, self.members, strict=True):
            # What several layers read comes once; which of them pays for it depends on the kernel.
            always_ns = sum(ns for name, ns in time.constants_ns.items() if num_readers[name] == 1)
            reads = []
            for value in self._read_by(nodes):
                own_ns = time.reads_ns.get(value, 0.0)
                if value.producer is None or value in off_chip:
                    always_ns += own_ns
                else:
                    reads.append((1 << home[self.numbered.numbers[value.producer]], own_ns))
            made = []
            for value, own_ns in time.makes_ns.items():
                users = 0
                for user in value.users:
                    users |= 1 << home[self.numbered.numbers[user]]
                if value in self.numbered.wanted or value in off_chip:
                    always_ns += own_ns
                else:
                    made.append((users, own_ns))
            self._reads.append(reads)
            self._made.append(made)
            self._always_ns.append(always_ns)

    def _names(self) -> list[str]:
        """The units that do something."""
        return sorted({unit for time in self.times for unit in time.whole_ns})

    def _laned_units(self) -> Sequence[tuple[float, ...]]:
        """Of each layer what each of these takes in a lane of the number of cores that suits it best."""
        names = self._names()
        return [tuple(time.laned_ns.get(name, 0.0) for name in names) for time in self._laned_times()]

    def _read_by(self, nodes: Sequence[int]) -> Iterator[Value]:
        inside = {self.numbered.nodes[node] for node in nodes}
        found = dict.fromkeys(v for node in nodes for v in self.numbered.nodes[node].operands())
        yield from (v for v in found if not v.is_constant and v.producer not in inside)

    def ideals(self, most: int) -> tuple[Mask, ...] | None:
        """All sets closed under predecessors, by their sizes; None if there are more than so many."""
        found: list[Mask] = []
        level = {0: self._order.sources()}
        while level:
            found += level
            if len(found) > most:
                return None
            grown: dict[Mask, Mask] = {}
            for ideal, ready in level.items():
                checkpoint()
                for layer in bits(ready):
                    if (target := ideal | 1 << layer) not in grown:
                        grown[target] = self._order.ready_after(ideal, ready, layer)
            level = grown
        return tuple(found)

    def _ready(self, ideals: tuple[Mask, ...]) -> dict[Mask, Mask]:
        """The layers that can run behind each ideal, of which some lead out of these; they are in the order
        of their sizes, and each but the first is one before with one more layer."""
        found, known = {ideals[0]: self._order.sources()}, frozenset(ideals)
        for ideal in ideals:
            checkpoint()
            ready = found[ideal]
            for layer in bits(ready):
                if (target := ideal | 1 << layer) in known and target not in found:
                    found[target] = self._order.ready_after(ideal, ready, layer)
        return found

    def parts(self, layers: Mask) -> tuple[Mask, ...]:
        """The connected parts of a set."""
        return self._order.components(layers)

    def along(self, layers: Sequence[Mask]) -> tuple[Mask, ...]:
        """Ideals along an order in which sets of layers run, layers within a set by their numbers."""
        found = [0]
        for together in layers:
            for layer in bits(together):
                found.append(found[-1] | 1 << layer)
        return tuple(found)

    def space(
        self, ideals: tuple[Mask, ...], most_layers: int, most_pairs: int, is_due: Callable[[], bool]
    ) -> IdealSpace | None:
        """Ideals and transitions of so many layers; None: there are more pairs of ideals, or time ends."""
        places = {ideal: number for number, ideal in enumerate(ideals)}
        laned = self._laned_units() if self.has_lanes and most_layers >= len(self.members) else ()
        transitions: list[Transition] = []
        sets_ns: dict[Mask, tuple[float, float, float]] = {}
        ahead_ns = dict.fromkeys(ideals, inf)
        ahead_ns[0] = 0.0
        all_ready = self._ready(ideals)
        ready = {
            ideal: [layer for layer in bits(open_layers) if ideal | 1 << layer in places]
            for ideal, open_layers in all_ready.items()
        }
        for place, source in enumerate(ideals):
            checkpoint()
            if len(transitions) > most_pairs or is_due():
                return None
            ends = self._ends(source, laned)
            none = (0.0,) * len(self._units[0])
            level = {source: _Least(none, none if ends else None, 0.0, 0.0, is_chain=True)}
            for _ in range(most_layers):
                grown: dict[Mask, _Least] = {}
                for ideal, least in level.items():
                    for layer in ready[ideal]:
                        target = ideal | 1 << layer
                        if target not in grown:
                            grown[target] = self._with(layer, least, ends, source, ideal)
                for target, least in grown.items():
                    layers = target & ~source
                    if layers not in sets_ns:
                        sets_ns[layers] = self._bounds_ns(layers, least, sets_ns)
                    ahead_ns[target] = min(ahead_ns[target], ahead_ns[source] + sets_ns[layers][0])
                    if sets_ns[layers][1] < inf:
                        transitions.append(Transition(place, places[target], layers))
                level = grown
                if not level:
                    break
        least_ns = {layers: least for layers, (_, least, _) in sets_ns.items() if least < inf}
        laned_ns = {layers: laned for layers, (_, _, laned) in sets_ns.items() if laned < inf}
        is_all = most_layers >= len(self.members) and len(ready[0]) == all_ready[0].bit_count()
        bound_ns = ahead_ns[self.everything] if is_all else 0.0
        return IdealSpace(ideals, tuple(transitions), least_ns, laned_ns, most_layers, bound_ns)

    def _bounds_ns(
        self, layers: Mask, least: _Least, known: dict[Mask, tuple[float, float, float]]
    ) -> tuple[float, float, float]:
        """What a set takes at least in any stages, as one kernel or as a stage of its parts without lanes,
        and as one kernel with lanes; infinite where there is none. Smaller sets are known."""
        moved_ns = max(least.floors_ns, least.main_ns + self._stored_ns(layers))
        is_laned = least.paths_ns is not None
        along_ns = least.paths_ns or (() if self.has_lanes else least.units_ns)
        any_ns = self.launch_ns + max((moved_ns, *along_ns))
        parts = self.parts(layers)
        if len(parts) == 1:
            alone_ns = self.launch_ns + max((moved_ns, *least.units_ns))
            return any_ns, alone_ns, any_ns if is_laned and not least.is_chain else inf
        if len(parts) > self.most_groups:
            return any_ns, inf, inf
        longest_ns = max((known[part][1] for part in parts if part in known), default=0.0)
        return any_ns, self.join_ns + max(any_ns, longest_ns), inf

    def _with(
        self, layer: int, least: _Least, ends: Sequence[tuple[float, ...]], source: Mask, ideal: Mask
    ) -> _Least:
        """What a set takes with one more layer, from an ideal to another one."""
        main_ns = least.main_ns + self._always_ns[layer]
        for maker, read_ns in self._reads[layer]:
            if maker & source:
                main_ns += read_ns
        last = 1 << (ideal & ~source).bit_length() >> 1
        return _Least(
            tuple(map(add, least.units_ns, self._units[layer])),
            None if least.paths_ns is None else tuple(map(max, least.paths_ns, ends[layer])),
            least.floors_ns + self.floors_ns[layer],
            main_ns,
            least.is_chain and not last & ~self.predecessors[layer],
        )

    def _ends(self, source: Mask, laned: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
        """By layer, of each unit, its longest path of layers outside an ideal that ends there, in lanes that
        take so long of each layer."""
        found: list[tuple[float, ...]] = []
        for layer, own in enumerate(laned):
            before = [found[i] for i in bits(self.predecessors[layer] & ~source)]
            before += before[:1]  # for `map`, which takes one of each
            found.append(tuple(map(add, own, map(max, *before))) if len(before) > 1 else own)
        return found

    def _stored_ns(self, layers: Mask) -> float:
        """Of main memory's port, for results that are read outside of a set, beside what always leaves."""
        return sum(own_ns for layer in bits(layers) for users, own_ns in self._made[layer] if users & ~layers)
