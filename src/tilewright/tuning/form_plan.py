"""Requests and results of a search over the forms of a model's subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Generic, Protocol, TypeVar

from tilewright.records import dataclass
from tilewright.tuning.samples import Samples, typical
from tilewright.tuning.space import Form, FormSpace, FormT
from tilewright.tuning.workers import Failed

KernelTimes = Mapping[str, Mapping[int, Samples]]
"""Of a plan: by the key of a subgraph and the position of a kernel's first operator in it, times in ns, one
for each run, of all places of the subgraph together."""

PlannedT = TypeVar("PlannedT", bound=Form, contravariant=True)


@dataclass(frozen=True, slots=True)
class FormSite(Generic[FormT]):
    """Equal subgraphs of a model, and their forms. `nodes` name the first operator at each place."""

    space: FormSpace[FormT]
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the subgraphs have in common."""
        return self.space.key


@dataclass(frozen=True, slots=True)
class Paired:
    """Times of a plan, and of the reference that ran in turns with it."""

    plan: KernelTimes
    reference: KernelTimes


class FormBench(Protocol[PlannedT]):
    """Builds and runs a model by several plans: forms by the keys of sites, initial ones elsewhere.

    Plans are built anew in every call, and the values of each are compared with those of the untuned plan.
    """

    @property
    def max_plans(self) -> int:
        """Plans that one call may be given: each needs memory."""
        ...

    def profile(self, plan: Mapping[str, PlannedT]) -> KernelTimes | Failed:
        """The times of a plan's kernels."""
        ...

    def compare(
        self,
        reference: Mapping[str, PlannedT],
        plans: Sequence[Mapping[str, PlannedT]],
        *,
        for_long: bool = False,
    ) -> Sequence[Paired | Failed]:
        """The times of each plan's kernels, beside those of the reference; from more runs if `for_long`."""
        ...

    def race(
        self, incumbent: Mapping[str, PlannedT], plan: Mapping[str, PlannedT]
    ) -> tuple[Samples, Samples] | Failed:
        """Whole-model times in ns of both, one for each round, in which they take turns."""
        ...


@dataclass(frozen=True, slots=True)
class FormTrial(Generic[FormT]):
    """One form of the subgraphs of a key, measured in context beside the initial form, or why it was not.

    `samples_ns` are its times, one for each run that counted; `plain_ns` is typical of the initial form.
    """

    key: str
    form: FormT
    samples_ns: Samples
    plain_ns: float
    features: Mapping[str, float]
    failure: Failed | None = None

    @property
    def time_ns(self) -> float:
        """What it typically takes."""
        return typical(self.samples_ns)

    @property
    def ratio(self) -> float | None:
        """Its time over the initial form's: below 1 it is faster; None where it failed."""
        return None if self.failure is not None else self.time_ns / self.plain_ns


@dataclass(frozen=True, slots=True, eq=False)
class TunedForms(Generic[FormT]):
    """The forms that made a whole model faster, by site, and both times; none where the untuned plan stays.

    `is_complete`: all searches have settled.
    """

    forms: Mapping[str, FormT]
    plain_ns: float = 0.0
    tuned_ns: float = 0.0
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class SiteReport(Generic[FormT]):
    """What was tried for one site, and what came of it.

    `form` is what replaces the initial form, None where that stays; `ratio` the time of that, or else of the
    best other form, over the initial one's, in the running model; None where no other was measured whole or
    composed of measured parts. `num_priced` forms were looked at, if only by their
    estimates.
    """

    key: str
    nodes: tuple[str, ...]
    num_parts: int
    num_priced: int
    num_measured: int
    num_failed: int
    plain_ns: float
    ratio: float | None
    form: FormT | None
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class FormOutcome(Generic[FormT]):
    """What a search came to; it `is_lost` where no machine was left to measure before its end.

    Of `num_candidates` forms, 0 where unknown, `num_measured` were measured, now or before; `num_trials`
    is of now. `why_unmeasured` is empty where any was.
    """

    plan: TunedForms[FormT]
    sites: tuple[SiteReport[FormT], ...]
    num_trials: int
    num_priced: int
    is_interrupted: bool = False
    is_lost: bool = False
    num_candidates: int = 0
    num_measured: int = 0
    why_unmeasured: str = ""


@dataclass(frozen=True, slots=True)
class Listener(Generic[FormT]):
    """Who is told while a search runs: of trials, of a plan that won its race, of how far it is."""

    record: Callable[[Sequence[FormTrial[FormT]]], None]
    store: Callable[[TunedForms[FormT]], None]
    report: Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Findings(Generic[FormT]):
    """What is known before a search: trials by key of a space, and the plan that an earlier search stored.

    `hints` are forms that did well elsewhere, the best first: they are measured before others.
    """

    trials: Callable[[FormSpace[FormT]], Mapping[FormT, float | None]] = field(default=lambda space: {})
    plan: TunedForms[FormT] | None = None
    hints: Callable[[FormSpace[FormT]], Sequence[FormT]] = field(default=lambda space: ())
