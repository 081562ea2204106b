"""Blocks of threads: how the work of a kernel fills the multiprocessors of a GPU, wave after wave.

A sum of products is cut into tiles of rows and columns, a block of threads each; other work has a thread for
each element of its result. A multiprocessor computes as many blocks at a time as it likes, but no faster for
it, so a kernel takes as many waves of blocks as its busiest multiprocessor has blocks. Those without a block
are idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.hardware.machine import Threads


@dataclass(frozen=True, slots=True)
class Blocks:
    """A kernel's blocks on `num_cores` multiprocessors, the busiest of which computes `num_waves` of them.

    `cores_worth` is how many multiprocessors would take as long if they had nothing but useful work, in equal
    parts.
    """

    num_cores: int
    num_waves: int
    cores_worth: float


def blocks_of_products(
    threads: Threads, rows: int, columns: int, num_cores: int, num_products: int = 1
) -> Blocks:
    """The blocks of sums of products with so many rows and columns, in the tiles that are fastest.

    Of tiles as fast, those that take the fewest cores, and of all a kernel takes no more than make a wave
    less. A tile may lie either way.

    >>> limits = Threads(registers="R", shared="S", max_per_block=1, max_per_core=1, block_tiles=((64, 32),))
    >>> blocks_of_products(limits, 640, 32, 4)
    Blocks(num_cores=4, num_waves=3, cores_worth=3.3333333333333335)
    """
    best: tuple[tuple[int, int], Blocks] | None = None
    for tile in dict.fromkeys(t for a, b in threads.block_tiles for t in ((a, b), (b, a))):
        num_blocks = num_products * -(-rows // tile[0]) * -(-columns // tile[1])
        num_waves = -(-num_blocks // num_cores)
        cores = -(-num_blocks // num_waves)
        elements = num_waves * tile[0] * tile[1]  # of the busiest core
        if best is None or (elements, cores) < best[0]:
            best = (elements, cores), Blocks(cores, num_waves, num_products * rows * columns / elements)
    assert best is not None, "asked of machines with tiles"
    return best[1]


def blocks_of_elements(threads: Threads, elements: int, num_cores: int) -> Blocks:
    """The blocks of work with a thread for each element, which fill a core with threads before the next."""
    num_waves = max(1, -(-elements // (threads.max_per_core * num_cores)))
    cores = max(1, -(-elements // (threads.max_per_core * num_waves)))
    return Blocks(cores, num_waves, float(cores))
