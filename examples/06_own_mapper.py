"""A mapper of your own: one class, registered under a name, checked like the built-in ones.

Prints:

    greedy-primes: ... cycles with ... mappings
    exact: 112,896 cycles, optimal
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import tilewright as tw
from tilewright.errors import InfeasibleMapping
from tilewright.families import MAPPERS
from tilewright.loops.mapping import Loop, Mapping
from tilewright.mapping.base import MappingProblem, MappingSolution, build_solution
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Budget, Infeasible, Provenance


@dataclass(frozen=True, slots=True)
class GreedyPrimes:
    """Prime factors of the loops, the largest first, each moved inwards to where the cost falls most."""

    name: ClassVar[str] = "greedy-primes"

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """All loops outside, then one factor after another; an evaluation is a mapping that is counted."""
        meter = budget.start()
        best = build_solution(problem, Tilings(problem).everything_outermost(), Provenance(self.name))
        factors = [(prime, dim) for dim, extent in problem.problem.dims for prime in primes(extent)]
        for prime, dim in sorted(factors, reverse=True):
            for mapping in moved(best.mapping, dim, prime):
                if not meter.spend():
                    break
                provenance = Provenance(self.name, num_evaluations=meter.num_evaluations)
                try:
                    found = build_solution(problem, mapping, provenance)
                except InfeasibleMapping:
                    continue
                if found.quality.cost < best.quality.cost:
                    best = found
        return best


def primes(number: int) -> Iterator[int]:
    """Its prime factors, ascending."""
    factor = 2
    while number > 1:
        if number % factor:
            factor += 1
        else:
            yield factor
            number //= factor


def moved(mapping: Mapping, dim: str, prime: int) -> Iterator[Mapping]:
    """The mapping with a factor of an outermost loop at each inner level instead, temporal or spatial."""
    outermost, *inner = mapping.levels
    loops = {loop.dim: loop.factor for loop in outermost.temporal}
    if loops.get(dim, 1) % prime:
        return
    loops[dim] //= prime
    left = replace(outermost, temporal=tuple(Loop(d, f) for d, f in loops.items() if f > 1))
    for at, level in enumerate(inner):
        for place in ("temporal", "spatial"):
            there = {loop.dim: loop.factor for loop in getattr(level, place)}
            there[dim] = there.get(dim, 1) * prime
            changed = replace(level, **{place: tuple(Loop(d, f) for d, f in there.items())})
            yield Mapping((left, *inner[:at], changed, *inner[at + 1 :]))


# A package of yours would name it as an entry point in the group "tilewright.mapping" instead.
MAPPERS.add("greedy-primes", GreedyPrimes)

layer = "3_14_256_256_1"  # a filter of 3x3, results of 14x14, 256 channels from 256, stride 1
ours, optimal = (tw.map(layer, "simba-cosa-repo", mapper=name) for name in ("greedy-primes", "exact"))
num_mappings = ours.layers[0].solution.provenance.num_evaluations
print(f"greedy-primes: {ours.total.cycles:,} cycles with {num_mappings} mappings")
print(f"exact: {optimal.total.cycles:,} cycles, {optimal.layers[0].solution.quality.status}")
