"""A mapping: the loops of one operator, tiled over the levels of a machine's memory.

A mapping gives every level of the machine two lists of loops: temporal ones, which the level's instances run
in sequence, and spatial ones, which spread the work from one instance over instances of the next
inner level (from the innermost level: over the compute units). The product of a dim's factors over all
levels is its extent, or more: the rest is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tilewright.loops.problem import Problem
from tilewright.results import WrittenAsList, about


@dataclass(frozen=True, slots=True)
class Loop(WrittenAsList):
    """`factor` iterations of a dim at one level."""

    dim: str
    factor: int


def joined(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """Loops of one level in sequence, without those of factor 1; neighbours of one dim are one loop."""
    joined_loops: list[Loop] = []
    for loop in loops:
        if joined_loops and joined_loops[-1].dim == loop.dim:
            joined_loops[-1] = Loop(loop.dim, joined_loops[-1].factor * loop.factor)
        elif loop.factor > 1:
            joined_loops.append(loop)
    return tuple(joined_loops)


@dataclass(frozen=True, slots=True)
class LevelLoops:
    """The loops of one level, each list from the outermost to the innermost."""

    level: str
    temporal: tuple[Loop, ...] = field(default=(), metadata=about(key="temporal_outer_to_inner"))
    spatial: tuple[Loop, ...] = field(default=(), metadata=about(key="spatial_outer_to_inner"))


@dataclass(frozen=True, slots=True)
class Mapping:
    """Loops of every level, from the outermost level to the innermost."""

    levels: tuple[LevelLoops, ...]

    def factors(self) -> dict[str, int]:
        """Product of every dim's factors."""
        total: dict[str, int] = {}
        for _, _, loop in self.loops():
            total[loop.dim] = total.get(loop.dim, 1) * loop.factor
        return total

    def loops(self) -> Iterator[tuple[LevelLoops, Literal["temporal", "spatial"], Loop]]:
        """Every loop with its level, from the outermost to the innermost; temporal ones of a level first."""
        for level in self.levels:
            for loop in level.temporal:
                yield level, "temporal", loop
            for loop in level.spatial:
                yield level, "spatial", loop

    def padding(self, problem: Problem) -> float:
        """Iterations beyond the problem's own, as a share of those: 0 for factors that divide exactly."""
        factors = self.factors()
        total = 1
        for dim, _ in problem.dims:
            total *= factors.get(dim, 1)
        return total / problem.num_macs - 1
