"""Requests on operators and a machine, answered: mapped, mapped onto variants, given mappings counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.cost.base import Objective
from tilewright.cost.bound import check_smallest_tiles
from tilewright.cost.count import Cost
from tilewright.cost.noc.result import NocResult
from tilewright.cost.options import TIMELOOP, CostOptions
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.machine import Machine, Work
from tilewright.loops.mapping import Mapping
from tilewright.loops.problem import Problem
from tilewright.mapping import MAPPERS
from tilewright.mapping.base import Mapper, MappingProblem, MappingSolution, Sampler
from tilewright.mapping.cases import Case
from tilewright.mapping.constraints import UNCONSTRAINED, Constraints, dataflow, named_dims, said
from tilewright.mapping.launch import Launch
from tilewright.mapping.results import (
    EvaluatedMapping,
    MapEvaluation,
    MappedLayer,
    MapResult,
    MapTotal,
    StreamedNode,
)
from tilewright.planning import UNLIMITED, Budget, Infeasible, Violation
from tilewright.planning.checking import require_right
from tilewright.progress import Progress

if TYPE_CHECKING:
    from tilewright.mapping.network import Layer

UNLIMITED_BUDGET = Budget(UNLIMITED)
DEFAULT_BUDGET = Budget(UNLIMITED, deadline_s=10.0)
"""Of each layer, where people ask: what is not proven by then is said with its gap."""
_OFTEN_LACKING = ("G", "N")  # dims of convolutions: some do without them


@dataclass(frozen=True, slots=True)
class MapItem:
    """Something to map, and the operator if it is a node of a model."""

    problem: Problem
    operator: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, or layers that were given one by one: what is mapped, and operators that are only counted."""

    name: str
    items: tuple[MapItem, ...]
    streamed: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProblem:
    """What is mapped, onto which machine, and how.

    The machine is a whole one; `mapper` is a name of `MAPPERS` with its options. Of a budget each layer may
    spend all. `seed` is for mappers that draw; None leaves theirs. With `verify`, mappings that are only
    compared are checked, too.
    """

    machine: Machine
    workloads: tuple[Workload, ...]
    mapper: str = "exact"
    objective: Objective = "latency"
    cost_options: CostOptions = TIMELOOP
    budget: Budget = UNLIMITED_BUDGET
    seed: int | None = None
    on_network: bool = False
    constraints: Constraints = UNCONSTRAINED
    verify: bool = False

    @property
    def items(self) -> tuple[MapItem, ...]:
        """What is mapped of all workloads."""
        return tuple(item for workload in self.workloads for item in workload.items)

    @property
    def streamed(self) -> tuple[Layer, ...]:
        """Operators of all workloads that are only counted."""
        return tuple(layer for workload in self.workloads for layer in workload.streamed)


def parts_for(problems: Iterable[Problem], machine: Machine) -> dict[bool, tuple[Machine, str]]:
    """The parts of a machine that some operators are mapped onto, by whether these are depthwise."""
    depthwise = {problem.is_depthwise for problem in problems} or {False}
    return {d: mapped_part(machine, Work.DEPTHWISE if d else Work.CONTRACTION) for d in sorted(depthwise)}


def mapped_part(machine: Machine, work: Work = Work.CONTRACTION) -> tuple[Machine, str]:
    """The part of a machine that operators of a class are mapped onto, and in words what it is; a GPU stays
    whole."""
    from tilewright.hardware.block_view import block_limits, block_view
    from tilewright.hardware.operator_view import operator_view

    if machine.threads is None:
        view = operator_view(machine, work)
        return view.machine, view.note
    return machine, block_view(machine, block_limits(machine).max_per_block).note


def map_layers(problem: MapProblem, progress: Progress) -> MapResult:
    """Map every layer; equal ones are solved once.

    Raises:
        InfeasibleMapping: a layer has no mapping on this machine.
        UsageError: an unknown mapper, trials for a mapper that counts none, or a network on a GPU.
        MachineError: with `on_network`, the machine is no mesh of elements around a memory.
    """
    found = parts_for((item.problem for item in problem.items), problem.machine)
    part, note = next(iter(found.values()))
    other, other_note = found.get(True, (part, note))
    if other.units != part.units:
        note = f"{note or part.units[0].name}; depthwise layers onto {other_note or other.units[0].name}"
    parts = [other if item.problem.is_depthwise else part for item in problem.items]
    return _map_onto(problem, part, parts, note, progress)


def _map_onto(
    problem: MapProblem, part: Machine, parts: Sequence[Machine], note: str, progress: Progress
) -> MapResult:
    _check_network(problem.on_network, part)
    solutions = _solutions(problem, parts, progress)
    pairs = [(i.problem, s.mapping) for i, s in zip(problem.items, solutions, strict=True)]
    networked: Sequence[NocResult | None] = [None] * len(pairs)
    if problem.on_network:
        networked = _simulated(pairs, part, progress)
    layers = tuple(
        MappedLayer(
            i.problem, s, x, i.operator, _launch_on(i.problem, x, s.mapping, problem.cost_options), noc
        )
        for i, s, x, noc in zip(problem.items, solutions, parts, networked, strict=True)
    )
    streamed = streamed_nodes(problem.streamed, part)
    return MapResult(
        machine=part.name,
        mapped_onto=note,
        mapper=problem.mapper,
        objective=problem.objective,
        layers=layers,
        streamed=streamed,
        total=MapTotal.of(layers, streamed),
        description=part,
        cost_options=problem.cost_options,
    )


def streamed_nodes(layers: Sequence[Layer], part: Machine) -> tuple[StreamedNode, ...]:
    """What operators that are not mapped cost at least."""
    if not layers:
        return ()
    from tilewright.hardware.operator_view import operator_view
    from tilewright.mapping.network import stream

    view = operator_view(part).machine
    costs = [(layer, stream(layer.nest, view)) for layer in layers]
    return tuple(
        StreamedNode(layer.node, layer.op_type, c.cycles, c.energy_pj, c.moved_words) for layer, c in costs
    )


def evaluate_mappings(
    cases: Sequence[Case],
    machine: Machine,
    cost_options: CostOptions,
    on_network: bool,
    progress: Progress,
    *,
    verify: bool = False,
) -> MapEvaluation:
    """Count what given mappings cost; one that is impossible is an error of its own.

    With `verify`, the checker has to find those possible that the cost model does.

    Raises:
        InternalError: it does not.
        UsageError: a network on a GPU.
        MachineError: with `on_network`, the machine is no mesh of elements around a memory.
    """
    parts = {d: part for d, (part, _) in parts_for((case.problem for case in cases), machine).items()}
    part = next(iter(parts.values()))
    _check_network(on_network, part)
    answers: list[EvaluatedMapping] = []
    for number, case in enumerate(cases):
        progress(case.id, number, len(cases))
        own = parts[case.problem.is_depthwise]
        try:
            _require_dataflow(case, own)
            cost = _evaluated(case.problem, own, case.mapping, cost_options)
        except (InfeasibleMapping, UsageError) as error:
            answers.append(EvaluatedMapping(case, str(error), None))
            continue
        if verify:
            _require_possible(case, own, cost_options)
        answers.append(EvaluatedMapping(case, None, cost))
    if on_network:
        legal = [n for n, answer in enumerate(answers) if answer.cost is not None]
        pairs = [(cases[n].problem, cases[n].mapping) for n in legal]
        for n, result in zip(legal, _simulated(pairs, part, progress), strict=True):
            answers[n] = dataclasses.replace(answers[n], noc=result)
    return MapEvaluation(part.name, cost_options.link_transfers, tuple(answers), part)


def _require_dataflow(case: Case, part: Machine) -> None:
    from tilewright.mapping.check import check_mapping

    for violation in (
        check_mapping(MappingProblem(case.problem, part), case.mapping) if dataflow(part) else ()
    ):
        if violation.rule == "constraint":
            raise UsageError(
                f"mapping {case.id}: {violation.message}; change it, or axes in the machine's file."
            )


def _require_possible(case: Case, part: Machine, cost_options: CostOptions) -> None:
    from tilewright.mapping.check import check_mapping
    from tilewright.mapping.check_launch import check_launch

    def check() -> Sequence[Violation]:
        launch = _launch_on(case.problem, part, case.mapping, cost_options)
        if launch is not None:
            return check_launch(case.problem, part, case.mapping, launch)
        return check_mapping(MappingProblem(case.problem, part, cost_options=cost_options), case.mapping)

    require_right(f"the count of mapping {case.id!r}, which cannot be,", check)


def _check_network(on_network: bool, part: Machine) -> None:
    if on_network and part.threads is not None:
        raise UsageError(
            f"noc: blocks of threads on {part.name} have no mesh of elements to simulate; give a machine "
            "without threads."
        )


def check_search(problem: MapProblem, part: Machine) -> None:
    """Refuse what no layer can be mapped with.

    Raises:
        UsageError: an unknown mapper, trials for a mapper that counts none, or constraints that it does not
            keep or nothing has a dim for.
    """
    from tilewright.mapping.exact import Exact

    mapper, _ = _mapper(problem)
    _require_dims(problem)
    kept = isinstance(mapper, Exact) and part.threads is None
    if problem.constraints and not kept:
        raise UsageError(
            f"constraints: {said(problem.constraints.listed()[0])} is kept by the mapper exact on machines "
            "without threads; use it, or search without (--ignore-constraints)."
        )
    if not kept and (axes := dataflow(part)):
        raise UsageError(
            f"mapper {problem.mapper}: keeps no dataflow, and machine {part.name!r} states {said(axes[0])}; "
            "use exact, or leave axes out of its file."
        )


def same_loops(problem: Problem) -> tuple[object, ...]:
    """What layers have in common that are solved once."""
    return problem.dims, problem.operands


def _solutions(problem: MapProblem, parts: Sequence[Machine], progress: Progress) -> list[MappingSolution]:
    """A mapping for every item on its part of the machine; equal ones are solved once."""
    for part in {id(part): part for part in parts}.values():
        check_search(problem, part)
    known: dict[tuple[object, ...], MappingSolution] = {}
    solutions: list[MappingSolution] = []
    for number, (item, part) in enumerate(zip(problem.items, parts, strict=True)):
        progress(f"mapping {item.problem.name}", number, len(problem.items))
        key = same_loops(item.problem)
        if key not in known:
            known[key] = solve_layer(item.problem, problem, part)
        solutions.append(known[key])
    return solutions


def _require_dims(problem: MapProblem) -> None:
    """A dim that some operators lack is fixed for the others; one that all lack is a mistake."""
    dims = dict.fromkeys(dim for item in problem.items for dim in item.problem.extents)
    for constraint in problem.constraints.listed():
        lacking = [dim for dim in named_dims(constraint) if dim not in (*dims, *_OFTEN_LACKING)]
        if dims and lacking:
            raise UsageError(
                f"constraints: {said(constraint)}: nothing that is mapped has the dim {lacking[0]!r}; give "
                f"one of {', '.join(dims)}, or search without (--ignore-constraints)."
            )


def solve_layer(layer: Problem, problem: MapProblem, part: Machine) -> MappingSolution:
    """A layer mapped onto a part of a machine, as a request has it.

    Raises:
        InfeasibleMapping: it has no mapping there.
        UsageError: an unknown mapper, or trials for a mapper that counts none.
    """
    from tilewright.mapping.gpu import solve_blocks

    mapper, num_trials = _mapper(problem)
    objective, cost_options, budget = problem.objective, problem.cost_options, problem.budget
    try:
        if part.threads is None:
            check_smallest_tiles(layer, part, cost_options)
            task = MappingProblem(layer, part, objective, cost_options, constraints=problem.constraints)
            answer = mapper.solve(task, budget)
        else:
            answer = solve_blocks(
                mapper, layer, part, objective, cost_options, budget, num_trials, verify=problem.verify
            )
    except InfeasibleMapping as error:
        raise InfeasibleMapping(f"layer {layer.name} on {part.name}: {error}") from None
    if isinstance(answer, Infeasible):
        raise InfeasibleMapping(f"layer {layer.name} on {part.name}: {answer}")
    return MAPPERS.verified(
        problem.mapper, answer, MappingSolution, lambda answer: _violations(layer, problem, part, answer)
    )


def _violations(
    layer: Problem, problem: MapProblem, part: Machine, answer: MappingSolution
) -> Sequence[Violation]:
    """What is wrong with a mapping of a layer, its launch on a GPU, or what is said of its cost."""
    from tilewright.mapping.check import check_figures
    from tilewright.mapping.check_launch import check_launch
    from tilewright.mapping.checked import recounted, violations_of
    from tilewright.mapping.gpu import evaluate_blocks

    if part.threads is None:
        task = MappingProblem(
            layer, part, problem.objective, problem.cost_options, constraints=problem.constraints
        )
        return violations_of(task, answer)
    cost, launch = evaluate_blocks(layer, part, answer.mapping, problem.cost_options)
    found = check_launch(layer, part, answer.mapping, launch)
    return (*found, *check_figures(problem.objective, answer), *recounted(answer, cost))


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
    from tilewright.cost.sparsity import with_zeros
    from tilewright.mapping.gpu import evaluate_blocks

    if part.threads is None:
        return with_zeros(problem, part, evaluate(problem, part, mapping, cost_options))
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
