"""The default planner: the best of several greedy orders, then local improvement."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from tilewright.memory.base import Buffer, MemoryPlan, MemoryProblem
from tilewright.memory.bound import lower_bound_bytes
from tilewright.memory.levels import place_levels
from tilewright.memory.packing import Packing
from tilewright.memory.placement import Fit, Item, Placer
from tilewright.planning import Budget, Infeasible, Meter, option
from tilewright.records import dataclass

_ORDERS: tuple[tuple[str, Callable[[Item, Placer], tuple[int, ...]]], ...] = (
    ("size", lambda i, _: (-i.size_bytes, i.first_step)),
    ("lifetime", lambda i, _: (i.first_step - i.last_step, -i.size_bytes)),
    ("area", lambda i, _: (-i.size_bytes * (i.last_step - i.first_step + 1), i.first_step)),
    ("time", lambda i, _: (i.first_step, -i.size_bytes)),
    ("end", lambda i, _: (-i.last_step, -i.size_bytes)),
    ("crowd", lambda i, p: (-p.num_neighbours(i.number), -i.size_bytes)),
)
MAX_VISITED_PAIRS = 10_000_000
"""Placements end the search when they have looked at this many pairs of buffers: minutes become seconds."""
_FITS: tuple[Fit, ...] = ("lowest", "tightest")


@dataclass(frozen=True, slots=True)
class ArenaPlanner:
    """The best of several greedy orders, then local improvement.

    Deterministic for a seed and a number of evaluations; one evaluation is one placement of all buffers.
    `max_rounds` limits the improvement below the budget: placements are cheap, but their gain ends early.
    """

    seed: int = option(0, "Seed of the improvement.")
    max_rounds: int = option(400, "Most rounds of improvement.")
    name: ClassVar[str] = "arena"

    def solve(self, problem: MemoryProblem, budget: Budget) -> MemoryPlan | Infeasible:
        """Stops as soon as the peak equals the lower bound."""
        return place_levels(problem, budget, self, seed=self.seed)

    def pack_level(self, buffers: Sequence[Buffer], capacity_bytes: int | None, meter: Meter) -> Packing:
        """The least peak that is found."""
        search = _Search(Placer(buffers), lower_bound_bytes(buffers), meter)
        search.try_orders()
        search.improve(random.Random(self.seed), self.max_rounds)
        return Packing(search.placer.by_buffer(search.offsets), search.found_by)


class _Search:
    def __init__(self, placer: Placer, bound_bytes: int, meter: Meter) -> None:
        self.placer = placer
        self.bound_bytes = bound_bytes
        self.meter = meter
        self.order: list[int] = sorted(
            range(len(placer.items)), key=lambda n: (-placer.items[n].size_bytes, n)
        )
        self.fit: Fit = "lowest"
        self.placements_left = MAX_VISITED_PAIRS // max(1, placer.num_pairs)
        # One placement always happens: without it there is no plan to give.
        self.offsets = placer.place(self.order)
        self.peak = placer.peak(self.offsets)
        self.found_by = "size, lowest"
        meter.spend()

    @property
    def is_done(self) -> bool:
        return self.peak <= self.bound_bytes or self.placements_left <= 0

    def try_orders(self) -> None:
        """Every order with every fit."""
        items = self.placer.items
        for name, key in _ORDERS:
            order = sorted(range(len(items)), key=lambda n: (*key(items[n], self.placer), n))
            for fit in _FITS:
                if self.is_done or not self.meter.spend():
                    return
                self._consider(order, fit, f"{name}, {fit}")

    def improve(self, rng: random.Random, max_rounds: int) -> None:
        """Move an item that causes the peak, or one in its way, towards the front of the order."""
        for _ in range(max_rounds):
            if self.is_done or not self.meter.spend():
                return
            order = list(self.order)
            culprit = rng.choice(self._culprits())
            place = order.index(culprit)
            order.insert(rng.randrange(place + 1), order.pop(place))
            if rng.random() < 0.3:
                a, b = rng.randrange(len(order)), rng.randrange(len(order))
                order[a], order[b] = order[b], order[a]
            self._consider(order, self.fit, "local improvement", accept_equal=True)

    def _culprits(self) -> list[int]:
        """Items that end at the peak, and those live with them."""
        items = self.placer.items
        highest = [i for i in items if self.offsets[i.number] + i.size_bytes == self.peak]
        return sorted({n for i in highest for n in (i.number, *self.placer.neighbours(i.number))})

    def _consider(self, order: Sequence[int], fit: Fit, found_by: str, *, accept_equal: bool = False) -> None:
        self.placements_left -= 1
        offsets = self.placer.place(order, fit)
        peak = self.placer.peak(offsets)
        if peak < self.peak:
            self.found_by = found_by
        if peak < self.peak or (accept_equal and peak == self.peak):
            self.order, self.fit, self.offsets, self.peak = list(order), fit, offsets, peak
