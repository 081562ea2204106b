"""The nested tiling of a run that moves least past the outermost level, by dynamic programming over trees.

For operators, what a step has of every axis and which operands come from outside, a front says how many
words move for each number of words on chip. That of several operators is the best of all loops that they
share, of what stays on chip for these, and of all ways to cut the operators into trees that follow each
other in a step; each shape of a step has its own. That of one operator is known in closed form.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import inf, prod
from typing import NamedTuple

from tilewright.mapping.chains.leaves import Lengths, leaf_ways
from tilewright.mapping.chains.nested import Axis, NestedCount, Shape, StraightRun, Tree
from tilewright.mapping.chains.sides import Side, side_of
from tilewright.mapping.chains.tables import tile_sizes
from tilewright.mapping.factors import quotients
from tilewright.progress import checkpoint

_ALL_QUOTIENTS_UP_TO = 64  # of an axis: of longer ones the tiles of `tile_sizes`

Pairs = tuple[tuple[int, int], ...]
"""For each operator of a tree the elements along an axis that it makes, and those that it needs for these."""
Entry = tuple[Pairs, bool]
"""Those of an axis, and whether it may still be tiled: one along which windows slide is tiled once."""
Box = tuple[tuple[int, Entry], ...]
"""What a step has of each axis that its operators have, by the axis's place."""


@dataclass(frozen=True, slots=True)
class NestedRanking:
    """The best tree, and what it moves and holds; none where nothing fits. `is_whole` where no tree of the
    tiles that are searched moves less."""

    tree: Tree | None
    count: NestedCount | None
    is_whole: bool
    num_tilings: int


class _Way(NamedTuple):
    """Loops of a tree, what stays for them, what is on chip beside each of the trees in a step, and these:
    for each shape of a step its boxes."""

    loops: tuple[tuple[int, int], ...]
    held: tuple[tuple[str, int], ...]
    reserved: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    passing: frozenset[str]
    shapes: tuple[tuple[Box, int], ...]


class _Front:
    """Ways of which none both holds and moves as little as another one, by the words that they hold."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.moved: list[int] = []
        self.ways: list[_Way | Tree] = []

    def least(self, held: int) -> float:
        """What moves at least with so many words on chip."""
        place = bisect_right(self.held, held) - 1
        return inf if place < 0 else self.moved[place]

    def add(self, held: int, moved: int, way: _Way | Tree) -> None:
        """Take a way, and drop those that it makes useless."""
        place = bisect_right(self.held, held)
        if place and self.moved[place - 1] <= moved:
            return
        if place and self.held[place - 1] == held:
            place -= 1
        stop = place
        while stop < len(self.held) and self.moved[stop] >= moved:
            stop += 1
        self.held[place:stop] = [held]
        self.moved[place:stop] = [moved]
        self.ways[place:stop] = [way]


class _OutOfTime(Exception):
    pass


def best_tree(
    run: StraightRun, capacity_words: int, deadline_s: float = 10.0, *, keeps_weights: bool = True
) -> NestedRanking:
    """The tree that moves least; of equal ones one that holds least. Weights that are not kept pass word by
    word."""
    search = _Search(run, capacity_words - run.extra_words, keeps_weights, time.monotonic() + deadline_s)
    last = len(run.operators) - 1
    box = search.whole_box()
    outside = frozenset(run.operands(0, last))
    try:
        front = search.front(0, last, box, outside)
    except _OutOfTime:
        return NestedRanking(None, None, False, search.num_tilings)
    if not front.held:
        return NestedRanking(None, None, True, search.num_tilings)
    held, moved = front.held[-1], front.moved[-1]
    tree = search.tree(0, last, box, outside, held)
    count = NestedCount(moved + run.extra_words, held + run.extra_words)
    return NestedRanking(tree, count, True, search.num_tilings)


class _Step(NamedTuple):
    """The steps of a loop of an axis in one tile: their shapes, with how many have each, and sides."""

    shapes: tuple[tuple[Pairs, int], ...]
    needs: dict[int, Side]
    made: Side | None


class _Search:
    """Fronts by operators, box and operands from outside."""

    def __init__(self, run: StraightRun, capacity_words: int, keeps_weights: bool, end_s: float) -> None:
        self.run, self.capacity_words, self.end_s = run, capacity_words, end_s
        self.keeps_weights = keeps_weights
        self.num_tilings = 0
        self._fronts: dict[tuple[int, int, Box, frozenset[str]], _Front] = {}
        self._steps: dict[tuple[object, ...], _Step] = {}
        self._whole = [_wholes(axis) for axis in run.axes]

    def whole_box(self) -> Box:
        """Everything that the run needs."""
        last = len(self.run.operators) - 1
        entries = []
        for place in range(len(self.run.axes)):
            pairs = tuple(
                (self._whole_length(place, k + 1), self._whole_length(place, k)) for k in range(last + 1)
            )
            entries.append((place, (pairs, True)))
        return tuple(entries)

    def _whole_length(self, place: int, value: int) -> int:
        axis = self.run.axes[place]
        if not axis.first <= value <= axis.last:
            return 1
        start, stop = self._whole[place][value - axis.first]
        return stop - start

    def front(self, first: int, last: int, box: Box, outside: frozenset[str]) -> _Front:
        """The ways of some operators."""
        key = first, last, box, outside
        if key not in self._fronts:
            if first == last:
                self._fronts[key] = self._leaf(first, box, outside)
            else:
                self._fronts[key] = self._group(first, last, box, outside)
        return self._fronts[key]

    def _leaf(self, place: int, box: Box, outside: frozenset[str]) -> _Front:
        operator = self.run.operators[place]
        by_axis = {number: entry[0][0] for number, entry in box}
        front = _Front()
        lengths = Lengths.of(operator, place, self.run.axes, by_axis)
        names = {"x": f"x{place}", "w": f"w{place}", "y": f"y{place}"}
        names |= {"x": "x"} if place == 0 else {}
        names |= {"y": "y"} if place == len(self.run.operators) - 1 else {}
        for way in leaf_ways(lengths, {kind: name in outside for kind, name in names.items()}):
            if way.held <= self.capacity_words and (self.keeps_weights or "w" not in dict(way.depths)):
                held = tuple((names[kind], depth) for kind, depth in way.depths)
                streamed = None if way.streamed is None else names[way.streamed]
                front.add(way.held, way.moved, Tree(place, place, way.loops, held, streamed))
        return front

    def _group(self, first: int, last: int, box: Box, outside: frozenset[str]) -> _Front:
        front = _Front()
        common = [
            number
            for number, (_, is_open) in box
            if is_open and all(number in self.run.operators[k].axes for k in range(first, last + 1))
        ]
        entries = dict(box)
        tiles = [self._tiles(number, last, entries[number]) for number in common]
        for chosen in product(*tiles):
            checkpoint()
            if time.monotonic() > self.end_s:
                raise _OutOfTime
            active = [(number, tile) for number, tile in zip(common, chosen, strict=True) if tile is not None]
            seen = set()
            for loops in permutations(active):
                nest = _Nest(self, first, last, entries, tuple(loops), outside)
                if nest.signature in seen:
                    continue
                seen.add(nest.signature)
                self.num_tilings += 1
                nest.add_ways(front)
        return front

    def _tiles(self, number: int, last: int, entry: Entry) -> list[int | None]:
        """Tiles of an axis, the largest first; None where it is not tiled."""
        extent = self._tiled_length(number, last, entry)
        sizes = quotients(extent) if extent <= _ALL_QUOTIENTS_UP_TO else tile_sizes(extent)
        return [None, *sorted((size for size in sizes if size < extent), reverse=True)]

    def _tiled_length(self, number: int, last: int, entry: Entry) -> int:
        made, needed = entry[0][-1]
        return made if self.run.axes[number].last > last else needed

    def steps(self, number: int, first: int, last: int, entry: Entry, tile: int) -> _Step:
        """What the steps of a loop have of its axis."""
        axis = self.run.axes[number]
        key = (number, first, last, tile, self._tiled_length(number, last, entry) if not axis.slides else 0)
        if key not in self._steps:
            self._steps[key] = self._walked(axis, number, first, last, entry, tile)
        return self._steps[key]

    def _walked(self, axis: Axis, number: int, first: int, last: int, entry: Entry, tile: int) -> _Step:
        start, stop = 0, self._tiled_length(number, last, entry)
        value = last + 1 if axis.last > last else last
        if axis.slides:
            start, stop = self._whole[number][value - axis.first]
        side = side_of(tuple((at, min(at + tile, stop)) for at in range(start, stop, tile)))
        made = side if value > last else None
        needs: dict[int, Side] = {} if value > last else {value: side}
        made_by: dict[int, Side] = {} if made is None else {last: side}
        for value in range(last, max(first, axis.first) - 1, -1):
            if value not in needs:
                reach = axis.reaches[value - axis.first]
                needs[value] = side if reach is None else reach.of(side)
            if value > first:
                side = made_by[value - 1] = needs[value].fresh
        ones = [(0, 1)] * len(side.intervals)
        columns = [
            (
                made_by[k].intervals if k in made_by else ones,
                needs[k].intervals if k in needs else ones,
            )
            for k in range(first, last + 1)
        ]
        shapes = Counter(
            tuple((of[at][1] - of[at][0], by[at][1] - by[at][0]) for of, by in columns)
            for at in range(len(ones))
        )
        return _Step(tuple(shapes.items()), needs, made)

    def tree(self, first: int, last: int, box: Box, outside: frozenset[str], held: int) -> Tree:
        """The best tree with so many words on chip."""
        front = self.front(first, last, box, outside)
        way = front.ways[bisect_right(front.held, held) - 1]
        if isinstance(way, Tree):
            return way
        steps = []
        for shape, _ in way.shapes:
            trees = tuple(
                self.tree(
                    a,
                    b,
                    part_of(shape, first, a, b, self.run),
                    way.passing & _named(self.run, a, b),
                    held - reserved,
                )
                for (a, b), reserved in zip(way.parts, way.reserved, strict=True)
            )
            steps.append((self._iterations(first, last, dict(shape)), trees))
        loops = tuple((self.run.axes[number].dims[last], tile) for number, tile in way.loops)
        return Tree(first, last, loops, way.held, None, tuple(steps))

    def _iterations(self, first: int, last: int, entries: Mapping[int, Entry]) -> Shape:
        """What a step has of every dim of its operators; nothing of one that makes nothing."""
        listed: list[int] = []
        for place in range(first, last + 1):
            operator = self.run.operators[place]
            lengths = dict(operator.windows)
            for number in operator.axes:
                made, needed = entries[number][0][place - first]
                name = self.run.axes[number].dims[place]
                lengths[name] = made if number in operator.outputs else needed
            sizes = [lengths.get(dim.name, 1) for dim in operator.nest.dims]
            listed += sizes if all(sizes) else [0] * len(sizes)
        return tuple(listed)


def _named(run: StraightRun, first: int, last: int) -> frozenset[str]:
    return frozenset(run.operands(first, last))


def part_of(box: Box, first: int, start: int, stop: int, run: StraightRun) -> Box:
    """What operators `start` to `stop` have of a box of those from `first` on."""
    axes = {number for k in range(start, stop + 1) for number in run.operators[k].axes}
    return tuple(
        (number, (pairs[start - first : stop - first + 1], is_open))
        for number, (pairs, is_open) in box
        if number in axes
    )


def _wholes(axis: Axis) -> list[tuple[int, int]]:
    """What is needed of an axis of each value, where all of the last one is made."""
    wholes = [(0, axis.extents[-1])]
    for reach in reversed(axis.reaches):
        (needed,) = (side_of((wholes[0],)) if reach is None else reach.of(side_of((wholes[0],)))).intervals
        wholes.insert(0, needed)
    return wholes


class _Sides(NamedTuple):
    """Of an operand along one loop: see `Side`. `fresh` is the total where it is retained."""

    rows: int
    total: int
    span: int
    kept: int
    fresh: int


class _Nest:
    """Loops that operators share in one order, with tiles."""

    def __init__(
        self,
        search: _Search,
        first: int,
        last: int,
        entries: Mapping[int, Entry],
        loops: tuple[tuple[int, int], ...],
        outside: frozenset[str],
    ) -> None:
        self.search, self.run = search, search.run
        self.first, self.last, self.entries = first, last, entries
        self.loops = loops
        self.outside = tuple(name for name in self.run.operands(first, last) if name in outside)
        self.steps = [search.steps(number, first, last, entries[number], tile) for number, tile in loops]
        self.options = [self._options(name) for name in self.outside]
        self.between = [self._held(*self._between(value), 0) for value in range(first + 1, last + 1)]
        self.boxes = [self._held(*self._between(value), len(loops)) for value in range(first + 1, last + 1)]
        self.overlapping = {
            value
            for value in range(first + 1, last + 1)
            if any(value in step.needs and step.needs[value].kept for step in self.steps)
        }
        self.signature = tuple(map(tuple, self.options)), tuple(self.between)

    def _between(self, value: int) -> tuple[int, list[_Sides]]:
        axes = self.run.operators[value].inputs
        return self._still(axes, value, 1), [
            _numbers(step.needs[value]) if number in axes else _still(step)
            for (number, _), step in zip(self.loops, self.steps, strict=True)
        ]

    def _still(self, axes: frozenset[int], place: int, which: int) -> int:
        """Elements of axes that no loop moves: `which` is 0 of what an operator makes, 1 of what it needs."""
        moving = {number for number, _ in self.loops}
        return prod(self.entries[a][0][place - self.first][which] for a in axes - moving)

    def _sides(self, name: str) -> tuple[int, list[_Sides]]:
        """Of an operand from outside: its elements along axes without a loop, and those of each loop."""
        steps = list(zip(self.loops, self.steps, strict=True))
        if name == "x":
            axes = self.run.operators[self.first].inputs
            sides = [_numbers(s.needs[self.first]) if n in axes else _still(s) for (n, _), s in steps]
            return self._still(axes, self.first, 1), sides
        if name == "y":
            axes = self.run.operators[self.last].outputs
            sides = [
                _numbers(s.made) if n in axes and s.made is not None else _still(s) for (n, _), s in steps
            ]
            return self._still(axes, self.last, 0), sides
        place = int(name[1:])
        operator = self.run.operators[place]
        still = prod(extent for _, extent in operator.windows)
        moving = {number for number, _ in self.loops}
        for number in operator.weights - moving:
            made, needed = self.entries[number][0][place - self.first]
            still *= made if number in operator.outputs else needed
        sides = []
        for (number, _), step in steps:
            if number in operator.weights:
                sides.append(_numbers(_side_of_weights(step, place, self.last, number in operator.outputs)))
            else:
                sides.append(_still(step))
        return still, sides

    def _held(self, still: int, sides: Sequence[_Sides], depth: int) -> int:
        held = span = still
        for position in range(len(sides) - 1, -1, -1):
            side = sides[position]
            held = side.rows * held + (side.kept * (span - held) if position >= depth else 0)
            span *= side.span
        return held

    def _options(self, name: str) -> list[tuple[int, int, int]]:
        """(Depth, words held, words moved) of an operand: first where it passes into the steps, then where
        fewer words move as it stays, from the innermost loop on for which this is so."""
        still, sides = self._sides(name)
        listed: list[tuple[int, int, int]] = []
        for depth in range(len(self.loops), -1, -1):
            moved = still * prod(
                side.fresh if position >= depth else side.total for position, side in enumerate(sides)
            )
            if name == "y":
                fewest = still * prod(side.fresh for side in sides)
                moved = 2 * moved - fewest  # partial sums are read again, but for the first
            if depth == len(self.loops):
                listed.append((depth, 0, moved))
            elif moved < listed[-1][2] and (self.search.keeps_weights or not name.startswith("w")):
                held = self._held(still, sides, depth)
                if held <= self.search.capacity_words:
                    listed.append((depth, held, moved))
        return listed

    def add_ways(self, front: _Front) -> None:
        """Note all ways that have these loops."""
        capacity, num_loops = self.search.capacity_words, len(self.loops)
        shapes = self._shapes()
        cuts = list(self._cuts())
        for chosen in product(*self.options):
            held = sum(option[1] for option in chosen)
            moved = sum(option[2] for option in chosen)
            if held + min(cut[2] for cut in cuts) > min(capacity, _least_for(front, moved)):
                continue
            passing = frozenset(
                name for name, option in zip(self.outside, chosen, strict=True) if option[0] == num_loops
            )
            fixed = sum(option[2] for option in chosen if option[0] < num_loops)
            again = 0
            for name, option in zip(self.outside, chosen, strict=True):
                if name == "y" and option[0] == num_loops:
                    still, sides = self._sides(name)
                    again = option[2] - still * prod(side.total for side in sides)
            stays = tuple(
                (name, option[0])
                for name, option in zip(self.outside, chosen, strict=True)
                if option[0] < num_loops
            )
            for parts, reserved, _ in cuts:
                self._add(
                    front,
                    _Way(self.loops, stays, tuple(held + r for r in reserved), parts, passing, shapes),
                    fixed + again,
                )

    def _add(self, front: _Front, way: _Way, fixed: int) -> None:
        """Note a way with each number of words that its parts may hold."""
        run, capacity = self.run, self.search.capacity_words
        fronts: list[tuple[_Front, int, int]] = []
        for shape, count in way.shapes:
            for (a, b), reserved in zip(way.parts, way.reserved, strict=True):
                if reserved >= capacity:
                    return
                inner = self.search.front(
                    a, b, part_of(shape, self.first, a, b, run), way.passing & _named(run, a, b)
                )
                if not inner.held:
                    return
                fronts.append((inner, reserved, count))
        least = max(inner.held[0] + reserved for inner, reserved, _ in fronts)
        most = fixed + sum(inner.moved[-1] * count for inner, _, count in fronts)
        if least > capacity or front.least(least) <= most:
            return
        thresholds = sorted(
            {h + r for inner, r, _ in fronts for h in inner.held if least <= h + r <= capacity}
        )
        best = front.least(least)
        for threshold in thresholds:
            moved = fixed
            for inner, reserved, count in fronts:
                moved += inner.moved[bisect_right(inner.held, threshold - reserved) - 1] * count
            if moved < best:
                front.add(threshold, moved, way)
                best = moved

    def _shapes(self) -> tuple[tuple[Box, int], ...]:
        """The boxes of steps, with how many have each."""
        by_loop = [step.shapes for step in self.steps]
        places = [number for number, _ in self.loops]
        listed = []
        for chosen in product(*by_loop):
            entries = dict(self.entries)
            for number, (pairs, _) in zip(places, chosen, strict=True):
                entries[number] = pairs, not self.run.axes[number].slides
            listed.append((tuple(entries.items()), prod(count for _, count in chosen)))
        return tuple(listed)

    def _cuts(self) -> Iterator[tuple[tuple[tuple[int, int], ...], tuple[int, ...], int]]:
        """(Operators that are a tree in a step, one after another; the words on chip beside each; at most).

        Of a value that a step needs again in part all that is needed again waits between two of them.
        """
        num = self.last - self.first
        for bits in range(1, 1 << num):
            ends = [self.first + k for k in range(num) if bits >> k & 1]
            parts, start = [], self.first
            for end in (*ends, self.last):
                parts.append((start, end))
                start = end + 1
            kept = {v: self.between[v - self.first - 1] for v in (end + 1 for end in ends)}
            if not self.overlapping <= kept.keys():
                continue
            reserved = []
            for a, b in parts:
                beside = 0
                for value, words in kept.items():
                    box = self.boxes[value - self.first - 1]
                    beside += words if value in (a, b + 1) or words > box else 0
                reserved.append(beside)
            yield tuple(parts), tuple(reserved), max(reserved)


def _least_for(front: _Front, moved: int) -> float:
    """Words with which the front moves no more than so many."""
    low, high = 0, len(front.held)
    while low < high:
        middle = (low + high) // 2
        if front.moved[middle] <= moved:
            high = middle
        else:
            low = middle + 1
    return front.held[low] if low < len(front.held) else inf


def _numbers(side: Side) -> _Sides:
    return _Sides(side.rows, side.total, side.span, side.kept, side.fresh.total)


def _still(step: _Step) -> _Sides:
    num = sum(count for _, count in step.shapes)
    return _Sides(1, num, 1, 1, 1)


def _side_of_weights(step: _Step, place: int, last: int, is_made: bool) -> Side:
    """What steps need of weights along an axis that moves them: no window slides along it."""
    if is_made:
        return step.made if place == last and step.made is not None else step.needs[place + 1]
    return step.needs[place]
