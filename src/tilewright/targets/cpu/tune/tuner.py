"""Tunes the forms of a model's subgraphs on this processor: spaces, bench and database brought together."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from tilewright.cost.base import Measurement
from tilewright.errors import ModelRejected, UnsupportedOp, UsageError
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.fuse import FusedNodes
from tilewright.partition.form import Form
from tilewright.planning import UNLIMITED, Budget, Meter
from tilewright.private_files import default_cache_directory
from tilewright.program import Program
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.steps import STORED_TUNING, SearchName, SubgraphTuning, TuningInfo, TuningSettings
from tilewright.system.ray_cluster import NoCluster
from tilewright.targets.cpu.forms.space import SIZES
from tilewright.targets.cpu.forms.spaces import form_spaces
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.lower.lowered import LoweredModel
from tilewright.targets.cpu.repeats import Repeats
from tilewright.targets.cpu.tune.bench import ModelBench
from tilewright.targets.cpu.tune.context import context_on, elsewhere
from tilewright.targets.cpu.tune.form_bench import FormModelBench, Generator
from tilewright.targets.cpu.tune.form_sites import FormSites, subgraph_keys
from tilewright.targets.cpu.tune.measuring import cluster_fleet, measuring_pool, packed, runner_fleet
from tilewright.targets.cpu.tune.site_space import SiteSpace
from tilewright.tuning import TunedPlan, TuningDatabase
from tilewright.tuning.cluster import ClusterMeasuringPool
from tilewright.tuning.form_plan import (
    Findings,
    FormOutcome,
    FormSite,
    FormTrial,
    Listener,
    SiteReport,
    TunedForms,
)
from tilewright.tuning.observation import Failure, FailureReason, Observation, PlanContext, Provenance
from tilewright.tuning.ray_fleet import RayFleet
from tilewright.tuning.reformer import Reformer
from tilewright.tuning.runners import NoRunner, RunnerFleet, shown_command
from tilewright.tuning.schema import WHOLE_RUNS
from tilewright.tuning.space import FormSpace
from tilewright.tuning.workers import LocalMeasuringPool, MeasuringPool

logger = logging.getLogger(__name__)

_MAX_HINTS = 4
_MAX_HOST = 400  # characters of what measured
_MAX_NAMED = 3  # places of a site, to call it by
_SEARCHES: tuple[SearchName, ...] = ("reformer", "evolutionary", "conventional", "flat")
_MAX_SIMILAR = 2
# Under this and the structure of subgraphs winners of whatever sizes are filed.
_SIMILAR = "similar-"
FEATURE_SET = "forms-2"
"""Which features observations of forms have."""


@dataclass(frozen=True, slots=True, eq=False)
class Untuned:
    """A program as estimates lower it for an instruction set, without code."""

    program: Program
    isa: Isa
    lowered: LoweredModel


@dataclass(slots=True, eq=False)
class FormTuner:
    """Chooses the forms of a model's subgraphs; `search_name` says how, `plain` is what estimates made.

    `workers` is the address of a cluster that measures, `runners` are commands that start processes that do;
    without either this machine does. `place` is where the findings are from, if not of this machine.
    """

    target: Generator
    plain: CpuCode | Untuned
    database: TuningDatabase
    search_name: SearchName = "reformer"
    workers: str = ""
    runners: Sequence[str] = ()
    place: str = ""
    _sites: FormSites | None = field(default=None)
    _fuse: FusedNodes = field(default_factory=FusedNodes)
    _repeats: Repeats = field(default_factory=Repeats)

    @classmethod
    def of(
        cls, target: Generator, plain: CpuCode | Untuned, settings: TuningSettings = STORED_TUNING
    ) -> FormTuner:
        """The tuner whose database lies in the cache that the program's options name."""
        options = plain.program.options
        folder = None if options.no_cache else options.cache_dir or default_cache_directory()
        database = TuningDatabase.in_folder(folder)
        search = settings.search or "reformer"
        return cls(target, plain, database, search, settings.workers, settings.runners)

    @property
    def program(self) -> Program:
        """The untuned program."""
        return self.plain.program

    @property
    def context(self) -> PlanContext:
        """Everything but the model that decides a measurement."""
        options = self.program.options
        num_threads = resolve_threads(options.num_threads)
        return context_on(self.plain.isa, options.accuracy, num_threads, place=self.place)

    @property
    def splits(self) -> bool:
        """Whether parts are searched before wholes."""
        return self.search_name in ("reformer", "conventional")

    @property
    def keeps_plans(self) -> bool:
        """Whether later compilations use what it finds: not where it leaves out what is estimated best."""
        return self.search_name != "conventional"

    @property
    def model(self) -> str:
        """Digest of what is chosen: models of one digest share their plans, whatever their weights."""
        return self.sites.digest()

    def stored(self) -> TunedPlan | None:
        """The plan that an earlier search found: here, or of code that does not run here, elsewhere.

        Of several places the plan of the last search counts, of emulators only where no processor has one.
        """
        if self.place or self.plain.isa.runs_on_host:
            return self.database.plan(self.context, self.model)
        contexts = elsewhere(self.database, self.context)
        plans = [(context, self.database.plan(context, self.model)) for context in contexts]
        found = [(context, plan) for context, plan in plans if plan is not None]
        if not found:
            return None
        context, plan = max(found, key=lambda pair: (not pair[0].is_emulated, pair[1].tuned_at_s))
        self.place = context.processor
        return plan

    @property
    def sites(self) -> FormSites:
        """The subgraphs that may be tuned."""
        if self._sites is None:
            self._sites = FormSites.of(self.program, self.plain.lowered)
        return self._sites

    def spaces(self) -> dict[int, SiteSpace]:
        """The forms of those that have several, by number."""
        subgraphs, homes = self.program.partition.subgraphs, self.sites.homes
        spaces = form_spaces(self.program, self.plain.isa, self._fuse, self._repeats)
        own = subgraph_keys(self.program, self.plain.lowered)
        return {
            number: SiteSpace.of(own[number], space, subgraphs[number], self.search_name)
            for number, space in spaces.items()
            if number in homes
        }

    def search(self, meter: Meter, *, afresh: bool, progress: Progress) -> TuningInfo:
        """Search and keep what is found; without `afresh` earlier measurements count."""
        assert isinstance(self.plain, CpuCode)
        options = replace(self.program.options, frozen=False, timeout_s=None)
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder, self.pool() as pool:
            spaces = self.spaces()
            sites, tuned = self.sites.with_spaces(spaces)
            if not tuned:
                why = "no kernel of this model can be made in another way"
                nothing: FormOutcome[Form] = FormOutcome(
                    TunedForms({}, is_complete=True), (), 0, 0, why_unmeasured=why
                )
                return self._info(nothing, sites)
            if isinstance(pool, LocalMeasuringPool):
                pool.start()
            if options.no_cache:
                options = replace(options, no_cache=False, cache_dir=Path(folder))
            program = replace(self.program, options=options)
            if not self.keeps_plans:
                program = program.with_forms({number: space.initial() for number, space in spaces.items()})
            sites = replace(sites, program=program)
            return self._searched(pool, sites, tuned, meter, afresh, progress)

    def _searched(
        self,
        pool: MeasuringPool,
        sites: FormSites,
        tuned: Sequence[FormSite[Form]],
        meter: Meter,
        afresh: bool,
        progress: Progress,
    ) -> TuningInfo:
        spaces = {site.key: site.space for site in tuned}

        def store(plan: TunedForms[Form]) -> None:
            self.store(plan, meter.budget)
            self._file_winners(plan, spaces)

        assert isinstance(self.plain, CpuCode)
        here = self.target.code_here(self.plain)
        bench = ModelBench.of(here, pool, None if here is self.plain else packed(self.plain))
        known = self._stored_forms() if self.keeps_plans else None
        names = {site.key: ", ".join(site.nodes[:_MAX_NAMED]) for site in tuned if site.nodes}
        reformer = Reformer(
            tuned,
            FormModelBench(self.target, self.plain, sites, bench, self._fuse, self._repeats),
            meter,
            Listener(lambda trials: self._record(trials, names), store, progress),
            Findings() if afresh else Findings(self._known, known, self._hints),
            seed=self.program.options.seed,
            splits=self.splits,
        )
        outcome = reformer.run()
        if not outcome.is_interrupted and not outcome.is_lost:
            store(outcome.plan)
        return self._info(outcome, sites)

    def pool(self) -> LocalMeasuringPool | ClusterMeasuringPool:
        """Who measures: a process of its own, machines like this one, or those that run the code.

        Raises:
            NoCluster: no machine does.
        """
        isa = self.plain.isa
        fingerprint = self.context.fingerprint if isa.runs_on_host else ""
        fleet: RunnerFleet | RayFleet | None = None
        if self.runners:
            fleet = runner_fleet(self.runners, isa, fingerprint)
        elif self.workers:
            fleet = cluster_fleet(self.workers, isa, fingerprint)
        if fleet is not None:
            self.place = "" if isa.runs_on_host else fleet.place
            return ClusterMeasuringPool(fleet)
        if not isa.runs_on_host:
            raise NoRunner(
                f"--isa {isa.name}: this machine does not run it; name one that does, such as "
                "--runner 'ssh board tilewright worker'."
            )
        return measuring_pool()

    # The database.

    def store(self, plan: TunedForms[Form], budget: Budget) -> None:
        """Keep a plan that won its race; one without forms says that the untuned plan stays."""
        if not self.keeps_plans:
            return
        stored = TunedPlan(
            {key: form.to_json() for key, form in plan.forms.items()},
            plan.plain_ns,
            plan.tuned_ns,
            plan.is_complete,
            budget,
            self.search_name,
            self.program.graph.name,
            time.time(),
        )
        self.database.store_plan(self.context, self.model, stored)

    def _record(self, trials: Sequence[FormTrial[Form]], names: Mapping[str, str]) -> None:
        now_s = time.time()
        host = self.place or self.workers or " ".join(map(shown_command, self.runners))
        provenance = Provenance(host=host[:_MAX_HOST], calibrated_at_s=now_s if host else None)
        outcomes: list[Observation | Failure] = []
        for trial in trials:
            candidate = trial.form.to_json()
            if trial.failure is not None:
                reason = FailureReason(trial.failure.reason)
                outcomes.append(Failure(trial.key, candidate, reason, trial.failure.detail, now_s))
            else:
                measured = Measurement.of(trial.samples_ns, WHOLE_RUNS)
                outcomes.append(
                    Observation(
                        trial.key,
                        candidate,
                        measured,
                        trial.plain_ns,
                        now_s,
                        trial.features,
                        FEATURE_SET,
                        provenance,
                    )
                )
        self.database.record(self.context, outcomes, names)

    def _known(self, space: FormSpace[Form]) -> Mapping[Form, float | None]:
        """What was measured of a space before, in any network."""
        known: dict[Form, float | None] = {}
        for seen in self.database.observations(self.context, space.key):
            form = space.read(seen.candidate)
            if form is not None:
                known[form] = seen.ratio
        for failure in self.database.failures(self.context, space.key):
            form = space.read(failure.candidate)
            if form is not None:
                known[form] = None
        return known

    def _hints(self, space: FormSpace[Form]) -> Sequence[Form]:
        """What was faster than the estimates' choice elsewhere, as far as it is a form of the space here.

        After that what won for subgraphs of the same structure, of the most similar sizes first.
        """
        hints = self.database.hints(self.context, space.key)[:_MAX_HINTS]
        forms = [space.read(hint.candidate) for hint in hints if hint.ratio < 1]
        winners = self.database.observations(self.context, _SIMILAR + space.structure)
        here = space.features(space.initial())

        def difference(winner: Observation) -> float:
            return sum(abs(here.get(name, 0.0) - winner.features.get(name, 0.0)) for name in SIZES)

        nearest = sorted(winners, key=lambda winner: (difference(winner), winner.ratio))[:_MAX_SIMILAR]
        forms += [space.adapted(winner.candidate) for winner in nearest]
        return list(dict.fromkeys(form for form in forms if form is not None))

    def _file_winners(self, plan: TunedForms[Form], spaces: Mapping[str, FormSpace[Form]]) -> None:
        """Keep the forms of a plan for subgraphs of the same structure."""
        if not self.keeps_plans:
            return
        winners: list[Observation] = []
        for key, form in plan.forms.items():
            seen = (o for o in self.database.observations(self.context, key) if o.ratio < 1)
            won = next((o for o in seen if Form.from_json(o.candidate) == form), None)
            if won is not None and key in spaces:
                site = _SIMILAR + spaces[key].structure
                winners.append(replace(won, site=site, candidate=spaces[key].portable(form)))
        if winners:
            names = {winner.site: "winners of subgraphs alike but for sizes" for winner in winners}
            self.database.record(self.context, winners, names)

    def _stored_forms(self) -> TunedForms[Form] | None:
        """The forms of the plan that an earlier search stored, as far as they are forms still."""
        plan = self.stored()
        if plan is None or not plan.forms:
            return None
        found = (
            (key, self.sites.fitting(key, plan.forms[key])) for key in self.sites.keys if key in plan.forms
        )
        forms = {key: form for key, form in found if form is not None}
        return TunedForms(forms, plan.plain_ns, plan.tuned_ns, plan.is_complete)

    # What came of it.

    def describe(self, plan: TunedPlan) -> TuningInfo:
        """A stored plan with the measurements that led to it."""
        forms = self._stored_forms() or TunedForms({}, plan.plain_ns, plan.tuned_ns, plan.is_complete)
        reports = (self._stored_report(key, forms.forms.get(key)) for key in self.sites.keys)
        known = tuple(report for report in reports if report is not None)
        num_measured = sum(report.num_measured for report in known)
        outcome = FormOutcome(forms, known, 0, 0, num_measured=num_measured)
        search = next((name for name in _SEARCHES if name == plan.search), self.search_name)
        return replace(self._info(outcome, self.sites), is_stored=True, search=search)

    def _stored_report(self, key: str, form: Form | None) -> SiteReport[Form] | None:
        """What the database says of a site; None where nothing was measured there."""
        seen = self.database.observations(self.context, key)
        if not seen:
            return None
        num_failed = len(self.database.failures(self.context, key))
        taken = (o for o in seen if form is not None and Form.from_json(o.candidate) == form)
        best = next(taken, seen[0])
        return SiteReport(
            key=key,
            nodes=self.sites.nodes(key),
            num_parts=1,
            num_priced=len(seen) + num_failed,
            num_measured=len(seen) + num_failed,
            num_failed=num_failed,
            plain_ns=best.baseline_ns,
            ratio=best.ratio,
            form=form,
            why="an earlier search kept the estimates' form" if form is None else "an earlier search took it",
        )

    def _info(self, outcome: FormOutcome[Form], sites: FormSites) -> TuningInfo:
        plan = outcome.plan
        subgraphs = tuple(
            SubgraphTuning(
                nodes=report.nodes,
                num_parts=report.num_parts,
                num_priced=report.num_priced,
                num_measured=report.num_measured,
                num_failed=report.num_failed,
                before_ns=report.plain_ns,
                after_ns=None if report.ratio is None else report.ratio * report.plain_ns,
                form=None if report.form is None else sites.describe(report.key, report.form),
                why=report.why,
            )
            for report in outcome.sites
        )
        return TuningInfo(
            plain_ns=plan.plain_ns,
            tuned_ns=plan.tuned_ns,
            num_trials=outcome.num_trials,
            is_complete=plan.is_complete,
            is_interrupted=outcome.is_interrupted,
            subgraphs=subgraphs,
            forms={**self._base(sites), **sites.numbered(plan.forms)},
            search=self.search_name,
            num_priced=outcome.num_priced,
            num_candidates=outcome.num_candidates,
            num_measured=outcome.num_measured,
            why_unmeasured=outcome.why_unmeasured,
            measured_on=self.place,
            is_emulated=bool(self.place) and self.context.is_emulated,
        )

    def _base(self, sites: FormSites) -> dict[int, Form]:
        """The forms that a search compares with, where these are not those of the untuned plan."""
        if self.keeps_plans:
            return {}
        return {number: Form(sites.program.partition.subgraphs[number].kernels) for number in sites.homes}


def stored_tuning(target: Generator, plain: Untuned) -> TuningInfo | None:
    """What an earlier search found for a program; None where there was none."""
    tuner = FormTuner.of(target, plain)
    found = tuner.stored()
    return None if found is None else tuner.describe(found)


def tune(
    target: Generator,
    plain: CpuCode,
    settings: TuningSettings,
    *,
    progress: Progress,
    meter: Meter | None = None,
) -> TuningInfo | None:
    """How to make a program: as an earlier search found, or a new one if there is a budget; None without.

    A search with a larger budget than the last goes on where that one ended.

    Raises:
        UsageError: a budget, no plan, and the cache is frozen.
        NoCluster: the settings name a cluster that does not measure.
    """
    options = plain.program.options
    tuner = FormTuner.of(target, plain, settings)
    is_lookup = settings.source == "stored"
    stored = tuner.stored() if is_lookup else None
    if stored is not None and (options.budget is None or stored.satisfies(options.budget)):
        return tuner.describe(stored)
    if options.budget is None and is_lookup:
        return None
    if options.frozen:
        raise UsageError(
            "this model is not in the tuning database, which is frozen; tune once without --frozen."
        )
    try:
        meter = meter or (options.budget or Budget(UNLIMITED, None)).start()
        return tuner.search(meter, afresh=settings.source == "afresh", progress=progress)
    except NoCluster:
        raise
    except (ModelRejected, UnsupportedOp, UsageError) as error:
        # Operators on the host may refuse random inputs; the model itself is none the worse for it.
        logger.warning("nothing was measured, estimates choose all kernels: %s", error)
        return None
