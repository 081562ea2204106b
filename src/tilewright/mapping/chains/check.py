"""Independent check of joint tilings: every step is walked, with the boxes that it touches.

Shares no code with the search and its counts in closed form. What a step needs follows from the nests by the
region functions of operators; which elements are there already is noted element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, product
from math import inf, isclose

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.graph import Node
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.region import Region, access_region, hull, volume
from tilewright.mapping.chains.chain import Chain, ChainPart
from tilewright.mapping.chains.plan import STREAMED, ChainCount, ChainPlan, count_parts
from tilewright.planning import Quality, Violation

Step = tuple[int, ...]
Boxes = Sequence[Region | None]
USUAL_WORDS = 1 << 25
"""Words that steps touch, all together, of tilings that are checked unasked."""


class TooLong(Exception):
    """A tiling has more steps, or larger ones, than are walked."""


def check_plan(
    chain: Chain, plan: ChainPlan, count: ChainCount, capacity_words: int, max_words: float = inf
) -> tuple[Violation, ...]:
    """What is wrong with a plan and what is said of it; nothing, if it is right.

    Where a value is read by several operators, its box is that of all of them, loop by loop, and a plan may
    say more than a walk counts.

    Raises:
        TooLong: steps touch more than `max_words` words.
    """
    walk = Walk(chain, plan, max_words)
    violations = [
        Violation("held", f"{part.value.name} has {live} words on chip, {held} were kept for it")
        for part, live, held in zip(chain.parts, walk.live, count.held_by_part, strict=True)
        if live > held
    ]
    is_exact = all(len(part.readers) < 2 for part in chain.parts)
    for name, counted, said in (
        ("read", walk.read_words, count.read_words),
        ("written", walk.written_words, count.written_words),
        ("macs", walk.num_macs, count.num_macs),
    ):
        if counted > said or (counted < said and is_exact):
            violations.append(Violation(name, f"{counted} were counted, the plan says {said}"))
    if count.held_words > capacity_words:
        violations.append(Violation("capacity", f"{count.held_words} words of {capacity_words}"))
    return tuple(violations)


def check_cuts(
    nodes: Sequence[Node], segments: Sequence[Sequence[Node]], values: Sequence[float], quality: Quality
) -> tuple[Violation, ...]:
    """What is wrong with how a chain is cut, and with what is said of all segments together: `values` are
    what each of them takes."""
    found = []
    if [id(node) for segment in segments for node in segment] != [id(node) for node in nodes]:
        found.append(Violation("cover", f"{len(segments)} segments do not hold each node once"))
    value = sum(values)
    if not isclose(value, quality.cost, rel_tol=1e-9):
        found.append(Violation("cost", f"{quality.cost:g} {quality.unit} stated, segments take {value:g}"))
    for bound in quality.bounds:
        if bound.is_proven and bound.is_violated(value):
            found.append(Violation("bound", f"bound {bound.value:g} lies above the cost {value:g}"))
    return tuple(found)


def tiling_fault(chain: Chain, plan: ChainPlan) -> str:
    """Why a plan is no joint tiling of a chain; empty if it is one."""
    order, tiles = plan.tiling.order, plan.tiling.tiles
    if len(set(order)) != len(order) or not all(0 <= loop < len(chain.loops) for loop in order):
        return f"{order} are no loops of {len(chain.loops)}"
    if len(tiles) != len(order) or not all(
        1 <= tile <= chain.loops[loop].extent for loop, tile in zip(order, tiles, strict=True)
    ):
        return f"tiles {tiles} do not fit loops {order}"
    if len(plan.depths) != len(chain.parts) or not all(
        STREAMED <= depth <= len(order) for depth in plan.depths
    ):
        return f"depths {plan.depths} of {len(chain.parts)} values and {len(order)} loops"
    for part, count in zip(chain.parts, count_parts(chain, plan), strict=True):
        if part.leaves and part.kind == "intermediate" and count.fresh_words != part.num_words:
            return f"{part.value.name!r} leaves, and is made again"
    sums = [loop for loop in order if chain.loops[loop].role == "reduce"]
    if sums and chain.nest.finish is not None:
        return f"{chain.anchor.name!r} finishes its sums, which are in parts"
    return ""


class Walk:
    """Everything that happens in the steps of a plan. `live` is what lies of each part on chip at most,
    `words` what all steps together make of it, or fetch.

    Raises:
        TooLong: steps touch more than `max_words` words.
    """

    def __init__(self, chain: Chain, plan: ChainPlan, max_words: float) -> None:
        self.chain, self.plan = chain, plan
        self.left_words = max_words
        self.maps = RegionMaps()
        extents = [chain.loops[i].extent for i in plan.tiling.order]
        tiles = plan.tiling.tiles
        numbers = [range(-(-extent // tile)) for extent, tile in zip(extents, tiles, strict=True)]
        self._spend(np.prod([len(n) for n in numbers], dtype=float) * len(chain.parts))
        self.steps: list[Step] = list(product(*numbers))
        self.fresh: list[Boxes] = []
        self.live: list[int] = []
        self.words: list[int] = []
        self.read_words, self.num_macs = 0, chain.nest.num_iterations
        self._needs_of_anchor: dict[int, Boxes] = {}
        self._walk_anchor()
        for part, depth in zip(chain.parts[1:], plan.depths[1:], strict=True):
            self._add(part, depth)

    def _spend(self, num_words: float) -> None:
        self.left_words -= num_words
        if self.left_words < 0:
            raise TooLong

    def _walk_anchor(self) -> None:
        """What the anchor reads in each step, and what it writes; of a sum what is whole after the step."""
        nest, order, tiles = self.chain.nest, self.plan.tiling.order, self.plan.tiling.tiles
        loops = [self.chain.loops[i] for i in order]
        written: list[Region | None] = []
        needs: dict[int, list[Region | None]] = {
            a.operand.position: [None] * len(self.steps) for a in nest.reads if a.operand.kind == "input"
        }
        for at, step in enumerate(self.steps):
            iterations = {dim.name: (0, dim.extent) for dim in nest.dims}
            for place, loop, tile in zip(step, loops, tiles, strict=True):
                iterations[loop.name] = place * tile, min((place + 1) * tile, loop.extent)
            written.append(access_region(nest.write, iterations))
            for access in nest.reads:
                if access.operand.kind == "input":
                    position = access.operand.position
                    region = access_region(access, iterations)
                    needs[position][at] = _together(needs[position][at], region)
        self._needs_of_anchor = dict(needs)
        backwards = Seen(written[::-1], self._spend)
        self.fresh.append([box for box, _ in backwards.new][::-1])
        self.written_words = sum(count for _, count in backwards.new)
        self.words.append(self.written_words)
        self.live.append(Seen(written, self._spend).most_live)

    def _add(self, part: ChainPart, depth: int) -> None:
        needed = [self._needed(part, at) for at in range(len(self.steps))]
        if depth == STREAMED or not part.is_held:
            fresh: list[tuple[Region | None, int]] = [(box, _words(box)) for box in needed]
            self._spend(sum(count for _, count in fresh))
            self.live.append(int(depth == STREAMED))
        else:
            fresh, most_live = [], 0
            for _, group in groupby(range(len(self.steps)), lambda at: self.steps[at][:depth]):
                seen = Seen([needed[at] for at in group], self._spend)
                fresh += seen.new
                most_live = max(most_live, seen.most_live)
            self.live.append(most_live)
        self.fresh.append([box for box, _ in fresh])
        num_fresh = sum(count for _, count in fresh)
        self.words.append(num_fresh)
        self.num_macs += part.macs_per_word * num_fresh
        if part.kind in ("input", "constant"):
            self.read_words += num_fresh
        elif part.leaves:
            self.written_words += num_fresh

    def _needed(self, part: ChainPart, at: int) -> Region | None:
        """The box of what a step needs of a part, by all that read it."""
        needed: Region | None = None
        for reader in part.readers:
            if reader.node is self.chain.anchor:
                need = self._needs_of_anchor.get(reader.position, [None] * len(self.steps))[at]
            else:
                made = self.fresh[reader.part][at]
                need = None if made is None else self.maps.inputs_of(reader.node, 0, made)[reader.position]
            needed = _together(needed, need)
        return needed


class Seen:
    """Boxes of steps one after another, all of which stay: what each has that none before it had, as a box
    and a number of elements, and the most that lies there between its first and its last use."""

    def __init__(self, boxes: Boxes, spend: Callable[[float], None]) -> None:
        self.new: list[tuple[Region | None, int]] = []
        solid = [box for box in boxes if box is not None and volume(box)]
        if len(solid) < 2:
            self.new = [(box, _words(box)) if box in solid else (None, 0) for box in boxes]
            self.most_live = sum(map(volume, solid))
            self._live = self._alone = np.array([count for _, count in self.new])
            return
        whole = hull(*solid)
        shape = tuple(stop - start for start, stop in whole)
        spend(volume(whole) + sum(map(volume, solid)))
        first: NDArray[np.int64] = np.full(shape, -1)
        last: NDArray[np.int64] = np.full(shape, -1)
        for at, box in enumerate(boxes):
            if box is None or not volume(box):
                self.new.append((None, 0))
                continue
            place = tuple(slice(a - w, b - w) for (a, b), (w, _) in zip(box, whole, strict=True))
            there = first[place]
            is_new = there < 0
            there[is_new] = at
            last[place] = at
            self.new.append(_box_of(is_new, box))
        used = first >= 0
        come = np.bincount(first[used], minlength=len(boxes) + 1)
        gone = np.bincount(last[used] + 1, minlength=len(boxes) + 1)
        self._live = np.cumsum(come - gone)
        # Without what only one step has: it comes and goes within that.
        only = used & (first == last)
        self._alone = np.bincount(first[only], minlength=len(boxes) + 1)
        self.most_live = int(self._live.max())

    def live_at(self, step: int, is_in_use: bool) -> int:
        """What lies there in a step, while it is made or used, or what stays beside that for other steps."""
        return int(self._live[step] - (0 if is_in_use else self._alone[step]))


def _box_of(is_there: NDArray[np.bool_], box: Region) -> tuple[Region | None, int]:
    """The box around some elements of another one, and their number."""
    count = int(np.count_nonzero(is_there))
    if count in (0, is_there.size):
        return (box if count else None), count
    sides = []
    for axis, (start, _) in enumerate(box):
        others = tuple(i for i in range(is_there.ndim) if i != axis)
        hits = np.flatnonzero(is_there.any(axis=others))
        sides.append((start + int(hits[0]), start + int(hits[-1]) + 1))
    return tuple(sides), count


def _together(a: Region | None, b: Region | None) -> Region | None:
    if a is None or b is None:
        return b if a is None else a
    return hull(a, b)


def _words(box: Region | None) -> int:
    return 0 if box is None else volume(box)
