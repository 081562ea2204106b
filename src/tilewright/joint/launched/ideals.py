"""Ideals of a graph's layers, the sets of layers between two of them, and what these cost at least.

Plans of kernels that are launched one by one are paths over ideals, sets of layers that are closed under
predecessors. A kernel of whole layers, run whole or with layers in lanes, takes no less than its launch and
what any unit does along any path of its layers, or main memory's port for what comes and goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from math import inf
from operator import add
from typing import NamedTuple

from tilewright.ir.graph import Value
from tilewright.joint.base import Mask, bits
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

    `least_ns` is what each of these sets takes at least as one kernel, or where it falls apart into no more
    parts than a stage may have groups, as a stage of a kernel for each. `bound_ns` is what any plan of whole
    layers takes at least, whatever stages and lanes it has; 0 where larger sets were left out.
    """

    ideals: tuple[Mask, ...]
    transitions: tuple[Transition, ...]
    least_ns: dict[Mask, float]
    most_layers: int
    bound_ns: float


class _Least(NamedTuple):
    """Of a set of layers, ns of each unit along a path, of the busiest one in all, and of main memory's port
    for what comes, the values of which are `brought`."""

    units_ns: tuple[float, ...]
    floors_ns: float
    main_ns: float
    brought: Mask


@dataclass(slots=True, eq=False)
class LayerGraph:
    """Layers that blocks run as a whole, in an order in which they can run; sets of them are bit masks.

    `members` are the numbers of each layer's nodes. Where a kernel `has_lanes` it takes what its longest path
    of layers does, else what all of them do; and no less than the sum of their `floors_ns`.
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
    _order: StageGraph = field(init=False)
    _units: list[tuple[float, ...]] = field(init=False)
    _reads: list[list[tuple[Mask, int, float]]] = field(init=False)
    _constants_ns: list[float] = field(init=False)
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
        times = times_of([[numbered.nodes[i] for i in nodes] for nodes in layers])
        known = dict(zip(layers, times, strict=True))
        graph.times = [known.get(nodes, NOTHING) for nodes in members]
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

    def nodes_of(self, layers: Mask) -> Mask:
        """The nodes of a set of layers."""
        found = 0
        for layer in bits(layers):
            found |= self.nodes[layer]
        return found

    def layers_of(self, nodes: Mask) -> Mask | None:
        """The layers that a set of nodes holds; None if it holds a part of one."""
        found = 0
        for layer, own in enumerate(self.nodes):
            if own & nodes:
                if own & ~nodes:
                    return None
                found |= 1 << layer
        return found

    def _connect(self) -> None:
        home = {node: layer for layer, nodes in enumerate(self.members) for node in nodes}
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
        names = sorted({unit for time in self.times for unit in time.whole_ns})
        of_unit = [time.laned_ns if self.has_lanes else time.whole_ns for time in self.times]
        self._units = [tuple(own.get(name, 0.0) for name in names) for own in of_unit]
        read_ns: dict[Value, float] = {}
        num_readers: dict[str, int] = {}
        for time in self.times:
            for name in time.constants_ns:
                num_readers[name] = num_readers.get(name, 0) + 1
        for layer, nodes in enumerate(self.members):
            for value in self._read_by(nodes):
                own_ns = self.times[layer].reads_ns.get(value, 0.0)
                read_ns[value] = min(own_ns, read_ns.get(value, own_ns))
        home = {node: layer for layer, nodes in enumerate(self.members) for node in nodes}
        numbers = {value: number for number, value in enumerate(read_ns)}
        self._reads, self._made, self._constants_ns = [], [], []
        for layer, nodes in enumerate(self.members):
            reads = []
            for value in self._read_by(nodes):
                maker = None if value.producer is None else home[self.numbered.numbers[value.producer]]
                made_by = 0 if maker is None else 1 << maker
                reads.append((made_by, 1 << numbers[value], read_ns[value]))
            self._reads.append(reads)
            # What several layers read comes once; which of them pays for it depends on the kernel.
            constants = self.times[layer].constants_ns.items()
            self._constants_ns.append(sum(ns for name, ns in constants if num_readers[name] == 1))
            made = []
            for value, own_ns in self.times[layer].makes_ns.items():
                users = 0
                for user in value.users:
                    users |= 1 << home[self.numbered.numbers[user]]
                is_result = value in self.numbered.wanted
                made.append((-1 if is_result else users, own_ns))
            self._made.append(made)

    def _read_by(self, nodes: Sequence[int]) -> Iterator[Value]:
        inside = {self.numbered.nodes[node] for node in nodes}
        found = dict.fromkeys(v for node in nodes for v in self.numbered.nodes[node].operands())
        yield from (v for v in found if not v.is_constant and v.producer not in inside)

    def ideals(self, most: int) -> tuple[Mask, ...] | None:
        """All sets closed under predecessors, by their sizes; None if there are more than so many."""
        found: list[Mask] = [0]
        level = [0]
        while level:
            grown: dict[Mask, None] = {}
            for ideal in level:
                for layer in self._order.ready(ideal):
                    grown[ideal | 1 << layer] = None
            level = list(grown)
            found += level
            if len(found) > most:
                return None
        return tuple(found)

    def parts(self, layers: Mask) -> tuple[Mask, ...]:
        """The connected parts of a set."""
        return self._order.components(layers)

    def space(self, most_ideals: int, most_pairs: int) -> IdealSpace | None:
        """Ideals and transitions, of as many layers as pairs of ideals allow; None: not even of two."""
        ideals = self.ideals(most_ideals)
        if ideals is None:
            return None
        ready = {ideal: self._order.ready(ideal) for ideal in ideals}
        most_layers = len(self.members)
        while most_layers > 1:
            if self._num_pairs(ideals, ready, most_layers, most_pairs) <= most_pairs:
                return self._space(ideals, ready, most_layers)
            most_layers = min(most_layers // 2, 24)
        return None

    def _num_pairs(
        self, ideals: Sequence[Mask], ready: dict[Mask, tuple[int, ...]], most_layers: int, most: int
    ) -> int:
        """Pairs of an ideal and a larger one, at most about so many."""
        found = 0
        for source in ideals:
            level = {source}
            for _ in range(most_layers):
                level = {ideal | 1 << layer for ideal in level for layer in ready[ideal]}
                found += len(level)
                if not level:
                    break
                if found > most:
                    return found
        return found

    def _space(
        self, ideals: tuple[Mask, ...], ready: dict[Mask, tuple[int, ...]], most_layers: int
    ) -> IdealSpace:
        place = {ideal: number for number, ideal in enumerate(ideals)}
        transitions: list[Transition] = []
        all_ns: dict[Mask, float] = {}
        num_parts: dict[Mask, int] = {}
        ahead_ns = dict.fromkeys(ideals, inf)
        ahead_ns[0] = 0.0
        for source in ideals:
            checkpoint()
            ends = self._ends(source)
            level = {source: _Least((0.0,) * len(self._units[0]), 0.0, 0.0, 0)}
            for _ in range(most_layers):
                grown: dict[Mask, _Least] = {}
                for ideal, least in level.items():
                    for layer in ready[ideal]:
                        target = ideal | 1 << layer
                        if target not in grown:
                            grown[target] = self._with(layer, least, ends, source)
                for target, least in grown.items():
                    layers = target & ~source
                    if layers not in num_parts:
                        num_parts[layers] = len(self.parts(layers))
                        main_ns = least.main_ns + self._stored_ns(layers)
                        all_ns[layers] = self.launch_ns + max(*least.units_ns, least.floors_ns, main_ns)
                    ahead_ns[target] = min(ahead_ns[target], ahead_ns[source] + all_ns[layers])
                    if num_parts[layers] <= self.most_groups:
                        transitions.append(Transition(place[source], place[target], layers))
                level = grown
                if not level:
                    break
        least_ns = {
            layers: ns + (self.join_ns if num_parts[layers] > 1 else 0.0)
            for layers, ns in all_ns.items()
            if num_parts[layers] <= self.most_groups
        }
        bound_ns = ahead_ns[self.everything] if most_layers >= len(self.members) else 0.0
        return IdealSpace(ideals, tuple(transitions), least_ns, most_layers, bound_ns)

    def _with(self, layer: int, least: _Least, ends: Sequence[tuple[float, ...]], source: Mask) -> _Least:
        """What a set takes with one more layer, behind an ideal."""
        if self.has_lanes:
            units_ns = tuple(map(max, least.units_ns, ends[layer]))
        else:
            units_ns = tuple(map(add, least.units_ns, self._units[layer]))
        main_ns, brought = least.main_ns + self._constants_ns[layer], least.brought
        for maker, value, read_ns in self._reads[layer]:
            if not maker & ~source and not brought & value:
                brought |= value
                main_ns += read_ns
        return _Least(units_ns, least.floors_ns + self.floors_ns[layer], main_ns, brought)

    def _ends(self, source: Mask) -> list[tuple[float, ...]]:
        """By layer, of each unit, its longest path of layers outside an ideal that ends there."""
        found: list[tuple[float, ...]] = []
        for layer, own in enumerate(self._units):
            before = [found[i] for i in bits(self.predecessors[layer] & ~source)]
            before += before[:1]  # for `map`, which takes one of each
            found.append(tuple(map(add, own, map(max, *before))) if len(before) > 1 else own)
        return found

    def _stored_ns(self, layers: Mask) -> float:
        """Of main memory's port, for results that are read outside of a set."""
        return sum(own_ns for layer in bits(layers) for users, own_ns in self._made[layer] if users & ~layers)
