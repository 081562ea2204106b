"""A step whose operators are tiled jointly: what passes in its tiles, what waits on chip, what units compute.

The counts are those of the joint tiling in closed form. What a tile's share of an operator takes is what it
takes as any other step: mapped, and distributed over the cores of its kernel. Its share is the one that most
steps have; what steps at borders have more or less of counts by its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod

from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Interval, Region
from tilewright.mapping.chains.chain import Chain, ChainPart
from tilewright.mapping.chains.plan import STREAMED, ChainPlan, PartCount, count_parts
from tilewright.mapping.chains.sides import Side
from tilewright.schedule.binding import Scope
from tilewright.targets.npu.kernels import Distribution, distribution_of
from tilewright.targets.npu.pools import PoolSizes
from tilewright.targets.npu.simulated_step import Load, Store, Weight
from tilewright.targets.npu.tiles import MAX_TILES, NOTHING, PIECES, Passage, Tiling
from tilewright.targets.npu.work import Summed, UnitWork, Works

_AHEAD = 2
"""Places of what passes or is made while the last tile is still used."""
SUM_BYTES = 4
"""Of a partial sum that waits for the next one, at least: in a type as wide as sums are made in."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The part of an operator that most steps make, of a sum so many iterations, and how often all steps
    together make as much."""

    node: Node
    region: Region
    summed: Summed
    times: float


@dataclass(frozen=True, eq=False)
class JointStep:
    """A chain under a plan on so many cores of a machine, beside what else lies in their buffers."""

    works: Works
    chain: Chain
    plan: ChainPlan
    bytes_of: Callable[[Value, Region], int]
    num_cores: int
    pools: PoolSizes
    _spread: dict[Share, Distribution] = field(init=False, repr=False, default_factory=dict)

    def tiling(
        self, weights: Sequence[Weight], loads: Sequence[Load], stores: Sequence[Store], num_units: int
    ) -> Tiling:
        """How its operands pass.

        Raises:
            InfeasibleMapping: they do not fit the cores' buffers with what waits there.
        """
        chain, order, counts = self.chain, self.plan.tiling.order, self.counts
        by_value = {part.value.name: (part, count) for part, count in zip(chain.parts, counts, strict=True)}
        depths = {part.value.name: d for part, d in zip(chain.parts, self.plan.depths, strict=True)}
        trips = [len(side.intervals) for side in self.plan.tiling.sides(chain)]
        num_outer, stores_last = self.num_outer()
        num_steps = prod(trips[:num_outer])
        is_folded = num_steps < prod(trips) or num_steps > MAX_TILES
        passages: list[Passage] = []
        inside_bytes = 0
        operands = [(w.name or "", w.size_bytes, w.num_copies, Scope.MAIN) for w in weights]
        operands += [(load.value, load.size_bytes, 1, load.scope) for load in loads]
        for name, size_bytes, copies, scope in operands:
            if name not in by_value:
                raise InfeasibleMapping(f"joint tiling: {name} is no operand of the chain alone.")
            if scope is Scope.LOCAL:
                passages.append(NOTHING)
                continue
            part, count = by_value[name]
            each = size_bytes / max(1, part.num_words)
            moved = max(size_bytes, ceil(count.fresh_words * each))
            held = ceil(count.held_words * each) * copies
            if self._comes_first(part, depths[name]):
                passage = Passage(moved, moved, held, True, self._outer_bytes(size_bytes))
            else:
                box = min(held, ceil(_largest(part, order, count.fresh) * each) * copies)
                inside_bytes += held - box
                passage = Passage(moved, moved, box, False, self._outer_bytes(box))
            is_main = scope is Scope.MAIN
            passages.append(passage if is_main else replace(passage, outer_bytes=0, outer_held_bytes=0))
        for part, count in zip(chain.parts, counts, strict=True):
            if part.kind == "intermediate":
                inside_bytes += ceil(count.held_words * self._word_bytes(part))
        result, made = chain.parts[0], counts[0]
        (store,) = stores
        sums = self._is_summed
        each = max(self._word_bytes(result), store.size_bytes / max(1, result.num_words))
        held = ceil(made.held_words * (max(each, SUM_BYTES) if sums else each))
        outer_bytes = self._outer_bytes(held)
        if stores_last and store.scope is not Scope.LOCAL:
            inside_bytes, held = inside_bytes + held, 0
        if store.scope is Scope.LOCAL:  # sums are made where the result has its place
            passages.append(NOTHING)
        elif store.scope is Scope.MAIN:
            passages.append(Passage(store.size_bytes, store.size_bytes, held, False, outer_bytes))
        else:
            passages.append(Passage(store.size_bytes, 0, held, False, 0))
        steps_words = result.num_still_words(order) * prod(side.total for side in made.needed)
        again_bytes = ceil(max(0, steps_words - result.num_words) * max(each, SUM_BYTES)) if sums else 0
        first, second = len(weights), len(weights) + len(loads)
        tiling = Tiling(
            self._axis(num_outer),
            min(num_steps, MAX_TILES),
            tuple(passages[:first]),
            tuple(passages[first:second]),
            tuple(passages[second:]),
            self._told(),
            inside_bytes=inside_bytes,
            again_bytes=again_bytes,
            stores_last=stores_last,
            is_summed=sums,
        )
        self._require(tiling)
        if is_folded:
            tiling = self._if_fitting(_ahead(tiling), tiling)
        between = sum(
            ceil(_largest(part, order, count.fresh) * self._word_bytes(part))
            for part, count in zip(chain.parts, counts, strict=True)
            if part.kind == "intermediate" and part.is_held
        )
        if num_units > 1 and tiling.num_tiles > 1:
            more = replace(tiling, inside_bytes=tiling.inside_bytes + between, num_at_once=_AHEAD)
            tiling = self._if_fitting(more, tiling, _AHEAD)
        return tiling

    def unit_works(self) -> tuple[UnitWork, ...]:
        """What units compute in all steps together, operator by operator."""
        found: list[UnitWork] = []
        for share in self.shares:
            spread, times = self._distribution(share), share.times
            works = self.works.of(
                share.node, share.region, spread.binding, spread.blocks, summed=share.summed
            )
            # At borders tiles may be filled less than most are, but never better than in the whole result.
            least = self.works.at_least(share.node, self._whole(share.node), in_blocks=True)
            for work, whole in zip(works, least, strict=True):
                factor = times * (self.rounding(share) if work is works[0] else 1.0)
                seconds = max(work.seconds * factor, whole.seconds)
                products = work.products
                found.append(
                    replace(
                        work,
                        seconds=seconds,
                        macs=work.macs * times,
                        ops=work.ops * times,
                        energy_pj=work.energy_pj * times,
                        products=None
                        if products is None
                        else replace(products, share=products.share * times),
                    )
                )
        return tuple(found)

    def _whole(self, node: Node) -> Region:
        """What all steps together make of a node's result."""
        value = next(node.results())
        return next(
            (part.whole for part in self.chain.parts if part.value is value), self.chain.parts[0].whole
        )

    def num_copies(self, node: Node) -> int:
        """How many cores hold the same part of a node's weights."""
        share = next(share for share in self.shares if share.node is node)
        shape = self.works.shape(node)
        columns = frozenset() if shape is None else shape.columns
        binding = self._distribution(share).binding
        return max(1, prod(parts for axis, parts in enumerate(binding) if axis not in columns))

    def _distribution(self, share: Share) -> Distribution:
        if share not in self._spread:
            self._spread[share] = distribution_of(self.works, share.node, share.region, self.num_cores)
        return self._spread[share]

    @property
    def _is_summed(self) -> bool:
        """Whether sums are made in parts."""
        axes = self.chain.parts[0].axis_of_loop
        return any(axes[loop] is None for loop in self.plan.tiling.order)

    @cached_property
    def counts(self) -> list[PartCount]:
        """Each part under the plan."""
        return count_parts(self.chain, self.plan)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Of each operator."""
        return tuple(self._shares())

    def _shares(self) -> Iterator[Share]:
        chain, plan, counts = self.chain, self.plan, self.counts
        makers = {part.value: place for place, part in enumerate(chain.parts) if part.kind != "constant"}
        order, result = plan.tiling.order, chain.parts[0]
        for node in chain.nodes:
            place = makers.get(next(node.results()), 0)
            part, count = chain.parts[place], counts[place]
            if node is chain.anchor:
                sides = plan.tiling.sides(chain)
                lengths = [_usual(side.intervals) for side in sides]
                region = _part_of(result, order, [_usual(side.intervals) for side in count.needed])
                summed: list[tuple[str, int, int]] = []
                times = 1.0
                for loop, (start, stop) in zip(order, lengths, strict=True):
                    dim = chain.loops[loop]
                    times *= dim.extent / (stop - start)
                    if result.axis_of_loop[loop] is None:
                        summed.append((dim.name, stop - start, dim.extent))
                yield Share(node, region, tuple(summed), times)
                continue
            sides = count.fresh if place else count.needed
            region = _part_of(part, order, [_usual(side.intervals) for side in sides])
            words = prod(stop - start for start, stop in region)
            made = count.fresh_words if place else part.num_words
            yield Share(node, region, (), made / max(1, words))

    def rounding(self, share: Share) -> float:
        """What is lost where a part of a sum leaves a row of multipliers idle."""
        tile = self.works.sum_tile(share.node)
        if tile is None or not share.summed:
            return 1.0
        length = prod(part for _, part, _ in share.summed)
        return -(-length // tile) * tile / length

    def _word_bytes(self, part: ChainPart) -> float:
        return self.bytes_of(part.value, part.whole) / max(1, part.num_words)

    def _comes_first(self, part: ChainPart, depth: int) -> bool:
        """Whether all of an operand comes before the second step of the outermost loop, and then stays."""
        order = self.plan.tiling.order
        return depth == 0 and bool(order) and part.axis_of_loop[order[0]] is None

    def num_outer(self) -> tuple[int, bool]:
        """How many of the loops, from the outermost on, have steps alike, each of which brings a part of
        every operand; whether each adds to all of the result, or makes a part of it."""
        order = self.plan.tiling.order
        axes = self.chain.parts[0].axis_of_loop
        first = len(order)
        stores_last = bool(order) and axes[order[0]] is None
        for part, depth in zip(self.chain.parts, self.plan.depths, strict=True):
            if part.kind == "result":
                if stores_last:
                    continue
                depth = 0
            elif (
                depth == STREAMED
                or not part.is_held
                or (part.kind in ("constant", "input") and self._comes_first(part, depth))
            ):
                continue
            still = [p for p in range(depth, len(order)) if part.axis_of_loop[order[p]] is None]
            first = min([first, *still])
        if stores_last:  # until loops that make parts of the result begin
            first = min([first, *(p for p in range(len(order)) if axes[order[p]] is not None)])
        return first, stores_last and first > 0

    def _axis(self, num_outer: int) -> int | None:
        """The axis of the result that tiles are equal parts of, if they cut no other."""
        tiling, result = self.plan.tiling, self.chain.parts[0]
        if num_outer != 1:
            return None
        loop, tile = tiling.order[0], tiling.tiles[0]
        extent, axis = self.chain.loops[loop].extent, result.axis_of_loop[loop]
        is_equal = extent % tile == 0 and extent // tile <= MAX_TILES
        return axis if is_equal and axis is not None and result.whole[axis] == (0, extent) else None

    def _outer_bytes(self, held_bytes: int) -> int:
        """What passes the shared buffer at a time."""
        return max(1, min(held_bytes, self.pools.shared_bytes // (2 * PIECES)))

    def _told(self) -> str:
        tiling = self.plan.tiling
        loops = (
            f"{self.chain.loops[loop].name}: {tile} of {self.chain.loops[loop].extent}"
            for loop, tile in zip(tiling.order, tiling.tiles, strict=True)
        )
        return ", ".join(loops)

    def _require(self, tiling: Tiling) -> None:
        needed = needed_bytes(tiling)
        if needed > self.pools.local_bytes:
            raise InfeasibleMapping(
                f"joint tiling of {self.chain.nodes[0].name} to {self.chain.nodes[-1].name}: its tiles take "
                f"{needed} bytes of the cores' buffers, {self.pools.local_bytes} are free."
            )

    def _if_fitting(self, more: Tiling, less: Tiling, times: int = 1) -> Tiling:
        return more if needed_bytes(more, times) <= self.pools.local_bytes else less


def needed_bytes(tiling: Tiling, times: int = 1) -> int:
    """What all that passes takes of the cores' buffers, each tile that is not kept so many times."""
    passages = (*tiling.weights, *tiling.loads, *tiling.stores)
    passing = sum(p.held_bytes * (1 if p.is_kept else times) for p in passages)
    return tiling.inside_bytes + passing


def _ahead(tiling: Tiling) -> Tiling:
    """With the places of two parts of what comes: one is used, the next one arrives."""

    def ahead(passages: Sequence[Passage]) -> tuple[Passage, ...]:
        return tuple(p if p.is_kept else replace(p, held_bytes=_AHEAD * p.held_bytes) for p in passages)

    return replace(tiling, weights=ahead(tiling.weights), loads=ahead(tiling.loads))


def _usual(intervals: Sequence[Interval]) -> Interval:
    """Of intervals that are not empty one with the length that most have; of as many, the longest."""
    found: dict[int, list[Interval]] = {}
    for start, stop in intervals:
        if start < stop:
            found.setdefault(stop - start, []).append((start, stop))
    if not found:
        return (0, 1)
    return max(found.items(), key=lambda item: (len(item[1]), item[0]))[1][0]


def _part_of(part: ChainPart, order: Sequence[int], intervals: Sequence[Interval]) -> Region:
    region = list(part.whole)
    for loop, interval in zip(order, intervals, strict=True):
        axis = part.axis_of_loop[loop]
        if axis is not None:
            region[axis] = interval
    return tuple(region)


def _largest(part: ChainPart, order: tuple[int, ...], sides: Sequence[Side]) -> int:
    """The most words of it that any step has."""
    return part.num_still_words(order) * prod(side.rows for side in sides)
