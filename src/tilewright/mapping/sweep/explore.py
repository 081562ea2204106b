"""Workloads mapped onto every variant of a machine: a task for each layer and machine, in any order."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tilewright.errors import UsageError
from tilewright.hardware.components import components_of, with_energies
from tilewright.hardware.machine import Machine
from tilewright.hardware.operator_view import multipliers
from tilewright.hardware.variants import Axis, Variant, parse_axis, variants
from tilewright.loops.problem import Problem
from tilewright.mapping.results import MapTotal
from tilewright.mapping.solve import (
    MapProblem,
    Workload,
    check_search,
    parts_for,
    same_loops,
    streamed_nodes,
)
from tilewright.mapping.sweep.answered import Kind, Task, TaskSettings, answered
from tilewright.mapping.sweep.results import (
    MapSweep,
    SweptComponent,
    SweptLayer,
    SweptMachine,
    WorkloadCost,
    unbeaten,
)
from tilewright.mapping.sweep.tasks import (
    MULTIPLIERS,
    LayerAnswer,
    MapTask,
    Refusal,
    Search,
    TaskMachine,
    answer_of,
    solve_text,
)
from tilewright.mapping.sweep.workers import LAYERS
from tilewright.progress import Progress

_LIMIT_S = 24 * 3600.0
"""What a layer may take where its search has no time limit."""


def map_variants(
    problem: MapProblem, axes: Sequence[str], settings: TaskSettings, progress: Progress
) -> MapSweep:
    """Map every layer onto every combination of numbers of the machine, `levels.L1.capacity=64KiB,128KiB`.

    Raises:
        UsageError: an axis names no number of the machine, workers that cannot be had, a journal that is
            none; as `map_layers`.
        MachineError: a variant is no machine.
    """
    onto = [part for part, _ in parts_for((i.problem for i in problem.items), problem.machine).values()]
    if onto[0].units != onto[-1].units:
        units = [multipliers(part).name for part in onto]
        raise UsageError(
            f"sweep: depthwise layers run on {units[1]} of machine {problem.machine.name!r}, others on "
            f"{units[0]}; sweep them apart."
        )
    part = with_energies(onto[0])
    check_search(problem, part)
    parsed = [parse_axis(text, part) for text in axes]
    machines = variants(part, parsed)
    search = Search.of(problem)
    layers = _distinct(problem)
    tasks = {
        (number, same): MapTask(layer, machine, search)
        for number, machine in enumerate(TaskMachine.of(variant.machine) for variant in machines)
        for same, layer in layers.items()
    }
    keys = {place: task.key for place, task in tasks.items()}
    known = _answered({keys[place]: task for place, task in tasks.items()}, settings, progress)
    rows = [
        _row(problem, variant, {same: known[keys[number, same]] for same in layers})
        for number, variant in enumerate(machines)
    ]
    return _compared(problem, part, parsed, rows)


def _distinct(problem: MapProblem) -> dict[tuple[object, ...], Problem]:
    """Of equal layers the first."""
    layers: dict[tuple[object, ...], Problem] = {}
    for item in problem.items:
        layers.setdefault(same_loops(item.problem), item.problem)
    return layers


def _answered(
    tasks: Mapping[str, MapTask], settings: TaskSettings, progress: Progress
) -> dict[str, LayerAnswer | Refusal]:
    """Every task's answer: the journal's, or a worker's."""
    search = next(iter(tasks.values())).search
    deadline_s = search.budget.deadline_s
    limit_s = _LIMIT_S if deadline_s is None else 300.0 + 20 * deadline_s
    texts = {
        key: Task(task.to_text(), {"layer": task.layer.name, "machine": task.machine.fingerprint[:16]})
        for key, task in tasks.items()
    }
    known: dict[str, LayerAnswer | Refusal] = {}
    kind = Kind(LAYERS, limit_s, answer_of, solve_text)
    # Closed at once whatever happens: workers must not outlive it.
    with contextlib.closing(answered(texts, kind, settings)) as found:
        _tell(0, len(tasks), progress)
        for key, answer in found:
            known[key] = answer
            _tell(len(known), len(tasks), progress)
    return known


def _tell(num_done: int, num_tasks: int, progress: Progress) -> None:
    progress(f"{num_done} of {num_tasks} layers mapped", num_done, num_tasks)


def _row(
    problem: MapProblem, variant: Variant, known: Mapping[tuple[object, ...], LayerAnswer | Refusal]
) -> SweptMachine:
    """A variant's sums over all layers, or why there are none."""
    answered: dict[tuple[object, ...], LayerAnswer] = {}
    for same, answer in known.items():
        if isinstance(answer, Refusal):
            return SweptMachine(variant.values, None, answer.reason)
        answered[same] = answer
    workloads = tuple(_workload(workload, variant.machine, answered) for workload in problem.workloads)
    counts = Counter(same_loops(item.problem) for item in problem.items)
    layers = _distinct(problem)
    return SweptMachine(
        variant.values,
        _total(problem, workloads, answered),
        None,
        workloads,
        _components(variant.machine, answered, counts),
        tuple(_layer(layers[same], counts[same], answer) for same, answer in answered.items()),
        variant.machine.clock_hz,
        variant.machine,
    )


def _layer(layer: Problem, num_times: int, answer: LayerAnswer) -> SweptLayer:
    return SweptLayer(
        layer.name,
        num_times,
        answer.cycles,
        answer.energy_pj,
        answer.bound_cycles,
        answer.bound_energy_pj,
        answer.utilization,
        answer.status,
        answer.optimal_among,
        answer.mapping.levels,
        layer,
    )


def _workload(
    workload: Workload, machine: Machine, known: Mapping[tuple[object, ...], LayerAnswer]
) -> WorkloadCost:
    mapped = [known[same_loops(item.problem)] for item in workload.items]
    streamed = streamed_nodes(workload.streamed, machine)
    return WorkloadCost(
        workload.name,
        sum(answer.cycles for answer in mapped),
        sum(answer.energy_pj for answer in mapped),
        sum(answer.bound_cycles for answer in mapped),
        sum(answer.bound_energy_pj for answer in mapped),
        sum(node.cycles for node in streamed),
        sum(node.energy_pj for node in streamed),
    )


def _total(
    problem: MapProblem,
    workloads: Sequence[WorkloadCost],
    known: Mapping[tuple[object, ...], LayerAnswer],
) -> MapTotal:
    return MapTotal(
        macs=sum(item.problem.num_macs for item in problem.items),
        cycles=sum(w.cycles for w in workloads),
        energy_pj=sum(w.energy_pj for w in workloads),
        bound_cycles=sum(w.bound_cycles for w in workloads),
        bound_energy_pj=sum(w.bound_energy_pj for w in workloads),
        num_distinct=len(known),
        seconds=sum(answer.seconds for answer in known.values()),
        streamed_cycles=sum(w.streamed_cycles for w in workloads),
        streamed_energy_pj=sum(w.streamed_energy_pj for w in workloads),
    )


def _components(
    machine: Machine,
    known: Mapping[tuple[object, ...], LayerAnswer],
    counts: Mapping[tuple[object, ...], int],
) -> tuple[SweptComponent, ...]:
    """The compute units, then the levels from the inside out, with what they take for all layers."""
    energy_pj: defaultdict[str, float] = defaultdict(float)
    for same, answer in known.items():
        for name, layer_pj in answer.component_pj.items():
            energy_pj[name] += layer_pj * counts[same]
    units, *levels = components_of(machine)
    by_name = {component.name: component for component in levels}
    listed = [
        SweptComponent(units.name, units.num_instances, units.area_mm2, energy_pj[MULTIPLIERS], units.source)
    ]
    for level in machine.levels:
        component = by_name.get(level.name)
        listed.append(
            SweptComponent(
                level.name,
                machine.num_instances(level),
                None if component is None else component.area_mm2,
                energy_pj[level.name],
                "" if component is None else component.source,
            )
        )
    return tuple(listed)


def _compared(
    problem: MapProblem, part: Machine, axes: Sequence[Axis], rows: Sequence[SweptMachine]
) -> MapSweep:
    figures = {number: row.figures for number, row in enumerate(rows)}
    best = unbeaten({number: values for number, values in figures.items() if values is not None})
    return MapSweep(
        machine=part.name,
        mapper=problem.mapper,
        objective=problem.objective,
        axes=tuple(axis.path for axis in axes),
        variants=tuple(dataclasses.replace(row, is_best=n in best) for n, row in enumerate(rows)),
        work=tuple(workload.name for workload in problem.workloads),
        description=part,
        cost_options=problem.cost_options,
    )
