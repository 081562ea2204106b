"""A problem with fewer dims whose mappings cost the same: what a search looks at instead.

A dim of one iteration has no loops, and slides no window. Dims that all operands depend on alike, each along
an axis of its own without a step, are one to every count: tiles hold the product of their extents, and no two
tiles share a word. Rows and columns of the image under a window of 1 x 1 are such dims, and so are batches.
The primes of such dims together are those of their product, so every mapping of the joined dim is one of its
parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.loops.mapping import Loop, Mapping
from tilewright.loops.problem import Axis, Operand, Problem
from tilewright.mapping.base import MappingProblem

Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """A task with joined dims, and the dims with their extents that each of these stands for."""

    task: MappingProblem
    parts: dict[str, Parts]

    @classmethod
    def of(cls, task: MappingProblem) -> Joined:
        """Constraints speak of dims by name: with these no dims are joined, along axes of arrays those of one
        axis."""
        problem = task.problem
        moving = [(dim, extent) for dim, extent in problem.dims if extent > 1] or list(problem.dims[:1])
        groups: dict[object, list[tuple[str, int]]] = {}
        for dim, extent in moving:
            alone = task.constraints.name_dims or not _is_plain(dim, problem)
            seen_alike = tuple(dim in operand.dims() for operand in problem.operands)
            along = tuple(axes.axis_of(dim, problem) for axes in task.constraints.axes)
            groups.setdefault(dim if alone else (seen_alike, along), []).append((dim, extent))
        parts = {" ".join(dim for dim, _ in group): tuple(group) for group in groups.values()}
        dims = tuple((name, prod(extent for _, extent in group)) for name, group in parts.items())
        operands = tuple(replace(o, axes=tuple(_axes(o, parts))) for o in problem.operands)
        return cls(replace(task, problem=Problem(problem.name, dims, operands)), parts)

    def parted(self, mapping: Mapping) -> Mapping:
        """The mapping with loops of the dims themselves."""
        left = {dim: extent for group in self.parts.values() for dim, extent in group}

        def loops(joined: tuple[Loop, ...]) -> tuple[Loop, ...]:
            return tuple(loop for one in joined for loop in self._parted(one, left))

        return Mapping(
            tuple(
                replace(level, temporal=loops(level.temporal), spatial=loops(level.spatial))
                for level in mapping.levels
            )
        )

    def _parted(self, loop: Loop, left: dict[str, int]) -> Iterator[Loop]:
        """A loop as loops of its parts, which take what is left of each."""
        factor = loop.factor
        for dim, _ in self.parts[loop.dim]:
            taken = gcd(factor, left[dim])
            left[dim] //= taken
            factor //= taken
            if taken > 1:
                yield Loop(dim, taken)


def _is_plain(dim: str, problem: Problem) -> bool:
    """Whether a dim moves operands along axes of its own, by one word."""
    for operand in problem.operands:
        along = [axis for axis in operand.axes if any(name == dim for name, _ in axis)]
        others = [name for axis in along for name, _ in axis if name != dim]
        if len(along) > 1 or any((dim, 1) not in axis for axis in along):
            return False
        if any(problem.extents[name] > 1 for name in others):
            return False
    return True


def _axes(operand: Operand, parts: dict[str, Parts]) -> Iterator[Axis]:
    """Axes with the joined dims in place of the first of their parts."""
    first_of = {group[0][0]: name for name, group in parts.items()}
    for axis in operand.axes:
        terms = tuple((first_of[dim], step) for dim, step in axis if dim in first_of)
        if terms:
            yield terms
