"""What GraphTurbo's partition says beyond the subgraphs: how each is split, and how that was weighed.

A split cuts an axis of a subgraph's outputs into `factor` equal or nearly equal slices, each of them again
along another axis where one is not enough; what comes of that are the instances. An option is one row of the
paper's SplitInfo; the best is the lexicographic maximum of its Eq. 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Interval, Region, full_region, volume
from tilewright.partition.base import Partition


@dataclass(frozen=True, slots=True)
class Split:
    """`factor` slices along axis `dim` of the outputs; `dim` None where nothing is cut.

    `inner` cuts each of the slices again, along another axis.
    """

    dim: int | None
    factor: int
    inner: Split | None = None

    @property
    def num_instances(self) -> int:
        """Into how many instances a subgraph is split."""
        return self.factor * (1 if self.inner is None else self.inner.num_instances)

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Axes that are cut with their factors, the outer first."""
        own = () if self.dim is None or self.factor == 1 else ((self.dim, self.factor),)
        return own if self.inner is None else (*own, *self.inner.cuts)

    def __str__(self) -> str:
        return ", ".join(f"axis {dim} by {factor}" for dim, factor in self.cuts) or "whole"


WHOLE = Split(None, 1)


def split_of(cuts: Sequence[tuple[int, int]]) -> Split:
    """The split with these cuts, the outer first; those by 1 are none.

    >>> str(split_of([(0, 4), (2, 7)])), str(split_of([(0, 1)]))
    ('axis 0 by 4, axis 2 by 7', 'whole')
    """
    found: Split | None = None
    for dim, factor in reversed(cuts):
        if factor > 1:
            found = Split(dim, factor, found)
    return found or WHOLE


@dataclass(frozen=True, slots=True)
class SplitOption:
    """One way to split that fits: the paper's tuple (n, f, d) with the peak of an instance.

    `num_ops` counts the operators that the split divides, at least 1 for the output. `recompute` is the work
    of all instances over the work of the whole.
    """

    num_ops: int
    split: Split
    peak_bytes: int
    recompute: float

    @property
    def rank(self) -> tuple[int, int, int]:
        """What Eq. 1 maximises: more operators, then fewer instances, then an outer axis."""
        return self.num_ops, -self.split.num_instances, -(self.split.dim or 0)


@dataclass(frozen=True, slots=True, eq=False)
class SubgraphSplit:
    """How one subgraph is split. Without options nothing fits: it runs whole, tiled inside its one layer.

    `layers` are its nodes in the order in which an instance runs them; a layer is one kernel body whose inner
    values are tiles. `peak_bytes` is the most that an instance holds at once, its inputs included.
    """

    split: Split
    layers: tuple[tuple[Node, ...], ...]
    options: tuple[SplitOption, ...]
    peak_bytes: int

    @property
    def is_feasible(self) -> bool:
        """Whether an instance fits the planning capacity."""
        return bool(self.options)


@dataclass(frozen=True, slots=True, eq=False)
class SplitPartition(Partition):
    """A partition whose subgraphs are split; `splits[i]` belongs to `subgraphs[i]`.

    `capacity_bytes` is what an instance was planned to fit, `element_bytes` how large the machine keeps an
    element, by the name of its type; `in_place` whether element-wise layers write over a dying operand.
    """

    splits: tuple[SubgraphSplit, ...]
    capacity_bytes: int
    element_bytes: Mapping[str, int]
    in_place: bool

    def bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a region of a value as the machine keeps it."""
        return volume(region) * self.element_bytes[str(value.dtype)]


def is_in_place(partition: Partition) -> bool:
    """Whether element-wise layers write over a dying operand: they do, unless a split partition says no."""
    return not isinstance(partition, SplitPartition) or partition.in_place


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
    region = list(full_region(shape))
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
