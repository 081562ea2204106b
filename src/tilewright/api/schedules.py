"""`tw.compare_schedules`: what schedulers make of a model, by estimate and measured in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.api.benchmark import BenchOptions, bench
from tilewright.api.compilation import compilation_request, compile_model
from tilewright.api.models import Model, Shapes
from tilewright.api.plans import ALL
from tilewright.arguments import checked
from tilewright.arrays import Array
from tilewright.benchmark.session import Contestant
from tilewright.compiled import CompiledModel
from tilewright.errors import InternalError, TilewrightError, UsageError
from tilewright.families import SCHEDULERS
from tilewright.frontend.onnx import Source
from tilewright.options import Options
from tilewright.planning.spec import split_items
from tilewright.progress import Progress
from tilewright.results import Result, Table, about
from tilewright.text.formatting import format_bytes, format_ms

USUAL = ("sequential", "greedy", "horizontal-fusion", "ios")
"""What is compared where no schedulers are named."""


@dataclass(frozen=True, slots=True)
class ScheduledModel:
    """A model by one scheduler, or why there is none. Times are of a run; ratios over the first's."""

    schedule: str
    error: str | None = field(metadata=about("Why there is no schedule; null where there is one."))
    num_stages: int | None = None
    num_groups: int | None = field(
        default=None, metadata=about("The most groups of kernels that run side by side in a stage.")
    )
    cost: float | None = field(default=None, metadata=about("By estimate, in the unit of the document."))
    bound: float | None = field(
        default=None, metadata=about("Lower bound of the schedules in `bound_space`, by estimate.")
    )
    bound_space: str | None = field(default=None, metadata=about("The schedules that `bound` is of."))
    peak_bytes: int | None = None
    median_ms: float | None = field(default=None, metadata=about("Measured; null where nothing is."))
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: str | None = field(default=None, metadata=about("Of the first beside it, from the interval."))
    failure: str | None = field(
        default=None, metadata=about("Why it could not be measured; null where it was, or nothing is.")
    )

    @classmethod
    def of(cls, schedule: str, compiled: CompiledModel) -> ScheduledModel:
        """What is known before anything runs."""
        cost, memory = compiled.cost, compiled.memory
        return cls(
            schedule=schedule,
            error=None,
            num_stages=len(compiled.schedule.stages),
            num_groups=max((len(stage.groups) for stage in compiled.schedule.stages), default=0),
            cost=None if cost is None else cost.cost,
            bound=None if cost is None else cost.bound,
            bound_space=None if cost is None else str(cost.bounds[0].space),
            peak_bytes=None if memory is None else memory.peak_bytes,
        )

    def measured(self, contestant: Contestant) -> ScheduledModel:
        """The same with what was measured of it."""
        ratio = contestant.ratio
        return dataclasses.replace(
            self,
            median_ms=contestant.median_ms,
            ratio=None if ratio is None else ratio.median,
            ratio_low=None if ratio is None else ratio.low,
            ratio_high=None if ratio is None else ratio.high,
            verdict=None if ratio is None else str(ratio.verdict),
            failure=contestant.error,
        )


@dataclass(frozen=True, slots=True)
class ScheduleComparison(Result):
    """Schedulers beside each other on one model: the estimate of each, and its measured time."""

    model: str
    unit: str = field(metadata=about("Of every cost and bound."))
    source: str = field(metadata=about("The cost model."))
    schedules: tuple[ScheduledModel, ...]
    num_threads: int | None = field(metadata=about("Of the measurements; null where nothing was measured."))
    model_sha256: str = field(metadata=about(hidden=True))
    target: str = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """A row for each scheduler; those without a schedule, or without a time, say why."""
        good = [s for s in self.schedules if s.error is None]
        refused = [s for s in self.schedules if s.error is not None]
        failed = [s for s in good if s.failure is not None]
        heads = ("schedule", "stages", "side by side", f"estimate {self.unit}", "at least", "memory")
        measured = ("measured", "over the first's", "verdict")
        is_measured = self.num_threads is not None
        rows = tuple((*_figures(s), *(_times(s, good[0]) if is_measured else ())) for s in good)
        plural = "" if self.num_threads == 1 else "s"
        threads = f", {self.num_threads} thread{plural}, in turns" if is_measured else ""
        title = f"{self.model} on {self.target}{threads}; estimates by {self.source}"
        tables = [
            Table((*heads, *(measured if is_measured else ())), rows, title, (1, 2, 3, 4, 6), (4, 5, 1))
        ]
        if refused:
            reasons = tuple((s.schedule, s.error) for s in refused)
            tables.append(Table(("schedule", "why there is none"), reasons, "no schedule"))
        if failed:
            reasons = tuple((s.schedule, s.failure) for s in failed)
            tables.append(Table(("schedule", "why it did not run"), reasons, "not measured"))
        return tables

    def lines(self) -> Sequence[str]:
        """The spaces of schedules that estimates are at least of."""
        spaces: dict[str, list[str]] = {}
        for row in self.schedules:
            if row.bound_space is not None:
                spaces.setdefault(row.bound_space, []).append(row.schedule)
        if len(spaces) == 1:
            return tuple(f"at least: the lower bound of {space}" for space in spaces)
        return tuple(
            f"at least, of {', '.join(names)}: the lower bound of {space}" for space, names in spaces.items()
        )


def _figures(row: ScheduledModel) -> tuple[object, ...]:
    return (
        row.schedule,
        row.num_stages,
        row.num_groups,
        "-" if row.cost is None else f"{row.cost:,.0f}",
        "-" if row.bound is None else f"{row.bound:,.0f}",
        "-" if row.peak_bytes is None else format_bytes(row.peak_bytes),
    )


def _times(row: ScheduledModel, first: ScheduledModel) -> tuple[str, str, str]:
    time = "failed" if row.median_ms is None else format_ms(row.median_ms)
    if row.ratio is None:
        return time, "", ""
    is_open = row.verdict in ("tie", "inconclusive")
    verdict = str(row.verdict) if is_open else f"{first.schedule} is {row.verdict}"
    return time, f"{row.ratio:.2f} x ({row.ratio_low:.2f} to {row.ratio_high:.2f})", verdict


@checked
def compare_schedules(
    model: Model | Source,
    schedules: str | Sequence[str] = USUAL,
    *,
    duration_s: float = 2.0,
    feed: Mapping[str, Array] | str | Path | None = None,
    shapes: Shapes | str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> ScheduleComparison:
    """Compile a model with each scheduler and, where code runs here, measure them in turns.

    `schedules` are specs, a text with commas between them, or `all`. `duration_s` is that of each; with 0
    nothing is measured. `settings` are fields of `Options`, as for `compile`. A scheduler that has no answer
    is a row that says why.

    Raises:
        UsageError: an unknown scheduler, or a setting that makes no sense.
        TilewrightError: no scheduler has an answer; the first one's error.
    """
    if not 0 <= duration_s <= 3600:
        raise UsageError(f"duration {duration_s:g}: give seconds, from 0 to 3600.")
    loaded, options = compilation_request(model, None, shapes, options, settings)
    names = _names(schedules)
    rows: dict[str, ScheduledModel] = {}
    made: dict[str, CompiledModel] = {}
    first_error: TilewrightError | None = None
    for number, name in enumerate(names):
        if progress is not None:
            progress(name, number, len(names))
        try:
            compiled = compile_model(loaded, options=dataclasses.replace(options, schedule=name))
        except InternalError:
            raise
        except TilewrightError as error:
            first_error = first_error or error
            rows[name] = ScheduledModel(name, str(error))
        else:
            made[name], rows[name] = compiled, ScheduledModel.of(name, compiled)
    if not made:
        assert first_error is not None
        raise first_error
    first = next(iter(made.values()))
    is_measured = duration_s > 0 and first.facts.target.is_cpu
    if is_measured:
        measure = BenchOptions(threads=options.threads, duration_s=duration_s, measures_error=False)
        found = bench(*made.values(), feed=feed, measure=measure, options=options, progress=progress)
        for name, contestant in zip(made, found.contestants, strict=True):
            rows[name] = rows[name].measured(contestant)
    return ScheduleComparison(
        model=loaded.name,
        unit="" if first.cost is None else first.cost.unit,
        source="" if first.cost is None else first.cost.source,
        schedules=tuple(rows.values()),
        num_threads=found.num_threads if is_measured else None,
        model_sha256=loaded.sha256,
        target=first.target,
    )


def _names(schedules: str | Sequence[str]) -> tuple[str, ...]:
    """The schedulers that are named, each known."""
    texts = split_items("schedule", schedules) if isinstance(schedules, str) else list(schedules)
    every = [name for text in texts for name in (SCHEDULERS.names() if text == ALL else (text,))]
    if not every or not all(every):
        raise UsageError(f"schedule: a name is empty; give names with commas between them, or {ALL}.")
    return tuple(dict.fromkeys(map(SCHEDULERS.canonical, every)))
