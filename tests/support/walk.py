"""What a mapping costs by a walk over every step of its loops, with tiles as sets of words.

Written from the rules in docs/mapping.md alone, to hold the project's own counts against it: no closed form,
nothing cached, every step and every instance by itself.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from tilewright.hardware.machine import Machine, TensorKind
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Operand, Problem

Point = tuple[int, ...]


class Walk:
    """Counts of each level and operand, per instance, with cycles and energy; levels from the outermost."""

    def __init__(self, problem: Problem, machine: Machine, mapping: Mapping) -> None:
        self.problem, self.machine = problem, machine
        self.levels = list(reversed(machine.levels))
        loops = {level.level: level for level in mapping.levels}
        self.loops: list[tuple[int, bool, str, int]] = []  # level, is it spatial, dim, factor
        for number, level in enumerate(self.levels):
            if level.name in loops:
                for is_spatial, listed in (
                    (False, loops[level.name].temporal),
                    (True, loops[level.name].spatial),
                ):
                    self.loops += [(number, is_spatial, x.dim, x.factor) for x in listed if x.factor > 1]
        self.steps = prod(f for _, is_spatial, _, f in self.loops if not is_spatial)
        self.counts: dict[tuple[str, str], tuple[int, int, int]] = {}
        self.energy_pj = machine.mac_pj * prod(f for *_, f in self.loops)
        busy: dict[int, list[float]] = {n: [0.0, 0.0] for n in range(len(self.levels))}
        for operand in problem.operands:
            for number, (reads, updates, fills) in self._operand(operand).items():
                level = self.levels[number]
                self.counts[level.name, operand.name] = (reads, updates, fills)
                busy[number][0] += reads
                busy[number][1] += updates + fills
                used = prod(f for n, is_spatial, _, f in self.loops if is_spatial and n < number)
                charged = min(used, machine.num_instances(level) / level.num_instances_per_access)
                block = level.words_per_access
                self.energy_pj += charged * (
                    ceil(reads / block) * level.read_access_pj
                    + (ceil(updates / block) + ceil(fills / block)) * level.write_access_pj
                )
        self.cycles = max([self.steps, *(self._cycles(number, *words) for number, words in busy.items())])

    def _cycles(self, number: int, reads: float, writes: float) -> int:
        level = self.levels[number]
        rates = self.machine.read_bytes_per_cycle(level), self.machine.write_bytes_per_cycle(level)
        taken = [
            w * level.word_bits / 8 / r for w, r in zip((reads, writes), rates, strict=True) if r is not None
        ]
        if not taken:
            return 0
        return ceil((sum(taken) if level.has_shared_port else max(taken)) * (1 - 1e-12))

    def _tile(self, number: int) -> dict[str, int]:
        """Iterations inside a level, by dim; beyond the last level one."""
        inside = dict.fromkeys(self.problem.extents, 1)
        for n, _, dim, factor in self.loops:
            inside[dim] *= factor if n >= number else 1
        return inside

    def _distance(self, place: int) -> int:
        """How far a loop's iteration moves along its dim."""
        _, _, dim, _ = self.loops[place]
        return prod(f for _, _, d, f in self.loops[place + 1 :] if d == dim)

    def _words(
        self, operand: Operand, tile: dict[str, int], origin: dict[str, int]
    ) -> tuple[Point, set[Point]]:
        """Where a tile begins, and all words of its box."""
        starts = [sum(step * origin[dim] for dim, step in axis) for axis in operand.axes]
        ends = [sum(step * (origin[d] + tile[d] - 1) for d, step in axis) for axis in operand.axes]
        box = product(*(range(a, b + 1) for a, b in zip(starts, ends, strict=True)))
        return tuple(starts), set(box)

    def _origins(self, places: list[int]) -> list[dict[str, int]]:
        """Where the tiles begin that these loops reach, in the order in which they run."""
        origins = []
        for at in product(*(range(self.loops[place][3]) for place in places)):
            origin = dict.fromkeys(self.problem.extents, 0)
            for place, index in zip(places, at, strict=True):
                origin[self.loops[place][2]] += index * self._distance(place)
            origins.append(origin)
        return origins

    def _fills(self, operand: Operand, number: int) -> int:
        """Words that enter one instance: of a tile that moved on as before what is new, else all of it."""
        tile = self._tile(number)
        outside = [p for p, (n, is_spatial, *_) in enumerate(self.loops) if n < number and not is_spatial]
        total, last, move = 0, None, None
        for origin in self._origins(outside):
            start, words = self._words(operand, tile, origin)
            if last is None:
                total += len(words)
            else:
                step = tuple(a - b for a, b in zip(start, last[0], strict=True))
                if move is None or move == step:
                    moved = sum(1 for distance in step if distance)
                    total += len(words) if moved > 1 else len(words - last[1])
                    move = step
                else:
                    total, move = total + len(words), None
            last = start, words
        return total

    def _served(self, operand: Operand, number: int) -> int:
        """Different tiles that one instance of a level gives to those that it feeds at the same time."""
        spread = [p for p, (n, is_spatial, *_) in enumerate(self.loops) if n == number and is_spatial]
        tile = self._tile(number + 1)
        return len({self._words(operand, tile, origin)[0] for origin in self._origins(spread)})

    def _operand(self, operand: Operand) -> dict[int, tuple[int, int, int]]:
        kept = [n for n, level in enumerate(self.levels) if operand.kind in level.holds]
        zero = dict.fromkeys(self.problem.extents, 0)
        counts = {}
        for place, number in enumerate(kept):
            is_last = place + 1 == len(kept)
            child = len(self.levels) if is_last else kept[place + 1]
            accesses = self.steps if is_last else self._fills(operand, child)
            for between in range(number, child):
                accesses *= self._served(operand, between)
            fills = self._fills(operand, number) if number else 0
            if operand.kind is not TensorKind.OUTPUT:
                counts[number] = (accesses, 0, fills)
                continue
            part = len(self._words(operand, self._tile(0), zero)[1])
            for outer in range(number):
                tile = self._tile(outer + 1)
                spread = dict(tile)
                for n, is_spatial, dim, factor in self.loops:
                    spread[dim] *= factor if n == outer and is_spatial else 1
                whole = len(self._words(operand, spread, zero)[1])
                part = part * len(self._words(operand, tile, zero)[1]) // whole
            counts[number] = (max(0, accesses - part), accesses, fills)
        return counts
