"""`tw.plan`: what any partition, schedule and memory plan of a model cost on any target, side by side."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tilewright.api.compilation import compilation_request
from tilewright.api.models import Model, Shapes
from tilewright.arguments import checked
from tilewright.comparison import best_plan
from tilewright.compiler import optimise
from tilewright.cost.base import UNITS, Objective
from tilewright.errors import TilewrightError, UsageError
from tilewright.families import MEMORY_PLANNERS, PARTITIONERS, SCHEDULERS, TARGETS
from tilewright.frontend.onnx import Source
from tilewright.hardware.presets import preset_names
from tilewright.ir.graph import Graph
from tilewright.options import AUTO, Options
from tilewright.planner import Planner
from tilewright.planning import Bound
from tilewright.planning.portfolio import Recipe
from tilewright.planning.spec import split_items
from tilewright.program import Program
from tilewright.progress import NOTICE, PhaseClock, Progress
from tilewright.registry import Registry
from tilewright.results import Result, Table, about
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.text.formatting import format_bytes

ALL = "all"
"""Stands for every registered member of a family, plugins included; of targets for every preset, too."""

Names = str | Sequence[str]
"""Specs as a text with commas between them, or one by one."""

# Rows are told as they end where all of them take longer.
_SHORT_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What `tw.plan` is asked: every combination of these on each target.

    Each name is a spec such as `graphturbo{alpha=1.25}`; a planner may also be `auto`, which is the target's
    default, or the best that it finds worth trying where all three are. `options` say the rest.
    """

    targets: tuple[TargetRef, ...]
    partitions: tuple[str, ...]
    schedules: tuple[str, ...]
    memories: tuple[str, ...]
    options: Options

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The combinations of planners."""
        return tuple(Recipe(*c) for c in itertools.product(self.partitions, self.schedules, self.memories))


@dataclass(frozen=True, slots=True)
class LevelPeak:
    """The most that a level of memory holds."""

    level: str
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedCombination:
    """A combination of planners on a target: cost and bound of its plan, or why there is none.

    `bound` and `gap` are of the widest space of schedules for which the cost model gives one, `bounds` has
    all, with their spaces.
    """

    target: str
    partition: str
    schedule: str
    memory: str
    error: str | None = field(metadata=about("Why there is no plan; null where there is one."))
    is_best: bool = field(metadata=about("Whether it costs least of all on its target."))
    planning_s: float = field(metadata=about("What the first plan of several shares, it pays for all."))
    num_subgraphs: int | None = None
    num_stages: int | None = None
    cost: float | None = field(default=None, metadata=about("In the unit of the document."))
    bound: float | None = None
    gap: float | None = field(
        default=None, metadata=about("(cost - bound) / bound; null for a bound of zero.", nullable=True)
    )
    is_bound_proven: bool | None = field(
        default=None,
        metadata=about("Whether no plan of its space can cost less under the model; else it is an estimate."),
    )
    bound_space: str | None = field(default=None, metadata=about("The plans that `bound` is of."))
    status: str | None = None
    optimal_among: str | None = field(
        default=None, metadata=about("The plans of which it is proven to cost least, where it is optimal.")
    )
    bounds: tuple[Bound, ...] = field(
        default=(), metadata=about("All lower bounds, each with its space, the widest first.")
    )
    source: str | None = field(default=None, metadata=about("The cost model."))
    planner: str | None = field(default=None, metadata=about("What the schedule says made it."))
    num_evaluations: int | None = field(default=None, metadata=about("What the scheduler spent."))
    memory_levels: tuple[LevelPeak, ...] = ()
    splits_sums: bool = field(
        default=False, metadata=about("Whether sums of products were cut into parts before.")
    )

    @property
    def planners(self) -> Mapping[str, str]:
        """The names of its planners by family."""
        partition = f"split-sums, {self.partition}" if self.splits_sums else self.partition
        return {"partition": partition, "schedule": self.schedule, "memory": self.memory}

    def told(self, unit: str) -> str:
        """The row as a line: what was planned, its cost or why there is none, and how long that took."""
        answer = f"no plan: {self.error}" if self.cost is None else f"{self.cost:,.0f} {unit}"
        return f"{self.target}, {', '.join(self.planners.values())}: {answer} ({self.planning_s:.1f} s)"

    def figures(self, spaces: Mapping[str, str]) -> Iterator[object]:
        """The cells of its plan, in the order of the columns; `spaces` has a letter for each space."""
        assert self.cost is not None
        assert self.bound is not None
        assert self.gap is not None
        peaks = (f"{p.level} {format_bytes(p.peak_bytes)}" for p in self.memory_levels if p.peak_bytes)
        yield from (self.num_subgraphs, self.num_stages, f"{self.cost:,.0f}", f"{self.bound:,.0f}")
        among = f" in {spaces[self.optimal_among]}" if self.optimal_among else ""
        yield from (
            spaces[self.bound_space or ""],
            f"{self.gap:.1%}" if self.bound else "",
            f"{'best, ' if self.is_best else ''}{self.status}{among}",
        )
        yield from (", ".join(peaks), f"{self.planning_s:.2f}")


@dataclass(frozen=True, slots=True)
class PlanComparison(Result):
    """Plans of one model by target and planners, none of them generated or run; every cost is an estimate."""

    network: str
    objective: Objective
    unit: str = field(metadata=about("Of every cost and bound."))
    combinations: tuple[PlannedCombination, ...]
    is_interrupted: bool = field(
        metadata=about("Whether the user ended it: combinations that were not reached are left out.")
    )
    model_sha256: str = field(metadata=about(hidden=True))
    targets: tuple[TargetRef, ...] = field(metadata=about(hidden=True))

    @property
    def best(self) -> tuple[PlannedCombination, ...]:
        """The cheapest of each target."""
        return tuple(c for c in self.combinations if c.is_best)

    def tables(self) -> Sequence[Table]:
        """Of each target what was planned, and what cannot be."""
        return tuple(table for target in self.targets for table in self._tables_of(target))

    @property
    def _spaces(self) -> dict[str, str]:
        """A letter for each space that the tables name, in words."""
        named: dict[str, None] = {}
        for row in self.combinations:
            named |= dict.fromkeys(text for text in (row.bound_space, row.optimal_among) if text)
        return {text: _letters(number) for number, text in enumerate(named)}

    def lines(self) -> Sequence[str]:
        """The spaces that bounds are of."""
        return tuple(f"{letter}: {text}" for text, letter in self._spaces.items())

    def _objective_of(self, planned: Sequence[PlannedCombination]) -> str:
        """Joules say where they come from."""
        sources = ", ".join(dict.fromkeys(c.source for c in planned if c.source))
        return self.objective if self.objective == "latency" else f"{self.objective} ({sources})"

    def _tables_of(self, target: TargetRef) -> Iterator[Table]:
        there = [c for c in self.combinations if c.target == str(target)]
        planned = [c for c in there if c.error is None]
        refused = [c for c in there if c.error is not None]
        title = f"{self.network} on {target}"
        if planned:
            # A planner that all have is said once, above.
            varied = [f for f in planned[0].planners if len({c.planners[f] for c in planned}) > 1]
            common = [f"{f} {name}" for f, name in planned[0].planners.items() if f not in varied]
            spaces = self._spaces
            costs = f"cost {self.unit}", f"bound {self.unit}", "of", "gap", "status"
            figures = ("subgraphs", "stages", *costs)
            yield Table(
                (*varied, *figures, "peak memory", "planned in s"),
                tuple((*(c.planners[f] for f in varied), *c.figures(spaces)) for c in planned),
                f"{', '.join([title, *common])}: estimated {self._objective_of(planned)}",
                tuple(len(varied) + column for column in (0, 1, 2, 3, 5, 8)),
                tuple(len(varied) + column for column in (8, 1, 0, 7)),
            )
        if refused:
            rows = [(*c.planners.values(), c.error) for c in refused]
            if not planned and len({c.error for c in refused}) == 1:
                rows = [(*("any",) * 3, refused[0].error)]
            yield Table(
                ("partition", "schedule", "memory", "why there is no plan"), tuple(rows), f"{title}: no plan"
            )


@checked
def plan_model(
    model: Model | Source,
    target: Names | None = None,
    *,
    partition: Names = AUTO,
    schedule: Names = AUTO,
    memory: Names = AUTO,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> PlanComparison:
    """Plan a model with every combination of targets, partitioners, schedulers and memory planners.

    Each of the four is one spec, several with commas between them, a sequence of them, or `all` that are
    registered. `settings` are other fields of `Options` (`hint="energy"`, `effort=3`), or `options` has all.
    What cannot be planned is a row that says why, also where a planner is at fault. An interrupt
    (KeyboardInterrupt) ends it with the rows that there are.

    Raises:
        UsageError: an unknown name or option, or a setting that makes no sense.
        TilewrightError: none of the combinations can be planned; the first one's error.
    """
    model, known = compilation_request(model, None, shapes, options, settings)
    targets = (known.target,) if target is None else _targets(target)
    request = PlanRequest(
        targets,
        _planners(PARTITIONERS, partition),
        _planners(SCHEDULERS, schedule),
        _planners(MEMORY_PLANNERS, memory),
        known,
    )
    return answer(model, request, progress)


def answer(model: Model, request: PlanRequest, progress: Progress | None = None) -> PlanComparison:
    """What a request asks for; as `tw.plan`."""
    options = request.options
    if progress is not None:
        progress("passes", 0, 1)
    # Passes know no target: all plans are of the same graph.
    graph, _ = optimise(model.graph, options)
    comparison = _Comparison(graph, request, progress)
    comparison.run()
    return PlanComparison(
        network=model.name,
        objective=options.objective,
        unit=UNITS[options.objective],
        combinations=comparison.rows(),
        is_interrupted=comparison.is_interrupted,
        model_sha256=model.sha256,
        targets=request.targets,
    )


class _Comparison:
    """Rows of a request, one after another; an interrupt keeps those that there are."""

    def __init__(self, graph: Graph, request: PlanRequest, progress: Progress | None) -> None:
        self._graph = graph
        self._request = request
        self._progress = progress
        self._start_s = time.perf_counter()
        self._rows: list[PlannedCombination] = []
        self._first_error: TilewrightError | None = None
        self.is_interrupted = False

    def run(self) -> None:
        """Plan everything.

        Raises:
            TilewrightError: none can be planned; the first one's error.
        """
        try:
            for target in self._request.targets:
                self._plan_on(target)
        except KeyboardInterrupt:
            if not self._rows:
                raise
            self.is_interrupted = True
        if self._first_error is not None and all(row.error is not None for row in self._rows):
            raise self._first_error

    def rows(self) -> tuple[PlannedCombination, ...]:
        """What was planned, with the first of the cheapest of each target marked."""
        least: dict[str, tuple[float, int]] = {}
        for number, row in enumerate(self._rows):
            if row.cost is not None:
                least[row.target] = min(least.get(row.target, (inf, 0)), (row.cost, number))
        best = {number for _, number in least.values()}
        return tuple(
            dataclasses.replace(row, is_best=number in best) for number, row in enumerate(self._rows)
        )

    def _plan_on(self, target: TargetRef) -> None:
        """Each recipe on one target: the backend, and what its plans share, is made once."""
        options = dataclasses.replace(self._request.options, target=target)
        total = len(self._request.targets) * len(self._request.recipes)

        def report(what: str, done: int, of: int) -> None:
            if self._progress is not None:
                self._progress(f"{label}: {what}", len(self._rows), total)

        label = str(target)
        clock = PhaseClock(options.timeout_s, report)
        planner: Planner | None = None
        for recipe in self._request.recipes:
            if self.is_interrupted:
                return
            label = f"{target}, {recipe}"
            start_s = time.perf_counter()
            try:
                if planner is None:
                    made_for = find_target(target)
                    planner = Planner(
                        self._graph, made_for, made_for.backend(self._graph, options), options, clock
                    )
                program = best_plan(planner, recipe).plan
                row = _planned(target, program, planner.backend.costs.source, time.perf_counter() - start_s)
            except TilewrightError as error:
                self._first_error = self._first_error or error
                row = _refused(target, recipe, str(error), time.perf_counter() - start_s)
            self._rows.append(row)
            if planner is not None and planner.portfolio is not None:
                self.is_interrupted = planner.portfolio.is_interrupted
            if time.perf_counter() - self._start_s > _SHORT_S:
                _log.log(NOTICE, "%s", row.told(UNITS[options.objective]))


def _refused(target: TargetRef, recipe: Recipe, error: str, planning_s: float) -> PlannedCombination:
    return PlannedCombination(
        target=str(target),
        partition=recipe.partition,
        schedule=recipe.schedule,
        memory=recipe.memory,
        error=error,
        is_best=False,
        planning_s=planning_s,
    )


def _planned(target: TargetRef, program: Program, source: str, planning_s: float) -> PlannedCombination:
    schedule, recipe = program.schedule, program.recipe
    quality = schedule.quality
    uses = () if program.memory is None else program.memory.uses
    return PlannedCombination(
        target=str(target),
        partition=recipe.partition,
        schedule=recipe.schedule,
        memory=recipe.memory,
        error=None,
        is_best=False,
        planning_s=planning_s,
        num_subgraphs=len(program.partition.subgraphs),
        num_stages=len(schedule.stages),
        cost=quality.cost,
        bound=quality.bound,
        gap=quality.gap,
        is_bound_proven=quality.widest.is_proven,
        bound_space=str(quality.widest.space),
        status=str(quality.status),
        optimal_among=quality.among,
        bounds=quality.bounds,
        source=source,
        planner=schedule.provenance.planner,
        num_evaluations=schedule.provenance.num_evaluations,
        memory_levels=tuple(LevelPeak(use.level.name, use.peak_bytes) for use in uses),
        splits_sums=recipe.splits_sums,
    )


def _letters(number: int) -> str:
    """The label of a space: a to z, then aa, ab, ...

    >>> _letters(0), _letters(25), _letters(26)
    ('a', 'z', 'aa')
    """
    rest = "" if number < 26 else _letters(number // 26 - 1)
    return rest + chr(ord("a") + number % 26)


def _targets(names: Names) -> tuple[TargetRef, ...]:
    """The targets that are named, each of them known."""
    listed = _listed("target", names, (*TARGETS.names(), *preset_names()))
    targets = tuple(dict.fromkeys(map(TargetRef.parse, listed)))
    for target in targets:
        find_target(target)
    return targets


def _planners(family: Registry[Any], names: Names) -> tuple[str, ...]:
    """Members of a family in canonical form."""
    registered = family.names()
    listed = _listed(family.kind, names, registered)
    # One of all that is broken, as a plugin may be, is a row that says so.
    return tuple(
        dict.fromkeys(
            text if text == AUTO or text in registered else family.canonical(text) for text in listed
        )
    )


def _listed(what: str, names: Names, every: Sequence[str]) -> tuple[str, ...]:
    texts = split_items(what, names) if isinstance(names, str) else list(names)
    found = [name for text in texts for name in (every if text == ALL else (text,))]
    if not found or not all(found):
        raise UsageError(f"{what}: a name is empty; give names with commas between them, or {ALL}.")
    return tuple(dict.fromkeys(found))
