"""Weights that are whole multiples of a scale a block: found in float constants, kept in four bits a weight.

Quantised language models compute in float with weights that were integers of four bits, a scale for each
block of a column (`MatMulNBits`, DequantizeLinear by blocks). Constants that folded from them have that form
still. A kernel that reads the integers and widens them itself moves a sixth of the bytes, and has the same
bits: `scale * number` is the constant, exactly, or the constant is none of these.
"""

from __future__ import annotations

import itertools

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.block_weights import BlockWeights
from tilewright.records import dataclass
from tilewright.targets.llvm.layout import OperandKey

FewBitKeys = frozenset[tuple[OperandKey, int, "FewBits"]]
"""Operands that are numbers of few bits times scales: along which axis their blocks lie, and how."""

BLOCKS = (128, 64, 32, 16)
"""Steps that may share a scale, those that need the fewest scales first."""
WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class FewBits:
    """How a kernel finds weights that are numbers of four or eight bits: in words of 32 bits, each of one
    column, behind the scales of a block, and its zero points if it `has_zeros`, as floats."""

    bits: int
    block: int
    has_zeros: bool = False

    @property
    def per_word(self) -> int:
        """Steps whose numbers a word holds."""
        return WORD_BITS // self.bits

    @property
    def first_word(self) -> int:
        """Words of a column before those of numbers."""
        return 1 + self.has_zeros

    @property
    def words_per_block(self) -> int:
        """Words of a block's column, scale and zero point included."""
        return self.first_word + self.block // self.per_word

    @property
    def share(self) -> float:
        """Of the bytes of floats."""
        return self.words_per_block / self.block

    @classmethod
    def of(cls, weights: BlockWeights) -> FewBits | None:
        """Of weights that are stored as numbers; None where their blocks are of no size that kernels know."""
        block = next((block for block in BLOCKS if weights.block % block == 0), None)
        return None if block is None else cls(weights.bits, block, weights.zeros is not None)


_LARGEST = 8
_COMMON_MULTIPLE, _NEAR = 840, 1e-2
"""Of all numbers up to the largest; how far from a whole number rounding leads."""
_MIN_ELEMENTS = 1 << 14
_SAMPLED_COLUMNS = 16


def block_of(constant: Array, axis: int) -> int | None:
    """Steps of `axis` that share a scale, of a float32 matrix whose weights are integers of four bits.

    >>> rng = np.random.default_rng(0)
    >>> numbers = rng.integers(-8, 8, (256, 64)).astype(np.float32)
    >>> scales = rng.random((8, 64)).astype(np.float32)
    >>> block_of(np.repeat(scales, 32, axis=0) * numbers, 0)
    32
    >>> block_of(rng.standard_normal((256, 64)).astype(np.float32), 0) is None
    True
    """
    if constant.ndim != 2 or constant.dtype != np.float32 or constant.size < _MIN_ELEMENTS:
        return None
    steps = constant if axis == 0 else constant.T
    sampled = steps[:, :: max(1, steps.shape[1] // _SAMPLED_COLUMNS)][:, :_SAMPLED_COLUMNS]
    if not sampled.any() or not _may_be_multiples(sampled[: min(BLOCKS)]):
        return None
    for block in BLOCKS:
        if steps.shape[0] % block == 0 and scales_of(sampled, block) is not None:
            return block if scales_of(steps, block) is not None else None
    return None


def _may_be_multiples(part: Array) -> bool:
    """Whether numbers of a column are to each other as small integers, as hardly any other constant's are."""
    with np.errstate(all="ignore"):
        ratios = part / np.abs(part).max(axis=0) * np.float32(_COMMON_MULTIPLE)
    ratios = np.nan_to_num(ratios, posinf=0.5, neginf=0.5)  # of a column of zeros nothing is known
    return bool((np.abs(ratios - np.rint(ratios)) < _NEAR).all())


def scales_of(steps: Array, block: int) -> Array | None:
    """The scale of each block of each column, `[steps / block, columns]`; None where a block has none."""
    scales = np.empty((steps.shape[0] // block, steps.shape[1]), np.float32)
    for number, row in enumerate(scales):
        part = np.ascontiguousarray(steps[number * block : (number + 1) * block])
        found = _scales_of_block(part)
        if found is None:
            return None
        row[...] = found
    return scales


def numbers_of(steps: Array, scales: Array) -> Array:
    """The integers behind constants of which `scales_of` told the scales: int8 in -8 to 7."""
    each = np.repeat(scales, steps.shape[0] // len(scales), axis=0)
    with np.errstate(all="ignore"):
        return np.where(each == 0, 0, np.rint(steps / each)).astype(np.int8)


def _scales_of_block(part: Array) -> Array | None:
    """The scale of each column of a block, [steps, columns]."""
    largest = np.abs(part).max(axis=0)
    if not np.isfinite(largest).all():
        return None
    scales: Array = np.zeros_like(largest)
    left = largest > 0
    # Of the largest number a quotient is the scale, or its neighbour, as division rounds.
    for number in range(_LARGEST, 0, -1):
        for sign, direction in itertools.product((1, -1), (0, np.inf, -np.inf)):
            columns = np.flatnonzero(left)
            if not columns.size:
                return scales
            scale = largest[columns] / np.float32(sign * number)
            if direction:
                scale = np.nextafter(scale, np.float32(direction))
            fits = _is_multiple(part[:, columns], scale)
            scales[columns[fits]] = scale[fits]
            left[columns[fits]] = False
    return None if left.any() else scales


def _is_multiple(part: Array, scale: Array) -> Array:
    """Columns that are integers of four bits times their scale, bit by bit."""
    with np.errstate(all="ignore"):
        numbers = np.rint(part / scale)
        exact = (numbers * scale == part) & (numbers >= -_LARGEST) & (numbers < _LARGEST)
    return np.asarray(exact.all(axis=0))
