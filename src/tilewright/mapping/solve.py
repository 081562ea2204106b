"""Requests on operators and a machine, answered: mapped, mapped onto variants, given mappings counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.cost.base import Objective
from tilewright.cost.bound import check_smallest_tiles
from tilewright.cost.count import Cost
from tilewright.cost.noc.result import NocResult
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.machine import Machine
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import FixedSpatial, Mapper, MappingProblem, MappingSolution, Sampler
from tilewright.mapping.cases import Case
from tilewright.mapping.launch import Launch
from tilewright.mapping.results import (
    EvaluatedMapping,
    MapEvaluation,
    MappedLayer,
    MapResult,
    MapSweep,
    MapTotal,
    StreamedNode,
    SweptMachine,
    unbeaten,
)
from tilewright.planning import UNLIMITED, Budget, Infeasible
from tilewright.progress import Progress

if TYPE_CHECKING:
    from tilewright.mapping.network import Layer

UNLIMITED_BUDGET = Budget(UNLIMITED)
DEFAULT_BUDGET = Budget(UNLIMITED, deadline_s=10.0)
"""Of each layer, where people ask: what is not proven by then is said with its gap."""
_GROUPS = "G"  # a dim of convolutions that those of one group do without


@dataclass(frozen=True, slots=True)
class MapItem:
    """Something to map, and the operator if it is a node of a model."""

    problem: Problem
    operator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProblem:
    """What is mapped, onto which machine, and how. `streamed` are operators of models that are only counted.

    The machine is a whole one; `mapper` is a name of `MAPPERS` with its options. Of a budget each layer may
    spend all. `seed` is for mappers that draw; None leaves theirs. `work` is what was asked for, in words.
    """

    machine: Machine
    items: tuple[MapItem, ...]
    streamed: tuple[Layer, ...] = ()
    mapper: str = "exact"
    objective: Objective = "latency"
    cost_options: CostOptions = TIMELOOP
    budget: Budget = UNLIMITED_BUDGET
    seed: int | None = None
    on_network: bool = False
    fixed: tuple[FixedSpatial, ...] = ()
    work: tuple[str, ...] = ()


def mapped_part(machine: Machine) -> tuple[Machine, str]:
    """The part of a machine that operators are mapped onto, and in words what it is; a GPU stays whole."""
    from tilewright.hardware.block_view import block_limits, block_view
    from tilewright.hardware.operator_view import operator_view

    if machine.threads is None:
        view = operator_view(machine)
        return view.machine, view.note
    return machine, block_view(machine, block_limits(machine).max_per_block).note


def map_layers(problem: MapProblem, progress: Progress) -> MapResult:
    """Map every layer; equal ones are solved once.

    Raises:
        InfeasibleMapping: a layer has no mapping on this machine.
        UsageError: an unknown mapper, trials for a mapper that counts none, or a network on a GPU.
        MachineError: with `on_network`, the machine is no mesh of elements around a memory.
    """
    part, note = mapped_part(problem.machine)
    return _map_onto(problem, part, note, progress)


def _map_onto(problem: MapProblem, part: Machine, note: str, progress: Progress) -> MapResult:
    _check_network(problem.on_network, part)
    solutions = _solutions(problem, part, progress)
    pairs = [(i.problem, s.mapping) for i, s in zip(problem.items, solutions, strict=True)]
    networked: Sequence[NocResult | None] = [None] * len(pairs)
    if problem.on_network:
        networked = _simulated(pairs, part, progress)
    layers = tuple(
        MappedLayer(
            i.problem, s, i.operator, _launch_on(i.problem, part, s.mapping, problem.cost_options), noc
        )
        for i, s, noc in zip(problem.items, solutions, networked, strict=True)
    )
    streamed = _streamed(problem.streamed, part)
    return MapResult(
        machine=part.name,
        mapped_onto=note,
        mapper=problem.mapper,
        objective=problem.objective,
        layers=layers,
        streamed=streamed,
        total=MapTotal.of(layers, streamed),
        description=part,
    )


def _streamed(layers: Sequence[Layer], part: Machine) -> tuple[StreamedNode, ...]:
    """What operators that are not mapped cost at least."""
    if not layers:
        return ()
    from tilewright.hardware.operator_view import operator_view
    from tilewright.mapping.network import stream

    view = operator_view(part).machine
    costs = [(layer, stream(layer.nest, view)) for layer in layers]
    return tuple(StreamedNode(layer.node, layer.op_type, c.cycles, c.energy_pj) for layer, c in costs)


def map_variants(problem: MapProblem, axes: Sequence[str], progress: Progress) -> MapSweep:
    """Map every layer onto every combination of numbers of the machine, `levels.L1.capacity=64KiB,128KiB`.

    Raises:
        UsageError: an axis names no number of the machine; as `map_layers`.
        MachineError: a variant is no machine.
    """
    from tilewright.hardware.variants import parse_axis, variants

    part, _ = mapped_part(problem.machine)
    parsed = [parse_axis(text, part) for text in axes]
    machines = variants(part, parsed)
    rows: list[SweptMachine] = []
    for number, variant in enumerate(machines):
        progress(", ".join(variant.values), number, len(machines))
        try:
            total = _map_onto(problem, variant.machine, "", lambda *_: None).total
            rows.append(SweptMachine(variant.values, total, None))
        except InfeasibleMapping as error:
            rows.append(SweptMachine(variant.values, None, str(error)))
    best = unbeaten(
        {n: (r.total.cycles, r.total.energy_pj) for n, r in enumerate(rows) if r.total is not None}
    )
    return MapSweep(
        machine=part.name,
        mapper=problem.mapper,
        objective=problem.objective,
        axes=tuple(axis.path for axis in parsed),
        variants=tuple(dataclasses.replace(row, is_best=n in best) for n, row in enumerate(rows)),
        work=problem.work,
    )


def evaluate_mappings(
    cases: Sequence[Case], machine: Machine, cost_options: CostOptions, on_network: bool, progress: Progress
) -> MapEvaluation:
    """Count what given mappings cost; one that is impossible is an error of its own.

    Raises:
        UsageError: a network on a GPU.
        MachineError: with `on_network`, the machine is no mesh of elements around a memory.
    """
    part, _ = mapped_part(machine)
    _check_network(on_network, part)
    answers: list[EvaluatedMapping] = []
    for number, case in enumerate(cases):
        progress(case.id, number, len(cases))
        try:
            cost = _evaluated(case.problem, part, case.mapping, cost_options)
        except (InfeasibleMapping, UsageError) as error:
            answers.append(EvaluatedMapping(case, str(error), None))
            continue
        answers.append(EvaluatedMapping(case, None, cost))
    if on_network:
        legal = [n for n, answer in enumerate(answers) if answer.cost is not None]
        pairs = [(cases[n].problem, cases[n].mapping) for n in legal]
        for n, result in zip(legal, _simulated(pairs, part, progress), strict=True):
            answers[n] = dataclasses.replace(answers[n], noc=result)
    return MapEvaluation(part.name, cost_options.link_transfers, tuple(answers), part)


def _check_network(on_network: bool, part: Machine) -> None:
    if on_network and part.threads is not None:
        raise UsageError(
            f"noc: blocks of threads on {part.name} have no mesh of elements to simulate; give a machine "
            "without threads."
        )


def _solutions(problem: MapProblem, part: Machine, progress: Progress) -> list[MappingSolution]:
    """A mapping for every item; equal ones are solved once."""
    from tilewright.mapping.exact import Exact

    mapper, num_trials = _mapper(problem)
    _require_dims(problem)
    if problem.fixed and (part.threads is not None or not isinstance(mapper, Exact)):
        first = problem.fixed[0]
        raise UsageError(
            f"constraints: {first.dim}={first.factor} at {first.level} is kept by the mapper exact on "
            "machines without threads; use it, or search without (--ignore-constraints)."
        )
    known: dict[tuple[object, ...], MappingSolution] = {}
    solutions: list[MappingSolution] = []
    for number, item in enumerate(problem.items):
        progress(f"mapping {item.problem.name}", number, len(problem.items))
        key = (item.problem.dims, item.problem.operands)
        if key not in known:
            known[key] = _solution(item.problem, problem, mapper, num_trials, part)
        solutions.append(known[key])
    return solutions


def _require_dims(problem: MapProblem) -> None:
    """A dim that some operators lack is fixed for the others; one that all lack is a mistake."""
    dims = dict.fromkeys(dim for item in problem.items for dim in item.problem.extents)
    for fixed in problem.fixed:
        if dims and fixed.dim not in (*dims, _GROUPS):
            raise UsageError(
                f"constraints: {fixed.dim}={fixed.factor} at {fixed.level}: nothing that is mapped has the "
                f"dim {fixed.dim!r}; give one of {', '.join(dims)}, or search without (--ignore-constraints)."
            )


def _solution(
    layer: Problem, problem: MapProblem, mapper: Mapper, num_trials: int | None, part: Machine
) -> MappingSolution:
    from tilewright.mapping.gpu import solve_blocks

    objective, cost_options, budget = problem.objective, problem.cost_options, problem.budget
    try:
        if part.threads is None:
            check_smallest_tiles(layer, part, cost_options)
            task = MappingProblem(layer, part, objective, cost_options, fixed=problem.fixed)
            answer = mapper.solve(task, budget)
        else:
            answer = solve_blocks(mapper, layer, part, objective, cost_options, budget, num_trials)
    except InfeasibleMapping as error:
        raise InfeasibleMapping(f"layer {layer.name} on {part.name}: {error}") from None
    if isinstance(answer, Infeasible):
        raise InfeasibleMapping(f"layer {layer.name} on {part.name}: {answer}")
    return MAPPERS.verified(problem.mapper, answer, MappingSolution)


def _mapper(problem: MapProblem) -> tuple[Mapper, int | None]:
    """The mapper with its seed, limited to the budget's trials; and how many those are."""
    mapper = MAPPERS.get(problem.mapper)
    if problem.seed is not None and "seed" in _option_names(mapper):
        mapper = dataclasses.replace(mapper, seed=problem.seed)  # type: ignore[type-var]  # has fields
    num_trials = None if problem.budget.max_evaluations == UNLIMITED else problem.budget.max_evaluations
    if num_trials is None:
        return mapper, None
    if not isinstance(mapper, Sampler):
        samplers = [name for name in MAPPERS.names() if isinstance(MAPPERS.get(name), Sampler)]
        raise UsageError(
            f"budget of {num_trials} trials: {problem.mapper} does not try mappings one by one; give a time "
            f"such as 10s, or a mapper that does ({', '.join(samplers)})."
        )
    return mapper.limited(num_trials), num_trials


def _option_names(mapper: Mapper) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(mapper)) if dataclasses.is_dataclass(mapper) else ()


def _evaluated(problem: Problem, part: Machine, mapping: Mapping, cost_options: CostOptions) -> Cost:
    """What a mapping costs; onto a GPU, in blocks of threads."""
    from tilewright.cost.nest_analysis import evaluate
    from tilewright.mapping.gpu import evaluate_blocks

    if part.threads is None:
        return evaluate(problem, part, mapping, cost_options)
    return evaluate_blocks(problem, part, mapping, cost_options)[0]


def _launch_on(problem: Problem, part: Machine, mapping: Mapping, cost_options: CostOptions) -> Launch | None:
    """How a mapping onto a GPU is launched; None on other machines."""
    from tilewright.mapping.gpu import evaluate_blocks

    return None if part.threads is None else evaluate_blocks(problem, part, mapping, cost_options)[1]


def _simulated(
    pairs: Sequence[tuple[Problem, Mapping]], machine: Machine, progress: Progress
) -> list[NocResult]:
    """Every mapping on the network on chip; equal ones once."""
    from tilewright.cost.noc import simulate

    known: dict[tuple[object, ...], NocResult] = {}
    results = []
    for number, (problem, mapping) in enumerate(pairs):
        progress(f"simulating {problem.name}", number, len(pairs))
        key = (problem.dims, problem.operands, mapping)
        if key not in known:
            known[key] = simulate(problem, machine, mapping)
        results.append(known[key])
    return results
