"""What GraphTurbo's partition says beyond the subgraphs: how each is split, and how that was weighed.

A split cuts one axis of a subgraph's outputs into `factor` equal or nearly equal slices; each slice is one
instance. An option is one row of the paper's SplitInfo; the best is the lexicographic maximum of its Eq. 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Interval, Region, full_region, volume
from tilewright.partition.base import Partition


@dataclass(frozen=True, slots=True)
class Split:
    """`factor` instances along axis `dim` of the outputs; `dim` None where nothing is cut."""

    dim: int | None
    factor: int

    def __str__(self) -> str:
        return "whole" if self.factor == 1 else f"axis {self.dim} by {self.factor}"


WHOLE = Split(None, 1)


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
        return self.num_ops, -self.split.factor, -(self.split.dim or 0)


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
    """What the `index`-th instance makes of an output of this shape.

    >>> instance_region((4, 6), Split(1, 2), 1)
    ((0, 4), (3, 6))
    """
    whole = full_region(shape)
    if split.dim is None or split.factor == 1:
        return whole
    cut = slice_of(shape[split.dim], split.factor, index)
    return (*whole[: split.dim], cut, *whole[split.dim + 1 :])
