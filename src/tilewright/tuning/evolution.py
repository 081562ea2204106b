"""Evolutionary search in a space of forms: estimates say which offspring are measured, measurements whose.

A search proposes and is told; in which order and on which machine forms are measured does not matter. What it
proposes depends on the seed, on how often it was asked, and on the set of what it was told before.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Generic

from tilewright.records import dataclass
from tilewright.tuning.space import FormSpace, FormT, text_of


@dataclass(frozen=True, slots=True)
class EvolutionOptions:
    """How a population is kept and renewed.

    `num_parents` of the best measured forms have offspring; of `num_offspring` estimates choose which to
    measure, but for a share of `epsilon`, which chance chooses. `cross_share` of them have two parents.
    Kinds of which `num_hopeless` forms were measured, none of them in less than `hopeless_ratio` of the
    initial form's time, are left to chance. A search has settled when its last `window` forms made the best
    less than `min_gain` better: times the patience of the search, which grows where time is left.
    """

    num_parents: int = 8
    num_offspring: int = 32
    epsilon: float = 0.15
    cross_share: float = 0.3
    window: int = 10
    min_gain: float = 0.015
    num_hopeless: int = 2
    hopeless_ratio: float = 1.3


DEFAULT_EVOLUTION = EvolutionOptions()


class Evolution(Generic[FormT]):
    """The search in one space. A form's worth is its time over that of the initial form beside it."""

    def __init__(
        self,
        space: FormSpace[FormT],
        seed: int = 0,
        *,
        known: Mapping[FormT, float | None] | None = None,
        options: EvolutionOptions = DEFAULT_EVOLUTION,
    ) -> None:
        """`known` was measured before, None: it failed."""
        self.space = space
        self.options = options
        self.initial = space.initial()
        self.origins: dict[FormT, str] = {self.initial: "the estimates' choice"}
        self._ratios: dict[FormT, float] = {self.initial: 1.0}
        self._failed: set[FormT] = set()
        self._costs: list[float] = [1.0]
        self._seed = seed
        self._num_asked = 0
        self._estimates: dict[FormT, float] = {}
        self._is_exhausted = False
        self._kinds: dict[Hashable, list[float]] = {}
        self.patience = 1
        for form, ratio in (known or {}).items():
            self._note(form, ratio)
            self.origins.setdefault(form, "measured earlier")
        self._costs = [self.best[1]]
        self._queue = [form for form in dict.fromkeys(space.starts()) if self._is_new(form)]
        self.origins.update((form, "the best of its kind by estimate") for form in self._queue)

    @property
    def best(self) -> tuple[FormT, float]:
        """The best form that is known, and its worth."""
        return self.ranking[0]

    @property
    def ranking(self) -> list[tuple[FormT, float]]:
        """All measured forms with their worth, the best first."""
        return sorted(self._ratios.items(), key=lambda item: (item[1], text_of(item[0])))

    def ratio(self, form: FormT) -> float | None:
        """The worth of a form; None where it was not measured."""
        return self._ratios.get(form)

    def knows(self, form: FormT) -> bool:
        """Whether a form was measured, or failed to be."""
        return not self._is_new(form)

    def start_with(self, form: FormT, origin: str) -> None:
        """Propose this form before all others; `origin` says where it comes from."""
        if self._is_new(form):
            self.origins[form] = origin
            self._queue = [form, *(other for other in self._queue if other != form)]

    @property
    def num_priced(self) -> int:
        """Forms that were looked at, if only by their estimates."""
        return len(self._estimates.keys() | self._ratios.keys() | self._failed)

    @property
    def num_candidates(self) -> int:
        """Forms that were looked at beside the one that it began with."""
        return self.num_priced - 1

    @property
    def num_measured(self) -> int:
        """Forms that were measured, now or before, or failed to be."""
        return len(self._ratios) - 1 + len(self._failed)

    @property
    def num_failed(self) -> int:
        """Forms that could not be measured, or computed wrong values."""
        return len(self._failed)

    @property
    def has_settled(self) -> bool:
        """Whether more would hardly bring much: nothing new is left, or the last forms brought little."""
        window = self.patience * self.options.window
        return self.is_exhausted or has_settled(self._costs, window, self.options.min_gain)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing new could be proposed when that was asked for last."""
        return self._is_exhausted and not self._queue

    def propose(self, count: int) -> tuple[FormT, ...]:
        """Forms to measure next, no more than `count`, none of them known; fewer where the space has no more.

        First those that the space names; they and offspring take turns as soon as something is known.
        """
        rng = random.Random(f"{self._seed}/{self.space.key}/{self._num_asked}")
        self._num_asked += 1
        num_queued = count if len(self._ratios) <= self.options.num_parents else (count + 1) // 2
        picks = self._next_queued(num_queued)
        picks += self._offspring(count - len(picks), picks, rng)
        picks += self._next_queued(count - len(picks))
        self._is_exhausted = len(picks) < count
        return tuple(picks)

    def observe(self, outcomes: Mapping[FormT, float | None]) -> None:
        """Take note of what was measured: worths, None for a form that failed and is never chosen.

        A form that was measured before is now worth this: a later measurement is of a freshly built model.
        """
        for form in sorted(outcomes, key=text_of):
            self._note(form, outcomes[form])

    def _note(self, form: FormT, ratio: float | None) -> None:
        if ratio is None:
            self._failed.add(form)
            self._ratios.pop(form, None)
        elif form != self.initial:
            is_new = form not in self._ratios
            self._ratios[form] = ratio
            if is_new:
                self._costs.append(ratio)
                self._kinds.setdefault(self.space.kind(form), []).append(ratio)

    def _next_queued(self, count: int) -> list[FormT]:
        picks: list[FormT] = []
        while self._queue and len(picks) < count:
            form = self._queue.pop(0)
            if self._is_new(form) and isfinite(self._estimate(form)) and not self._is_hopeless(form):
                picks.append(form)
        return picks

    def _offspring(self, count: int, taken: Sequence[FormT], rng: random.Random) -> list[FormT]:
        """Of new offspring those with the least estimates, and some that chance picks."""
        if count <= 0:
            return []
        pool = {form: ns for form, ns in self._born(rng) if form not in taken}
        possible = [f for f in pool if isfinite(pool[f])]
        ranked = sorted(possible, key=lambda f: (self._is_hopeless(f), pool[f], text_of(f)))
        picks: list[FormT] = []
        while ranked and len(picks) < count:
            is_random = rng.random() < self.options.epsilon
            picks.append(ranked.pop(rng.randrange(len(ranked)) if is_random else 0))
        return picks

    def _born(self, rng: random.Random) -> Iterator[tuple[FormT, float]]:
        """New forms, and what each is expected to take; those that are bred again and again end it.

        What a parent was measured to take says by how much its estimate errs, and those of its offspring.
        """
        parents = [form for form, _ in self.ranking[: self.options.num_parents]]
        born: set[FormT] = set()
        for _ in range(4 * self.options.num_offspring):
            form, parent, origin = self._bred(parents, rng)
            if form not in born and self._is_new(form):
                born.add(form)
                self.origins.setdefault(form, origin)
                estimate_ns = self._estimate(parent)
                error = self._ratios[parent] / estimate_ns if isfinite(estimate_ns) else inf
                yield form, self._estimate(form) * error
            if len(born) >= self.options.num_offspring:
                return

    def _bred(self, parents: Sequence[FormT], rng: random.Random) -> tuple[FormT, FormT, str]:
        """One offspring, the better parents having more of them, with its parent: the better one of two."""
        parent = parents[int(len(parents) * rng.random() ** 2)]
        if len(parents) > 1 and rng.random() < self.options.cross_share:
            other = rng.choice([form for form in parents if form != parent])
            mixed = self.space.cross(parent, other, rng)
            if mixed is not None and self._is_new(mixed):
                return mixed, min(parent, other, key=self._ratios.__getitem__), "bred of two"
        form = self.space.mutate(parent, rng)
        while rng.random() < 0.3:
            form = self.space.mutate(form, rng)
        return form, parent, "a mutation"

    def _is_hopeless(self, form: FormT) -> bool:
        """Whether forms that differ in sizes alone were so slow that other sizes will hardly help."""
        seen = self._kinds.get(self.space.kind(form), ())
        return len(seen) >= self.options.num_hopeless and min(seen) > self.options.hopeless_ratio

    def _is_new(self, form: FormT) -> bool:
        return form not in self._ratios and form not in self._failed

    def _estimate(self, form: FormT) -> float:
        if form not in self._estimates:
            estimate = self.space.estimate_ns(form)
            self._estimates[form] = estimate if estimate > 0 else inf
        return self._estimates[form]


def has_settled(costs: Sequence[float], window: int, share: float = 0.02) -> bool:
    """Whether the best of the costs found in turn became less than `share` better over the last `window`.

    >>> has_settled([9.0, 5.0, 4.99, 5.2, 4.98], window=3), has_settled([9.0, 5.0, 4.0], window=1)
    (True, False)
    """
    if len(costs) <= window:
        return False
    return min(costs) > (1 - share) * min(costs[:-window])
