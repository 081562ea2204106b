"""The search over blocks of programs: the best path through all that are known, then more blocks near it.

Blocks of published schedulers' plans are the start, so that the first answer is their best combination; then
blocks near the best path join, lazily priced, until none improves it or the budget ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from itertools import pairwise
from math import inf

from tilewright.joint.additive import Part, shortest
from tilewright.joint.launched.content import Content
from tilewright.joint.launched.frozen import Frozen, FrozenProof, search_frozen
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import Proof, prove
from tilewright.joint.launched.tiling import JointTiler
from tilewright.planning import UNLIMITED, Meter
from tilewright.planning.quality import beside
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.schedule.base import ScheduleProblem

PRICES_PER_TRIAL = 50
"""Blocks whose simulation counts as one of a budget's evaluations."""
MOST_PRICED = 2000
"""Blocks that a proof simulates at most, whatever the budget."""
_MOST_JOINED = 4
_SHARE_BEFORE_LATE = 0.6
"""Of the time of a proof: better plans that it finds later are published at once."""
_SHARE_OF_TILINGS = 0.4
"""Of what is left of a budget, for finding joint tilings."""


@dataclass(slots=True)
class LaunchedSearch:
    """One search; `best` are the blocks of the cheapest plan so far; `is_settled`: none near is better."""

    pricer: LaunchedPricer
    meter: Meter
    best: tuple[Content, ...]
    cost: float
    progress: Progress | None = None
    is_spent: bool = False
    is_settled: bool = False
    num_rounds: int = 0
    bound: float = field(init=False)
    moves: Moves = field(init=False)

    def __post_init__(self) -> None:
        self.bound = self.pricer.bound.value
        self.moves = Moves(self.pricer, _MOST_JOINED)

    @classmethod
    def of(
        cls,
        pricer: LaunchedPricer,
        plans: Iterable[Sequence[Content]],
        meter: Meter,
        progress: Progress | None = None,
    ) -> LaunchedSearch:
        """A search from some plans on, the first of which, the cheapest as a whole, are priced until one is
        allowed and has a place: blocks of others are when a shortest path needs them."""
        best, cost = tuple[Content, ...](), inf
        for plan in plans:
            for content in plan:
                pricer.add(content)
            if cost == inf and all(map(pricer.allows, plan)):
                best, cost = tuple(plan), sum(map(pricer.cost, plan))
        return cls(pricer, meter, best, cost, progress)

    def join(self) -> bool:
        """Join neighbours, whole or side by side, and let the best have lanes; whether that gains."""
        cost = self.cost
        self.is_spent = self._is_due()
        while not self.is_spent:
            new = [content for content in self.moves.joined(self.best) if self.pricer.add(content)]
            is_better = bool(new) and self._combined()
            laned = (self.moves.laned(content, self.meter) for content in self.best)
            new = [content for content in laned if content is not None and self.pricer.add(content)]
            if not (bool(new) and self._combined()) and not is_better:
                break
        return self.cost < cost

    def run(self, publish: Callable[[Sequence[Content]], None]) -> None:
        """Improve until nothing near is better, or the budget ends; `publish` each better plan."""
        if self._combined():
            publish(self.best)
        moves = self.moves
        tiler = JointTiler(self.pricer, self._due_after(_SHARE_OF_TILINGS, MOST_PRICED))
        self._tile(tiler)
        if self._combined():
            publish(self.best)
        while not self.is_spent:
            self.num_rounds += 1
            self._told()
            new = [content for content in moves.near(self.best) if self.pricer.add(content)]
            for content in self.best:
                laned = moves.laned(content, self.meter)
                if laned is not None:
                    new += [laned] * self.pricer.add(laned)
            new += self._tile(tiler)
            if not new or not self._combined():
                self.is_settled = not self.is_spent
                return
            publish(self.best)

    def _tile(self, tiler: JointTiler) -> list[Content]:
        """Add the best blocks, and each two neighbours as one kernel, with layers tiled jointly."""
        joined = (self.moves.fused(a.mask | b.mask) for a, b in pairwise(self.best))
        tiled = (new for content in (*self.best, *joined) for new in tiler.tiled(content))
        return [content for content in tiled if self.pricer.add(content)]

    def prove(
        self, publish: Callable[[Sequence[Content]], None], share: float, most_layers: int = UNLIMITED
    ) -> Proof | None:
        """The cheapest plan of a declared space that holds the best blocks, or a bound of its plans, for a
        share of what is left of the budget; blocks that are not known have at most so many layers. None:
        there are too many ideals, or the budget has ended."""
        if self._is_due():
            return None

        def take(contents: tuple[Content, ...], cost: float) -> None:
            self.best, self.cost = contents, cost
            publish(contents)

        is_due = self._due_after(share, MOST_PRICED)
        is_late = self._due_after(share * _SHARE_BEFORE_LATE, MOST_PRICED)
        start = self.best, self.cost
        return prove(self.pricer, self.moves, *start, self.meter, is_due, take, most_layers, is_late)

    def prove_frozen(self, frozen: Frozen, problem: ScheduleProblem) -> FrozenProof | None:
        """The cheapest plan that leaves what is frozen as it is; None where its blocks are too many to list,
        or the budget ends first."""
        if self._is_due():
            return None
        is_due = self._due_after(1.0, UNLIMITED)
        return search_frozen(frozen, self.pricer, problem, self.moves, self.meter, is_due)

    def _due_after(self, share: float, most_priced: int) -> Callable[[], bool]:
        """Whether a share of what is left of the budget is gone, or so many more blocks are simulated."""
        left_s = self.meter.left_s
        until_s = -inf if left_s is None else left_s * (1 - share)
        trials_left = self.meter.budget.max_evaluations - self.meter.num_evaluations
        most = self.pricer.num_simulated + min(trials_left * share * PRICES_PER_TRIAL, most_priced)

        def is_due() -> bool:
            left_s = self.meter.left_s
            is_late = left_s is not None and left_s <= until_s
            return self._is_due() or is_late or self.pricer.num_simulated >= most

        return is_due

    def _combined(self) -> bool:
        """Whether the best path through all blocks is better than what is known."""
        everything = (1 << self.pricer.num_layers) - 1
        part = Part(everything, 0, everything)
        found = shortest(
            self.pricer, part, list(self.pricer.sets), self.cost, is_due=self._is_due, is_once=True
        )
        if found.plan is None:
            return False
        contents = []
        for block in found.plan.blocks:
            content = self.pricer.best(block.layers)[1]
            assert content is not None, "it has a finite cost"
            contents.append(content)
        self.best, self.cost = tuple(contents), found.plan.cost
        return True

    def _is_due(self) -> bool:
        """Whether the budget ends: each so many simulated blocks are a trial."""
        while self.meter.num_evaluations * PRICES_PER_TRIAL < self.pricer.num_simulated:
            if not self.meter.spend():
                self.is_spent = True
                break
        if self.meter.is_over:
            self.is_spent = True
        self._told()
        return self.is_spent

    def _told(self) -> None:
        if self.progress is not None:
            best = beside(self.cost, self.bound, "ns")
            self.progress(f"joint: {best}", *self.meter.progress)
