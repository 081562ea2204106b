"""`tw.simulate_sweep`: networks planned for machines, and for variants of them, side by side.

A task for each network and machine, in any order: answered by this process, by others, or by a Ray cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from tilewright.api.batches import BatchedModel, batch_text
from tilewright.api.models import Model
from tilewright.api.plan_tasks import (
    MODULE,
    NetworkText,
    PlannedFigures,
    PlanTask,
    Refusal,
    answer_of,
    solve_text,
)
from tilewright.api.simulation_request import BEST, DEFAULT_MACHINE, SimulationRequest
from tilewright.arguments import checked, require_fields
from tilewright.errors import MachineError, TilewrightError, UsageError
from tilewright.frontend.onnx import Source
from tilewright.hardware.components import components_of
from tilewright.hardware.machine import Machine
from tilewright.hardware.variants import MAX_VARIANTS, Axis, parse_axis, require_distinct, variants
from tilewright.mapping.sweep.answered import Kind, Task, TaskSettings, answered
from tilewright.mapping.sweep.crews import check_workers
from tilewright.mapping.sweep.results import unbeaten
from tilewright.mapping.sweep.tasks import TaskMachine
from tilewright.planning import Budget
from tilewright.planning.spec import split_items
from tilewright.progress import NOTICE, Progress
from tilewright.report.plan_sweep import PlanSweep, SweptMachine, SweptPlan
from tilewright.requests import flag_of
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.base import SimulatingTarget

TARGET, BATCH = "target", "batch"
"""Axes of a sweep that are no numbers of a machine."""
_LIMIT_S = 24 * 3600.0
"""What a plan may take that has no deadline."""
_ALONE = ("compare", "check", "mappings", "max_latency_ms")
"""Fields of a request that a sweep does not pass on."""

_log = logging.getLogger(__name__)


@checked
def simulate_sweep(
    models: Model | Source | Sequence[Model | Source],
    target: str | Path | TargetRef = DEFAULT_MACHINE,
    *,
    sweep: str | Sequence[str],
    workers: str | int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> PlanSweep:
    """Plan every network for every combination of machines and their numbers.

    `sweep` has texts such as `target=v100,a100`, `batch=1,16` and `levels.GlobalBuffer.capacity=1MiB,2MiB`.
    `workers` is a number of processes or `ray`, or `ray://HOST:10001`; `journal` a file of JSON lines, to
    which answers are appended, and whose answers are not asked for again. `settings` are fields of
    `SimulationRequest` (`recipe="joint"`, `budget="10s"`, which is for each plan). What ends is told at once;
    an interrupt keeps it.

    Raises:
        UsageError: an axis that names nothing, a setting that makes no sense, workers that cannot be had.
        TilewrightError: a model that cannot be read; nothing could be planned: the first reason.
    """
    require_fields(SimulationRequest, settings)
    several = isinstance(models, Sequence) and not isinstance(models, str | bytes)
    listed: Sequence[Any] = models if several else (models,)  # type: ignore[assignment]
    texts = (sweep,) if isinstance(sweep, str) else tuple(sweep)
    for name in _ALONE:
        if settings.pop(name, None):
            raise UsageError(
                f"{flag_of(SimulationRequest, name)} has no effect beside --sweep; leave one of them out."
            )
    if workers is not None:
        check_workers(str(workers))
    asked = TaskSettings(
        None if workers is None else str(workers), None if journal is None else Path(journal)
    )
    swept = _Sweep(listed, TargetRef.parse(target), texts, settings)
    return swept.result(asked, progress or (lambda *_: None))


@dataclass(frozen=True, slots=True)
class _Place:
    """A machine of a sweep, and its batch."""

    target: TargetRef
    machine: Machine
    batch: int | None
    values: tuple[str, ...]


class _Sweep:
    """One request on its way to its result."""

    def __init__(
        self, models: Sequence[Any], target: TargetRef, sweep: Sequence[str], settings: dict[str, Any]
    ) -> None:
        if not models:
            raise UsageError("sweep: no network; give at least one.")
        self.axes = [text.partition("=")[0].strip() for text in sweep]
        by_name = dict(zip(self.axes, sweep, strict=True))
        if len(by_name) < len(self.axes):
            twice = next(axis for axis in self.axes if self.axes.count(axis) > 1)
            raise UsageError(f"sweep: {twice} is swept twice; give all of its values in one sweep.")
        targets = _values(by_name.get(TARGET)) or (str(target),)
        batches = _values(by_name.get(BATCH))
        if batches and settings.get("batch") is not None:
            raise UsageError("--batch has no effect beside --sweep batch=...; leave one of them out.")
        if isinstance(settings.get("batch"), str) and not str(settings["batch"]).isdecimal():
            raise UsageError("sweep: --batch is one number; for several give --sweep batch=1,16.")
        for text in batches:
            if not text.isdecimal() or not int(text):
                raise UsageError(f"sweep batch={text}: expected numbers of samples.")
        self.settings = settings | {"objective": settings.get("objective", "latency")}
        self.places = list(self._placed(targets, batches, sweep))
        if len(self.places) > MAX_VARIANTS:
            raise UsageError(
                f"the sweep makes {len(self.places)} machines; at most {MAX_VARIANTS} are taken."
            )
        shapes = [self._request(self.places[0], model).fixed_shapes for model in models]
        self.models = [BatchedModel.of(m, s, "") for m, s in zip(models, shapes, strict=True)]

    def _request(self, place: _Place, model: Any) -> SimulationRequest:
        """What is asked of one plan; checks the settings."""
        given = {name: value for name, value in self.settings.items() if value is not None}
        return SimulationRequest(model=model, target=place.target, **given)

    def _placed(
        self, targets: Sequence[str], batches: Sequence[str], sweep: Sequence[str]
    ) -> Iterator[_Place]:
        """Every combination, in the order of the axes but for the last one changing fastest."""
        numbers = [text for text in sweep if text.partition("=")[0].strip() not in (TARGET, BATCH)]
        full: list[Axis] = []
        for name in targets:
            ref = TargetRef.parse(name)
            found = find_target(ref)
            if not isinstance(found, SimulatingTarget):
                raise UsageError(
                    f"sweep: {name} runs models; give machines that are described (stcp920, a YAML file)."
                )
            full = [parse_axis(text, found.machine) for text in numbers]
            for variant in variants(found.machine, full):
                for batch in batches or (None,):
                    by_axis = dict(zip((axis.path for axis in full), variant.values, strict=True))
                    by_axis |= {TARGET: name, BATCH: str(batch)}
                    own = iter(axis.path for axis in full)
                    names = [axis if axis in (TARGET, BATCH) else next(own) for axis in self.axes]
                    values = tuple(by_axis[axis] for axis in names)
                    yield _Place(ref, variant.machine, None if batch is None else int(batch), values)

    def result(self, asked: TaskSettings, progress: Progress) -> PlanSweep:
        tasks = dict(self._tasks())
        keys = {place: task.key for place, task in tasks.items()}
        texts = {keys[place]: self._task(place, task) for place, task in tasks.items()}
        budget = self._request(self.places[0], self.models[0].source).budget
        deadline_s = budget.deadline_s if isinstance(budget, Budget) else None
        limit_s = _LIMIT_S if deadline_s is None else 300.0 + 20 * deadline_s
        kind = Kind(MODULE, limit_s, answer_of, solve_text)
        known: dict[str, PlannedFigures | Refusal] = {}
        is_interrupted = False
        try:
            # Closed at once whatever happens: workers must not outlive it.
            with contextlib.closing(answered(texts, kind, asked)) as come:
                progress("networks planned", 0, len(texts))
                for key, answer in come:
                    known[key] = answer
                    names = ", ".join(texts[key].names.values())
                    _log.log(NOTICE, "%s: %s", names, _told(answer))
                    progress(f"{len(known)} of {len(texts)} plans made", len(known), len(texts))
        except KeyboardInterrupt:
            if not known:
                raise
            is_interrupted = True
        return self._compared(keys, known, is_interrupted=is_interrupted)

    def _tasks(self) -> Iterator[tuple[tuple[int, int], PlanTask]]:
        """Of each machine and network; networks are read once for each batch."""
        written: dict[tuple[int, int | None], NetworkText] = {}
        given = self.settings.get("batch")
        given_by = {n: v for n, v in self.settings.items() if n not in ("batch", "shapes")}
        kept = {name: _plain(value) for name, value in given_by.items() if value is not None}
        for place, row in enumerate(self.places):
            machine = TaskMachine.of(row.machine)
            batch = row.batch if row.batch is not None else None if given is None else int(given)
            for number, model in enumerate(self.models):
                if (number, batch) not in written:
                    asked = dataclasses.replace(model, asked="" if batch is None else batch_text(batch))
                    graph = asked.graph(batch)
                    written[number, batch] = NetworkText.of(model.label, graph)
                yield (place, number), PlanTask(written[number, batch], str(row.target), machine, kept)

    def _task(self, place: tuple[int, int], task: PlanTask) -> Task:
        row = self.places[place[0]]
        said = ", ".join(f"{axis}={value}" for axis, value in zip(self.axes, row.values, strict=True))
        return Task(task.to_text(), {"network": task.network.name, "machine": said or str(row.target)})

    def _compared(
        self,
        keys: Mapping[tuple[int, int], str],
        known: Mapping[str, PlannedFigures | Refusal],
        *,
        is_interrupted: bool,
    ) -> PlanSweep:
        machines = []
        for place, row in enumerate(self.places):
            answers = [
                (model.label, known[keys[place, number]])
                for number, model in enumerate(self.models)
                if keys[place, number] in known
            ]
            if answers:
                machines.append(_machine(row, answers))
        refused = [plan.error for machine in machines for plan in machine.plans if plan.time_s is None]
        if len(refused) == sum(len(machine.plans) for machine in machines):
            raise TilewrightError(refused[0] or "nothing was planned")
        best = set[int]()
        for batch in {machine.batch for machine in machines}:
            figures = {
                number: found
                for number, machine in enumerate(machines)
                if machine.batch == batch
                and len(machine.plans) == len(self.models)
                and (found := _compared_by(machine)) is not None
            }
            best |= unbeaten(figures)
        return PlanSweep(
            networks=tuple(model.label for model in self.models),
            recipe=_how(self._request(self.places[0], self.models[0].source)),
            objective=self.settings["objective"],
            axes=tuple(self.axes),
            machines=tuple(dataclasses.replace(m, is_best=n in best) for n, m in enumerate(machines)),
            is_interrupted=is_interrupted,
        )


def _how(request: SimulationRequest) -> str:
    """The recipe, or the planners that are named in its place."""
    return request.recipe or ", ".join(request.planners.values()) or BEST


def _values(text: str | None) -> tuple[str, ...]:
    """What an axis takes."""
    if text is None:
        return ()
    _, mark, values = text.partition("=")
    listed = tuple(filter(None, split_items("sweep", values)))
    if not mark or not listed:
        raise UsageError(f"sweep {text!r}: expected values, such as target=v100,a100 or batch=1,16.")
    require_distinct(text, listed)
    return listed


def _plain(value: Any) -> Any:
    """A setting as JSON has it, and as a request reads it again."""
    if isinstance(value, Budget | Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _told(answer: PlannedFigures | Refusal) -> str:
    """A row as a line."""
    if isinstance(answer, Refusal):
        return f"no plan: {answer.reason}"
    energy = "" if answer.energy_j is None else f", {answer.energy_j * 1e3:.4g} mJ"
    return f"{answer.time_s * 1e3:.4g} ms{energy} by {answer.recipe} ({answer.planning_s:.1f} s)"


def _machine(row: _Place, answers: Sequence[tuple[str, PlannedFigures | Refusal]]) -> SweptMachine:
    plans = []
    source = ""
    for network, answer in answers:
        if isinstance(answer, Refusal):
            plans.append(SweptPlan(network, answer.reason))
            continue
        source = answer.energy_source
        plans.append(
            SweptPlan(
                network,
                None,
                answer.time_s,
                answer.bound_s,
                answer.energy_j,
                answer.read_bytes + answer.written_bytes,
                answer.recipe,
                answer.status,
                answer.optimal_among,
                answer.planning_s,
            )
        )
    return SweptMachine(str(row.target), row.batch, row.values, _area_mm2(row.machine), tuple(plans), source)


def _area_mm2(machine: Machine) -> float | None:
    """Of its multipliers and buffers on the chip."""
    try:
        area_mm2 = sum(component.area_mm2 or 0.0 for component in components_of(machine))
    except MachineError:
        return None
    return area_mm2 if isfinite(area_mm2) else None


def _compared_by(machine: SweptMachine) -> tuple[float, ...] | None:
    """Time, energy and area, which less is better of; what is unknown counts as most."""
    if machine.mean_time_s is None:
        return None
    unknown = (machine.mean_energy_j, machine.area_mm2)
    return machine.mean_time_s, *(inf if value is None else value for value in unknown)
