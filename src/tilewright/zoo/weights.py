"""Seeded weights that are the same bytes in every process, on every machine and under every numpy."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

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
    words = np.asarray(generator.random_raw((count + 1) // 2), dtype="<u8").view("<u4")[:count]
    half_width = math.sqrt(3.0) * deviation
    values = (words >> 8).astype(np.float32)
    values *= np.float32(2.0 * half_width * 2.0**-24)
    values += np.float32(mean - half_width)
    return values.reshape(shape)
