"""Tunes the forms of a model's subgraphs on this processor: spaces, bench and database brought together."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from tilewright.cost.base import Measurement
from tilewright.errors import InputError
from tilewright.ir.fuse import FusedNodes
from tilewright.partition.form import Form
from tilewright.planning import Budget, Meter
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.steps import SearchName, SubgraphTuning, TuningInfo
from tilewright.targets.cpu.forms.space import SIZES
from tilewright.targets.cpu.forms.spaces import form_spaces
from tilewright.targets.cpu.image.code import CpuCode
from tilewright.targets.cpu.repeats import Repeats
from tilewright.targets.cpu.tune.base import (
    Array,
    Generator,
    ModelTuner,
    database_of,
    random_feed,
)
from tilewright.targets.cpu.tune.form_bench import FormModelBench
from tilewright.targets.cpu.tune.form_sites import FormSites
from tilewright.targets.cpu.tune.measuring import cluster_pool, measuring_pool
from tilewright.targets.cpu.tune.site_space import SiteSpace
from tilewright.targets.cpu.tune.sites import Sites
from tilewright.tuning import NO_CHOICES, Choices, TunedPlan
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
from tilewright.tuning.observation import Failure, FailureReason, Observation, Provenance
from tilewright.tuning.reformer import Reformer
from tilewright.tuning.schema import WHOLE_RUNS
from tilewright.tuning.space import FormSpace
from tilewright.tuning.workers import LocalMeasuringPool, MeasuringPool

_MAX_HINTS = 4
_MAX_NAMED = 3  # places of a site, to call it by
_FORM_SEARCHES: tuple[SearchName, ...] = ("reformer", "evolutionary", "conventional")
_MAX_SIMILAR = 2
# Under this and the structure of subgraphs winners of whatever sizes are filed.
_SIMILAR = "similar-"
FEATURE_SET = "forms-2"
"""Which features observations of forms have."""


@dataclass(slots=True, eq=False)
class FormTuner(ModelTuner):
    """Chooses the forms of a model's subgraphs; `search_name` says how.

    `workers` is the address of a cluster that measures; without one this machine does.
    """

    search_name: SearchName = "reformer"
    workers: str = ""
    _sites: FormSites | None = field(default=None)
    _fuse: FusedNodes = field(default_factory=FusedNodes)
    _repeats: Repeats = field(default_factory=Repeats)

    @classmethod
    def of(
        cls, target: Generator, plain: CpuCode, search: SearchName = "reformer", workers: str = ""
    ) -> FormTuner:
        """The tuner whose database lies in the cache that the program's options name."""
        return cls(target, plain, database_of(plain), search, workers)

    @property
    def splits(self) -> bool:
        """Whether parts are searched before wholes."""
        return self.search_name != "evolutionary"

    @property
    def keeps_plans(self) -> bool:
        """Whether later compilations use what it finds: not where it leaves out what is estimated best."""
        return self.search_name != "conventional"

    @property
    def obstacle(self) -> str:
        """Why the model cannot run in another process; empty where it can."""
        image = self.plain.image
        if image.host_steps:
            return "some operators run in Python"
        constants = [output for output, source in image.passthrough.items() if not isinstance(source, str)]
        return f"output {constants[0]!r} is a constant" if constants else ""

    @property
    def model(self) -> str:
        """Digest of the kernels in order and of the subgraphs they belong to, without names or weights."""
        subgraphs = [tuple(node.op_type for node in s.nodes) for s in self.program.partition.subgraphs]
        kernels = Sites.of(self.plain.lowered, self.program.schedule).digest()
        return hashlib.sha256(repr(("forms", kernels, subgraphs)).encode()).hexdigest()

    @property
    def sites(self) -> FormSites:
        """The subgraphs that may be tuned."""
        if self._sites is None:
            self._sites = FormSites.of(self.program, self.plain.lowered)
        return self._sites

    def spaces(self) -> dict[int, SiteSpace]:
        """The forms of those that have several, by number."""
        is_intensive = self.search_name != "conventional"
        subgraphs, keys = self.program.partition.subgraphs, self.sites.keys
        spaces = form_spaces(self.program, self.plain.isa, self._fuse, self._repeats)
        return {
            number: SiteSpace.of(keys[number], space, subgraphs[number], is_intensive=is_intensive)
            for number, space in spaces.items()
            if number in keys
        }

    def search(self, meter: Meter, *, afresh: bool, progress: Progress) -> TuningInfo:
        """Search and keep what is found; without `afresh` earlier measurements count."""
        options = replace(self.program.options, frozen=False, timeout_s=None)
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder, self.pool() as pool:
            if isinstance(pool, LocalMeasuringPool):
                pool.start()
            spaces = self.spaces()
            sites, tuned = self.sites.with_spaces(spaces)
            if options.no_cache:
                options = replace(options, no_cache=False, cache_dir=Path(folder))
            program = replace(self.program, options=options)
            if not self.keeps_plans:
                program = program.with_forms({number: space.initial() for number, space in spaces.items()})
            sites = replace(sites, program=program)
            try:
                return self._searched(pool, sites, tuned, meter, afresh, progress, random_feed(program))
            except InputError:
                feed = random_feed(program, largest_integer=0)
                return self._searched(pool, sites, tuned, meter, afresh, progress, feed)

    def _searched(
        self,
        pool: MeasuringPool,
        sites: FormSites,
        tuned: Sequence[FormSite[Form]],
        meter: Meter,
        afresh: bool,
        progress: Progress,
        feed: Mapping[str, Array],
    ) -> TuningInfo:
        expected, run_s = self._untuned(feed)

        spaces = {site.key: site.space for site in tuned}

        def store(plan: TunedForms[Form]) -> None:
            self.store(plan, meter.budget)
            self._file_winners(plan, spaces)

        known = self.best_known() if self.keeps_plans else None
        names = {site.key: ", ".join(site.nodes[:_MAX_NAMED]) for site in tuned if site.nodes}
        bench = FormModelBench(
            self.target, self.plain, sites, pool, feed, expected, run_s, self._fuse, self._repeats
        )
        reformer = Reformer(
            tuned,
            bench,
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

    def _untuned(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], float]:
        """What the untuned plan computes, and how long a run takes."""
        executable = self.plain.load(self.program.options.num_threads)
        try:
            expected = {name: array.copy() for name, array in executable.run(feed).items()}
            start_s = time.perf_counter()
            executable.run(feed)
            return expected, time.perf_counter() - start_s
        finally:
            executable.close()

    def pool(self) -> LocalMeasuringPool | ClusterMeasuringPool:
        """Who measures: a process of its own, or machines like this one."""
        if self.workers:
            return cluster_pool(self.workers, self.context.fingerprint)
        return measuring_pool()

    # The database.

    def store(self, plan: TunedForms[Form], budget: Budget) -> None:
        """Keep a plan that won its race; one without forms says that the untuned plan stays."""
        if not self.keeps_plans:
            return
        stored = TunedPlan(
            {},
            plan.plain_ns,
            plan.tuned_ns,
            plan.is_complete,
            budget,
            {key: form.to_json() for key, form in plan.forms.items()},
            self.search_name,
            self.program.graph.name,
            time.time(),
        )
        self.database.store_plan(self.context, self.model, stored)

    def _record(self, trials: Sequence[FormTrial[Form]], names: Mapping[str, str]) -> None:
        now_s = time.time()
        provenance = Provenance(host=self.workers, calibrated_at_s=now_s if self.workers else None)
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
        keys = dict.fromkeys(self.sites.keys.values())
        found = ((key, self.sites.fitting(key, plan.forms[key])) for key in keys if key in plan.forms)
        forms = {key: form for key, form in found if form is not None}
        return TunedForms(forms, plan.plain_ns, plan.tuned_ns, plan.is_complete)

    def best_known(self) -> TunedForms[Form] | None:
        """The faster of the plans that searches of forms and of products stored, in terms of forms."""
        plans = [
            plan for plan in (self._stored_forms(), self._flat_forms()) if plan is not None and plan.forms
        ]
        return min(plans, key=lambda plan: plan.tuned_ns / plan.plain_ns, default=None)

    def _flat_forms(self) -> TunedForms[Form] | None:
        """The plan of the flat search: the untuned forms with its choices for their products."""
        flat = Sites.of(self.plain.lowered, self.program.schedule)
        plan = self.database.plan(self.context, flat.digest())
        if plan is None or not plan.candidates or flat.shared:
            return None
        choices = flat.choices(plan.candidates)
        forms: dict[str, Form] = {}
        for number, key in self.sites.keys.items():
            form = self._with_choices(number, choices)
            if form != self._untuned_form(number):
                forms[key] = form
        return TunedForms(forms, plan.plain_ns, plan.tuned_ns, plan.is_complete)

    def _untuned_form(self, number: int) -> Form:
        return Form(self.program.partition.subgraphs[number].kernels)

    def _with_choices(self, number: int, choices: Choices) -> Form:
        """The form of a subgraph with these choices for its products, by signature."""
        subgraph = self.program.partition.subgraphs[number]
        kernels = list(self._untuned_form(number).kernels)
        kernel_of = {subgraph.nodes[p]: n for n, kernel in enumerate(kernels) for p in kernel.nodes}
        for launch in self.plain.lowered.launches:
            kernel = kernel_of.get(launch.nodes[0]) if launch.nodes else None
            choice = choices.get(launch.kernel.signature)
            if kernel is not None and choice is not None:
                chosen = {**dict(kernels[kernel].choices), launch.kernel.signature: choice}
                kernels[kernel] = replace(kernels[kernel], choices=tuple(sorted(chosen.items())))
        return Form(tuple(kernels))

    # What came of it.

    def describe(self, plan: TunedPlan) -> TuningInfo:
        """A stored plan with the measurements that led to it."""
        forms = self._stored_forms() or TunedForms({}, plan.plain_ns, plan.tuned_ns, plan.is_complete)
        keys = dict.fromkeys(self.sites.keys.values())
        reports = (self._stored_report(key, forms.forms.get(key)) for key in keys)
        known = tuple(report for report in reports if report is not None)
        num_measured = sum(report.num_measured for report in known)
        outcome = FormOutcome(forms, known, 0, 0, num_measured=num_measured)
        search = next((name for name in _FORM_SEARCHES if name == plan.search), self.search_name)
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
            kernels=(),
            choices=NO_CHOICES,
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
        )

    def _base(self, sites: FormSites) -> dict[int, Form]:
        """The forms that a search compares with, where these are not those of the untuned plan."""
        if self.keeps_plans:
            return {}
        return {number: Form(sites.program.partition.subgraphs[number].kernels) for number in sites.keys}
