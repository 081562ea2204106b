"""How a mapping onto a GPU is launched: the block of threads with its axes, the grid, what a block needs.

All of it follows from the mapping. Spatial loops of the shared memory are the threads of a block; loops
further out over dims of the output are the grid, over other dims steps that a block takes in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilewright.cost.bound import num_touched
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping
from tilewright.hardware.block_view import BlockView
from tilewright.hardware.machine import Level, Threads
from tilewright.loops.mapping import Loop, Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping.factors import prime_factors
from tilewright.results import about, in_json


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch. `axes` are the loops along x, y and z, each from the outermost inwards.

    `grid` are blocks by dim; `num_steps` is how many tiles of shared memory a block works on in turn.
    `max_resident` blocks fit on a multiprocessor together; counted is one at a time.
    """

    axes: tuple[tuple[Loop, ...], ...] = field(metadata=about("The loops along x, y and z, outermost first."))
    grid: tuple[Loop, ...] = field(metadata=about("Blocks by dim of the output."))
    num_steps: int = field(metadata=about("Tiles of shared memory that a block works on in turn."))
    shared_bytes: int
    registers_per_thread: int = field(metadata=about("What tiles need; a kernel needs more for addresses."))
    max_resident: int = field(
        metadata=about("Blocks that fit on a multiprocessor; counted is one at a time.")
    )

    @in_json
    def shape(self) -> tuple[int, ...]:
        """Extents of a block along x, y and z."""
        return tuple(prod(loop.factor for loop in axis) for axis in self.axes)

    @in_json
    def num_threads(self) -> int:
        """Threads of a block."""
        return prod(self.shape)

    @in_json
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return prod(loop.factor for loop in self.grid)

    def lines(self) -> tuple[str, str]:
        """The launch for people: its blocks and threads, what a block needs."""
        axes = ", ".join(
            f"{name} = {' x '.join(f'{loop.dim} {loop.factor}' for loop in axis)}"
            for name, axis in zip("xyz", self.axes, strict=False)
            if axis
        )
        blocks = " x ".join(f"{loop.dim} {loop.factor}" for loop in self.grid)
        shape = " x ".join(map(str, self.shape))
        return (
            f"launched as {self.num_blocks:,} blocks{f' ({blocks})' if blocks else ''} of "
            f"{shape} = {self.num_threads:,} threads{f' ({axes})' if axes else ''}",
            f"a block needs {self.shared_bytes:,} bytes of shared memory and {self.registers_per_thread} "
            f"registers per thread for its tiles; {self.max_resident} of them fit on a multiprocessor",
        )


def launch_of(
    problem: Problem, view: BlockView, mapping: Mapping, cost_options: CostOptions = TIMELOOP
) -> Launch:
    """The launch that a mapping onto a view stands for.

    Raises:
        InfeasibleMapping: no block has these threads along its axes, or threads or blocks add to one output.
    """
    limits = view.threads
    registers, shared = view.machine.levels[:2]
    of_output = set(problem.output.dims())
    of_block: dict[str, int] = {}
    of_thread: dict[str, int] = {}
    grid: dict[str, int] = {}
    steps = 1
    threads: tuple[Loop, ...] = ()
    for loops, kind, loop in mapping.loops():
        is_shared_sum = kind == "spatial" and loop.dim not in of_output and loop.factor > 1
        if is_shared_sum and loops.level != registers.name:
            raise InfeasibleMapping(
                f"level {loops.level}: {loop.dim} {loop.factor} as a spatial loop adds to the same outputs, "
                "and threads and blocks share no sums; make it a temporal loop."
            )
        if loops.level in (registers.name, shared.name):
            of_block[loop.dim] = of_block.get(loop.dim, 1) * loop.factor
            if loops.level == registers.name:
                of_thread[loop.dim] = of_thread.get(loop.dim, 1) * loop.factor
            elif kind == "spatial":
                threads = (*threads, loop)
        elif loop.dim in of_output:
            grid[loop.dim] = grid.get(loop.dim, 1) * loop.factor
        else:
            steps *= loop.factor
    shared_bytes = _num_bytes(problem, shared, of_block, cost_options)
    per_thread = -(-_num_bytes(problem, registers, of_thread, cost_options) // limits.register_bytes)
    num_threads = in_whole_warps(prod(loop.factor for loop in threads), limits)
    of_core = (
        view.core_register_bytes // max(1, per_thread * limits.register_bytes * num_threads),
        view.core_shared_bytes // max(1, shared_bytes),
        limits.max_per_core // num_threads,
        limits.max_blocks_per_core or limits.max_per_core,
    )
    return Launch(
        axes=block_axes(threads, limits),
        grid=tuple(Loop(dim, factor) for dim, factor in grid.items() if factor > 1),
        num_steps=steps,
        shared_bytes=shared_bytes,
        registers_per_thread=per_thread,
        max_resident=min(of_core),
    )


def _num_bytes(problem: Problem, level: Level, tile: dict[str, int], cost_options: CostOptions) -> int:
    extents = {dim: tile.get(dim, 1) for dim in problem.extents}
    words = sum(
        prod(num_touched(axis, extents) for axis in operand.axes)
        if cost_options.skips_pixels
        else operand.num_words(extents)
        for operand in problem.operands
        if operand.kind in level.holds
    )
    return -(-words * (2 if cost_options.double_buffered else 1) * level.word_bits // 8)


def in_whole_warps(num_threads: int, limits: Threads) -> int:
    """What a block of so many threads takes: warps run whole."""
    return min(limits.max_per_block, -(-num_threads // limits.num_per_warp) * limits.num_per_warp)


def has_shape(num_threads: int, limits: Threads) -> bool:
    """Whether so many threads can be laid along the axes of a block.

    Loops can be parted over axes, so this depends on their number alone.

    >>> small = Threads(
    ...     registers="R", shared="S", max_per_block=64, max_per_core=64, max_block_shape=(8, 4, 1)
    ... )
    >>> [n for n in range(1, 40) if has_shape(n, small)]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 24, 28, 32]
    """
    return num_threads <= limits.max_per_block and _fits(num_threads, limits.max_block_shape)


@functools.lru_cache(maxsize=1 << 13)
def _fits(number: int, limits: tuple[int, ...]) -> bool:
    if not limits:
        return number == 1
    limit, *rest = limits
    return any(number % n == 0 and _fits(number // n, tuple(rest)) for n in range(1, min(limit, number) + 1))


def block_axes(threads: tuple[Loop, ...], limits: Threads) -> tuple[tuple[Loop, ...], ...]:
    """The loops of threads along x, y and z, within the extents that a block may have.

    Whole loops go to an axis each, the innermost to x, as far as that fits; if whole loops do not fit, they
    are parted.

    Raises:
        InfeasibleMapping: nothing fits.
    """
    loops = [loop for loop in reversed(threads) if loop.factor > 1]
    parted = [
        Loop(loop.dim, p) for loop in loops for p, count in prime_factors(loop.factor) for _ in range(count)
    ]
    extents = limits.max_block_shape
    num_threads = prod(loop.factor for loop in loops)
    for pieces in (loops, parted):
        chosen = next(_placements(pieces, extents), None) if num_threads <= limits.max_per_block else None
        if chosen is not None:
            return tuple(tuple(_merged(axis)) for axis in chosen)
    raise InfeasibleMapping(
        f"a block of {' x '.join(f'{loop.dim} {loop.factor}' for loop in reversed(loops))} = {num_threads} "
        f"threads does not fit {' x '.join(map(str, extents))} with at most {limits.max_per_block} in all; "
        "give fewer threads."
    )


def _placements(pieces: list[Loop], extents: tuple[int, ...]) -> Iterator[tuple[tuple[Loop, ...], ...]]:
    """Ways to lay pieces along axes, each innermost piece first; the most axes used come first."""
    ways = []
    seen = set()
    first = min(len(extents), len(pieces))
    for places in product(range(len(extents)), repeat=len(pieces)):
        axes = tuple(
            tuple(piece for piece, at in zip(pieces, places, strict=True) if at == axis)
            for axis in range(len(extents))
        )
        sizes = tuple(prod(piece.factor for piece in axis) for axis in axes)
        if sizes not in seen and all(size <= extent for size, extent in zip(sizes, extents, strict=True)):
            seen.add(sizes)
            ways.append((first - sum(size > 1 for size in sizes), places, axes))
    ways.sort(key=lambda item: item[:2])
    return (tuple(tuple(reversed(axis)) for axis in axes) for _, _, axes in ways)


def _merged(axis: tuple[Loop, ...]) -> Iterator[Loop]:
    """Neighbouring loops of the same dim are one loop."""
    pending: Loop | None = None
    for loop in axis:
        if pending is not None and pending.dim == loop.dim:
            pending = Loop(loop.dim, pending.factor * loop.factor)
            continue
        if pending is not None:
            yield pending
        pending = loop
    if pending is not None:
        yield pending
