"""What units take at least where work waits for other work: heads and tails of what they have to do.

*Barriers*: where each element of a sum of products needs all of an operand, as in a dense layer behind a pool
over the image, all that makes the operand has ended before any of the sum begins, and whatever needs some of
the sum comes later still. So what lies between two barriers takes its busiest unit, and these parts add up.

*Arrivals*: main memory's port brings an input at a known rate, in whatever order, tile by tile. As long as so
many of its elements are missing, some of each layer cannot be begun (`missing.py`); all boxes that hold such
elements are computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from heapq import heappop, heappush
from itertools import product
from math import inf

import numpy as np

from tilewright.ir.derive import nests_of
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.missing import Lines, Waiting
from tilewright.ir.receptive import Field, Part, needed_elements, num_elements, receptive_fields
from tilewright.ir.region import Region, volume
from tilewright.progress import checkpoint
from tilewright.schedule.binding import extents
from tilewright.targets.npu.node_work import has_products

Seconds = Mapping[str, float]
"""Of each unit."""
_NUM_MOMENTS = 24
"""At which it may be asked how much of an input is missing, and what then is left to do."""
_BETTER = 1.001
"""Times the highest bound so far: moments between others are looked at where they may bring more."""


class Waits:
    """The waits of one graph, of whose values `regions` are computed, and `needed` at least. `least` says
    what units take at least for all boxes that hold any so many elements of a node's result, `part` for
    these elements alone."""

    def __init__(
        self,
        graph: Graph,
        regions: Mapping[Value, Region],
        needed: Mapping[Value, Part],
        maps: RegionMaps,
        least: Callable[[Node, int], Seconds],
        part: Callable[[Node, int], Seconds],
    ) -> None:
        self.graph, self.regions, self.maps = graph, regions, maps
        self.needed = needed
        self.counts = {value: num_elements(part) for value, part in needed.items()}
        self.least, self.part = least, part
        self.nodes = [node for node in graph.nodes if node.output in regions]
        self._known_waiting: dict[Value, list[tuple[Node, list[Waiting]]]] = {}
        self._known_barriers: list[tuple[Mapping[Value, Part], frozenset[Node]]] = []
        self._further_barriers = self._barriers()

    def barriers_s(self, elements_s: Mapping[Value, float]) -> Iterator[float]:
        """Seconds for all of the graph, without waits and then with those at each barrier; elements of inputs
        take so long each."""
        whole_s = busiest(map(self._whole, self.nodes))
        yield max(whole_s, sum(self.counts.get(v, 0) * s for v, s in elements_s.items()))
        ends: list[tuple[float, frozenset[Node]]] = []  # of barriers: when they end, and what begins then
        for before, behind in self._waits_at_barriers():
            made = [n for n in self.nodes if n.output in before]
            end_s = busiest(self._made(n, before) for n in made)
            inputs_s = sum(num_elements(before[v]) * s for v, s in elements_s.items() if v in before)
            end_s = max(end_s, inputs_s)
            for earlier_s, begins in ends:
                end_s = max(end_s, earlier_s + busiest(self._made(n, before) for n in made if n in begins))
            yield end_s + busiest(self._whole(n) for n in self.nodes if n in behind)
            ends.append((end_s, behind))

    def _waits_at_barriers(self) -> Iterator[tuple[Mapping[Value, Part], frozenset[Node]]]:
        """What each barrier needs of all values, and the nodes that wait for it, one after another: the first
        ones bring most, and the time may end before all are known."""
        yield from self._known_barriers
        for barrier in self._further_barriers:
            before = needed_elements(self.graph.nodes, {barrier: self.regions[barrier]})
            self._known_barriers.append((before, self._behind(barrier)))
            yield self._known_barriers[-1]

    def _whole(self, node: Node) -> Seconds:
        return self.least(node, self.counts.get(node.output, 0))

    def _made(self, node: Node, before: Mapping[Value, Part]) -> Seconds:
        """For what of a node's result is needed before something else; the rest may be computed later."""
        count = num_elements(before[node.output])
        is_all = count == volume(self.regions[node.output])
        return self._whole(node) if is_all else self.part(node, count)

    def _barriers(self) -> Iterator[Value]:
        """Values that a sum of products needs as a whole for each of its elements."""
        found: dict[Value, None] = {}
        for node in filter(has_products, self.nodes):
            if len(nests_of(node)) != 1:
                continue
            # Where accesses are affine, elements between the first and the last read no less than these do.
            corners = product(*(sorted({0, size - 1}) for size in extents(self.regions[node.output])))
            needs = [self.maps.inputs_of(node, 0, tuple((a, a + 1) for a in corner)) for corner in corners]
            for place, operand in enumerate(node.inputs):
                if operand is None or operand.producer is None or operand not in self.regions:
                    continue
                if all(need[place] == self.regions[operand] for need in needs):
                    found[operand] = None
        yield from (v for node in self.nodes for v in node.results() if v in found)

    def _behind(self, barrier: Value) -> frozenset[Node]:
        """Nodes of which each element needs all of a value."""
        needed = self.regions[barrier]
        fields = receptive_fields(self.graph, barrier)
        return frozenset(
            node
            for node in self.nodes
            if node.output is not barrier
            and any(_needs_all(of, needed) for of in fields.get(node.output, ()))
        )

    def arrivals_s(self, source: Value, element_s: float) -> Iterator[float]:
        """Seconds from when an input begins to come, `element_s` for each element, until all is computed that
        needs it, as some moment in between shows."""
        if source not in self.needed:
            return
        waiting, needed = self._waiting(source), self.counts[source]
        moments: list[int] = list(
            dict.fromkeys(np.geomspace(1, max(1, needed), _NUM_MOMENTS).astype(int).tolist())
        )

        @cache
        def left_s(moment: int) -> float:
            checkpoint()
            return busiest(self._left(node, source, parts, moments[moment]) for node, parts in waiting)

        def come_s(moment: int) -> float:
            return (needed - moments[moment]) * element_s

        # Between two moments no more has come than at the first one, and no more is left than at the second.
        best, first, last = 0.0, 0, len(moments) - 1
        spans = [(-inf, first, last)]
        while spans and -spans[0][0] > best * _BETTER:
            _, first, last = heappop(spans)
            for moment in (first, last):
                found = come_s(moment) + left_s(moment)
                best = max(best, found)
                yield found
            if last - first > 1:
                middle = (first + last) // 2
                for begin, end in ((first, middle), (middle, last)):
                    heappush(spans, (-(come_s(begin) + left_s(end)), begin, end))

    def _waiting(self, source: Value) -> list[tuple[Node, list[Waiting]]]:
        """The nodes that need an input, with their elements that wait for it."""
        if source not in self._known_waiting:
            lines, fields = Lines(), receptive_fields(self.graph, source, in_parts=True)
            self._known_waiting[source] = [
                (node, [Waiting(of, self.needed[source], lines) for of in fields[node.output]])
                for node in self.nodes
                if node.output in fields
            ]
        return self._known_waiting[source]

    def _left(self, node: Node, source: Value, parts: Iterable[Waiting], num_missing: int) -> Seconds:
        """What of a node cannot be begun yet. Of elements that wait along all axes but the input's, whole
        boxes wait, unless these read the input itself, tile by tile; of others, which may be in some tiles,
        these alone."""
        size = node.output.num_elements
        unused = size - self.counts.get(node.output, 0)
        found: dict[bool, int] = {}
        for part in parts:
            count = part.least(num_missing)
            is_whole = part.is_of_all and (source not in node.operands() or count == size)
            found[is_whole] = max(found.get(is_whole, 0), count - unused)
        left = [self.least(node, found.get(True, 0)), self.part(node, found.get(False, 0))]
        return max(left, key=lambda seconds: sum(seconds.values()))


def deciding_axes(graph: Graph) -> dict[Value, frozenset[int]]:
    """Axes of each value along which indices decide what is needed of the network's inputs."""
    found: dict[Value, frozenset[int]] = {}
    for source in graph.inputs:
        for value, fields in receptive_fields(graph, source).items():
            axes = {axis for of in fields for axis in of.axes if axis is not None}
            found[value] = found.get(value, frozenset()) | axes
    return found


def busiest(works: Iterable[Seconds]) -> float:
    """Seconds of the unit that has most to do."""
    total: dict[str, float] = {}
    for work in works:
        for unit, seconds in work.items():
            total[unit] = total.get(unit, 0.0) + seconds
    return max(total.values(), default=0.0)


def _needs_all(of: Field, needed: Region) -> bool:
    return of.is_of_all and all(
        sets[:, start:stop].all() for sets, (start, stop) in zip(of.sets, needed, strict=True)
    )
