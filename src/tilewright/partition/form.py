"""In which form a subgraph is compiled: one kernel after another, or block by block in one kernel.

Several operators computed block by block in one kernel leave what lies between them in the cache. Which
subgraphs are compiled so is a decision of the partition, made by the target that will compile it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.ir.region import Region

MAX_BLOCKS = 1 << 16
"""Of one kernel, which has a table with a row for each."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """How a result is cut: the extents of a block by logical axis, and how many of them form a strip.

    The last blocks along an axis may be smaller. Blocks of a strip follow one another along the last axis
    that is cut; each finds what it shares with the one before (a rolling window of lines) and makes the rest.
    """

    block: tuple[int, ...]
    strip: int = 1

    def strips(self, shape: Sequence[int]) -> Iterator[list[Region]]:
        """Every strip of blocks of a result of this shape, in order."""
        cuts = [
            [(start, min(start + size, extent)) for start in range(0, extent, size)]
            for extent, size in zip(shape, self.block, strict=True)
        ]
        axis = self.axis(shape)
        for outer in product(*(c if a != axis else [(0, 0)] for a, c in enumerate(cuts))):
            line = [(*outer[:axis], interval, *outer[axis + 1 :]) for interval in cuts[axis]]
            for start in range(0, len(line), self.strip):
                yield line[start : start + self.strip]

    def axis(self, shape: Sequence[int]) -> int:
        """The axis along which blocks of a strip lie."""
        cut = [a for a, (extent, size) in enumerate(zip(shape, self.block, strict=True)) if size < extent]
        return cut[-1] if cut else 0

    def num_blocks(self, shape: Sequence[int]) -> int:
        """How many blocks there are."""
        return prod(-(-extent // size) for extent, size in zip(shape, self.block, strict=True))

    def num_strips(self, shape: Sequence[int]) -> int:
        """How many strips there are."""
        along = self.num_along(shape)
        return self.num_blocks(shape) // along * -(-along // self.strip)

    def num_along(self, shape: Sequence[int]) -> int:
        """How many blocks lie one after the other along the axis of the strips."""
        axis = self.axis(shape)
        return -(-shape[axis] // self.block[axis])


@dataclass(frozen=True, slots=True)
class Blockwise:
    """One kernel computes the only result of a subgraph block by block.

    `saved_share` is the estimated share of the time of separate kernels that this saves.
    """

    blocking: Blocking
    saved_share: float

    def __str__(self) -> str:
        return f"estimated to save {self.saved_share:.0%} of the time of separate kernels"
