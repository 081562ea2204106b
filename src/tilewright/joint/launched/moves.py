"""Blocks near those of a plan: joined, cut, side by side, in lanes, in other slices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.bit_sets import bits, components
from tilewright.joint.launched.content import Content, Kernel
from tilewright.joint.launched.merging import lane_meter
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.planning import Meter
from tilewright.schedule.base import Group, Instance, Stage
from tilewright.schedule.lane_search import LaneSearch
from tilewright.schedule.lanes import Section

_FACTORS = (2, 4, 8)
_MOST_CUTS = 64
"""Places at which a kernel may be cut in two."""


class Moves:
    """What else may run the nodes of neighbouring blocks; `most` is how many blocks become one.

    `layers` are those of the graph, by the numbers of their nodes.
    """

    def __init__(self, pricer: LaunchedPricer, most: int) -> None:
        self.pricer, self.most = pricer, most
        numbers = pricer.numbered.numbers
        layers = cut_layers(pricer.numbered.graph)
        self.layers = [tuple(sorted(numbers[node] for node in layer.nodes)) for layer in layers]
        self._home = {node: place for place, layer in enumerate(self.layers) for node in layer}
        self._laned: set[Content] = set()

    def layers_cut_by(self, masks: Sequence[int]) -> list[tuple[int, ...]]:
        """The layers of the graph, those in parts that sets of nodes cut."""
        holders: dict[int, list[int]] = {}
        for number, mask in enumerate(masks):
            for node in bits(mask):
                holders.setdefault(node, []).append(number)
        found: list[tuple[int, ...]] = []
        for nodes in self.layers:
            parts: dict[tuple[int, ...], list[int]] = {}
            for node in nodes:
                parts.setdefault(tuple(holders.get(node, ())), []).append(node)
            found += map(tuple, parts.values())
        return found

    def near(self, path: Sequence[Content]) -> Iterator[Content]:
        """Blocks of other shapes than those of a plan, all of nodes between two of its borders."""
        yield from self.joined(path)
        for content in path:
            if len(content.kernels) == 1:
                yield from self._changed(content.kernels[0], content.mask)
        for first, second in pairwise(path):
            yield from self._shifted(first, second)

    def joined(self, path: Sequence[Content]) -> Iterator[Content]:
        """Neighbouring blocks as one kernel, or side by side where they are of several parts."""
        for start in range(len(path)):
            for stop in range(start + 1, min(start + self.most, len(path)) + 1):
                yield from self._of_window(path[start:stop])

    def fused(self, mask: int, split: Split = WHOLE) -> Content:
        """One kernel of a set of nodes, in these slices if all of its results can be cut so."""
        shapes = {value.shape for value in self.pricer.numbered.outputs(mask)}
        fits = not split.tilings and all(
            dim < len(shape) and factor <= shape[dim] for shape in shapes for dim, factor in split.cuts
        )
        alike = all(len({shape[dim] for shape in shapes}) == 1 for dim, _ in split.cuts) if fits else False
        return Content.of_kernel(self._layers_in(mask), split if alike else WHOLE)

    def side_by_side(self, parts: Sequence[int]) -> Content:
        """A stage of one kernel for each of some sets of nodes."""
        return side_by_side([[Kernel(self._layers_in(part))] for part in parts])

    def laned(self, content: Content, meter: Meter) -> Content | None:
        """A block whose kernels run layers side by side where that costs less; None if none is known."""
        if not self.pricer.machine.allows_lanes or content in self._laned:
            return None
        if len(content.stages) != 1 or any(k.split != WHOLE for k in content.kernels):
            return None
        if any(group.has_lanes for group in content.stages[0].groups):
            return None  # it has lanes
        part = self.pricer.numbered.part(content)
        time = lane_meter(meter)
        search = LaneSearch(self.pricer.machine.problem(part.partition), time)
        improved = tuple(map(search.improved, part.stages))
        if not time.is_over:  # and not where an interrupt came before
            self._laned.add(content)
        return None if improved == part.stages else content.with_stages(improved, part.ids)

    def was_laned(self, content: Content) -> bool:
        """Whether lanes were looked for in a block."""
        return content in self._laned

    def _of_window(self, window: Sequence[Content]) -> Iterator[Content]:
        mask = sum(content.mask for content in window)
        parts = list(components(mask, self.pricer.neighbours))
        if len(window) > 1 or len(window[0].kernels) > 1:
            yield self.fused(mask)
            if any(g.has_lanes for content in window for stage in content.stages for g in stage.groups):
                yield from in_sequence(window)
            for split in dict.fromkeys(k.split for c in window for k in c.kernels if k.split != WHOLE):
                yield self.fused(mask, split)
        if 1 < len(parts) <= self.pricer.machine.limits.num_groups:
            yield self.side_by_side(parts)
            groups = [self._kernels_in(window, part) for part in parts]
            if all(groups):
                yield side_by_side(groups)

    def _changed(self, kernel: Kernel, mask: int) -> Iterator[Content]:
        """A kernel in other slices, or cut in two."""
        shapes = {value.shape for value in self.pricer.numbered.outputs(mask)}
        if len(shapes) == 1:
            for split in _splits(kernel.split, next(iter(shapes))):
                yield self.fused(mask, split)
        for first in self._prefixes(mask):
            yield self.fused(first, WHOLE)
            yield self.fused(mask & ~first, kernel.split)

    def _shifted(self, first: Content, second: Content) -> Iterator[Content]:
        """Two blocks with layers of one in the other."""
        if len(first.kernels) > 1 or len(second.kernels) > 1:
            return
        for prefix in self._prefixes(second.mask):
            yield self.fused(first.mask | prefix, first.kernels[0].split)
            yield self.fused(second.mask & ~prefix, second.kernels[0].split)
        for prefix in self._prefixes(first.mask):
            yield self.fused(prefix, first.kernels[0].split)
            yield self.fused(second.mask | (first.mask & ~prefix), second.kernels[0].split)

    def _prefixes(self, mask: int) -> Iterator[int]:
        """Layers from the first on, but not all: of very many, those behind each so many."""
        prefix, layers = 0, self._layers_in(mask)
        step = -(-len(layers) // _MOST_CUTS)
        for number, layer in enumerate(layers[:-1], 1):
            prefix |= sum(1 << node for node in layer)
            if number % step == 0:
                yield prefix

    def _layers_in(self, mask: int) -> tuple[tuple[int, ...], ...]:
        """What of each layer lies in a set, in the order of their last nodes."""
        members: dict[int, list[int]] = {}
        for node in bits(mask):
            members.setdefault(self._home[node], []).append(node)
        return tuple(tuple(nodes) for nodes in sorted(members.values(), key=lambda nodes: nodes[-1]))

    def _kernels_in(self, window: Sequence[Content], part: int) -> list[Kernel]:
        """The kernels of a part, in order; none where one lies in several parts or runs in slices."""
        found = []
        for content in window:
            for kernel in content.kernels:
                mask = kernel.mask
                if mask & part:
                    if mask & ~part or kernel.split != WHOLE:
                        return []
                    found.append(kernel)
        return found


def side_by_side(groups: Sequence[Sequence[Kernel]]) -> Content:
    """A stage of groups of kernels."""
    kernels = tuple(kernel for group in groups for kernel in group)
    numbers = iter(range(len(kernels)))
    stage = Stage(tuple(Group(tuple(Instance(next(numbers)) for _ in group)) for group in groups))
    return Content(kernels, (stage,))


def in_sequence(window: Sequence[Content]) -> Iterator[Content]:
    """Kernels in a row as one that keeps the lanes of each; none where one is in slices or beside others."""
    layers: list[tuple[int, ...]] = []
    sections: list[Section] = []
    for content in window:
        if len(content.kernels) > 1 or len(content.stages) > 1 or content.kernels[0].split != WHOLE:
            return
        (group,) = content.stages[0].groups
        if group.num_cores is not None:
            return
        for section in itertools.chain.from_iterable(own for _, own in group.sections()):
            lanes = (replace(lane, layers=tuple(i + len(layers) for i in lane.layers)) for lane in section)
            sections.append(tuple(lanes))
        layers += content.kernels[0].layers
    stage = Stage((Group((Instance(0),), inside=(tuple(sections),)),))
    yield Content((Kernel(tuple(layers)),), (stage,))


def _splits(split: Split, shape: tuple[int, ...]) -> Iterator[Split]:
    """Finer and coarser slices along the same axes, and slices of an axis where there are none."""
    cuts = split.cuts
    if any(dim >= len(shape) for dim, _ in cuts):
        return
    for place, (dim, factor) in enumerate(cuts):
        for other in (factor // 2, factor * 2):
            if 1 <= other <= shape[dim]:
                changed = (*cuts[:place], (dim, other), *cuts[place + 1 :])
                yield split_of(changed, keeps_rows=split.chain_length > 1)
        yield split_of(cuts, keeps_rows=split.chain_length == 1)
    if not cuts:
        for dim, extent in enumerate(shape):
            for factor in _FACTORS:
                if factor <= extent and dim != 1:
                    yield split_of([(dim, factor)])
                    if dim > 1:
                        yield split_of([(dim, factor)], keeps_rows=True)
