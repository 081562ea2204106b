"""Grouping (Algorithm 2): layers are joined to subgraphs while no instance becomes too large or too small.

Three patterns are tried in turn until none changes anything: straight lines, diamonds between an exit and its
dominator, and branches into an exit. Each begins at the consumers: a convolution with more instances than its
consumer joins it only after that consumer has joined its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Graph, Value
from tilewright.partition.footprint import SubgraphPart
from tilewright.partition.graphturbo.split import Splitter, best_of
from tilewright.partition.layers import Layer
from tilewright.partition.split import Split, SplitOption, instance_region

_MAX_INTERIOR = 6


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Switches of the grouping. `ascending`: a producer may not have more instances than its consumer.

    `upsampling`: where the consumer makes a larger image, it is the other way round; otherwise the small
    image would be cut as finely as the large one. The instances of each then read parts of a buffer as they
    lie. `side_inputs`: what is made of the network's inputs alone and read by many, as a mask is, opens no
    second way into a diamond. By the letter it does, which keeps a transformer's blocks apart, and that is
    mostly faster.
    """

    ascending: bool = True
    upsampling: bool = True
    side_inputs: bool = False
    straight: bool = True
    diamond: bool = True
    branch: bool = True


@dataclass(slots=True, eq=False)
class Member:
    """A subgraph under construction, with its options and the best of them."""

    part: SubgraphPart
    options: tuple[SplitOption, ...]
    best: SplitOption | None

    @property
    def factor(self) -> int:
        """Instances; only feasible members are asked."""
        assert self.best is not None
        return self.best.split.num_instances


class Grouping:
    """Subgraphs of one graph, joined step by step. `spend` is asked before each attempt."""

    def __init__(
        self,
        graph: Graph,
        layers: Sequence[Layer],
        splitter: Splitter,
        rules: MergeRules,
        spend: Callable[[], bool],
    ) -> None:
        self._splitter = splitter
        self._rules = rules
        self._spend = spend
        self._results = set(graph.outputs)
        self._home: dict[Value, Member] = {}
        self._readers: dict[Value, dict[Member, None]] = {}
        self._members: dict[Member, None] = {}
        self._refused: set[tuple[SubgraphPart, ...]] = set()
        self._enlarged = self._find_enlarged(layers) if rules.upsampling else frozenset()
        for position, layer in enumerate(layers):
            part = splitter.footprints.single(layer, position)
            options = () if layer.is_opaque else splitter.options(part, beyond_batch=self._is_beyond_batch())
            self._enter(Member(part, options, best_of(options)))

    def run(self) -> tuple[Member, ...]:
        """Join until a whole round changes nothing; the subgraphs in topological order."""
        patterns = [
            pattern
            for pattern, wanted in (
                (self._straight, self._rules.straight),
                (self._diamond, self._rules.diamond),
                (self._branch, self._rules.branch),
            )
            if wanted
        ]
        while sum(self._settle(pattern) for pattern in patterns):
            pass
        return self.members()

    def members(self) -> tuple[Member, ...]:
        """All subgraphs, in topological order."""
        return tuple(sorted(self._members, key=lambda m: m.part.position))

    def producers(self, member: Member) -> list[Member]:
        """Subgraphs that make what this one reads, the latest first."""
        found = dict.fromkeys(self._home[v] for v in member.part.inputs if v in self._home)
        return sorted(found, key=lambda m: -m.part.position)

    def consumers(self, member: Member) -> list[Member]:
        """Subgraphs that read what this one makes, the latest first."""
        found = dict.fromkeys(r for v in member.part.outputs for r in self._readers.get(v, ()))
        return sorted(found, key=lambda m: -m.part.position)

    def _feeds_only(self, producer: Member, consumer: Member) -> bool:
        """Whether nothing but `consumer` reads what a subgraph makes."""
        return all(r is consumer for v in producer.part.outputs for r in self._readers.get(v, ()))

    def _settle(self, pattern: Callable[[Member], Member | None]) -> bool:
        """Try a pattern at every subgraph, the last first, and again at those that a success concerns."""
        changed = False
        waiting = [(-m.part.position, m) for m in self._members]
        queue = [(place, i) for i, (place, _) in enumerate(waiting)]
        heapq.heapify(queue)
        while queue:
            member = waiting[heapq.heappop(queue)[1]][1]
            if member not in self._members:
                continue
            merged = pattern(member)
            if merged is None:
                continue
            changed = True
            for concerned in (merged, *self.consumers(merged)):
                place = -concerned.part.position
                heapq.heappush(queue, (place, len(waiting)))
                waiting.append((place, concerned))
        return changed

    def _straight(self, member: Member) -> Member | None:
        producers = self.producers(member)
        if len(producers) != 1 or not self._feeds_only(producers[0], member):
            return None
        return self._try_pair(producers[0], member)

    def _branch(self, member: Member) -> Member | None:
        producers = self.producers(member)
        if len(producers) < 2:
            return None
        alone = (p for p in producers if self._feeds_only(p, member))
        return next((m for p in alone if (m := self._try_pair(p, member)) is not None), None)

    def _diamond(self, member: Member) -> Member | None:
        producers = self.producers(member)
        if len(producers) < 2:
            return None
        interior = self._interior(member, producers)
        if not interior:
            return None
        closed = {*interior, member}
        if any(r not in closed for m in interior for v in m.part.outputs for r in self._readers.get(v, ())):
            return None
        members = [*interior, member]
        if any(m.best is None for m in members):
            return None
        return self._try(members, max(m.factor for m in members))

    def _interior(self, exit_: Member, producers: Sequence[Member]) -> list[Member]:
        """What lies between an exit and its immediate dominator, in order; nothing where that is too much."""
        frontier = dict.fromkeys(producers)
        queue = [(-m.part.position, i) for i, m in enumerate(producers)]
        listed = list(producers)
        heapq.heapify(queue)
        interior: list[Member] = []
        is_rooted = False
        while queue:
            if not is_rooted and self._num_ways({*interior, exit_}, frontier) <= 1:
                break
            latest = listed[heapq.heappop(queue)[1]]
            del frontier[latest]
            interior.append(latest)
            if len(interior) > _MAX_INTERIOR:
                return []
            before = self.producers(latest)
            # Two ways that begin at the network's inputs have no subgraph in common.
            is_rooted = is_rooted or not before
            for m in before:
                if m not in frontier:
                    frontier[m] = None
                    heapq.heappush(queue, (-m.part.position, len(listed)))
                    listed.append(m)
        return interior[::-1]

    def _num_ways(self, inside: set[Member], frontier: Iterable[Member]) -> int:
        """Subgraphs through which ways to the inside lead; side inputs do not count."""
        return sum(
            not self._rules.side_inputs
            or bool(self.producers(m))
            or all(r in inside or r in frontier for v in m.part.outputs for r in self._readers.get(v, ()))
            for m in frontier
        )

    def _try_pair(self, producer: Member, consumer: Member) -> Member | None:
        """Rule i: the producer has no more instances than its consumer, and together they need no more."""
        if producer.best is None or consumer.best is None:
            return None
        if any(v in self._enlarged for v in producer.part.outputs):
            if producer.factor < consumer.factor:
                return None
            return self._try([producer, consumer], producer.factor)
        if self._rules.ascending and producer.factor > consumer.factor:
            return None
        return self._try([producer, consumer], consumer.factor)

    def _try(self, members: Sequence[Member], limit: int) -> Member | None:
        """Join members given in order if together they fit with no more than `limit` instances."""
        parts = tuple(m.part for m in members)
        if parts in self._refused:
            return None
        inside = set(members)
        made = [v for p in parts for v in p.outputs]
        outputs = [
            v for v in made if v in self._results or any(r not in inside for r in self._readers.get(v, ()))
        ]
        if len(outputs) != 1 or not self._spend():
            return None
        part = self._splitter.footprints.joined(parts, outputs)
        beyond_batch = self._is_beyond_batch(*members)
        # A quick look before all: where no axis does with so few instances, the best does not either.
        options = self._splitter.options(part, limit=limit, beyond_batch=beyond_batch)
        if options:
            options = self._splitter.options(part, beyond_batch=beyond_batch)
        best = best_of(options)
        if best is None or best.split.num_instances > limit:
            self._refused.add(parts)
            return None
        merged = Member(part, options, best)
        self._leave(members)
        self._enter(merged)
        return merged

    def _find_enlarged(self, layers: Sequence[Layer]) -> frozenset[Value]:
        """Values of which a layer makes images of at least twice the extent, row by row."""
        return frozenset(
            value
            for layer in layers
            for number, value in enumerate(layer.inputs)
            for axis in range(2, len(value.shape))
            if self._enlarges(layer, number, axis)
        )

    def _enlarges(self, layer: Layer, number: int, axis: int) -> bool:
        own, made = layer.inputs[number].shape, layer.outputs[0].shape
        if len(layer.outputs) != 1 or len(own) != len(made) or made[axis] < 2 * own[axis] or own[axis] < 2:
            return False
        half = instance_region(made, Split(axis, 2), 0)
        need = self._splitter.footprints.regions.needs_of(layer, (half,)).inputs[number]
        return need is not None and need[axis][1] < own[axis]

    def _is_beyond_batch(self, *members: Member) -> bool:
        """Whether axes other than independent ones may be cut: for a layer, and where a member had to."""
        if self._splitter.rules.dims != "batch-first":
            return False
        return not members or any(self._is_cut_elsewhere(m) for m in members)

    def _is_cut_elsewhere(self, member: Member) -> bool:
        best = member.best
        if best is None or best.split.dim is None:
            return False
        output = member.part.outputs[0]
        return any(self._splitter.axes.units_of(output, dim) == 1 for dim, _ in best.split.cuts)

    def _enter(self, member: Member) -> None:
        self._members[member] = None
        for value in member.part.outputs:
            self._home[value] = member
        for value in member.part.inputs:
            self._readers.setdefault(value, {})[member] = None

    def _leave(self, members: Iterable[Member]) -> None:
        for member in members:
            del self._members[member]
            for value in member.part.inputs:
                del self._readers[value][member]
            for value in member.part.outputs:
                self._home.pop(value, None)
