"""How the operands of a step pass the cores' buffers, tile by tile.

Where one way through a step lets every operand move once, tiles follow that way. Where no such way fits the
free bytes of the buffers, operands are read again, and tile shapes and the order of loops are a mapping
problem (`tile_mapping.py`) if the step is a sum of products; other steps are cut along their parallel axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, prod
from typing import Protocol

from tilewright.errors import InfeasibleMapping
from tilewright.loops.problem import Problem
from tilewright.targets.npu.mapped_products import MappedProducts, NodeProducts

NUM_TILES = 4
"""Into how many tiles a step's work is cut, so that moving and computing overlap (spec: tiles = 4)."""
_COMING_TILES = 16
"""The same where tiles follow an operand that comes from main memory: the first one cannot be computed before
its part has come, however much the buffers hold."""
MAX_TILES = 64
"""Most tiles that are simulated one by one; where there are more, one of them stands for several."""

_AHEAD = 2  # tiles that should fit at a time: the one in use, and the next
PIECES = 8  # operands beside the products pass in pieces, each of one part in so many of what is free
_SMALL = 8  # what passes beside a tile in pieces may take together one part in so many of a pool


@dataclass(frozen=True, slots=True)
class Passage:
    """How an operand of a step passes: a weight, what is read from outside the cores, what leaves them.

    `moved_bytes` go into or out of the cores' buffers in all tiles together, what is read again included; a
    broadcast counts once. `outer_bytes` of them also pass between main memory and the shared buffer.
    `held_bytes` is what it takes of the cores' buffers at a time, in all cores together: the whole operand
    where it `is_kept` from before the first tile until after the last one, else one tile of it.
    `outer_held_bytes` is the same in the shared buffer. What `is_counted` is charged by the step's mapping.
    """

    moved_bytes: int
    outer_bytes: int
    held_bytes: int
    is_kept: bool
    outer_held_bytes: int
    is_counted: bool = False


NOTHING = Passage(0, 0, 0, False, 0)
"""Of an operand that lives in the cores."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of a step, along `axis` of its main result, and how each of its operands passes.

    Without an axis every tile may need all of an operand. `loops` is their order in words, `bound_s` what is
    proven of the time that moving takes. A step that runs its whole mapping has `energy_pj`: what the mapping
    charges, by level, for what passes.

    Of a step whose operators are tiled jointly `inside_bytes` is what values between them, and parts of
    operands that are retained, take of the cores' buffers from the first tile to the last, `again_bytes` what
    partial sums are read again in all. Units that compute different operators work on `num_at_once` tiles.
    Where it `stores_last`, every tile adds to all of the result, which is among what lies inside. Where it
    `is_summed`, tiles add to what tiles before made of the result.
    """

    axis: int | None
    num_tiles: int
    weights: tuple[Passage, ...]
    loads: tuple[Passage, ...]
    stores: tuple[Passage, ...]
    loops: str = ""
    bound_s: float = 0.0
    energy_pj: tuple[tuple[str, float], ...] = ()
    inside_bytes: int = 0
    again_bytes: int = 0
    num_at_once: int = 1
    stores_last: bool = False
    is_summed: bool = False

    @property
    def is_mapped(self) -> bool:
        """Whether the step runs its whole mapping."""
        return bool(self.energy_pj)


@dataclass(frozen=True, slots=True)
class Moved:
    """An operand that is to pass: its bytes, whether it lives in main memory, in how many copies cores hold
    it. Nothing passes of one that lives in the cores.

    `axis_bytes` is how much of it one element along each axis of the main result needs: all of it where it
    does not follow the axis. `role` names it in the step's mapping problem, `passes` is how often a step that
    cannot hold what it reduces goes through it.
    """

    size_bytes: int
    is_local: bool
    is_main: bool
    num_copies: int = 1
    axis_bytes: tuple[int, ...] = ()
    element_bytes: int = 1
    role: str = ""
    passes: int = 1

    def follows(self, axis: int) -> bool:
        """Whether less of it is needed for a part of the main result along an axis."""
        return self.axis_bytes[axis] < self.size_bytes

    def part_bytes(self, axis: int, extent: int, length: int) -> int:
        """Bytes of it that `length` elements along an axis of so many need."""
        least = self.axis_bytes[axis]
        if length >= extent or least >= self.size_bytes:
            return self.size_bytes
        return min(self.size_bytes, least + ceil((length - 1) * (self.size_bytes - least) / (extent - 1)))

    def box_bytes(self, extents: Sequence[int], tile: Sequence[int]) -> int:
        """Bytes of it that a tile of the main result needs."""
        if not self.size_bytes:
            return 0
        share = prod(
            self.part_bytes(axis, extent, length) / self.size_bytes
            for axis, (extent, length) in enumerate(zip(extents, tile, strict=True))
            if length < extent
        )
        return ceil(self.size_bytes * share)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """A step: its operands, the extents of its main result, the bytes that are free for it.

    What `is_passed_on` is put together or copied: it is written as it arrives. `problem` is the sum of
    products that it computes, if that is one; `result_axes` are the axes of the main result by dims of it.
    What it reads is made tile by tile along `axis`, if it should follow these tiles.
    """

    weights: tuple[Moved, ...]
    loads: tuple[Moved, ...]
    stores: tuple[Moved, ...]
    extents: tuple[int, ...]
    local_bytes: int
    shared_bytes: int
    is_passed_on: bool = False
    problem: Problem | None = None
    result_axes: tuple[tuple[str, int], ...] = ()
    axis: int | None = None
    layer: str = field(default="", compare=False)

    @property
    def operands(self) -> tuple[Moved, ...]:
        """All of them: weights, loads, stores."""
        return (*self.weights, *self.loads, *self.stores)

    @property
    def outside(self) -> list[Moved]:
        """Those that live outside the cores."""
        return [x for x in self.operands if not x.is_local and x.size_bytes]


class Remapper(Protocol):
    """What decides where operands have to be read again, and whether steps run whole mappings."""

    @property
    def is_whole(self) -> bool:
        """Whether steps whose operands all come from main memory run whole mappings."""
        ...

    def mapped(self, request: TileRequest, part: MappedProducts, num_cores: int) -> Tiling | None:
        """Tiles of a step that runs a whole mapping; None where that does not fit."""
        ...

    def tiling(self, request: TileRequest) -> Tiling | None:
        """Tiles of a sum of products; None where it cannot say."""
        ...


class Tiler:
    """Tiles of steps on one machine; equal requests are answered once.

    `level` is the name of the cores' buffers. `remapper` decides where operands of sums of products have to
    be read again; without one such steps are cut as others are.
    """

    def __init__(self, machine: str, level: str, remapper: Remapper | None = None) -> None:
        self.machine, self.level, self.remapper = machine, level, remapper
        self._known: dict[TileRequest, Tiling | None] = {}
        self._again: dict[TileRequest, Tiling] = {}
        self._mapped: dict[tuple[TileRequest, MappedProducts, int], Tiling | None] = {}

    def mapped(
        self, request: TileRequest, num_cores: int, products: Callable[[], NodeProducts | None]
    ) -> Tiling | None:
        """The tiles of a step on so many cores that runs the whole mapping of its products; None where
        another mapper tiles steps, or they are more than one sum, or do not fit what is free."""
        if self.remapper is None or request.problem is None or not self.remapper.is_whole:
            return None
        found = products()
        if found is None or len(found.parts) != 1 or found.share != 1.0:
            return None
        key = request, found.parts[0], num_cores
        if key not in self._mapped:
            self._mapped[key] = self.remapper.mapped(*key)
        return self._mapped[key]

    def tile(self, request: TileRequest) -> Tiling:
        """The tiles of a step.

        Raises:
            InfeasibleMapping: not even one element of every operand fits what is free.
        """
        return self.once(request) or self.again(request)

    def once(self, request: TileRequest) -> Tiling | None:
        """The tiles of a step of which every operand is read once; None where they do not fit so."""
        if request not in self._known:
            self._known[request] = _passed_on(request) if request.is_passed_on else _once(request)
        return self._known[request]

    def again(self, request: TileRequest) -> Tiling:
        """The tiles of a step whose operands are read again, with its sum of products.

        Raises:
            InfeasibleMapping: as of `tile`.
        """
        if request not in self._again:
            self._again[request] = self._read_again(request)
        return self._again[request]

    def _read_again(self, request: TileRequest) -> Tiling:
        self._check(request)
        tiling = None
        if self.remapper is not None and request.problem is not None:
            tiling = self.remapper.tiling(request)
        return _again(request) if tiling is None else tiling

    def _check(self, request: TileRequest) -> None:
        needed = sum(min(x.element_bytes, x.size_bytes) * x.num_copies for x in request.outside)
        if needed > request.local_bytes:
            raise InfeasibleMapping(
                f"layer {request.layer} on {self.machine}: level {self.level}: one element of every operand "
                f"needs {needed} bytes of all cores together, {request.local_bytes} are free; give it more "
                "capacity, or plan for less of it (graphturbo{alpha=0.5})."
            )


def tiled_axis(extents: Sequence[int]) -> int | None:
    """The axis that tiles cut: the outermost that has an element for each tile, or else more than one."""
    long = [axis for axis, extent in enumerate(extents) if extent >= NUM_TILES]
    return next(iter(long), next((axis for axis, extent in enumerate(extents) if extent > 1), None))


def passages_beside(request: TileRequest) -> dict[int, Passage]:
    """How operands pass that are in no product: biases, what is added to the result. They are kept where
    they are small, else they pass in pieces, beside the tile of the result that needs them."""
    places = [n for n, x in enumerate(request.operands) if not x.role and not x.is_local and x.size_bytes]
    each = request.local_bytes // (2 * PIECES * max(1, len(places)))
    passages = {}
    for place in places:
        x = request.operands[place]
        whole = x.size_bytes * x.num_copies
        held = whole if whole <= each else max(each, x.element_bytes * x.num_copies)
        outer = max(x.element_bytes, request.shared_bytes // PIECES // len(places))
        passages[place] = passage_of(x, 1.0, 1.0, held, is_kept=held == whole, outer=outer)
    return passages


def passage_of(
    x: Moved, times: float, outer_times: float, held: int, *, is_kept: bool, outer: int
) -> Passage:
    """How an operand passes that moves so many times as a whole, `outer_times` of them from main memory."""
    moved = max(x.size_bytes, whole_bytes(x.size_bytes * times))
    # What is larger than a tile of the cores on its way may be read again more often than they ask for it.
    outer_bytes = min(moved, max(x.size_bytes, whole_bytes(x.size_bytes * outer_times))) if x.is_main else 0
    outer_held = min(x.size_bytes, outer) if x.is_main else 0
    return Passage(moved, outer_bytes, min(held, x.size_bytes * x.num_copies), is_kept, outer_held)


def whole_bytes(num_bytes: float) -> int:
    """Bytes that are moved where so many would be: never fewer, so that bounds hold."""
    return ceil(num_bytes * (1 - 1e-12))


def _passed_on(request: TileRequest) -> Tiling:
    """Of what is put together or copied: it arrives where it is to lie, or passes to where it goes.

    Each tile waits for all operands, whichever of them it is a part of.
    """
    local, shared = request.local_bytes, request.shared_bytes
    leaving_bytes = sum(x.size_bytes * x.num_copies for x in request.stores if not x.is_local)
    num_tiles = max(1, -(-leaving_bytes * NUM_TILES // max(1, local)))

    def passage(x: Moved, is_read: bool) -> Passage:
        if x.is_local:
            return NOTHING
        part = -(-x.size_bytes // num_tiles)
        outer_held = min(part, max(1, shared // _SMALL)) if x.is_main else 0
        return Passage(
            x.size_bytes, x.size_bytes if x.is_main else 0, 0 if is_read else part, False, outer_held
        )

    passages = [*(passage(x, True) for x in request.loads), *(passage(x, False) for x in request.stores)]
    return tiling_of(request, None, num_tiles, passages, "")


def _once(request: TileRequest) -> Tiling | None:
    """The first way in which every operand moves once, with place for a tile to come beside the one in use.

    What follows no axis that is cut is kept, what follows one follows all of them. The next step's operands
    should find place as well, so half of the pool is tried first. A way that keeps what is read from main
    memory, so that nothing is computed before all of it has come, is left for an axis along which it comes.
    """
    local = request.local_bytes
    for kept_limit, tile_limit in ((local // 2, local // 4), (local, local // _AHEAD)):
        found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        least_bytes = 0
        for axes in _axes_to_cut(request):
            streamed = [x for x in request.outside if any(x.follows(axis) for axis in axes)]
            first_bytes = sum(
                x.size_bytes for x in (*request.weights, *request.loads) if x.is_main and x not in streamed
            )
            kept_bytes = sum(x.size_bytes * x.num_copies for x in request.outside if x not in streamed)
            if found is not None and len(axes) > 1:
                break
            if found is not None and first_bytes >= least_bytes:
                continue
            if kept_bytes > kept_limit or not all(_passes_once(x, axes, request.extents) for x in streamed):
                continue
            most = min(tile_limit, (local - kept_bytes) // _AHEAD)
            tile = _largest(request, axes, streamed, most)
            if tile is not None:
                found, least_bytes = (axes, tile), first_bytes
                if not first_bytes:
                    break
        if found is not None:
            return _laid_out(request, *found)
    return None


def _axes_to_cut(request: TileRequest) -> Iterator[tuple[int, ...]]:
    """Which axes may be cut, the usual one first, then few before many; none where none is long."""
    usual = tiled_axis(request.extents) if request.axis is None else request.axis
    if usual is None:
        yield ()
        return
    long = [axis for axis, extent in enumerate(request.extents) if extent > 1]
    yield (usual,)
    for number in range(1, len(long) + 1):
        for axes in combinations(long, number):
            if axes != (usual,):
                yield axes


def _passes_once(x: Moved, axes: tuple[int, ...], extents: tuple[int, ...]) -> bool:
    """Whether an operand follows all of these axes, and tiles share parts of it along the last one alone,
    along which they follow one another."""
    return all(x.follows(axis) for axis in axes) and all(
        x.axis_bytes[axis] * extents[axis] <= x.size_bytes for axis in axes[:-1]
    )


def _cut(extents: tuple[int, ...], axes: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The tile of one element along all of these axes but the last, of so many along that."""
    return tuple(
        extent if axis not in axes else length if axis == axes[-1] else 1
        for axis, extent in enumerate(extents)
    )


def _largest(
    request: TileRequest, axes: tuple[int, ...], streamed: Sequence[Moved], most_bytes: int
) -> tuple[int, ...] | None:
    """The largest tile that is cut along axes and of which what is streamed takes so many bytes at most."""
    extents = request.extents

    def fits(length: int) -> bool:
        tile = _cut(extents, axes, length)
        return sum(x.box_bytes(extents, tile) * x.num_copies for x in streamed) <= most_bytes

    if not axes:
        return extents if fits(1) else None
    extent = extents[axes[-1]]
    is_coming = any(x.is_main and x in request.loads for x in streamed)
    least = _COMING_TILES if is_coming else NUM_TILES
    low, high = 0, -(-extent // least) if len(axes) == 1 else extent
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return _cut(extents, axes, low) if low else None


def _again(request: TileRequest) -> Tiling:
    """The cut along the outermost axes that moves the fewest bytes, where operands have to be read again."""
    long = tuple(axis for axis, extent in enumerate(request.extents) if extent > 1)
    tilings = [_laid_out(request, (), request.extents)]
    for number in range(1, len(long) + 1):
        axes = long[:number]
        streamed = [x for x in request.outside if any(x.follows(axis) for axis in axes)]
        tile = _largest(request, axes, streamed, request.local_bytes // (2 * _AHEAD))
        tilings.append(_laid_out(request, axes, tile or _cut(request.extents, axes, 1)))
    return min(
        tilings,
        key=lambda tiling: sum(x.moved_bytes for x in (*tiling.weights, *tiling.loads, *tiling.stores)),
    )


def _laid_out(request: TileRequest, axes: tuple[int, ...], tile: tuple[int, ...]) -> Tiling:
    """The tiles of a cut; an operand whose tile finds no place passes piece by piece, again for each tile
    that needs it and each time that the step goes through it."""
    extents = request.extents
    trips = {axis: -(-extents[axis] // tile[axis]) for axis in axes}
    num_tiles = prod(trips.values())
    boxes = [0 if x.is_local else x.box_bytes(extents, tile) for x in request.operands]
    held = [x.num_copies * box for x, box in zip(request.operands, boxes, strict=True)]
    limits = _shared_out(held, request)
    stay = 2 * sum(w.size_bytes for w in request.weights) <= request.shared_bytes

    def passage(number: int, x: Moved) -> Passage:
        if x.is_local or not x.size_bytes:
            return NOTHING
        in_pieces = limits[number] < held[number]
        moved = ceil(x.size_bytes * _times(x, extents, tile, trips, in_pieces=in_pieces))
        is_kept = not in_pieces and boxes[number] == x.size_bytes and num_tiles > 1
        part = min(boxes[number], max(x.element_bytes, request.shared_bytes // _SMALL))
        may_stay = stay and not in_pieces and number < len(request.weights)
        outer_held = x.size_bytes if may_stay else part
        return Passage(
            moved, moved if x.is_main else 0, limits[number], is_kept, outer_held if x.is_main else 0
        )

    passages = [passage(number, x) for number, x in enumerate(request.operands)]
    loops = " ".join(f"axis {axis}: {trips[axis]}" for axis in axes)
    return tiling_of(request, axes[0] if axes else None, num_tiles, passages, loops)


def tiling_of(
    request: TileRequest,
    axis: int | None,
    num_tiles: int,
    passages: Sequence[Passage],
    loops: str,
    bound_s: float = 0.0,
    *,
    is_summed: bool = False,
) -> Tiling:
    """A tiling from the passages of all operands, in their order.

    Where one simulated tile stands for several, it has the places of two, as far as the operand has so much:
    one is used, the next one arrives.
    """
    if num_tiles > MAX_TILES and sum(_AHEAD * p.held_bytes for p in passages) <= request.local_bytes:
        passages = [
            p if p.is_kept else replace(p, held_bytes=min(_AHEAD * p.held_bytes, x.size_bytes * x.num_copies))
            for p, x in zip(passages, request.operands, strict=True)
        ]
    first, second = len(request.weights), len(request.weights) + len(request.loads)
    return Tiling(
        axis,
        min(num_tiles, MAX_TILES),
        tuple(passages[:first]),
        tuple(passages[first:second]),
        tuple(passages[second:]),
        loops,
        bound_s,
        is_summed=is_summed,
    )


def _times(
    x: Moved, extents: Sequence[int], tile: Sequence[int], trips: Mapping[int, int], *, in_pieces: bool
) -> float:
    """How often an operand moves, for loops over tiles from the outermost to the innermost."""
    axes = list(trips)
    if in_pieces:
        return x.passes * prod(n for axis, n in trips.items() if not x.follows(axis))
    last = max((place for place, axis in enumerate(axes) if x.follows(axis)), default=0)
    times = 1.0
    for axis in axes[:last]:
        # Inside a loop that it does not follow, and along whose tiles it shares nothing, it is brought anew.
        times *= trips[axis] * x.part_bytes(axis, extents[axis], tile[axis]) / x.size_bytes
    return max(1.0, times)


def _shared_out(held: Sequence[int], request: TileRequest) -> list[int]:
    """What each operand gets of the cores' buffers: its tile, or an equal part of what smaller ones leave."""
    if sum(held) <= request.local_bytes:
        return list(held)
    least = [min(h, x.element_bytes * x.num_copies) for h, x in zip(held, request.operands, strict=True)]
    limits = list(least)
    left = max(0, request.local_bytes // _AHEAD - sum(least))
    listed = sorted((n for n, size in enumerate(held) if size), key=lambda n: held[n])
    for place, number in enumerate(listed):
        limits[number] = min(held[number], least[number] + left // (len(listed) - place))
        left -= limits[number] - least[number]
    return limits
