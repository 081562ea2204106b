"""The best plan of a search so far: a new one races whole models against it, and is stored if it wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Generic

from tilewright.planning import Meter
from tilewright.records import dataclass
from tilewright.tuning.form_plan import FormBench, Listener, TunedForms
from tilewright.tuning.samples import is_faster, typical
from tilewright.tuning.space import FormT
from tilewright.tuning.workers import Failed

_NUM_RACES = 3
# A plan that does not win races again with the forms alone that are faster by this much.
_LARGE_GAIN = 0.06


@dataclass(slots=True, eq=False)
class Incumbent(Generic[FormT]):
    """Who must be beaten: the stored `plan`, and in any case the untuned one.

    `verdicts` say of sites what became of what promised most there, `taken_by` those of the stored plan.
    """

    bench: FormBench[FormT]
    meter: Meter
    listener: Listener[FormT]
    clock: Callable[[], float] = time.monotonic
    plan: TunedForms[FormT] = field(default_factory=lambda: TunedForms({}))
    verdicts: dict[str, str] = field(default_factory=dict)
    taken_by: dict[str, str] = field(default_factory=dict)
    race_s: float = 0.0  # what the last race took
    _raced: list[Mapping[str, FormT]] = field(default_factory=list)

    def challenge(self, forms: Mapping[str, FormT], ratios: Mapping[str, float]) -> None:
        """Store a plan if it wins; `ratios` are times of its forms over those of the initial ones.

        Where it does not, noise may have chosen some of its forms: those that gain much race alone.
        """
        if self._wins(forms):
            return
        large = {key: form for key, form in forms.items() if ratios[key] < 1 - _LARGE_GAIN}
        if large and self._has_time:
            self._wins(large)

    def defend(self, forms: Mapping[str, FormT]) -> None:
        """Let another plan race against the stored one, which stays unless it is clearly beaten."""
        if not self.plan.forms or not forms or not self._has_time or self._is_known(forms):
            return
        self._raced.append(forms)
        times = self._whole_times(self.plan.forms, forms)
        if times is not None and is_faster(times[1], times[0]):
            ratio = typical(times[1]) / typical(times[0])
            beaten, taken_by = self.plan.forms, self.taken_by
            self._store(forms, self.plan.plain_ns, ratio * self.plan.tuned_ns)
            # Verdicts are of the forms that were built anew, which these are not.
            self.taken_by = {key: taken_by[key] for key in taken_by if forms.get(key) == beaten.get(key)}

    def _wins(self, forms: Mapping[str, FormT]) -> bool:
        """Whether a plan beats the untuned one and the stored one, which it then replaces."""
        if not forms or self._is_known(forms):
            return False
        self._raced.append(forms)
        times = self._whole_times({}, forms)
        if times is None:
            return False
        plain, new = times
        incumbent = self.plan.forms
        wins = is_faster(new, plain)
        if wins and incumbent:
            against = self._whole_times(incumbent, forms, most=1)
            wins = against is not None and typical(against[1]) < typical(against[0])
        if wins:
            self._store(forms, typical(plain), typical(new))
        elif not incumbent:
            self.plan = TunedForms({}, typical(plain), typical(new))
        return wins

    def _store(self, forms: Mapping[str, FormT], plain_ns: float, tuned_ns: float) -> None:
        self.plan = TunedForms(dict(forms), plain_ns, tuned_ns)
        self.taken_by = dict(self.verdicts)
        self.listener.store(self.plan)

    def _is_known(self, forms: Mapping[str, FormT]) -> bool:
        return forms == self.plan.forms or forms in self._raced

    @property
    def _has_time(self) -> bool:
        left_s = self.meter.left_s
        return left_s is None or left_s > self.race_s

    def _whole_times(
        self, incumbent: Mapping[str, FormT], forms: Mapping[str, FormT], *, most: int = _NUM_RACES
    ) -> tuple[list[float], list[float]] | None:
        """Times of whole runs of both, from as many races as are needed; None where one does not run."""
        before: list[float] = []
        after: list[float] = []
        for attempt in range(most):
            self.listener.report("compare whole models", attempt, most)
            start_s = self.clock()
            samples = self.bench.race(incumbent, forms)
            self.race_s = self.clock() - start_s
            if isinstance(samples, Failed):
                return None
            before += samples[0]
            after += samples[1]
            if is_faster(after, before) or is_faster(before, after) or not self._has_time:
                break
        return before, after
