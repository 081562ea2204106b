"""Levels whose bandwidth is limited, and cycles that no mapping beats there, whatever it pads.

Spatial loops outside a level leave each of its instances a part of every dim, which is at least the extent
over their factors. All that these iterations touch enters the instance once at least, and is read from it:
by several instances of the next level at once only where spatial loops between the two do not move the
operand. So a bound follows from spatial factors alone: those outside the level, and those inside it. Of all
factors the best ones bound every mapping; those of one choice of spatial loops, the mappings that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import gcd, inf, prod
from typing import Any

import numpy as np

from tilewright.hardware.machine import Machine, TensorKind
from tilewright.loops.problem import Axis, Operand
from tilewright.mapping.base import MappingProblem
from tilewright.mapping.factors import useful_factors

Array = np.ndarray[Any, Any]
_MOST_WAYS = 20_000
_MOST_SEEN = 200_000
_MOST_TOGETHER = 64  # factors outside a level whose factors inside it are looked at in one call
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Port:
    """The bandwidth of a level: cycles in which one instance reads a word, and writes one."""

    level: int
    read_cycles: float
    write_cycles: float
    takes_turns: bool

    def cycles(self, reads: Any, writes: Any) -> tuple[Any, Any]:
        """Cycles of so many words: of reading and of writing, together where they take turns."""
        read, written = reads * self.read_cycles, writes * self.write_cycles
        return (read + written, 0.0) if self.takes_turns else (read, written)


def limited_ports(machine: Machine) -> tuple[Port, ...]:
    """The levels whose bandwidth is limited, the innermost first."""
    limited = []
    for number, level in enumerate(machine.levels):
        rates = machine.read_bytes_per_cycle(level), machine.write_bytes_per_cycle(level)
        if any(rate is not None for rate in rates):
            read, written = (0.0 if rate is None else level.word_bits / 8 / rate for rate in rates)
            limited.append(Port(number, read, written, level.has_shared_port))
    return tuple(limited)


def least_port_cycles(task: MappingProblem, num_at_once: int | None = None) -> float:
    """Cycles that no mapping beats, as limits of bandwidth inside the machine have it, whatever it pads.

    With `num_at_once` the machine is the view of a GPU's largest block, of whose threads so many work in a
    cycle, and the cycles are the GPU's, whatever the size of a block is.
    """
    if task.cost_options.link_transfers:  # words may come from beside
        return 0.0
    # What a thread's registers give in a cycle depends on how many threads a block has.
    innermost = 0 if num_at_once is None else 1
    inside = [p for p in limited_ports(task.machine) if innermost <= p.level < len(task.machine.levels) - 1]
    return max((PortBound(task, port, num_at_once).least() for port in inside), default=0.0)


def most_busy_share(task: MappingProblem) -> float:
    """The share of its time that no mapping keeps a compute unit busier than, whatever part of the problem
    it maps onto however many instances: what units that keep nothing need in each iteration has to pass.

    Ports of levels that other levels read from are not looked at.
    """
    if task.cost_options.link_transfers:
        return 1.0
    inside = [p for p in limited_ports(task.machine) if p.level < len(task.machine.levels) - 1]
    bounds = [PortBound(task, port) for port in inside]
    return min((bound.most_busy_share() for bound in bounds if bound.next_level < 0), default=1.0)


@dataclass(frozen=True, slots=True)
class TilesOfOne:
    """Tiles `[tile, dim]`, the words of what a level serves that go into each, and its iterations."""

    tiles: Array
    words: Sequence[Array]
    steps: Array


@dataclass(frozen=True)
class PortBound:
    """Cycles that the instances of one level take at least; it is not the outermost."""

    task: MappingProblem
    port: Port
    num_at_once: int | None = None

    @cached_property
    def served(self) -> tuple[tuple[int, int], ...]:
        """Of what the level holds: operand, next level inside that holds it (-1: the compute units)."""
        levels = self.task.machine.levels
        return tuple(
            (t, max((n for n in range(self.port.level) if o.kind in levels[n].holds), default=-1))
            for t, o in enumerate(self.task.problem.operands)
            if o.kind in levels[self.port.level].holds
        )

    @cached_property
    def next_level(self) -> int:
        """The outermost of the levels that are served; -1: the compute units."""
        return max((inner for _, inner in self.served), default=-1)

    @property
    def levels_outside(self) -> range:
        """The levels whose spatial loops spread over instances of this one."""
        return range(self.port.level + 1, len(self.task.machine.levels))

    @property
    def levels_inside(self) -> range:
        """The levels whose spatial loops spread over the instances that one of this serves."""
        return range(self.next_level + 1, self.port.level + 1)

    @cached_property
    def _extents(self) -> Array:
        return np.array([extent for _, extent in self.task.problem.dims], np.int64)

    def _num(self, levels: range) -> int:
        return prod(map(self.task.machine.fan_out, levels))

    def least(self) -> float:
        """Cycles that no mapping beats, padded or not."""
        outside = spatial_factors(self.task, self.levels_outside, self._extents)
        if outside is None:
            return 0.0
        floors = self.cycles(outside)
        order = np.argsort(floors, kind="stable")
        best, num_seen, done, together = inf, 0, 0, 1
        while done < len(order) and floors[order[done]] < best:
            outer, inner = [], []
            for place in order[done : done + together]:
                left = -(-self._extents // outside[place])
                inside = (
                    None if num_seen > _MOST_SEEN else spatial_factors(self.task, self.levels_inside, left)
                )
                if inside is None:
                    best = min(best, float(floors[place]))  # what follows is no less
                    break
                num_seen += len(inside)
                outer.append(np.broadcast_to(outside[place], inside.shape))
                inner.append(inside)
            if inner:
                of_these = self.cycles(np.concatenate(outer), np.concatenate(inner))
                best = min(best, float(of_these.min()))
            done += together
            together = min(_MOST_TOGETHER, 4 * together)
        return float(np.ceil(best * (1 - _ROUNDING)))

    def most_busy_share(self) -> float:
        """The same of the units that read this level, for any extents up to the problem's.

        More units along a dim never get less to do each: the words that all of them need grow no faster than
        they do. So the last dim, which may be spread over any number, has what others leave.
        """
        names, num_units = list(self.task.problem.extents), self._num(self.levels_inside)
        order = np.argsort(self._extents, kind="stable")
        ways, products = np.ones((1, len(names))), np.ones(1)
        for place in order[:-1]:
            counts = np.arange(1.0, min(int(self._extents[place]), num_units) + 1)
            way, chosen = np.nonzero(np.multiply.outer(products, counts) <= num_units)
            if len(way) > _MOST_WAYS:
                return 1.0
            ways = ways[way]
            ways[:, place] = counts[chosen]
            products = products[way] * counts[chosen]
        last = order[-1]
        ways[:, last] = np.minimum(num_units / products, float(self._extents[last]))
        words = {True: np.zeros(()), False: np.zeros(())}
        for t, _ in self.served:
            operand = self.task.problem.operands[t]
            is_output = operand.kind is TensorKind.OUTPUT
            words[is_output] = words[is_output] + self._num_places(operand, ways)
        moving = np.maximum(*self.port.cycles(words[False], words[True]))
        share = float((products * ways[:, last] / np.maximum(1.0, moving)).max()) / num_units
        return min(1.0, share * (1 + _ROUNDING))

    def below(self, limit: float) -> list[tuple[float, tuple[int, ...]]]:
        """The least cycles of spatial factors that may take less than a limit, ascending, with the extents
        that they divide; none where factors are too many."""
        outside = spatial_factors(self.task, self.levels_outside, self._extents)
        if outside is None:
            return []
        floors = self.cycles(outside)
        found: dict[tuple[int, ...], float] = {}
        num_seen = 0
        for place in np.argsort(floors, kind="stable"):
            if floors[place] >= limit:
                break
            left = -(-self._extents // outside[place])
            inside = None if num_seen > _MOST_SEEN else spatial_factors(self.task, self.levels_inside, left)
            if inside is None:
                break
            num_seen += len(inside)
            cycles = self.cycles(outside[place], inside)
            for way in np.flatnonzero(cycles < limit):
                extents = tuple((outside[place] * inside[way] * -(-left // inside[way])).tolist())
                found[extents] = min(found.get(extents, inf), float(cycles[way]))
        return sorted((least, extents) for extents, least in found.items())

    def of_tiles(self, tiles: Array) -> TilesOfOne:
        """What goes into an instance of the next level that has tiles `[tile, dim]`."""
        operands = self.task.problem.operands
        words = [self._words_of_one(operands[t], inner, tiles) for t, inner in self.served]
        return TilesOfOne(tiles, words, _product(tiles))

    def of_choices(self, of_one: TilesOfOne, in_level: Array, in_next: Array, inside: Array) -> Array:
        """Least cycles `[outside, inside]` of factors that divide the extents.

        Factors outside the level leave the tile `in_level[outside]` to an instance of it; of that the factors
        `inside[inside, dim]` leave the tile `in_next[outside, inside]` to one of the next.
        """
        operands = [self.task.problem.operands[t] for t, _ in self.served]
        cores = of_one.tiles[in_level]
        touched = [self.touched(operand, cores)[:, None] for operand in operands]
        passed = [
            words[in_next] * self._num_places(operand, inside)
            for words, operand in zip(of_one.words, operands, strict=True)
        ]
        return self._cycles(touched, passed, of_one.steps[in_next], _product(inside))

    def cycles(self, outside: Array, inside: Array | None = None) -> Array:
        """Least cycles of spatial factors `[..., dim]` outside the level, and between it and the next."""
        operands = self.task.problem.operands
        in_level = -(-self._extents // outside)
        touched = [self.touched(operands[t], in_level) for t, _ in self.served]
        if inside is None:
            return self._cycles(touched, touched, _product(in_level), None)
        in_next = -(-in_level // inside)
        passed = [
            self._words_of_one(operands[t], inner, in_next) * self._num_places(operands[t], inside)
            for t, inner in self.served
        ]
        return self._cycles(touched, passed, _product(in_next), _product(inside))

    def _cycles(
        self, touched: Sequence[Array], passed: Sequence[Array], steps: Array, num_used: Array | None
    ) -> Array:
        """Cycles for words of what is served: those that one instance touches, those that go in as tiles of
        the next level. That has `num_used` instances (None: all) which take so many steps each."""
        lanes, at_once = float(self._num(range(self.next_level + 1))), self._num(self.levels_inside)
        length = 1.0
        if self.num_at_once is not None:  # in a view's cycle the threads of its largest block take turns
            num_threads = self.task.machine.fan_out(1)
            length = max(1.0, num_threads / self.num_at_once)
            if self.next_level == 0:
                at_once = min(num_threads, self.num_at_once)
            else:
                lanes /= length
        if num_used is None:
            computing = steps / (lanes * at_once)
        else:
            computing = steps / lanes * np.maximum(1.0, num_used / at_once)
        moving = self.port.cycles(*self._words(touched, passed))
        return np.asarray(np.maximum(computing, np.maximum(*moving) * length))

    def _words(self, touched: Sequence[Array], passed: Sequence[Array]) -> tuple[Any, Any]:
        """Words that one instance reads and writes at least."""
        task = self.task
        outer = task.machine.levels[self.port.level + 1 :]
        reads: Any = 0.0
        writes: Any = 0.0
        for (t, _), entering, going_in in zip(self.served, touched, passed, strict=True):
            operand = task.problem.operands[t]
            is_output = operand.kind is TensorKind.OUTPUT
            is_filled = any(operand.kind in level.holds for level in outer)
            if is_filled and not (is_output and task.cost_options.elides_first_fills):
                writes = writes + entering
            served = np.maximum(entering, going_in)
            if is_output:
                writes = writes + served
            else:
                reads = reads + served
        return reads, writes

    def _words_of_one(self, operand: Operand, inner: int, in_next: Array) -> Array:
        """Words of an operand that one instance of the next level takes, as equal tiles alone are read
        together."""
        if inner < 0 and self.next_level < 0:  # nothing is kept from one iteration to the next
            return _product(in_next)
        if inner < self.next_level and any(len(axis) > 1 for axis in operand.axes):
            return np.zeros(in_next.shape[:-1])  # further inside windows may meet by chance
        return self.touched(operand, in_next)

    def touched(self, operand: Operand, counts: Array) -> Array:
        """Elements that so many indices of each dim touch at least.

        Sums of two sets of numbers are as many as both together but one, of each remainder by itself.
        """
        names = list(self.task.problem.extents)

        def positions(axis: Axis) -> Array:
            columns = [counts[..., names.index(dim)].astype(np.float64) for dim, _ in axis]
            number: Array = reduce(np.add, columns) - (len(axis) - 1)
            if len(axis) == 2:
                for moved, whole in (axis, axis[::-1]):
                    number = np.maximum(number, self._with_whole(counts, names, moved, whole))
            return number

        return _over_axes(operand, counts.shape[:-1], positions)

    def _with_whole(
        self, counts: Array, names: list[str], moved: tuple[str, int], whole: tuple[str, int]
    ) -> Array:
        """Positions along an axis where all of one dim is there: its remainders by the other's step meet
        nowhere."""
        (a, step), (b, other) = moved, whole
        of_a, of_b = counts[..., names.index(a)], counts[..., names.index(b)]
        remainders = np.minimum(of_b, step // gcd(step, other))
        is_whole = of_b == self.task.problem.extents[b]
        return np.where(is_whole, remainders * (of_a - 1) + of_b, 0).astype(np.float64)

    def _num_places(self, operand: Operand, inside: Array) -> Array:
        """Different tiles at least that instances beside each other have of an operand."""
        names = list(self.task.problem.extents)

        def places(axis: Axis) -> Array:
            columns = [inside[..., names.index(dim)].astype(np.float64) for dim, _ in axis]
            return np.asarray(reduce(np.add, columns) - (len(axis) - 1))

        return _over_axes(operand, inside.shape[:-1], places)


def _product(counts: Array) -> Array:
    """The product over dims, column by column: a reduction over so short an axis takes much longer."""
    total: Array = counts[..., 0].astype(np.float64)
    for place in range(1, counts.shape[-1]):
        total *= counts[..., place]
    return total


def _over_axes(operand: Operand, shape: tuple[int, ...], number_of: Callable[[Axis], Array]) -> Array:
    """The product over axes; of those that share a dim, as on a diagonal, only the largest counts."""
    total = np.ones(shape)
    for axes in operand.independent_axes():
        total = total * reduce(np.maximum, map(number_of, axes))
    return total


def spatial_factors(task: MappingProblem, levels: range, extents: Array) -> Array | None:
    """Factors `[way, dim]` that may be spread over the instances of some levels; None if they are too many.

    Of those that leave equally many steps of a dim the least is enough.
    """
    most = prod(map(task.machine.fan_out, levels))
    ways = np.ones((1, len(extents)), np.int64)
    products = np.ones(1, np.int64)
    for place, (dim, extent) in enumerate(zip(task.problem.extents, map(int, extents), strict=True)):
        if extent == 1 or not any(task.may_spread(dim, n) for n in levels):
            continue
        limit = prod(task.most_spread(dim, n) for n in levels)
        factors = np.array(useful_factors(extent, min(most, limit)), np.int64)
        together = np.multiply.outer(products, factors)
        way, chosen = np.nonzero(together <= most)
        if len(way) > _MOST_WAYS:
            return None
        ways = ways[way]
        ways[:, place] = factors[chosen]
        products = together[way, chosen]
    return ways
