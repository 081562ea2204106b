"""Seeded weights that are the same bytes in every process, on every machine and under every numpy."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

_PIECE = 1 << 16  # even, so that pieces meet on whole words

FloatArray = npt.NDArray[np.float32]


def uniform_weights(
    key: str, shape: tuple[int, ...], *, mean: float = 0.0, deviation: float = 1.0
) -> FloatArray:
    """Independent uniform float32 values with the given mean and standard deviation.

    The values are a function of `key` alone: raw Philox words keyed by a hash of `key`, scaled in float32.
    numpy keeps the raw stream of a bit generator across versions; for `normal` it makes no such promise.

    >>> round(float(uniform_weights("net/0/conv1.weight", (4, 1000), deviation=0.5).std()), 1)
    0.5
    """
    count = math.prod(shape)
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    generator = np.random.Philox(key=int.from_bytes(digest, "little"))
    half_width = math.sqrt(3.0) * deviation
    scale, low = np.float32(2.0 * half_width * 2.0**-24), np.float32(mean - half_width)
    values = np.empty(count, np.float32)
    # Piece by piece: the temporaries stay in cache, which makes large tensors several times faster.
    for start in range(0, count, _PIECE):
        piece = values[start : start + _PIECE]
        words = np.asarray(generator.random_raw((piece.size + 1) // 2), dtype="<u8").view("<u4")
        np.multiply(words[: piece.size] >> 8, scale, out=piece, casting="unsafe", dtype=np.float32)
        piece += low
    return values.reshape(shape)
