"""Cores that share a result: the fewest that are as fast as any, held against all ways."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest

from tilewright.targets.npu.work import fewest_parts


@pytest.mark.parametrize("seed", range(40))
def test_fewest_cores_are_those_of_a_search_over_all_ways(seed: int) -> None:
    """Also where more parts are as fast, where only some axes are cut, and where even parts count more."""
    random = Random(seed)
    num_axes = random.randint(1, 3)
    extents = tuple(random.choice((1, 3, 7, 16, 55)) for _ in range(num_axes))
    kinds = tuple(random.choice(("", "row", "column")) for _ in range(num_axes))
    tile = random.choice(((), (4, 16)))
    is_cut = tuple(random.random() < 0.75 for _ in range(num_axes))
    num_cores, most = random.choice((1, 6, 24)), random.choice((1.0, 0.4))

    def seconds(counts: tuple[int, ...]) -> float:
        sizes = [-(-extent // count) for extent, count in zip(extents, counts, strict=True)]
        rounded = {
            kind: prod(s for s, k in zip(sizes, kinds, strict=True) if k == kind) for kind in set(kinds)
        }
        for kind, step in zip(("row", "column"), tile, strict=False):
            rounded[kind] = -(-rounded.get(kind, 1) // step) * step
        return max(prod(rounded.values()), prod(sizes) / most)

    def rank(counts: tuple[int, ...]) -> tuple[float, int, list[int]]:
        return float(f"{seconds(counts):.12g}"), prod(counts), [-count for count in counts]

    ranges = (
        range(1, min(e, num_cores) + 1) if cut else (1,) for e, cut in zip(extents, is_cut, strict=True)
    )
    every = [counts for counts in product(*ranges) if prod(counts) <= num_cores]
    assert fewest_parts(extents, kinds, tile, num_cores, most, is_cut) == min(every, key=rank)
