"""Measured selection on this processor: the bench that runs a model by several plans; what is kept of it."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import BudgetExceeded, InputError, ModelRejected, UnsupportedOp, UsageError
from tilewright.planning import UNLIMITED, Budget, Meter
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.steps import KernelTuning, TuningInfo, TuningSettings
from tilewright.system.ray_cluster import NoCluster
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.lower.lowered import LoweredModel
from tilewright.targets.cpu.lower.storage import Arrangements
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.tune.base import (
    MAX_WEIGHT_BYTES,
    Generator,
    ModelTuner,
    database_of,
    random_feed,
)
from tilewright.targets.cpu.tune.form_tuner import FormTuner
from tilewright.targets.cpu.tune.race import BLOCK_RUNS, race
from tilewright.targets.cpu.tune.sites import Sites
from tilewright.tuning import Candidate, Plan, SearchOutcome, Site, Trial, TunedPlan, search

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

# A plan runs this long in one call of the bench.
_PROFILE_S = 0.4
_RACE_S = 1.2
_MIN_BLOCKS = 2
_MAX_BLOCKS = 12
_MAX_PLANS = 4
_MAX_NAMED = 3  # places of a site, to call it by


@dataclass(frozen=True, slots=True, eq=False)
class ModelBench:
    """Runs one program by several plans in this process, on random inputs."""

    target: Generator
    program: Program
    sites: Sites
    feed: Mapping[str, Array]
    weight_bytes: int
    arrangements: Arrangements = field(default_factory=lambda: Arrangements(MAX_WEIGHT_BYTES))

    @property
    def max_plans(self) -> int:
        """Plans whose weights fit side by side; at least two."""
        return max(2, min(_MAX_PLANS, MAX_WEIGHT_BYTES // max(1, self.weight_bytes)))

    def profile(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, list[float]]]:
        """For each plan the times in ns of each site, all its places together, one sample per run."""
        samples: list[dict[str, list[float]]] = [{} for _ in plans]
        with self._loaded(plans, profile=True) as contestants:
            num_blocks = 0
            started = time.perf_counter()
            while num_blocks < _MIN_BLOCKS or (
                num_blocks < _MAX_BLOCKS and time.perf_counter() - started < _PROFILE_S * len(plans)
            ):
                for (lowered, executable), times in zip(contestants, samples, strict=True):
                    executable.run_profiled(self.feed)
                    for _ in range(BLOCK_RUNS - 1):
                        durations = {t.step_index: t.duration_ns for t in executable.run_profiled(self.feed)}
                        for site, total_ns in self._by_site(lowered, durations).items():
                            times.setdefault(site, []).append(total_ns)
                num_blocks += 1
        return samples

    def _by_site(self, lowered: LoweredModel, durations: Mapping[int, float]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for index, step in enumerate(lowered.steps):
            site = self.sites.site_of(step)
            if site:
                totals[site] = totals.get(site, 0.0) + durations.get(index, 0.0)
        return totals

    def race(self, plans: Sequence[Plan]) -> Sequence[list[float]]:
        """For each plan the time of a run in ns, one for each round: the least of a block."""
        with self._loaded(plans, profile=False) as contestants:
            return race([executable for _, executable in contestants], self.feed, _RACE_S * len(plans))

    @contextlib.contextmanager
    def _loaded(
        self, plans: Sequence[Plan], *, profile: bool
    ) -> Iterator[list[tuple[LoweredModel, CpuExecutable]]]:
        with contextlib.ExitStack() as stack:
            loaded: list[tuple[LoweredModel, CpuExecutable]] = []
            for plan in plans:
                program = replace(self.program, choices=self.sites.choices(plan))
                try:
                    code = self.target.generate(program, profile=profile, arrangements=self.arrangements)
                except BudgetExceeded as error:  # the plain plan fits, or there would be nothing to tune
                    raise UsageError(f"other ways to make the kernels need more memory: {error}") from error
                executable = code.load(self.program.options.num_threads)
                stack.callback(executable.close)
                loaded.append((code.lowered, executable))
            yield loaded


@dataclass(slots=True, eq=False)
class Tuner(ModelTuner):
    """Chooses how single products of a model are made."""

    sites: Sites

    @classmethod
    def of(cls, target: Generator, plain: CpuCode) -> Tuner:
        """The tuner whose database lies in the cache that the program's options name."""
        return cls(target, plain, database_of(plain), Sites.of(plain.lowered, plain.program.schedule))

    @property
    def model(self) -> str:
        """Digest of what can be chosen, in the order in which it runs."""
        return self.sites.digest()

    def search(self, meter: Meter, *, afresh: bool, progress: Progress) -> TuningInfo:
        """Search and keep what is found; without `afresh` earlier measurements count."""
        if not self.program.options.no_cache:
            return self._search(self.program, meter, afresh, progress)
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            options = replace(self.program.options, no_cache=False, cache_dir=Path(folder))
            program = replace(self.program, options=options)
            return self._search(program, meter, afresh, progress)

    def _search(self, program: Program, meter: Meter, afresh: bool, progress: Progress) -> TuningInfo:
        database, context = self.database, self.context
        sites = self.measured_sites()
        known = {
            site.key: {t.candidate: t for t in database.trials(context, site.key)}
            for site in ([] if afresh else sites)
        }
        names = {site.key: ", ".join(site.nodes[:_MAX_NAMED]) for site in sites}
        if not afresh:
            sites = tuple(self._hinted(site) for site in sites)
        quiet = replace(program, options=replace(program.options, frozen=False, timeout_s=None))

        def searched(feed: Mapping[str, Array]) -> SearchOutcome:
            return search(
                sites,
                ModelBench(self.target, quiet, self.sites, feed, self.plain.weight_bytes),
                meter,
                record=lambda trials: database.record_trials(context, trials, names),
                report=lambda what, done, total: progress(what, done, total),
                known=known,
            )

        try:
            outcome = searched(random_feed(program))
        except InputError:
            outcome = searched(random_feed(program, largest_integer=0))
        if outcome.is_interrupted:
            earlier = self.stored()
            if earlier is not None:
                outcome = replace(outcome, plan=earlier)
        else:
            plan = replace(outcome.plan, model=program.graph.name, tuned_at_s=time.time())
            database.store_plan(context, self.model, plan)
        return self._info(outcome, sites)

    def _hinted(self, site: Site) -> Site:
        """A site whose candidates that did well elsewhere come first."""
        seen = self.database.hints(self.context, site.key)
        hints = [Candidate.from_json(hint.candidate) for hint in seen if hint.ratio < 1]
        promising = [candidate for candidate in hints if candidate in site.candidates]
        return replace(site, candidates=tuple(dict.fromkeys((*promising, *site.candidates))))

    def describe(self, plan: TunedPlan) -> TuningInfo:
        """A stored plan with the measurements that led to it."""
        sites = self.measured_sites()
        trials: dict[str, Trial] = {}
        num_measured = 0
        for site in sites:
            known = {t.candidate: t for t in self.database.trials(self.context, site.key)}
            num_measured += sum(candidate in known for candidate in site.candidates)
            chosen = plan.candidates.get(site.key)
            if chosen in known:
                trials[site.key] = known[chosen]
            elif known:
                trials[site.key] = min(known.values(), key=lambda t: t.ratio)
        plain_ns = {key: trial.plain_ns for key, trial in trials.items()}
        outcome = SearchOutcome(plan, trials, plain_ns, 0, num_measured=num_measured)
        return replace(self._info(outcome, sites), is_stored=True)

    def measured_sites(self) -> tuple[Site, ...]:
        """What has a time of its own and can be done in several ways."""
        return self.sites.all(self.plain.isa, self.program.options.accuracy)

    def _info(self, outcome: SearchOutcome, sites: Sequence[Site]) -> TuningInfo:
        plan = outcome.plan
        rows: list[KernelTuning] = []
        for site in sites:
            trial = outcome.trials.get(site.key)
            chosen = plan.candidates.get(site.key)
            before_ns = outcome.plain_ns.get(site.key)
            rows.append(
                KernelTuning(
                    nodes=site.nodes,
                    template=self.sites.template(site.key),
                    choice=None if chosen is None else self.sites.describe(site.key, chosen),
                    before_ns=before_ns,
                    after_ns=None if trial is None or before_ns is None else trial.ratio * before_ns,
                )
            )
        return TuningInfo(
            kernels=tuple(rows),
            choices=self.sites.choices(plan.candidates),
            plain_ns=plan.plain_ns,
            tuned_ns=plan.tuned_ns,
            num_trials=outcome.num_trials,
            is_complete=plan.is_complete,
            is_interrupted=outcome.is_interrupted,
            num_candidates=sum(len(site.candidates) for site in sites),
            num_measured=outcome.num_measured,
        )


def tune(
    target: Generator,
    plain: CpuCode,
    settings: TuningSettings,
    *,
    progress: Progress,
    meter: Meter | None = None,
) -> TuningInfo | None:
    """How to make a program: as an earlier search found, or a new one if there is a budget; None without.

    Of the plans that earlier searches stored the fastest counts. A search with a larger budget than the last
    goes on where that one ended.

    Raises:
        UsageError: a budget, no plan, and the cache is frozen.
        NoCluster: the settings name a cluster that does not measure.
    """
    options = plain.program.options
    flat = Tuner.of(target, plain)
    by_name = settings.search if settings.search not in (None, "flat") else "reformer"
    forms = FormTuner.of(target, plain, by_name, settings.workers)
    tuners: tuple[ModelTuner, ...] = (flat, forms)
    is_lookup = settings.source == "stored"
    stored = [(t, p) for t in tuners if is_lookup and (p := t.stored()) is not None]
    if stored and (options.budget is None or any(plan.satisfies(options.budget) for _, plan in stored)):
        tuner, plan = min(stored, key=lambda pair: pair[1].ratio)
        return tuner.describe(plan)
    if options.budget is None and is_lookup:
        return None
    if options.frozen:
        raise UsageError(
            "this model is not in the tuning database, which is frozen; tune once without --frozen."
        )
    why_flat = "" if settings.search == "flat" else _why_flat(flat, forms, settings)
    if why_flat and (settings.search or settings.workers):
        logger.warning("only products are tuned, as --search flat does: %s", why_flat)
    chosen: ModelTuner = flat if settings.search == "flat" or why_flat else forms
    try:
        meter = meter or (options.budget or Budget(UNLIMITED, None)).start()
        tuned = chosen.search(meter, afresh=settings.source == "afresh", progress=progress)
        return replace(tuned, why_search=why_flat)
    except NoCluster:
        raise
    except (ModelRejected, UnsupportedOp, UsageError) as error:
        # Operators on the host may refuse random inputs; the model itself is none the worse for it.
        logger.warning("nothing was measured, estimates choose all kernels: %s", error)
        return None


def _why_flat(flat: Tuner, forms: FormTuner, settings: TuningSettings) -> str:
    """Why forms are not varied though nobody asked for products alone; empty where they are."""
    if forms.obstacle:
        return forms.obstacle
    is_left_open = settings.search is None and not settings.workers
    if is_left_open and flat.sites.shared:
        return "some kernels run side by side (--search reformer varies forms of the others)"
    return ""
