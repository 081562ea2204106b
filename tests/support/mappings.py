"""Every mapping of a small problem."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import LevelLoops, Loop, Mapping, joined
from tilewright.loops.problem import Problem
from tilewright.mapping.factors import prime_factors


def all_mappings(problem: Problem, machine: Machine) -> Iterator[Mapping]:
    """Every way to give every prime to a level, as a spatial or a temporal loop, in every order."""
    names = [level.name for level in reversed(machine.levels)]
    places = [(level, is_spatial) for level in range(len(names)) for is_spatial in (False, True)]
    primes = [
        (dim, p) for dim, extent in problem.dims for p, count in prime_factors(extent) for _ in range(count)
    ]
    seen: set[Mapping] = set()
    for chosen in product(places, repeat=len(primes)):
        temporal: list[list[Loop]] = [[] for _ in names]
        spatial: list[list[Loop]] = [[] for _ in names]
        for (dim, prime), (level, is_spatial) in zip(primes, chosen, strict=True):
            (spatial if is_spatial else temporal)[level].append(Loop(dim, prime))
        for orders in product(*({joined(order) for order in permutations(loops)} for loops in temporal)):
            mapping = Mapping(
                tuple(
                    LevelLoops(name, order, tuple(side))
                    for name, order, side in zip(names, orders, spatial, strict=True)
                )
            )
            if mapping not in seen:
                seen.add(mapping)
                yield mapping
