"""How the operands of a step pass the cores' buffers, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import InfeasibleMapping

NUM_TILES = 4
"""Into how many tiles a step's work is cut, so that moving and computing overlap (spec: tiles = 4)."""

MAX_TILES = 128
"""How many tiles of a step the simulator runs one by one; beyond, one of them stands for several."""


@dataclass(frozen=True, slots=True)
class Passage:
    """How an operand of a step passes: a weight, what is read from outside the cores, what leaves them.

    `moved_bytes` go into or out of the cores' buffers in all tiles together, what is read again included; a
    broadcast counts once. `outer_bytes` of them also pass between main memory and the shared buffer.
    `held_bytes` is what it takes of the cores' buffers at a time, in all cores together: the whole operand
    where it `is_kept` from before the first tile until after the last one, else one tile of it.
    `outer_held_bytes` is the same in the shared buffer.
    """

    moved_bytes: int
    outer_bytes: int
    held_bytes: int
    is_kept: bool
    outer_held_bytes: int


NOTHING = Passage(0, 0, 0, False, 0)
"""Of an operand that lives in the cores."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of a step, along `axis` of its main result, and how each of its operands passes.

    Without an axis every tile may need all of an operand. `loops` is their order in words, `bound_s` what is
    proven of the time that moving takes.
    """

    axis: int | None
    num_tiles: int
    weights: tuple[Passage, ...]
    loads: tuple[Passage, ...]
    stores: tuple[Passage, ...]
    loops: str = ""
    bound_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """An operand that is to pass: its bytes, whether it lives in main memory, in how many copies cores hold
    it. Nothing passes of one that lives in the cores."""

    size_bytes: int
    is_local: bool
    is_main: bool
    num_copies: int = 1


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A step: its operands, the extents of its main result, the axes of it that weights follow.

    What `is_passed_on` is put together or copied: it is written as it arrives.
    """

    weights: tuple[Moved, ...]
    loads: tuple[Moved, ...]
    stores: tuple[Moved, ...]
    extents: tuple[int, ...]
    columns: tuple[int, ...]
    local_bytes: int
    shared_bytes: int
    is_passed_on: bool


def simple_tiling(request: TileRequest) -> Tiling:
    """Weights that take more than half of the pool pass in parts along channels, other operands in tiles.

    Raises:
        InfeasibleMapping: not even an element of every operand fits.
    """
    axis = tiled_axis(request.extents)
    tiles = NUM_TILES if axis is not None else 1
    local, shared = request.local_bytes, request.shared_bytes
    weight_bytes = sum(w.size_bytes * w.num_copies for w in request.weights)
    outside = [x for x in (*request.loads, *request.stores) if not x.is_local]
    is_kept = 2 * weight_bytes <= local
    if not is_kept:
        axis = next(iter(request.columns), axis)
    passing = [*outside, *(() if is_kept else request.weights)]
    free = local - (weight_bytes if is_kept else 0)
    passing_bytes = sum(x.size_bytes * x.num_copies for x in passing)
    if passing:
        # A tile is used, another one arrives or leaves; more of them than the simulator runs one by one are
        # two of these at a time.
        tiles = max(tiles, -(-passing_bytes * 3 // max(1, free)))
    least_bytes = sum(-(-x.size_bytes // tiles) * x.num_copies for x in passing)
    if least_bytes > free:
        tiles = max([tiles, *(x.size_bytes for x in passing)])
        least_bytes = sum(x.num_copies for x in passing if x.size_bytes)
    if least_bytes > free:
        raise InfeasibleMapping(
            f"the cores' buffers have {free} bytes free for tiles of a step that needs {least_bytes}; give "
            "them more, or a larger share for weights."
        )
    num_alike = 2 if tiles > MAX_TILES and 2 * least_bytes <= free else 1
    is_cached = 2 * sum(w.size_bytes for w in request.weights) <= shared

    def passage(x: Moved, is_weight: bool = False, is_read: bool = False) -> Passage:
        if x.is_local:
            return NOTHING
        part = min(x.size_bytes, -(-x.size_bytes // tiles) * num_alike)
        keeps = is_weight and is_kept
        held = 0 if is_read and request.is_passed_on else (x.size_bytes if keeps else part) * x.num_copies
        outer_held = x.size_bytes if is_weight and is_cached else min(part, max(1, shared // 8))
        outer_bytes = x.size_bytes if x.is_main else 0
        return Passage(x.size_bytes, outer_bytes, held, keeps, outer_held if x.is_main else 0)

    return Tiling(
        axis,
        min(tiles, MAX_TILES),
        tuple(passage(w, is_weight=True) for w in request.weights),
        tuple(passage(x, is_read=True) for x in request.loads),
        tuple(passage(x) for x in request.stores),
    )


def tiled_axis(extents: Sequence[int]) -> int | None:
    """The axis that tiles cut: the outermost that has an element for each tile, or else more than one."""
    long = [axis for axis, extent in enumerate(extents) if extent >= NUM_TILES]
    return next(iter(long), next((axis for axis, extent in enumerate(extents) if extent > 1), None))
