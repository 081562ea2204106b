"""What GraphTurbo's partition says beyond the subgraphs: how each is split, and how that was weighed.

An option is one row of the paper's SplitInfo; the best is the lexicographic maximum of its Eq. 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, volume
from tilewright.partition.base import Partition
from tilewright.partition.split import Split


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
