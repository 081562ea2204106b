"""How the energy of an access grows with the size of a buffer: what a sweep over capacities scales by."""

from __future__ import annotations

from itertools import pairwise
from math import log

SOURCE = "derived: scaled by size along SRAM energies of Horowitz (ISSCC 2014, 45 nm)"
# Bytes, and pJ of an access to 64 bits: 10 pJ of 8 KiB, 20 pJ of 32 KiB, 100 pJ of 1 MiB.
_TABLE = ((8 << 10, 10.0), (32 << 10, 20.0), (1 << 20, 100.0))


def access_scale(from_bytes: float, to_bytes: float) -> float:
    """How many times the energy of an access is that of a buffer of another size.

    Between the sizes of the table it is a power law, beyond them that of the nearest two.

    >>> access_scale(8 << 10, 32 << 10), access_scale(1 << 20, 8 << 10)
    (2.0, 0.1)
    """
    return round(_relative_pj(to_bytes) / _relative_pj(from_bytes), 12)


def _relative_pj(size_bytes: float) -> float:
    for (small, small_pj), (large, large_pj) in pairwise(_TABLE):
        if size_bytes <= large or large == _TABLE[-1][0]:
            power = log(large_pj / small_pj) / log(large / small)
            return float(small_pj * (size_bytes / small) ** power)
    raise AssertionError(size_bytes)
