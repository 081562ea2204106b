"""`tw.map`: operators on a described machine. What is asked in texts and files becomes a problem to solve."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, get_args, overload

from tilewright.api.map_request import DEFAULT_MACHINE, MapRequest
from tilewright.arguments import checked, require_fields
from tilewright.errors import UsageError
from tilewright.files import require_writable, write_output
from tilewright.hardware.densities import with_densities
from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import read_text
from tilewright.hardware.presets import find_machine, machine_path
from tilewright.loops.mapping import Mapping as LoopMapping
from tilewright.loops.problem import Problem, written
from tilewright.mapping.cases import Case, load_cases
from tilewright.mapping.constraints import Constraint, Constraints, parse_constraints
from tilewright.mapping.solve import (
    DEFAULT_BUDGET,
    MapItem,
    MapProblem,
    Workload,
    evaluate_mappings,
    map_layers,
    mapped_part,
    parts_for,
)
from tilewright.options import Options, parse_shapes
from tilewright.planning import Budget
from tilewright.progress import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

    from tilewright.api.models import Model
    from tilewright.mapping.network import Layer
    from tilewright.mapping.results import MapEvaluation, MapResult
    from tilewright.mapping.sweep.results import MapSweep

Work = Any
"""A layer as text (`3_14_256_256_1`, or dims such as `K=64,C=3,P=112`), a `Problem`, a model (a file, a node
of it as `net.onnx:NODE`, a `Model`, or ONNX's `ModelProto`), or one of Timeloop's problems as a YAML file."""


@overload
def map_operators(
    work: Work, machine: Machine | str | Path = ..., *, sweep: Sequence[str], **settings: Any
) -> MapSweep: ...
@overload
def map_operators(
    work: Work = ..., machine: Machine | str | Path = ..., *, evaluate: Path | Sequence[Case], **settings: Any
) -> MapEvaluation: ...
@overload
def map_operators(
    work: Work, machine: Machine | str | Path = ..., *, progress: Progress | None = ..., **settings: Any
) -> MapResult: ...
@checked
def map_operators(
    work: Work = (),
    machine: Machine | str | Path = DEFAULT_MACHINE,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> MapResult | MapSweep | MapEvaluation:
    """Find the loops of operators for each level of a machine's memory, their cost, and its lower bound.

    `work` is a layer, a model, or several of them; `settings` are fields of `MapRequest`. Of a model every
    sum of products is mapped, equal ones once; its other operators are counted as streams.

    Raises:
        UsageError: nothing to map, a setting that makes no sense, or a page that cannot be written.
        MachineError: a machine or a file of Timeloop's that is not what it should be.
        InfeasibleMapping: a layer does not fit the machine.

    >>> print(map_operators("1_1_4_4_1").total.macs)
    16
    """
    require_fields(MapRequest, settings)
    several = isinstance(work, Sequence) and not isinstance(work, str | bytes)
    request = MapRequest(work=tuple(work) if several else (work,), machine=machine, **settings)
    return answer(request, progress)


def answer(request: MapRequest, progress: Progress | None = None) -> MapResult | MapSweep | MapEvaluation:
    """What a request asks for; as `tw.map`."""
    update = progress or (lambda *_: None)
    machine = _machine(request)
    _check_export(request, machine)
    if request.plot is not None:
        require_writable(request.plot)
    if request.density is not None:
        machine = with_densities(machine, request.density)
    if request.evaluate is not None:
        cases = _cases(request, machine)
        _export(request, machine, ((case.problem, case.mapping) for case in cases))
        return evaluate_mappings(
            cases, machine, request.cost_options, request.noc, update, verify=request.verify
        )
    if not request.work:
        raise UsageError("nothing to map; give a layer such as 3_14_256_256_1, or mappings to evaluate.")
    workloads = _workloads(request)
    budget = Budget.parse(request.budget) if isinstance(request.budget, str) else request.budget
    problem = MapProblem(
        machine=machine,
        workloads=workloads,
        mapper=request.mapper,
        objective=request.objective,
        cost_options=request.cost_options,
        budget=budget or DEFAULT_BUDGET,
        seed=request.seed,
        constraints=_constraints(request, machine),
        on_network=request.noc,
        verify=request.verify,
    )
    if request.sweep:
        from tilewright.mapping.sweep.answered import TaskSettings
        from tilewright.mapping.sweep.explore import map_variants
        from tilewright.report.sweep import sweep_page

        settings = TaskSettings(request.workers, request.journal)
        swept = map_variants(problem, request.sweep, settings, update)
        _plot(request, lambda: sweep_page(swept))
        return swept
    from tilewright.report.mapping import map_page

    result = map_layers(problem, update)
    _plot(request, lambda: map_page(result))
    distinct = {id(layer.solution): layer for layer in result.layers}.values()
    _export(request, machine, ((layer.problem, layer.solution.mapping) for layer in distinct))
    return result


def _plot(request: MapRequest, page: Callable[[], str]) -> None:
    if request.plot is not None:
        write_output(request.plot, page().encode())


def _check_export(request: MapRequest, machine: Machine) -> None:
    if request.export_timeloop is not None and machine.threads is not None:
        raise UsageError(
            f"export-timeloop: Timeloop's files cannot say what blocks of threads on {machine.name} share; "
            "give a machine without threads."
        )


def _export(request: MapRequest, machine: Machine, mappings: Iterable[tuple[Problem, LoopMapping]]) -> None:
    from tilewright.mapping.timeloop import write_each

    if request.export_timeloop is not None:
        every = list(mappings)
        parts = parts_for((problem for problem, _ in every), machine)
        onto = ((problem, parts[problem.is_depthwise][0], mapping) for problem, mapping in every)
        write_each(request.export_timeloop, onto)


def _machine(request: MapRequest) -> Machine:
    """A machine as it is, a preset, or that of a YAML file, which may be one of Timeloop's architectures."""
    from tilewright.mapping.timeloop import load_architecture, load_problem, sections_of

    machine, more = request.machine, request.machine_files
    path = machine_path(os.fspath(machine)) if _is_yaml(machine) else None
    if path is not None and sections_of(read_text(path)):
        problems = [load_problem(os.fspath(w)) for w in request.work if _is_yaml(w)]
        mapping = request.evaluate
        mappings = (mapping,) if isinstance(mapping, Path) and _is_yaml(mapping) else ()
        return load_architecture(str(machine), *more, *mappings, problems=problems)
    if more:
        name = machine.name if isinstance(machine, Machine) else machine
        raise UsageError(f"{more[0]} goes with one of Timeloop's architectures, but {name} is none.")
    return machine if isinstance(machine, Machine) else find_machine(str(machine))


def _constraints(request: MapRequest, machine: Machine) -> Constraints:
    """Those that are asked for, and those in Timeloop's files."""
    from tilewright.mapping.timeloop import load_constraints, sections_of

    part, _ = mapped_part(machine)
    given: list[Constraint] = []
    for constraint in request.constraints:
        if isinstance(constraint, str):
            given += parse_constraints([constraint], part)
        elif isinstance(constraint, get_args(Constraint)):
            given.append(constraint)
        else:
            raise UsageError(
                f"constraints: expected texts such as weight-stationary, found a {type(constraint).__name__}."
            )
    if not request.ignore_constraints:
        path = machine_path(os.fspath(request.machine)) if _is_yaml(request.machine) else None
        paths = [] if path is None or not sections_of(read_text(path)) else [path]
        work = [Path(w) for w in request.work if _is_yaml(w)]
        given += load_constraints([*paths, *request.machine_files, *work], part)
    return Constraints.of(given)


def _cases(request: MapRequest, machine: Machine) -> Sequence[Case]:
    """The mappings to evaluate: cases, a file of them, or one of Timeloop's mappings of one layer."""
    from tilewright.mapping.timeloop import load_mapping, load_problem

    given, work = request.evaluate, request.work
    assert given is not None
    if not isinstance(given, Path) or not _is_yaml(given):
        if work:
            raise UsageError(f"{work[0]}: given mappings say what they map; leave out the layers.")
        return load_cases(given) if isinstance(given, Path) else given
    if len(work) != 1 or not _is_yaml(work[0]):
        raise UsageError(f"{given}: a mapping of Timeloop's needs its problem; give one YAML file.")
    problem = load_problem(os.fspath(work[0]))
    part, _ = parts_for([problem], machine)[problem.is_depthwise]
    return [Case(problem.name, problem, load_mapping(Path(given), problem, part))]


def _workloads(request: MapRequest) -> tuple[Workload, ...]:
    """Layers as they are; of models the nodes after folding constants and merging patterns, and the rest."""
    workloads = [_workload(work, request.shapes) for work in request.work]
    if request.shapes is not None and not any(_model_and_node(work)[0] for work in request.work):
        raise UsageError("--shapes is for models; leave it out.")
    if not any(workload.items for workload in workloads):
        named = ", ".join(workload.name for workload in workloads)
        raise UsageError(f"{named}: nothing to map; no operator sums products.")
    return tuple(workloads)


def _workload(work: Any, shapes: Mapping[str, Sequence[int]] | str | None) -> Workload:
    model, node = _model_and_node(work)
    if model is None:
        layer = _layer(work)
        return Workload(layer.name, (MapItem(layer),))
    name, layers = _layers_of(model, node, shapes)
    return Workload(
        name,
        tuple(MapItem(layer.problem, layer.op_type) for layer in layers if layer.problem is not None),
        tuple(layer for layer in layers if layer.problem is None and node is None),
    )


def _layer(work: Any) -> Problem:
    from tilewright.mapping.timeloop import load_problem

    if isinstance(work, Problem):
        return work
    if isinstance(work, str | os.PathLike):
        return load_problem(os.fspath(work)) if _is_yaml(work) else written(os.fspath(work))
    raise UsageError(f"work: expected a layer as text, a model or a problem, found a {type(work).__name__}.")


def _model_and_node(work: Any) -> tuple[Path | Model | ModelProto | None, str | None]:
    """`net.onnx` and `net.onnx:NODE` taken apart; no model if it is a layer."""
    if isinstance(work, str | os.PathLike):
        text = os.fspath(work)
        if text.endswith(".onnx"):
            return Path(text), None
        path, mark, node = text.partition(".onnx:")
        return (Path(f"{path}.onnx"), node) if mark else (None, None)
    # Asked without importing them.
    is_model = (type(work).__module__, type(work).__name__) in (_MODEL, _MODEL_PROTO)
    return (work if is_model else None), None


_MODEL, _MODEL_PROTO = ("tilewright.api.models", "Model"), ("onnx.onnx_ml_pb2", "ModelProto")


def _layers_of(
    model: Path | Model | ModelProto, node: str | None, shapes: Mapping[str, Sequence[int]] | str | None
) -> tuple[str, list[Layer]]:
    """The name of a model, of a node of it, and what is in it."""
    from tilewright.api.models import as_model
    from tilewright.compiler import plan
    from tilewright.mapping.network import layers_of

    loaded = as_model(model, parse_shapes(shapes) if isinstance(shapes, str) else shapes)
    graph = plan(loaded.graph, Options()).program.graph
    try:
        return loaded.name if node is None else f"{loaded.name}:{node}", layers_of(graph, node)
    except UsageError as error:
        raise UsageError(f"{loaded.name}: {error}") from None


def _is_yaml(name: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(name, str | os.PathLike) and os.fspath(name).endswith((".yaml", ".yml"))
