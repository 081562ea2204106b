"""Kernels of a graph: what they make, which splits of them fit, and which are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Protocol

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.partition.axes import IndependentAxes
from tilewright.partition.footprint import Footprints, SubgraphPart
from tilewright.partition.split import WHOLE, Split, SplitOption, instance_region, split_of

_MAX_INSTANCES = 64
"""Slices of a kernel that the search asks for, at most."""
_FACTORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)

Share = Callable[[Sequence[Node], Value, Region, Collection[int]], tuple[int, ...]]
"""In how many parts along each axis cores share a region of a value that the nodes of a layer make: of all
ways that cut no axes but some the fastest."""


class Fits(Protocol):
    """What says which slices fit the cores' buffers."""

    axes: IndependentAxes
    footprints: Footprints

    def option_of(self, part: SubgraphPart, split: Split) -> SplitOption | None:
        """What a split comes to; None where its slices do not fit."""
        ...


class Kernels:
    """Facts of the kernels of one graph. `fits` says what fits if rows that slices share are computed by
    each, `keeping` if they are kept; all slices together do at most `recompute_limit` times the work. `share`
    is how cores share what a layer makes."""

    def __init__(
        self, numbered: Numbered, fits: Fits, keeping: Fits, recompute_limit: float, share: Share
    ) -> None:
        self.numbered, self.recompute_limit = numbered, recompute_limit
        self._axes, self._footprints = fits.axes, fits.footprints
        self._fits = {False: fits, True: keeping}
        self._share = share
        self._fitting: dict[Kernel, Kernel | None] = {}
        self._structures: dict[Kernel, Hashable] = {}
        self._splits: dict[tuple[tuple[int, ...], ...], tuple[Split, ...]] = {}
        self._shared: dict[tuple[Kernel, tuple[int, ...]], Kernel] = {}

    def part(self, layers: tuple[tuple[int, ...], ...]) -> SubgraphPart:
        """Layers as one subgraph."""
        singles = [self._footprints.single(self.numbered.layer(layer), layer[0]) for layer in layers]
        return singles[0] if len(singles) == 1 else self._footprints.joined(singles, self.outputs(layers))

    def outputs(self, layers: tuple[tuple[int, ...], ...]) -> tuple[Value, ...]:
        """What layers make for others, or for the caller."""
        nodes, inside = self.numbered.nodes, {i for layer in layers for i in layer}
        numbers = self.numbered.numbers
        return tuple(
            value
            for i in sorted(inside)
            for value in nodes[i].results()
            if value in self.numbered.wanted or any(numbers[user] not in inside for user in value.users)
        )

    def fitting(self, kernel: Kernel) -> Kernel | None:
        """The kernel, with rows kept where it asks for that and there are some; None where its slices do not
        fit the cores' buffers, or compute too much again."""
        if kernel not in self._fitting:
            self._fitting[kernel] = self._fit(kernel)
        return self._fitting[kernel]

    def _fit(self, kernel: Kernel) -> Kernel | None:
        found = self._sliced(Kernel(kernel.layers, replace(kernel.split, cores=())))
        axes = [axis for axis, parts in enumerate(kernel.split.cores) if parts > 1]
        return self.shared(found, axes) if found is not None and axes else found

    def shares(self, kernel: Kernel) -> Sequence[tuple[int, ...]]:
        """Sets of axes of what a kernel makes along which cores may share it: up to two, or any."""
        outputs = self.outputs(kernel.layers)
        long = [axis for axis, extent in enumerate(outputs[0].shape if outputs else ()) if extent > 1]
        sets = (*((a,) for a in long), *combinations(long, 2), tuple(long))
        return tuple(dict.fromkeys(sets)) if long else ()

    def shared(self, kernel: Kernel, axes: Collection[int]) -> Kernel:
        """The kernel with what it makes shared in the fastest way along some axes; along none: in equal
        parts, as its readers want."""
        key = kernel, tuple(axes)
        if key not in self._shared:
            self._shared[key] = self._along(*key)
        return self._shared[key]

    def _along(self, kernel: Kernel, axes: Sequence[int]) -> Kernel:
        outputs = self.outputs(kernel.layers)
        cores: tuple[int, ...] = ()
        if axes and outputs and not self.part(kernel.layers).is_opaque:
            value, nodes = outputs[0], self.numbered.nodes
            layer = next(x for x in kernel.layers if any(value in nodes[i].results() for i in x))
            region = instance_region(value.shape, kernel.split, 0)
            cores = self._share([nodes[i] for i in layer], value, region, axes)
        return Kernel(kernel.layers, replace(kernel.split, cores=cores if prod(cores) > 1 else ()))

    def _sliced(self, kernel: Kernel) -> Kernel | None:
        part, split = self.part(kernel.layers), kernel.split
        if len(kernel.layers) > 1 and any(self.numbered.layer(x).is_opaque for x in kernel.layers):
            return None
        if part.is_opaque or (len(kernel.layers) == 1 and split == WHOLE):
            return kernel if split == WHOLE else None
        option = self._option(part, split)
        return None if option is None else Kernel(kernel.layers, option.split)

    def _option(self, part: SubgraphPart, split: Split) -> SplitOption | None:
        """What a split of a part comes to; None where it cannot be made, does not fit or computes too much
        again."""
        shapes = [v.shape for v in part.outputs]
        if len({len(shape) for shape in shapes}) > 1:
            return None
        for dim, factor in split.cuts:
            if any(dim >= len(shape) or shape[dim] < factor for shape in shapes):
                return None
            if len({shape[dim] for shape in shapes}) > 1:
                return None
        option = self._fits[split.chain_length > 1].option_of(part, split)
        return None if option is None or option.recompute > self.recompute_limit else option

    def splits(self, layers: tuple[tuple[int, ...], ...]) -> tuple[Split, ...]:
        """Splits of the axes of what layers make, whether they fit or not."""
        if layers not in self._splits:
            self._splits[layers] = tuple(dict.fromkeys(self._all_splits(layers)))
        return self._splits[layers]

    def _all_splits(self, layers: tuple[tuple[int, ...], ...]) -> Iterator[Split]:
        yield WHOLE
        outputs = self.part(layers).outputs
        shape = outputs[0].shape if outputs else ()
        factors = {
            dim: [f for f in dict.fromkeys((*_FACTORS, extent)) if f <= extent and f <= _MAX_INSTANCES]
            for dim, extent in enumerate(shape)
            if extent > 1
        }
        units = {dim: self._axes.units_of(outputs[0], dim) for dim in factors}
        for dim, choices in factors.items():
            for factor in choices:
                yield split_of([(dim, factor)])
                if units[dim] == 1 and len(layers) > 1:
                    yield split_of([(dim, factor)], keeps_rows=True)
        for outer, inner in ((a, b) for a in factors for b in factors if a != b):
            if units[outer] == 1 and outer > inner:
                continue
            for first in factors[outer]:
                for second in factors[inner]:
                    if first * second <= _MAX_INSTANCES:
                        yield split_of([(outer, first), (inner, second)])
                        if units[inner] == 1 and len(layers) > 1:
                            yield split_of([(outer, first), (inner, second)], keeps_rows=True)

    def in_rows(self, layers: tuple[tuple[int, ...], ...], number: int) -> Split | None:
        """Layers in so many slices that keep rows, along the axis along which slices hold least; None where
        none fit."""
        part = self.part(layers)
        if part.is_opaque or any(self.numbered.layer(layer).is_opaque for layer in layers):
            return None
        options = (
            self._option(part, split)
            for split in self.splits(layers)
            if split.chain_length == number == split.num_instances
        )
        fitting = [option for option in options if option is not None]
        return min(fitting, key=lambda option: option.peak_bytes).split if fitting else None

    def structure(self, kernel: Kernel) -> Hashable:
        """What kernels that can be changed alike have in common."""
        found = self._structures.get(kernel)
        if found is None:
            nodes, first = self.numbered.nodes, kernel.layers[0][0]
            found = self._structures[kernel] = (
                kernel.split,
                tuple(
                    tuple(
                        (nodes[i].op_type, i - first, tuple(v.shape for v in nodes[i].results()))
                        for i in layer
                    )
                    for layer in kernel.layers
                ),
            )
        return found

    def joined(self, kernels: Sequence[Kernel]) -> tuple[tuple[int, ...], ...]:
        """The layers of several kernels in the order of the graph."""
        return tuple(sorted((x for k in kernels for x in k.layers), key=max))

    def prefixes(self, layers: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Beginnings of a kernel: of each of its layers, that one with all that it needs within."""
        nodes, numbers = self.numbered.nodes, self.numbered.numbers
        home = {i: place for place, layer in enumerate(layers) for i in layer}
        needs = [
            {
                home[number]
                for i in layer
                for v in nodes[i].operands()
                if v.producer is not None and (number := numbers[v.producer]) in home
            }
            - {place}
            for place, layer in enumerate(layers)
        ]
        found = []
        for last in range(len(layers)):
            wanted, stack = {last}, [last]
            while stack:
                for place in needs[stack.pop()]:
                    if place not in wanted:
                        wanted.add(place)
                        stack.append(place)
            if len(wanted) < len(layers):
                found.append(tuple(layers[p] for p in sorted(wanted)))
        found += [layers[:count] for count in range(1, len(layers))]
        return tuple(dict.fromkeys(found))
