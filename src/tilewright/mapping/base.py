"""Mappings of one operator onto a machine: the solution, and what every mapper is.

A mapping gives every level of the machine two lists of loops: temporal ones, which the level's instances run
one after the other, and spatial ones, which spread the work from one instance over instances of the next
inner level (from the innermost level: over the compute units). The product of a dim's factors over all
levels is its extent, or more: the rest is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from tilewright.mapping.problem import Problem
from tilewright.planning import Budget, Infeasible, Provenance, Quality

if TYPE_CHECKING:
    from tilewright.cost.count import Cost
    from tilewright.hardware.machine import Machine, Threads

Objective = Literal["latency", "energy", "edp"]


@dataclass(frozen=True, slots=True)
class Loop:
    """`factor` iterations of a dim at one level."""

    dim: str
    factor: int


def joined(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """Loops of one level in sequence, without those of factor 1; neighbours of one dim are one loop."""
    found: list[Loop] = []
    for loop in loops:
        if found and found[-1].dim == loop.dim:
            found[-1] = Loop(loop.dim, found[-1].factor * loop.factor)
        elif loop.factor > 1:
            found.append(loop)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LevelLoops:
    """The loops of one level, each list from the outermost to the innermost."""

    level: str
    temporal: tuple[Loop, ...] = ()
    spatial: tuple[Loop, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Rules:
    """What the cost model counts. The defaults are Timeloop's rules; see `cost/nest_analysis.py`.

    With `link_transfers` an instance may take words from its neighbour; with `skips_pixels` input pixels that
    a stride jumps over are not counted; with `double_buffered` half of every capacity (but the outermost's,
    and that of a single word) holds the tile in use.
    """

    link_transfers: bool = False
    skips_pixels: bool = False
    double_buffered: bool = False


TIMELOOP = Rules()
"""Timeloop's rules, its transfers between neighbours left out."""


@dataclass(frozen=True, slots=True)
class MappingProblem:
    """An operator, a machine, what to minimise and how to count.

    Where the machine is a view of a GPU, `block` limits the threads: the spatial loops of its shared memory.
    Threads and blocks do not share sums there.
    """

    problem: Problem
    machine: Machine
    objective: Objective = "latency"
    rules: Rules = TIMELOOP
    block: Threads | None = None

    def may_spread(self, dim: str, level: int) -> bool:
        """Whether loops of a dim may run side by side below a level, counted from the innermost 0.

        Elsewhere partial sums of instances side by side are added on their way; on a GPU only multipliers of
        one thread have adders between them.
        """
        return self.block is None or level == 0 or dim in self.problem.output.dims()


@dataclass(frozen=True, slots=True)
class MappingSolution:
    """A mapping with its cost. `quality` is in the objective's unit: cycles, pJ, or pJ * cycles.

    The bounds hold for every mapping of the problem on the machine, each for itself.
    """

    mapping: Mapping
    cost: Cost
    quality: Quality
    provenance: Provenance
    seconds: float = field(compare=False, default=0.0)
    details: MappingOf[str, float] = field(default_factory=dict)
    bound_cycles: int = 0
    bound_energy_pj: float = 0.0


@runtime_checkable
class Mapper(Protocol):
    """One way to map. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """Map the operator, or say which level, tensor and capacity forbid it."""
        ...


@runtime_checkable
class Sampler(Mapper, Protocol):
    """A mapper that looks at one mapping after another, so that a budget can count them."""

    def limited(self, num_mappings: int) -> Mapper:
        """The same mapper that looks at so many legal mappings, at most."""
        ...
