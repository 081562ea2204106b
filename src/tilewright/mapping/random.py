"""Random mappings, the best of a few legal ones: the baseline that every mapper has to beat.

CoSA compares itself with `Random(5)`: tilings and orders of loops are drawn until five fit the machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from tilewright.cost.bound import check_smallest_tiles
from tilewright.cost.count import Cost
from tilewright.cost.nest_analysis import evaluate
from tilewright.cost.objective import rank
from tilewright.errors import InfeasibleMapping
from tilewright.loops.mapping import Mapping
from tilewright.mapping.base import MappingProblem, MappingSolution, build_solution
from tilewright.mapping.sampling import Tilings
from tilewright.planning import Budget, Infeasible, Provenance, option

BATCH = 4096
"""Tilings drawn and tested at a time."""


@dataclass(frozen=True, slots=True)
class Random:
    """The best of a few legal mappings that chance finds."""

    num_valid: int = option(5, "Legal mappings to look at.")
    seed: int = option(0, "Seed of the draws.")
    max_draws: int = option(20_000_000, "Most tilings to draw.")

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "random"

    def limited(self, num_mappings: int) -> Random:
        """The same mapper that looks at so many legal mappings."""
        return replace(self, num_valid=num_mappings)

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The best of the legal mappings found.

        How many are looked at is the mapper's own option; of the budget the deadline counts. If chance finds
        no legal mapping, the answer is the one with the smallest tiles.

        Raises:
            InfeasibleMapping: tiles of one iteration, or the whole tensors, do not fit.
        """
        started = time.perf_counter()
        check_smallest_tiles(problem.problem, problem.machine, problem.cost_options)
        tilings = Tilings(problem)
        random = np.random.default_rng(self.seed)
        meter = budget.start()
        best: Found | None = None
        num_drawn = num_valid = 0
        while num_valid < self.num_valid and num_drawn < self.max_draws:
            if meter.left_s is not None and meter.left_s <= 0:
                meter.cut_off = True
                break
            count = min(BATCH, self.max_draws - num_drawn)
            factors = tilings.draw(random, count)
            legal = np.nonzero(tilings.legal(factors))[0]
            for row in legal:
                orders: list[list[str]] = []
                for place, _ in tilings.temporal_slots():
                    order = tilings.loops(factors[row], place)
                    random.shuffle(order)
                    orders.append(order)
                candidate = Found.of(problem, tilings.mapping(factors[row], orders))
                if candidate is None:
                    continue
                num_valid += 1
                if best is None or candidate.key < best.key:
                    best = candidate
                if num_valid == self.num_valid:
                    count = int(row) + 1
                    break
            num_drawn += count
        note = f"seed {self.seed}; {num_valid} legal of {num_drawn} tilings drawn"
        provenance = Provenance(self.name, self.seed, num_valid, note)
        return solution(problem, tilings, best, provenance, meter.cut_off, started, num_drawn)


@dataclass(frozen=True, slots=True)
class Found:
    """A legal mapping with its cost, and that in the order in which the objective ranks costs."""

    mapping: Mapping
    cost: Cost
    key: tuple[float, float]

    @classmethod
    def of(cls, problem: MappingProblem, mapping: Mapping) -> Found | None:
        """The mapping with its cost; None if it does not fit."""
        try:
            cost = evaluate(problem.problem, problem.machine, mapping, problem.cost_options)
        except InfeasibleMapping:
            return None
        return cls(mapping, cost, rank(problem.objective, cost.cycles, cost.energy_pj))


def solution(
    problem: MappingProblem,
    tilings: Tilings,
    best: Found | None,
    provenance: Provenance,
    cut_off: bool,
    started: float,
    num_samples: float,
) -> MappingSolution:
    """The best found, or the mapping of the smallest tiles where chance found none.

    `details["samples"]` is how many mappings were drawn for it, legal or not.
    """
    if best is None:
        note = f"{provenance.note}; none legal, so all loops are in the outermost level"
        provenance = replace(provenance, note=note)
    return build_solution(
        problem,
        tilings.everything_outermost() if best is None else best.mapping,
        provenance,
        cost=None if best is None else best.cost,
        seconds=time.perf_counter() - started,
        cut_off=cut_off,
        details={"samples": num_samples},
    )
