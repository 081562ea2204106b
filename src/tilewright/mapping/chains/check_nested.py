"""Independent check of nested tilings: every step of every tree is walked, with the boxes that it touches.

Shares no code with the search. What a step needs follows from the nests; which elements are there already is
noted element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, product
from math import inf

import numpy as np

from tilewright.ir.nest import Access, Dim
from tilewright.ir.region import Interval, Region, access_region, dim_intervals, volume
from tilewright.mapping.chains.check import Seen, TooLong
from tilewright.mapping.chains.nested import NestedCount, StraightRun, Tree
from tilewright.planning import Violation

Iterations = Mapping[str, Interval]
"""What a step runs of each dim of a nest; empty where it runs nothing."""


def check_tree(
    run: StraightRun, tree: Tree, count: NestedCount, capacity_words: int, max_words: float = inf
) -> tuple[Violation, ...]:
    """What is wrong with a tree of all operators of a run and what is said of it; nothing, if it is right.

    Raises:
        TooLong: steps touch more than `max_words` words.
    """
    walk = _Walk(run, max_words)
    last = run.operators[-1].nest
    held = walk.held_by(tree, {dim.name: (0, dim.extent) for dim in last.dims}, run.operands(0, tree.last))
    found = []
    moved = walk.moved_words + run.extra_words
    if moved != count.moved_words:
        found.append(Violation("moved", f"{moved} were counted, the tree says {count.moved_words}"))
    if held + run.extra_words > count.held_words:
        found.append(
            Violation("held", f"{held + run.extra_words} words lie on chip, {count.held_words} were kept")
        )
    if count.held_words > capacity_words:
        found.append(Violation("capacity", f"{count.held_words} words of {capacity_words}"))
    found += [Violation("missing", text) for text in sorted(walk.missing)]
    for place, (done, asked) in enumerate(zip(walk.iterations, walk.needed_iterations(), strict=True)):
        if done != asked:
            found.append(Violation("macs", f"operator {place} runs {done} iterations of {asked}"))
    return tuple(found)


class _Walk:
    """What trees do, one after another. `iterations` are those that each operator has run."""

    def __init__(self, run: StraightRun, max_words: float) -> None:
        self.run, self.left_words = run, max_words
        self.moved_words = 0
        self.missing: set[str] = set()
        self.iterations = [0] * len(run.operators)
        written = run.operators[-1].nest.write
        self.has_left = np.zeros(written.operand.shape, np.bool_)

    def spend(self, num_words: float) -> None:
        """Count words that a step touches.

        Raises:
            TooLong: there are too many.
        """
        self.left_words -= num_words
        if self.left_words < 0:
            raise TooLong

    def needed_iterations(self) -> list[int]:
        """Of each operator, where each makes once what the next one needs."""
        listed: list[int] = []
        whole: Iterations = {dim.name: (0, dim.extent) for dim in self.run.operators[-1].nest.dims}
        for place in range(len(self.run.operators) - 1, -1, -1):
            listed.insert(0, _size(whole))
            if place:
                whole = self._maker(place - 1, access_region(self._read(place), whole))
        return listed

    def held_by(self, tree: Tree, iterations: Iterations, passing: Sequence[str]) -> int:
        """Run a tree; the words that lie on chip for it at most. `passing` are operands that it fetches."""
        steps = list(_steps(tree, iterations))
        prefixes = [step for step, _ in steps]
        by_operator, between = self._made(tree, [its for _, its in steps])
        held, depths = 0, dict(tree.held)
        for name in passing:
            boxes = [self._box(name, its) for its in by_operator[_owner(name, tree)]]
            if name in depths:
                held += self._hold(name, boxes, prefixes, depths[name])
            elif name == tree.streamed:
                held += 1
                for box in boxes:
                    self._move(name, box)
        rest = [name for name in passing if name not in depths and name != tree.streamed]
        if tree.first == tree.last:
            num_iterations = sum(map(_size, by_operator[tree.first]))
            if num_iterations:
                self.missing.update(f"no tile has {name}" for name in rest)
            self.iterations[tree.first] += num_iterations
            return held
        most = 0
        inner = dict(tree.steps)
        for at in range(len(steps)):
            shape = tuple(
                stop - start
                for k in range(tree.first, tree.last + 1)
                for start, stop in _intervals(by_operator[k][at], self.run.operators[k].nest.dims)
            )
            parts = inner.get(shape, ())
            if not parts and any(shape):
                self.missing.add(f"a step of operators {tree.first} to {tree.last} has no trees")
            for part in parts:
                ours = self.run.operands(part.first, part.last)
                lying = self.held_by(part, by_operator[part.last][at], [n for n in rest if n in ours])
                lying += sum(
                    seen.live_at(at, value in (part.first, part.last + 1))
                    for value, seen in between.items()
                    if any(value == other.first for other in parts)
                )
                most = max(most, lying)
        return held + most

    def _made(
        self, tree: Tree, iterations: list[Iterations]
    ) -> tuple[dict[int, list[Iterations]], dict[int, Seen]]:
        """What each operator runs in each step; between them what is made once and stays while needed."""
        by_operator = {tree.last: iterations}
        between: dict[int, Seen] = {}
        for place in range(tree.last, tree.first, -1):
            boxes = [self._box_of(self._read(place), its) for its in by_operator[place]]
            between[place] = seen = Seen(boxes, self.spend)
            by_operator[place - 1] = [self._maker(place - 1, box) for box, _ in seen.new]
        return by_operator, between

    def _read(self, place: int) -> Access:
        operator = self.run.operators[place]
        return next(a for a in operator.nest.reads if a.operand.key == ("input", operator.position))

    def _maker(self, place: int, region: Region | None) -> Iterations:
        nest = self.run.operators[place].nest
        return {} if region is None else dim_intervals(nest, region) or {}

    def _box(self, name: str, iterations: Iterations) -> Region | None:
        operators = self.run.operators
        if name == "x":
            return self._box_of(self._read(0), iterations)
        if name == "y":
            return self._box_of(operators[-1].nest.write, iterations)
        return self._box_of(operators[int(name[1:])].weight, iterations)

    def _box_of(self, access: Access, iterations: Iterations) -> Region | None:
        return access_region(access, iterations) if iterations else None

    def _hold(
        self, name: str, boxes: Sequence[Region | None], prefixes: Sequence[tuple[int, ...]], depth: int
    ) -> int:
        """Move what steps do not find there; the words that lie there at most."""
        most = 0
        for _, group in groupby(range(len(boxes)), lambda at: prefixes[at][:depth]):
            places = list(group)
            seen = Seen([boxes[at] for at in places], self.spend)
            most = max(most, seen.most_live)
            if name != "y":
                self.moved_words += sum(count for _, count in seen.new)
            else:
                for box, _ in seen.new:
                    self._move(name, box)
        return most

    def _move(self, name: str, box: Region | None) -> None:
        """Fetch a box; of the result write it, and read before what has left it."""
        if box is None:
            return
        self.spend(volume(box))
        self.moved_words += volume(box)
        if name == "y":
            place = tuple(slice(*interval) for interval in box)
            self.moved_words += int(np.count_nonzero(self.has_left[place]))
            self.has_left[place] = True


def _owner(name: str, tree: Tree) -> int:
    """The operator that an operand from outside belongs to."""
    return tree.first if name == "x" else tree.last if name == "y" else int(name[1:])


def _steps(tree: Tree, iterations: Iterations) -> list[tuple[tuple[int, ...], Iterations]]:
    """Each step of a tree's loops, by its number in each, with what it runs of each dim."""
    listed: list[tuple[tuple[int, ...], Iterations]] = []
    if not iterations:
        return [((0,) * len(tree.loops), {})]
    counts = [range(-(-(iterations[dim][1] - iterations[dim][0]) // tile)) for dim, tile in tree.loops]
    for numbers in product(*counts):
        its = dict(iterations)
        for (dim, tile), number in zip(tree.loops, numbers, strict=True):
            start, stop = iterations[dim]
            its[dim] = start + number * tile, min(start + (number + 1) * tile, stop)
        listed.append((numbers, its))
    return listed


def _intervals(iterations: Iterations, dims: Sequence[Dim]) -> list[Interval]:
    return [iterations.get(dim.name, (0, 0)) for dim in dims]


def _size(iterations: Iterations) -> int:
    size = 1
    for start, stop in iterations.values():
        size *= stop - start
    return size if iterations else 0
