"""Tiles of a problem as points of a lattice: one axis for each prime of each dim, up to its multiplicity.

A point is the tile that a level holds; taking a prime away is putting a loop outside the level. Points are
numbered so that a smaller tile has a smaller number, which lets a search go through them in one sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.cost.bound import num_touched, touched_words
from tilewright.cost.options import CostOptions
from tilewright.loops.problem import Operand, Problem
from tilewright.mapping.factors import prime_factors

Array = np.ndarray[Any, Any]


_MOST_BITS = 62


@dataclass(frozen=True, slots=True)
class LatticeStep:
    """One axis: a factor of a dim that may be taken `count` times, and what that takes from the number."""

    dim: int
    factor: int
    count: int
    weight: int


@dataclass(frozen=True, slots=True)
class Lattice:
    """All tiles of a problem: `tiles[number, dim]`, and what each means for each operand."""

    problem: Problem
    steps: tuple[LatticeStep, ...]
    tiles: Array  # int64 [points, dims]
    exponents: Array  # int16 [points, steps]
    packed: Array  # int64 [points]: the same in one number, a free bit above each
    guards: int  # those bits
    volumes: Array  # float64 [operands, points]: words of the tile's box
    copies: Array  # float64 [operands, points]: tiles that differ in dims the operand does not depend on
    num_tiles: Array  # float64 [points]: tiles of the whole problem
    touched: Array  # float64 [operands]: words that are needed at all
    is_merged: bool  # some tiles are left out, as factors were taken together

    @property
    def whole(self) -> int:
        """The number of the whole problem as one tile."""
        return len(self.num_tiles) - 1

    def pack(self, exponents: Array) -> Array:
        """Exponents of the steps `[..., step]` in one number."""
        return _pack(exponents, self.steps)

    @classmethod
    def of(cls, problem: Problem, cost_options: CostOptions, max_points: int) -> Lattice:
        """The lattice of a problem; small primes are taken together until there are few enough points."""
        primes = [list(prime_factors(extent)) for _, extent in problem.dims]
        factors = _merged(primes, max_points)
        while sum(count.bit_length() + 1 for listed in factors for _, count in listed) > _MOST_BITS:
            max_points //= 2
            factors = _merged(primes, max_points)
        steps: list[LatticeStep] = []
        weight = 1
        for dim, listed in enumerate(factors):
            for factor, count in listed:
                steps.append(LatticeStep(dim, factor, count, weight))
                weight *= count + 1
        exponents = np.zeros((weight, len(steps)), np.int16)
        tiles = np.ones((weight, len(problem.dims)), np.int64)
        for column, step in enumerate(steps):
            counts = np.arange(step.count + 1)
            axis = (-1, step.count + 1, step.weight)
            exponents[:, column].reshape(axis)[:] = counts[:, None]
            tiles[:, step.dim].reshape(axis)[:] *= step.factor ** counts[:, None]
        names = [name for name, _ in problem.dims]
        extents = np.array([extent for _, extent in problem.dims], np.float64)
        ratios = extents / tiles
        volumes, copies = [], []
        for operand in problem.operands:
            operand_dims = operand.dims()
            volumes.append(_volumes(operand, names, tiles, cost_options))
            outside = [i for i, name in enumerate(names) if name not in operand_dims]
            copies.append(ratios[:, outside].prod(axis=1) if outside else np.ones(weight))
        return cls(
            problem,
            tuple(steps),
            tiles,
            exponents,
            _pack(exponents, tuple(steps)),
            int(_pack(np.array([step.count for step in steps]), tuple(steps), guards=True)),
            np.stack(volumes),
            np.stack(copies),
            ratios.prod(axis=1),
            np.array([float(touched_words(problem, o)) for o in problem.operands]),
            factors != primes,
        )


def _pack(exponents: Array, steps: tuple[LatticeStep, ...], *, guards: bool = False) -> Array:
    """Exponents in fields of one number; or only the free bits above the fields."""
    place = 0
    packed = np.zeros(exponents.shape[:-1], np.int64)
    for column, step in enumerate(steps):
        width = step.count.bit_length()
        values = np.int64(1 << width) if guards else exponents[..., column].astype(np.int64)
        packed = packed + (values << np.int64(place))
        place += width + 1
    return packed


def num_points(problem: Problem) -> int:
    """All tiles of a problem."""
    return prod(count + 1 for _, extent in problem.dims for _, count in prime_factors(extent))


def _volumes(operand: Operand, names: list[str], tiles: Array, cost_options: CostOptions) -> Array:
    total = np.ones(len(tiles))
    for axis in operand.axes:
        if cost_options.skips_pixels:
            columns = tiles[:, [names.index(dim) for dim, _ in axis]]
            distinct, place = np.unique(columns, axis=0, return_inverse=True)  # noqa: TID251  # in numpy's Python
            axis_dims = [dim for dim, _ in axis]
            extents = [
                num_touched(axis, dict(zip(axis_dims, map(int, row), strict=True))) for row in distinct
            ]
            total *= np.array(extents, np.float64)[place.reshape(-1)]
            continue
        extent = np.ones(len(tiles))
        for dim, step in axis:
            extent += step * (tiles[:, names.index(dim)] - 1)
        total *= extent
    return total


def _merged(primes: list[list[tuple[int, int]]], max_points: int) -> list[list[tuple[int, int]]]:
    """Factors of every dim with multiplicities, at most so many points in all.

    Pairs of equal factors become one, of the dim with the most points first; the last factor of an odd number
    stays alone.
    """
    axes = [list(listed) for listed in primes]

    def points(listed: list[tuple[int, int]]) -> int:
        return prod(count + 1 for _, count in listed)

    while prod(points(listed) for listed in axes) > max_points:
        largest = max(
            range(len(axes)), key=lambda i: (max((c for _, c in axes[i]), default=0), points(axes[i]))
        )
        place = max(range(len(axes[largest])), key=lambda i: axes[largest][i][1])
        factor, count = axes[largest][place]
        if count < 2:
            return _joined(axes, max_points)
        merged = [(factor * factor, count // 2), *([(factor, 1)] if count % 2 else [])]
        axes[largest][place : place + 1] = merged
    return axes


def _joined(axes: list[list[tuple[int, int]]], max_points: int) -> list[list[tuple[int, int]]]:
    """When nothing is there twice: the two smallest factors of the dim with the most become one."""
    while prod(2 ** len(listed) for listed in axes) > max_points:
        longest = max(axes, key=len)
        if len(longest) < 2:
            break
        longest.sort()
        (a, _), (b, _), *rest = longest
        longest[:] = [(a * b, 1), *rest]
    return axes
