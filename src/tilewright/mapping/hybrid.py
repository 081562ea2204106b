"""Timeloop's hybrid mapper: a random tiling, then all its orders of loops in a row, then the next tiling.

CoSA's paper compares itself with it (section IV-B), and Timeloop has it under the same name. Each thread
draws tilings of its own. Of a tiling that fits it looks at every order of every level's temporal loops, the
innermost level's first; left out are only orders that differ in loops of a single iteration, and those of
levels with no tensor further in. A thread ends after `victory` legal mappings in a row that were no better.
As one tiling may have more orders than that, it often ends on a poor tiling: that is how the mapper is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import factorial

import numpy as np
from numpy.typing import NDArray

from tilewright.cost.bound import check_smallest_tiles
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.random import BATCH, Found, solution
from tilewright.mapping.sampling import Factors, Tilings
from tilewright.planning import UNLIMITED, Budget, Infeasible, Meter, Provenance, option

_FACTORIALS = np.array([factorial(n) for n in range(21)], np.float64)
_MAX_INVALID = 10**9  # illegal mappings in a row after which a search without a timeout gives up
_CLEAR_DIFFERENCE = 1e-3  # share by which one cost must be lower before the next one is not asked


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Timeloop's hybrid search: random tilings in independent streams, all orders of each that is legal.

    Timeloop's own limits are a victory of 500 and a timeout of 1000, but on the Simba preset most streams
    would end after 1000 without any legal mapping. In CoSA's paper all end by victory: `num_threads=32,
    timeout=0`. Of `max_mappings` each stream looks at its part and what those before it left.
    """

    num_threads: int = option(4, "Independent random streams.")
    victory: int = option(
        500, "Legal mappings in a row without improvement that end a stream; 0 for no limit."
    )
    timeout: int = option(15_000, "Illegal mappings in a row that end a stream; 0 for no limit.")
    seed: int = option(0, "Seed of the streams.")
    max_mappings: int = option(UNLIMITED, "Most legal mappings that all streams look at.")

    @property
    def name(self) -> str:
        """The name in the registry."""
        return "hybrid"

    def limited(self, num_mappings: int) -> Hybrid:
        """The same mapper that looks at so many legal mappings at most."""
        return replace(self, max_mappings=num_mappings)

    def solve(self, problem: MappingProblem, budget: Budget) -> MappingSolution | Infeasible:
        """The best mapping of all threads: by the objective, then by energy (of equal energy, by cycles).

        How much is looked at is the mapper's own option; of the budget the deadline counts.

        Raises:
            InfeasibleMapping: tiles of one iteration, or the whole tensors, do not fit.
        """
        started = time.perf_counter()
        check_smallest_tiles(problem.problem, problem.machine, problem.cost_options)
        tilings = Tilings(problem)
        meter = budget.start()
        best: Found | None = None
        drawn = legal = looked_at = 0
        invalid = 0.0
        for number in range(self.num_threads + 1):
            if number == self.num_threads and (best is not None or meter.cut_off):
                break
            # One more without a timeout where all ended with nothing: an answer is worth more than none.
            timeout = self.timeout if number < self.num_threads else 0
            thread = _Thread(self, problem, tilings, np.random.default_rng([self.seed, number]), timeout)
            part = min(number + 1, self.num_threads)
            thread.run(
                meter,
                part / self.num_threads,
                self.max_mappings * part // self.num_threads - looked_at,
            )
            thread_best = thread.best
            drawn, legal = drawn + thread.num_drawn, legal + thread.num_legal
            looked_at += thread.num_looked_at
            invalid += thread.num_invalid
            if thread_best is not None and (best is None or is_better(thread_best.key, best.key)):
                best = thread_best
        note = (
            f"seed {self.seed}, {self.num_threads} threads, victory {self.victory}; "
            f"{looked_at} mappings of {legal} legal tilings of {drawn} drawn"
        )
        provenance = Provenance(self.name, self.seed, looked_at, note)
        # As Timeloop counts them: an illegal tiling is as many samples as it would try of it.
        return solution(problem, tilings, best, provenance, meter.cut_off, started, looked_at + invalid)


def is_better(candidate: tuple[float, float], incumbent: tuple[float, float]) -> bool:
    """Timeloop's comparison: the first cost that differs by more than 0.1 % decides, else the first one.

    >>> is_better((100.0, 5.0), (100.05, 4.0)), is_better((99.0, 5.0), (100.0, 4.0))
    (False, True)
    """
    for new, old in zip(candidate, incumbent, strict=True):
        if abs(old - new) > _CLEAR_DIFFERENCE * old:
            return new < old
    return candidate[0] < incumbent[0]


class _Thread:
    """One stream of tilings, and the best mapping in it."""

    def __init__(
        self,
        mapper: Hybrid,
        problem: MappingProblem,
        tilings: Tilings,
        random: np.random.Generator,
        timeout: int,
    ) -> None:
        self.mapper = mapper
        self.timeout = timeout or _MAX_INVALID
        self.problem = problem
        self.tilings = tilings
        self.random = random
        self.key: tuple[float, float] | None = None
        self.best_mapping: tuple[Factors, list[tuple[str, ...]]] | None = None
        self.num_drawn = 0
        self.num_legal = 0
        self.num_looked_at = 0
        self.num_invalid = 0.0

    @property
    def best(self) -> Found | None:
        """The best mapping with its cost; None if none was legal."""
        if self.best_mapping is None:
            return None
        return Found.of(self.problem, self.tilings.mapping(*self.best_mapping))

    def run(self, meter: Meter, share: float, max_mappings: int = UNLIMITED) -> None:
        """Search until victory, timeout, so many legal mappings, or this share of the time is gone."""
        if max_mappings <= 0:
            return
        whole_s = meter.budget.deadline_s
        since_better = 0
        for factors in self._legal_tilings(meter, share):
            self.num_legal += 1
            for orders, key in self.tilings.ranked(factors, self._orders(factors)):
                if whole_s is not None and _is_over(meter, whole_s, share):
                    meter.cut_off = True
                    return
                if key is None:  # what skipped pixels spare was not enough: no order will fit
                    break
                self.num_looked_at += 1
                if self.key is None or is_better(key, self.key):
                    self.key, since_better = key, 0
                    self.best_mapping = factors, orders
                else:
                    since_better += 1
                if since_better >= self.mapper.victory or self.num_looked_at >= max_mappings:
                    return

    def _legal_tilings(self, meter: Meter, share: float) -> Iterator[Factors]:
        """Legal tilings in the order drawn, until illegal mappings in a row reach the timeout."""
        whole_s = meter.budget.deadline_s
        invalid = 0.0
        while True:
            if whole_s is not None and _is_over(meter, whole_s, share):
                meter.cut_off = True
                return
            factors = self.tilings.draw(self.random, BATCH)
            legal = np.nonzero(self.tilings.legal(factors))[0].tolist()
            costs = self._invalid_mappings(factors)
            start = 0
            for row in (*legal, BATCH):
                in_a_row = invalid + np.cumsum(costs[start:row])
                if len(in_a_row) and in_a_row[-1] >= self.timeout:
                    last = int(np.argmax(in_a_row >= self.timeout))
                    self.num_drawn += 1 + last
                    self.num_invalid += float(in_a_row[last]) - invalid
                    return
                self.num_drawn += row - start
                self.num_invalid += float(in_a_row[-1]) - invalid if len(in_a_row) else 0.0
                if row < BATCH:
                    self.num_drawn += 1
                    invalid, start = 0.0, row + 1
                    yield factors[row]
                elif len(in_a_row):
                    invalid = float(in_a_row[-1])

    def _invalid_mappings(self, factors: Factors) -> NDArray[np.float64]:
        """Mappings that Timeloop tries of each tiling if the tiling is not legal.

        It places spatial loops on two axes of a mesh, of which the levels here have one: every way to part
        them is tried. Where none fits it goes on through all orders; where a capacity is too small it stops.
        """
        loops = (factors > 1).sum(axis=1)
        orders = np.ones(len(factors))
        splits = np.ones(len(factors))
        fits = np.ones(len(factors), np.bool_)
        for place, slot in enumerate(self.tilings.slots):
            if slot.is_spatial:
                splits *= loops[:, place] + 1
                asked = factors[:, :, place].prod(axis=1)
                fits &= asked <= self.problem.machine.fan_out(slot.level)
            elif self.tilings.is_order_seen(slot.level):
                orders *= _FACTORIALS[np.minimum(loops[:, place], len(_FACTORIALS) - 1)]
        return splits * np.where(fits, 1.0, orders)

    def _orders(self, factors: Factors) -> Iterator[list[tuple[str, ...]]]:
        """Orders of every level's temporal loops, the innermost level's changing fastest."""
        choices: list[Iterable[tuple[str, ...]]] = []
        for place, slot in self.tilings.temporal_slots():
            loops = self.tilings.loops(factors, place)
            is_seen = self.tilings.is_order_seen(slot.level)
            choices.append(permutations(loops) if is_seen else [tuple(loops)])
        return (list(reversed(orders)) for orders in product(*reversed(choices)))


def _is_over(meter: Meter, whole_s: float, share: float) -> bool:
    left_s = meter.left_s
    return left_s is not None and left_s <= whole_s * (1 - share)
