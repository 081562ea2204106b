"""float32 as sums of pieces that the matrix unit multiplies, in numpy: bfloat16 terms, digits of bytes."""

from __future__ import annotations

import numpy as np

from tilewright.arrays import Array

NUM_DIGITS = 3
LARGEST_FIXED = 127 * (2**16 + 2**8 + 1)
"""The largest number of three digits from -128 to 127."""

DIGIT_CARRIES = 2**15 + 2**7
"""What, added to a fixed-point number, carries where a digit is negative; the same bits taken off by `xor`
leave the digits in its bytes."""

# Values below round to finite bfloat16.
_LARGEST_PIECE = 3e38


def split_bfloat16(values: Array, count: int) -> Array:
    """`count` bfloat16 pieces whose sum is each value, largest first, as their bits; shape [count, ...].

    Rounds to nearest even, as the processor does; what is left of an infinity counts as zero.

    >>> [hex(int(x)) for x in split_bfloat16(np.array([1.00390625], np.float32), 2)[:, 0]]
    ['0x3f80', '0x3b80']
    """
    pieces = np.empty((count, *values.shape), np.uint16)
    rest = values.astype(np.float32)
    is_plain = bool(np.abs(rest).max(initial=0.0) < _LARGEST_PIECE)  # not so for a NaN
    for number in range(count):
        bits = rest.view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded &= 0xFFFF0000
        if not is_plain:
            rounded[np.isnan(rest)] = 0x7FC00000
        pieces[number] = rounded >> 16
        if number + 1 < count:
            with np.errstate(invalid="ignore"):
                rest = rest - rounded.view(np.float32)
            if not is_plain:
                rest[~np.isfinite(rest)] = 0
    return pieces


def power_of_two(sizes: Array) -> Array:
    """The power of two at or below each of some sizes, 0 for zero, as float32.

    >>> power_of_two(np.array([0.0, 0.75, 3.0], np.float32)).tolist()
    [0.0, 0.5, 2.0]
    """
    return np.where(sizes > 0, np.ldexp(np.float32(0.5), np.frexp(sizes)[1]), 0).astype(np.float32)


def split_digits(values: Array, scales: Array) -> Array:
    """Three balanced digits of base 256 of each value in units of its scale, largest first: [3, ...] int8.

    >>> split_digits(np.array([2.0**16 - 1.0]), np.array([1.0]))[:, 0].tolist()
    [1, 0, -1]
    """
    fixed = np.rint(values / scales).astype(np.int32)
    words = (fixed + DIGIT_CARRIES) ^ DIGIT_CARRIES
    return np.stack([(words >> 8 * digit).astype(np.int8) for digit in reversed(range(NUM_DIGITS))])
