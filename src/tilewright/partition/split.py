"""Splits of a subgraph into instances.

A split cuts an axis of a subgraph's outputs into `factor` equal or nearly equal slices, each of them again
along another axis where one is not enough; what comes of that are the instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from tilewright.ir.region import Interval, Region, volume
from tilewright.mapping.chains.plan import ChainPlan
from tilewright.records import dataclass
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class Split:
    """`factor` slices along axis `dim` of the outputs; `dim` None where nothing is cut.

    `inner` cuts each of the slices again, along another axis. `keeps_rows`, of the innermost cut only: these
    slices run one after another, and what they share of the values inside the subgraph is kept from one to
    the next instead of being computed again.

    Of a subgraph that is not cut, layers may have `tilings`, by their numbers: the operators of such a layer,
    as the chain of its nodes, run tile by tile together.

    In one program the cores of a cluster share what an instance makes in equal parts, as its readers want.
    `cores` says otherwise: in how many parts along each axis of the first output they do, which are equal or
    nearly so; fewer where a slice is shorter, and as without where a group of cores is smaller. Other layers
    are then shared in the fastest way for each.
    """

    dim: int | None
    factor: int
    inner: Split | None = None
    keeps_rows: bool = False
    tilings: tuple[tuple[int, ChainPlan], ...] = ()
    cores: tuple[int, ...] = ()

    def cores_of(self, region: Region, num_cores: int) -> tuple[int, ...]:
        """In how many parts so many cores share a region of the first output; none: they share it in equal
        parts, as readers want."""
        if len(self.cores) != len(region) or prod(self.cores) > num_cores:
            return ()
        pairs = zip(self.cores, region, strict=True)
        return tuple(max(1, min(parts, stop - start)) for parts, (start, stop) in pairs)

    def tiling_of(self, layer: int) -> ChainPlan | None:
        """The joint tiling of a layer, if it has one."""
        return next((plan for number, plan in self.tilings if number == layer), None)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut or tiled jointly: layers run one after another as they are."""
        return self.num_instances == 1 and not self.tilings

    @property
    def num_instances(self) -> int:
        """Into how many instances a subgraph is split."""
        return self.factor * (1 if self.inner is None else self.inner.num_instances)

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Axes that are cut with their factors, the outer first."""
        own = () if self.dim is None or self.factor == 1 else ((self.dim, self.factor),)
        return own if self.inner is None else (*own, *self.inner.cuts)

    @property
    def chain_length(self) -> int:
        """How many instances in a row keep rows for each other; 1 where none are kept."""
        if self.inner is not None:
            return self.inner.chain_length
        return self.factor if self.keeps_rows else 1

    def __str__(self) -> str:
        if self.tilings:
            return f"{counted(len(self.tilings), 'chain')} of layers tiled jointly"
        cuts = ", ".join(f"axis {dim} by {factor}" for dim, factor in self.cuts) or "whole"
        cuts += ", rows kept" if self.chain_length > 1 else ""
        return f"{cuts}, on {'x'.join(map(str, self.cores))} cores" if self.cores else cuts


WHOLE = Split(None, 1)


def tiled_jointly(tilings: Mapping[int, ChainPlan]) -> Split:
    """No cut, but layers whose operators run tile by tile together."""
    return Split(None, 1, tilings=tuple(sorted(tilings.items(), key=lambda item: item[0])))


def split_of(cuts: Sequence[tuple[int, int]], *, keeps_rows: bool = False) -> Split:
    """The split with these cuts, the outer first; those by 1 are none. `keeps_rows` is of the innermost.

    >>> str(split_of([(0, 4), (2, 7)])), str(split_of([(0, 1)]))
    ('axis 0 by 4, axis 2 by 7', 'whole')
    """
    found: Split | None = None
    for dim, factor in reversed(cuts):
        if factor > 1:
            found = Split(dim, factor, found, keeps_rows and found is None)
    return found or WHOLE


def slice_of(extent: int, factor: int, index: int) -> Interval:
    """The `index`-th of `factor` nearly equal slices of an axis.

    >>> [slice_of(7, 3, i) for i in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return extent * index // factor, extent * (index + 1) // factor


def instance_region(shape: tuple[int, ...], split: Split, index: int) -> Region:
    """What the `index`-th instance makes of an output of this shape; those of an outer slice are neighbours.

    >>> instance_region((4, 6), Split(1, 2), 1)
    ((0, 4), (3, 6))
    >>> instance_region((4, 6), Split(0, 4, Split(1, 2)), 5)
    ((2, 3), (3, 6))
    """
    region = [(0, extent) for extent in shape]
    num_left = split.num_instances
    for dim, factor in split.cuts:
        num_left //= factor
        region[dim] = slice_of(shape[dim], factor, index // num_left % factor)
    return tuple(region)


def instances_meeting(shape: tuple[int, ...], split: Split, region: Region) -> Iterator[int]:
    """The instances, ascending, whose parts of an output of this shape meet a region of it.

    >>> list(instances_meeting((4, 6), Split(0, 4, Split(1, 2)), ((1, 3), (0, 1))))
    [2, 4]
    """
    if not volume(region):
        return
    found = [0]
    for dim, factor in split.cuts:
        (start, stop), extent = region[dim], shape[dim]
        near = range(start * factor // extent, -(-stop * factor // extent))
        meeting = [i for i in near if slice_of(extent, factor, i)[1] > start]
        found = [outer * factor + i for outer in found for i in meeting]
    yield from found


@dataclass(frozen=True, slots=True)
class SplitOption:
    """One way to split that fits: GraphTurbo's tuple (n, f, d) with the peak of an instance.

    `num_ops` counts the operators that the split divides, at least 1 for the output. `recompute` is the work
    of all instances over the work of the whole.
    """

    num_ops: int
    split: Split
    peak_bytes: int
    recompute: float

    @property
    def rank(self) -> tuple[int, int, int]:
        """What Eq. 1 of GraphTurbo maximises: more operators, then fewer instances, then an outer axis."""
        return self.num_ops, -self.split.num_instances, -(self.split.dim or 0)


@dataclass(frozen=True, slots=True, eq=False)
class WeighedSplits:
    """How the splits of a partition were chosen, subgraph by subgraph.

    `options[i]` are those that fit; none: nothing does, and the subgraph runs whole, tiled inside its one
    layer. `peak_bytes[i]` is the most that an instance holds at once, its inputs included; `capacity_bytes`
    what it was planned to fit.
    """

    options: tuple[tuple[SplitOption, ...], ...]
    peak_bytes: tuple[int, ...]
    capacity_bytes: int

    def is_feasible(self, subgraph_id: int) -> bool:
        """Whether an instance of the subgraph fits the planning capacity."""
        return bool(self.options[subgraph_id])
