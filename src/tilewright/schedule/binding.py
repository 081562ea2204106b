"""Core binding and scopes of buffers (GraphTurbo's Algorithm 4), and what moves because of them.

A binding says along which axes, and into how many parts, a buffer lies in the local buffers of a cluster's
cores. The schedule is visited backwards: a reader's binding says how it wants its operands bound. Where
readers of one buffer disagree, the buffer goes to the shared buffer. What then still differs is made up for
where the buffer is read: by a copy between levels, a redistribution between cores.

Parts are equal. Where the split of a kernel says how cores share what it makes, they may be nearly equal, and
so may those of what it reads; that they begin elsewhere then moves as little as the rows that windows of
neighbouring parts share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from math import isqrt, prod

from tilewright.ir.graph import Value
from tilewright.ir.region import Region
from tilewright.schedule.core_groups import CoreGroups
from tilewright.schedule.instances import Edge, InstanceGraph, InstanceNode, Kind
from tilewright.schedule.lanes import LanePlace
from tilewright.schedule.launches import Launch, lane_places, most_cores

Binding = tuple[int, ...]


class Scope(StrEnum):
    """The level of memory that a buffer lives in, for its whole life."""

    LOCAL = "local"
    SHARED = "shared"
    MAIN = "main"


@dataclass(frozen=True, slots=True, eq=False)
class Bindings:
    """The binding and the scope of every node's buffer, by place, and what readers want of what they read.

    `wanted` has an entry for an edge where the reader's binding says something about it. `launches` are the
    kernels that the machine launches separately; none where one program runs all. `cores` are the groups of
    cores that share the work of one program; None where all cores run every node.
    """

    num_cores: int
    bindings: tuple[Binding, ...]
    scopes: tuple[Scope, ...]
    wanted: Mapping[Edge, Binding]
    launches: tuple[Launch, ...] = ()
    cores: CoreGroups | None = None
    _most_cores: Mapping[int, int] = field(init=False, repr=False)
    _lanes: Mapping[tuple[int, int], LanePlace] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_most_cores", most_cores(self.launches))
        object.__setattr__(self, "_lanes", lane_places(self.launches))

    def cores_of(self, place: int, layer: int) -> int:
        """How many cores a layer of a node may take."""
        if self.cores is not None:
            return self.cores.of(place).num_cores
        lane = self.lane_of(place, layer)
        return self._most_cores.get(place, self.num_cores) if lane is None else lane.num_cores

    def lane_of(self, place: int, layer: int) -> LanePlace | None:
        """The lane of its kernel that runs a layer of a node; None where all of the kernel's cores do."""
        return self._lanes.get((place, layer))


def plain_binding(shape: Sequence[int], num_cores: int, axes: Sequence[int] | None = None) -> Binding:
    """As many cores as equal parts allow, distributed from the outermost axis on.

    Of the bindings with the most cores, the one with the most along the first axis, then along the next.
    Where all of 8 cores find work this is Algorithm 4's "largest of 8, 4, 2 and 1" on each axis; where they
    do not, because extents are odd or cores come in other numbers, it leaves fewer of them idle. `axes` gives
    another order of axes.

    >>> plain_binding((2, 512, 28, 28), 8), plain_binding((2, 512, 28, 28), 8, (0, 2, 3, 1))
    ((2, 4, 1, 1), (2, 1, 4, 1))
    >>> plain_binding((5, 7), 8), plain_binding((16, 56, 56, 64), 1216)
    ((1, 7), (16, 8, 8, 1))
    """
    order = tuple(range(len(shape)) if axes is None else axes)
    counts = _distributed(tuple(shape[axis] for axis in order), num_cores)
    binding = [1] * len(shape)
    for axis, cores in zip(order, counts, strict=True):
        binding[axis] = cores
    return tuple(binding)


@lru_cache(maxsize=1 << 14)
def _distributed(extents: tuple[int, ...], num_cores: int) -> tuple[int, ...]:
    """The binding of these extents, outer ones first."""
    if not extents:
        return ()
    best: tuple[int, ...] = (1,) * len(extents)
    for cores in _divisors(extents[0])[::-1]:
        if cores > num_cores:
            continue
        candidate = (cores, *_distributed(extents[1:], num_cores // cores))
        if prod(candidate) > prod(best):
            best = candidate
        if prod(best) == num_cores:
            break
    return best


@cache
def _divisors(number: int) -> tuple[int, ...]:
    """Ascending; of 0, which any number divides, 1."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)})) or (1,)


def bind(
    graph: InstanceGraph,
    order: Sequence[int],
    num_cores: int,
    launches: Sequence[Launch] = (),
    cores: CoreGroups | None = None,
) -> Bindings:
    """Algorithm 4 on a schedule. Results of the network belong to main memory. O(edges * axes).

    What kernels leave that are launched separately does, too: they agree on no distribution over cores. What
    one group of cores makes for another one goes to the shared buffer.
    """
    return _Binder(graph, num_cores, tuple(launches), cores).run(order)


class _Binder:
    def __init__(
        self, graph: InstanceGraph, num_cores: int, launches: tuple[Launch, ...], cores: CoreGroups | None
    ) -> None:
        self.graph = graph
        self.num_cores, self.launches, self.cores = num_cores, launches, cores
        self.most_cores = most_cores(launches)
        if cores is not None:
            self.most_cores = {node.id: cores.of(node.id).num_cores for node in graph.nodes}
        self.bindings: list[Binding | None] = [None] * len(graph.nodes)
        crossing = frozenset[int]() if cores is None else cores.crossing
        self.scopes = [Scope.SHARED if n.id in crossing else Scope.LOCAL for n in graph.nodes]
        self.wanted: dict[Edge, Binding] = {}
        self._known: dict[tuple[object, ...], dict[Value, Binding]] = {}
        self._axes: dict[int, tuple[int, ...]] = {}

    def run(self, order: Sequence[int]) -> Bindings:
        for place in reversed(order):
            node = self.graph.nodes[place]
            own = self._own(node)
            self.bindings[place] = own
            if self.launches and node.kind is Kind.INSTANCE:
                continue
            demands = self._demands(node, own)
            for edge in self.graph.reads(place):
                binding = demands.get(edge.value)
                if binding is None or not self._is_valid(binding, edge):
                    continue
                if self.cores is not None and self.cores.is_crossed(edge):
                    continue
                self.wanted[edge] = binding
                if self.bindings[edge.producer] is None:
                    self.bindings[edge.producer] = binding
                elif self.bindings[edge.producer] != binding:
                    self.scopes[edge.producer] = Scope.SHARED
        for node in self.graph.nodes:
            if node.kind is not Kind.INSTANCE:
                continue
            if self.launches or any(v in self.graph.results for v in node.outputs):
                self.scopes[node.id] = Scope.MAIN
        done = [b for b in self.bindings if b is not None]
        scopes = tuple(self.scopes)
        return Bindings(self.num_cores, tuple(done), scopes, self.wanted, self.launches, self.cores)

    def _is_valid(self, binding: Binding, edge: Edge) -> bool:
        """Whether it says something, and both the producer's buffer and what is read of it can have it."""
        buffer = self.graph.nodes[edge.producer].outputs[edge.value]
        reader = self.graph.nodes[edge.consumer]
        sides = zip(binding, extents(buffer), extents(edge.region), strict=True)
        return any(b > 1 for b in binding) and all(
            self._deals(own, b, reader) and self._deals(read, b, reader) for b, own, read in sides
        )

    def _deals(self, extent: int, parts: int, node: InstanceNode) -> bool:
        """Whether a node may have an axis in so many parts: equal ones, unless its kernel asks for others."""
        return extent >= parts if self.graph.splits[node.subgraph_id].cores else extent % parts == 0

    def _own(self, node: InstanceNode) -> Binding:
        """What its kernel asks for; else what its readers want, unless they disagree or all cores find work
        only otherwise."""
        num_cores = self.most_cores.get(node.id, self.num_cores)
        if node.kind is Kind.INSTANCE and not self.launches:
            asked = self.graph.splits[node.subgraph_id].cores_of(node.region, num_cores)
            if asked:
                return asked
        axes: tuple[int, ...] | None = self._axes_of(node)
        if axes is not None and len(axes) != len(node.region):
            axes = None  # slices of another result of the producer than its first
        plain = plain_binding(extents(node.region), num_cores, axes)
        known = self.bindings[node.id]
        if known is None or self.scopes[node.id] is not Scope.LOCAL or prod(plain) > prod(known):
            return plain
        return known

    def _axes_of(self, node: InstanceNode) -> tuple[int, ...]:
        """The order in which axes get cores: first those that an input follows, as an image's rows do.

        Along the others (channels of a convolution) every core would need all of the input.
        """
        while node.kind is not Kind.INSTANCE:
            node = self.graph.nodes[self.graph.reads(node.id)[0].producer]
        found = self._axes.get(node.subgraph_id)
        if found is None:
            axes = range(len(node.region))
            followed = [axis for axis in axes if any(self._followers(node, axis, 2).values())]
            found = (*followed, *(axis for axis in axes if axis not in followed))
            self._axes[node.subgraph_id] = found
        return found

    def _demands(self, node: InstanceNode, own: Binding) -> dict[Value, Binding]:
        """How a node wants each value that it reads to be bound."""
        if node.kind is Kind.CONCAT:
            return {node.value: self._of_pieces(node, own)}
        shapes = tuple((v, extents(r)) for v, r in node.inputs.items())
        key = (node.subgraph_id, tuple(map(extents, node.outputs.values())), shapes, own)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._inferred(node, own)
        return found

    def _of_pieces(self, node: InstanceNode, own: Binding) -> Binding:
        """Buffers share the cores along the axis on which they lie side by side."""
        buffers = [e.region for e in self.graph.reads(node.id)]
        axes = [
            axis for axis, interval in enumerate(node.region) if any(p[axis] != interval for p in buffers)
        ]
        return tuple(max(1, b // len(buffers)) if axis in axes[:1] else b for axis, b in enumerate(own))

    def _inferred(self, node: InstanceNode, own: Binding) -> dict[Value, Binding]:
        """The axes of inputs that shrink with an axis of the output get as many cores."""
        found = {v: [1] * len(r) for v, r in node.inputs.items()}
        for axis, factor in enumerate(own):
            if factor == 1:
                continue
            for value, followers in self._followers(node, axis, factor).items():
                for follower in followers[:1]:
                    wide = found[value][follower] * factor
                    if self._deals(extents(node.inputs[value])[follower], wide, node):
                        found[value][follower] = wide
        return {v: tuple(b) for v, b in found.items()}

    def _followers(self, node: InstanceNode, axis: int, factor: int) -> dict[Value, list[int]]:
        """The axes of each input that shrink where an axis of the output is restricted to one core's part."""
        subgraph = self.graph.partition.subgraphs[node.subgraph_id]
        # Of an instance that keeps rows, what it would read without them: a part of it needs all its halos.
        inputs = node.inputs
        if node.rows is not None:
            inputs = self.graph.maps.values_of(subgraph.nodes, node.outputs)
        parts: dict[Value, Region] = {}
        for value, region in node.outputs.items():
            part = list(region)
            if axis < len(part):
                start, stop = part[axis]
                part[axis] = (start, start + -(-(stop - start) // factor))
            parts[value] = tuple(part)
        regions = self.graph.maps.values_of(subgraph.nodes, parts)
        return {v: _shrunk(inputs[v], regions[v]) for v in node.inputs if v in regions}


def extents(region: Region) -> tuple[int, ...]:
    """How long a region is on each axis.

    >>> extents(((2, 4), (0, 7)))
    (2, 7)
    """
    return tuple(stop - start for start, stop in region)


def _shrunk(whole: Region, part: Region) -> list[int]:
    return [a for a, (w, p) in enumerate(zip(extents(whole), extents(part), strict=True)) if p < w]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What happens to a buffer on its way along an edge, before the reader runs.

    `kind` is a copy into the local buffers, from `scope`, bound as the buffer is; or a redistribution between
    cores, to `binding`: the least of what is there and what is wanted on each axis, which both can address.
    """

    kind: Kind
    scope: Scope
    binding: Binding


def transfers(
    graph: InstanceGraph, bindings: Bindings, scopes: Sequence[Scope] | None = None
) -> dict[Edge, tuple[Transfer, ...]]:
    """What each edge needs, for scopes that are final; edges that need nothing are left out.

    Readers work on local buffers; a concatenation of buffers elsewhere takes them from there as well.
    """
    final = bindings.scopes if scopes is None else scopes
    found: dict[Edge, tuple[Transfer, ...]] = {}
    for edge in graph.edges:
        own, scope = bindings.bindings[edge.producer], final[edge.producer]
        wanted = bindings.wanted.get(edge)
        needed: list[Transfer] = []
        if scope is not Scope.LOCAL:
            needed.append(Transfer(Kind.COPY, scope, own))
        if wanted is not None and wanted != own:
            least = tuple(map(min, own, wanted))
            needed.append(Transfer(Kind.REDISTRIBUTE, Scope.LOCAL, least))
        if needed:
            found[edge] = tuple(needed)
    return found
