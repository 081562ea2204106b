"""GraphTurbo's rule for the loops of a kernel: the two outermost are tiled by the largest divisors that fit.

Of section 4 of the paper this is all that says how its kernels are tiled for the local buffer. Loops stand in
the order of the result's axes, those of sums inside them. Where tiles of the two outermost ones do not fit
even with one iteration of both, these are cut to single iterations, and the rule goes on with the next two.
On a machine of several levels it is applied from the outside in; instances of the next level share the
outermost loops first, in the largest parts that divide.
"""

from __future__ import annotations

import time
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.cost.bound import (
    check_smallest_tiles,
    level_capacities,
    num_touched,
)
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.loops.problem import Operand
from tilewright.mapping.base import MappingProblem, MappingSolution, build_solution
from tilewright.mapping.factors import divisors
from tilewright.mapping.launch import has_shape
from tilewright.planning import Budget, Infeasible, Provenance

Tile = MappingOf[str, int]


@dataclass(frozen=True, slots=True)
class Paper:
    """GraphTurbo's rule: the two outermost loops tiled by the largest divisors that fit, level by level."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "paper"

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The mapping that the rule gives, whatever the objective is. It takes no time to speak of.

        Raises:
            InfeasibleMapping: tiles of one iteration, or the whole tensors, do not fit.
        """
        started = time.perf_counter()
        check_smallest_tiles(problem.problem, problem.machine, problem.cost_options)
        mapping = _Rule(problem).mapping()
        seconds = time.perf_counter() - started
        return build_solution(problem, mapping, Provenance(self.name, num_evaluations=1), seconds=seconds)


class _Rule:
    """One operator on one machine."""

    def __init__(self, task: MappingProblem) -> None:
        self.task = task
        extents = task.problem.extents
        output = task.problem.output.dims()
        inner = [dim for dim in extents if dim not in output]
        self.order = [dim for dim in (*output, *inner) if extents[dim] > 1]

    def mapping(self) -> Mapping:
        """Loops of all levels, from the outside in."""
        tile = dict(self.task.problem.extents)
        levels: list[LevelLoops] = []
        for number in reversed(range(len(self.task.machine.levels))):
            spatial = self._spatial(number, tile)
            of_one = {dim: extent // spatial.get(dim, 1) for dim, extent in tile.items()}
            inner = self._tile(number - 1, of_one) if number else dict.fromkeys(tile, 1)
            temporal = {dim: of_one[dim] // inner[dim] for dim in self.order}
            name = self.task.machine.levels[number].name
            levels.append(LevelLoops(name, self._loops(temporal), self._loops(spatial)))
            tile = inner
        return Mapping(tuple(levels))

    def _loops(self, factors: Tile) -> tuple[Loop, ...]:
        return tuple(Loop(dim, factors[dim]) for dim in self.order if factors.get(dim, 1) > 1)

    def _spatial(self, number: int, tile: Tile) -> dict[str, int]:
        """How a level's tile is shared by the instances that it feeds."""
        factors: dict[str, int] = {}
        for dim in self.order:
            if not self.task.may_spread(dim, number):
                continue
            before = prod(factors.values())
            fitting = (n for n in reversed(divisors(tile[dim])) if self._may_feed(number, before * n))
            factors[dim] = next(fitting, 1)
        return factors

    def _may_feed(self, number: int, instances: int) -> bool:
        if instances > self.task.machine.fan_out(number):
            return False
        block = self.task.block
        is_of_threads = block is not None and self.task.machine.levels[number].name == block.shared
        return block is None or not is_of_threads or has_shape(instances, block)

    def _tile(self, number: int, whole: Tile) -> dict[str, int]:
        """The tile of a level: all of the loops but the outermost, of those the largest divisors that fit."""
        if self._fits(number, whole):
            return dict(whole)
        tile = dict(whole)
        for place, dim in enumerate(self.order):
            pair = self.order[place : place + 2]
            parts = [dict(zip(pair, n, strict=True)) for n in product(*(divisors(whole[d]) for d in pair))]
            parts.sort(key=lambda part: -prod(part.values()))
            for part in parts:
                if self._fits(number, tile | part):
                    return tile | part
            tile[dim] = 1
        return tile

    def _fits(self, number: int, tile: Tile) -> bool:
        task, machine = self.task, self.task.machine
        return all(
            sum(self._words(o, number, tile) for o in task.problem.operands if o.kind in kinds) <= words
            for kinds, words, _ in level_capacities(machine, machine.levels[number], task.cost_options)
        )

    def _words(self, operand: Operand, number: int, tile: Tile) -> int:
        copies = 1 if number else operand.copies
        if self.task.cost_options.skips_pixels:
            return copies * prod(num_touched(axis, tile) for axis in operand.axes)
        return copies * operand.num_words(tile)
