"""Matrices of floats that are whole numbers of few bits times scales, as they are stored.

Quantised language models compute in float with such weights: `MatMulNBits`, DequantizeLinear by blocks. Their
floats take eight times the bytes, or four, so a constant may have the numbers alone (`Value.stored`);
floats are made on request, and freed with their last reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeights:
    """`(number - zero) * scale` in float32, with a scale, and a zero point, for each block of a column.

    `numbers` are `[columns, blocks, bytes of a block]`, unsigned, the lowest bits of a byte first; `scales`
    are `[columns, blocks]`, and so are `zeros`, one in a byte. Without zeros these are half of the range. The
    matrix is `[steps, columns]`, or its transpose where blocks lie along `axis` 1.
    """

    numbers: Array
    scales: Array
    zeros: Array | None
    bits: int
    axis: int = 0

    @property
    def block(self) -> int:
        """Steps that share a scale."""
        return int(self.numbers.shape[2]) * 8 // self.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        columns, blocks, _ = self.numbers.shape
        shape = (blocks * self.block, columns)
        return shape if self.axis == 0 else shape[::-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the matrix."""
        return np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Of all that is stored."""
        return sum(array.nbytes for array in self.arrays())

    @property
    def transposed(self) -> BlockWeights:
        """The matrix with its axes changed."""
        return replace(self, axis=1 - self.axis)

    def arrays(self) -> tuple[Array, ...]:
        """All that is stored."""
        return (self.numbers, self.scales, *(() if self.zeros is None else (self.zeros,)))

    def equals(self, other: BlockWeights, same_bits: Callable[[Array, Array], bool]) -> bool:
        """Whether two are stored alike, as is said of arrays."""
        mine, others = self.arrays(), other.arrays()
        is_alike = (self.bits, self.axis, len(mine)) == (other.bits, other.axis, len(others))
        return is_alike and all(map(same_bits, mine, others))

    def floats(self) -> Array:
        """The matrix.

        >>> numbers = np.array([[[0x98, 0xF0]]], np.uint8)
        >>> BlockWeights(numbers, np.full((1, 1), 0.5, np.float32), None, 4).floats().T
        array([[ 0. ,  0.5, -4. ,  3.5]], dtype=float32)
        """
        columns = self.numbers.shape[0]
        whole = unpacked(self.numbers, self.bits)
        zeros = np.float32(1 << self.bits - 1) if self.zeros is None else self.zeros[..., None]
        found = (whole.astype(np.float32) - np.float32(zeros)) * self.scales[..., None]
        made: Array = found.reshape(columns, -1)
        return made if self.axis else np.ascontiguousarray(made.T)


def unpacked(packed: Array, bits: int) -> Array:
    """Numbers that share bytes along the last axis, the lowest bits first, each in a byte of its own."""
    parts = [packed >> np.uint8(bits * i) & np.uint8((1 << bits) - 1) for i in range(8 // bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)
