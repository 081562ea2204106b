"""The tiles of a step that runs its whole mapping: all operands of its products come from outside the cores.

Loops outside the cores' buffers are the tiles, in their order; what enters a level and leaves it is what the
mapping counts, and is charged there. A mapping takes moving and computing to overlap within the capacity that
a tile fills; here an operand's place is halved: one half is used while the other one is filled. Where fewer
loops are outside than tiles are simulated, loops inside say in which parts a tile comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.loops.mapping import Loop
from tilewright.loops.problem import Operand
from tilewright.targets.npu.mapped_products import MappedProducts
from tilewright.targets.npu.ports import Ports
from tilewright.targets.npu.tiles import (
    MAX_TILES,
    NOTHING,
    NUM_TILES,
    Moved,
    Passage,
    TileRequest,
    Tiling,
    passages_beside,
)

_LEAST_PLACE = 0.5  # of the halves of a mapping's tiles; with less of it, steps are tiled otherwise
_PASSING = 8  # what passes the shared buffer takes one part in so many of it


def mapped_tiling(request: TileRequest, ports: Ports, part: MappedProducts, num_cores: int) -> Tiling | None:
    """The tiles of a step on so many cores; None where an operand lives on the chip, tiles find no place, or
    units read main memory.

    Blocks of threads follow one another where there are fewer cores than blocks at a time in the mapping;
    cores that pass sums on have to be there.
    """
    assert request.problem is not None
    roles = {x.role: x for x in request.operands if x.role and x.size_bytes and not x.is_local}
    if any(o.name not in roles or not roles[o.name].is_main for o in part.problem.operands):
        return None
    if not part.outer or (part.cores_used > num_cores and part.machine.threads is None):
        return None
    view = _View(request, ports, part, num_cores)
    others = passages_beside(request)
    passages = []
    for place, x in enumerate(request.operands):
        if x.is_local or not x.size_bytes:
            passages.append(NOTHING)
        elif x.role:
            passages.append(view.passage(next(o for o in part.problem.operands if o.name == x.role), x))
        else:
            passages.append(others[place])
    fitting = _fitting(request, passages)
    if fitting is None or sum(p.outer_held_bytes for p in fitting) > request.shared_bytes > 0:
        return None
    axes = dict(request.result_axes)
    axis = axes.get(view.tiles[0].dim) if view.tiles else None
    words = " ".join(f"{loop.dim}{loop.factor}" for loop in view.outside) or "-"
    first, second = len(request.weights), len(request.weights) + len(request.loads)
    return Tiling(
        axis,
        min(prod(loop.factor for loop in view.tiles), MAX_TILES),
        tuple(fitting[:first]),
        tuple(fitting[first:second]),
        tuple(fitting[second:]),
        f"whole mapping: {words}",
        energy_pj=tuple(view.energy_pj(roles)),
        is_summed=any(loop.dim not in axes for loop in view.tiles),
    )


def _fitting(request: TileRequest, passages: list[Passage]) -> list[Passage] | None:
    """Places of two parts at a time that fit what is free, a little smaller where something lies beside."""
    kept = sum(p.held_bytes for p in passages if p.is_kept)
    beside_bytes = sum(2 * p.held_bytes for p in passages if not p.is_kept and not p.is_counted)
    needed = sum(2 * p.held_bytes for p in passages if not p.is_kept and p.is_counted)
    left = request.local_bytes - kept - beside_bytes
    if left < 0 or needed * _LEAST_PLACE > left:
        return None
    if needed <= left:
        return passages
    return [
        replace(p, held_bytes=p.held_bytes * left // needed) if p.is_counted and not p.is_kept else p
        for p in passages
    ]


@dataclass(slots=True)
class _View:
    """A mapping beside the levels that steps pass."""

    request: TileRequest
    ports: Ports
    part: MappedProducts
    num_cores: int

    @property
    def outside(self) -> list[Loop]:
        """Temporal loops outside the cores' buffers, the outermost first."""
        names = {level.level for level in self.part.outer}
        return [
            loop
            for level in self.part.mapping.levels
            if level.level in names
            for loop in level.temporal
            if loop.factor > 1
        ]

    @property
    def tiles(self) -> list[Loop]:
        """Those, and of the loops inside as many as make the least number of tiles."""
        found = self.outside
        names = {level.level for level in self.part.inner}
        inside = (
            loop
            for level in self.part.mapping.levels
            if level.level in names
            for loop in level.temporal
            if loop.factor > 1
        )
        while prod(loop.factor for loop in found) < NUM_TILES and (loop := next(inside, None)) is not None:
            found.append(loop)
        return found

    def passage(self, operand: Operand, x: Moved) -> Passage:
        """How an operand passes, as the mapping counts it; what windows are padded with is not moved."""
        main_bytes = self._bytes(self.part.outer[0].level, operand, x)
        moved_bytes = main_bytes
        if self.ports.shared is not None:
            moved_bytes = self._bytes(self._serving(operand), operand, x)
        held, is_kept = self._held(operand, x)
        outer_bytes = min(main_bytes, moved_bytes)
        outer_held = min(x.size_bytes, max(x.element_bytes, self.request.shared_bytes // _PASSING))
        if self.ports.shared is not None and outer_bytes < moved_bytes:
            shared = self._tile_bytes(self.ports.shared.name, operand, x)
            outer_held = min(x.size_bytes, max(outer_held if shared is None else shared, x.element_bytes))
        return Passage(moved_bytes, outer_bytes, held, is_kept, outer_held, is_counted=True)

    def energy_pj(self, roles: dict[str, Moved]) -> Iterator[tuple[str, float]]:
        """Energy of the levels outside the cores' buffers, and of what fills these."""
        shares = {o.name: self._share(o, roles[o.name]) for o in self.part.problem.operands}
        for level in self.part.outer:
            yield level.level, sum(shares[name] * t.energy_pj for name, t in level.tensors.items())
        innermost = self.part.inner[0]
        fills = (shares[name] * t.fill_energy_pj for name, t in innermost.tensors.items())
        yield innermost.level, sum(fills)

    def _share(self, operand: Operand, x: Moved) -> float:
        """Bytes of an operand beside its words, which count what windows are padded with."""
        return min(1.0, x.size_bytes / x.element_bytes / self.part.problem.num_words(operand))

    def _serving(self, operand: Operand) -> str:
        """The innermost level around the cores' buffers that holds an operand."""
        return next(level.level for level in reversed(self.part.outer) if operand.name in level.tensors)

    def _bytes(self, level: str, operand: Operand, x: Moved) -> int:
        """Bytes of an operand that pass between a level and the next one inside."""
        count = next(c.tensors[operand.name] for c in self.part.outer if c.level == level)
        words = count.read_words + count.updates * count.num_instances
        times = words / self.part.problem.num_words(operand)
        return max(x.size_bytes, ceil(x.size_bytes * times * (1 - 1e-12)))

    def _tile_bytes(self, level: str, operand: Operand, x: Moved) -> int | None:
        """Bytes of an operand in all instances of a level together; None where it does not lie there."""
        for count in self.part.cost.levels:
            if count.level == level and operand.name in count.tensors:
                tensor = count.tensors[operand.name]
                return tensor.tile_words * min(tensor.num_instances, self.num_cores) * x.element_bytes
        return None

    def _held(self, operand: Operand, x: Moved) -> tuple[int, bool]:
        """What an operand takes of the cores' buffers at a time, and whether that is all of it for good."""
        tile_bytes = self._tile_bytes(self.ports.local.name, operand, x)
        if tile_bytes is None:
            return 0, False
        dims = operand.dims()
        if not any(loop.dim in dims for loop in self.tiles):
            return tile_bytes, True
        parts = prod(loop.factor for loop in self.tiles[len(self.outside) :] if loop.dim in dims)
        return max(x.element_bytes, tile_bytes // max(2, parts)), False
