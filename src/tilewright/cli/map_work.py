"""What `tilewright map` is asked to map: layers as text, nodes of models; and mapping each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.flags import parsed_shapes
from tilewright.errors import InfeasibleMapping, UsageError

if TYPE_CHECKING:
    from tilewright.cost.objective import Objective
    from tilewright.cost.options import CostOptions
    from tilewright.hardware.machine import Machine
    from tilewright.loops.problem import Problem
    from tilewright.mapping.base import MappingSolution
    from tilewright.mapping.network import Layer, Stream


@dataclass(frozen=True, slots=True)
class Item:
    """Something to map, and the operator if it is a node of a model."""

    problem: Problem
    operator: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the arguments name: what is mapped, and what of the models is counted as streams."""

    mapped: list[Item]
    streamed: list[Layer]

    @property
    def problems(self) -> list[Problem]:
        """What is mapped, without saying where it is from."""
        return [item.problem for item in self.mapped]

    def streams(self, machine: Machine) -> list[Stream]:
        """What the rest costs at least."""
        from tilewright.hardware.operator_view import operator_view
        from tilewright.mapping.network import stream

        return [stream(layer.nest, operator_view(machine).machine) for layer in self.streamed]

    @classmethod
    def of(cls, work: Sequence[str], shapes: str | None) -> Asked:
        """Layers as they are, of models the nodes after folding constants and merging patterns."""
        from tilewright.cli.map_timeloop import problem_of
        from tilewright.loops.problem import written

        asked = cls([], [])
        is_used = False
        for text in work:
            path, node = _model_and_node(text)
            if path is None:
                asked.mapped.append(Item(problem_of(text) or written(text)))
                continue
            is_used = True
            for found in _layers_of_model(path, node, shapes):
                if found.problem is not None:
                    asked.mapped.append(Item(found.problem, found.op_type))
                elif node is None:
                    asked.streamed.append(found)
        if shapes is not None and not is_used:
            raise UsageError("--shapes is for models; leave it out.")
        if not asked.mapped:
            raise UsageError(f"{', '.join(work)}: nothing to map; no operator sums products.")
        return asked


def _model_and_node(text: str) -> tuple[Path | None, str | None]:
    """`net.onnx` and `net.onnx:NODE` taken apart; no path if the text is a layer."""
    if text.endswith(".onnx"):
        return Path(text), None
    path, mark, node = text.partition(".onnx:")
    return (Path(f"{path}.onnx"), node) if mark else (None, None)


def _layers_of_model(path: Path, node: str | None, shapes: str | None) -> list[Layer]:
    import tilewright as tw
    from tilewright.compiler import plan
    from tilewright.mapping.network import layers_of
    from tilewright.options import Options

    graph = plan(tw.load(path, shapes=parsed_shapes(shapes)).graph, Options()).program.graph
    try:
        return layers_of(graph, node)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def solve_each(
    problems: Sequence[Problem],
    machine: Machine,
    mapper: str,
    objective: Objective,
    cost_options: CostOptions,
    budget: str | None,
    update: Any,
) -> list[MappingSolution]:
    """A mapping for every problem; equal ones are solved once.

    Raises:
        InfeasibleMapping: a problem has none on this machine.
        UsageError: a mapper or a budget that there is not, or trials for a mapper that counts none.
    """
    from tilewright.cost.bound import check_smallest_tiles
    from tilewright.mapping import MAPPERS
    from tilewright.mapping.base import MappingProblem, Sampler
    from tilewright.mapping.gpu import solve_blocks
    from tilewright.planning import UNLIMITED, Budget, Infeasible

    effort = Budget(UNLIMITED) if budget is None else Budget.parse(budget)
    solver = MAPPERS.get(mapper)
    num_trials = None if effort.max_evaluations == UNLIMITED else effort.max_evaluations
    if num_trials is not None:
        if not isinstance(solver, Sampler):
            raise UsageError(
                f"--budget {budget}: {mapper} does not try mappings one by one; give a time such as 10s, or "
                f"a --mapper that does ({', '.join(_samplers())})."
            )
        solver = solver.limited(num_trials)
    found: dict[tuple[Any, ...], MappingSolution] = {}
    solutions: list[MappingSolution] = []
    for number, problem in enumerate(problems):
        update(f"mapping {problem.name}", number, len(problems))
        key = (problem.dims, problem.operands)
        if key not in found:
            try:
                if machine.threads is None:
                    check_smallest_tiles(problem, machine, cost_options)
                    answer = solver.solve(MappingProblem(problem, machine, objective, cost_options), effort)
                else:
                    answer = solve_blocks(
                        solver, problem, machine, objective, cost_options, effort, num_trials
                    )
            except InfeasibleMapping as error:
                raise InfeasibleMapping(f"layer {problem.name} on {machine.name}: {error}") from None
            if isinstance(answer, Infeasible):
                raise InfeasibleMapping(f"layer {problem.name} on {machine.name}: {answer}")
            found[key] = answer
        solutions.append(found[key])
    return solutions


def _samplers() -> list[str]:
    from tilewright.mapping import MAPPERS
    from tilewright.mapping.base import Sampler

    return [name for name in MAPPERS.names() if isinstance(MAPPERS.get(name), Sampler)]


def totals(asked: Asked, solutions: Sequence[MappingSolution], machine: Machine) -> dict[str, Any]:
    """Sums over everything, as documents say them."""
    streams = asked.streams(machine)
    distinct = {id(solution): solution for solution in solutions}
    return {
        "macs": sum(item.problem.num_macs for item in asked.mapped),
        "cycles": sum(s.cost.cycles for s in solutions),
        "energy_pJ": sum(s.cost.energy_pj for s in solutions),
        "bound_cycles": sum(s.bound_cycles for s in solutions),
        "bound_energy_pJ": sum(s.bound_energy_pj for s in solutions),
        "num_distinct": len(distinct),
        "seconds": sum(s.seconds for s in distinct.values()),
        "streamed_cycles": sum(cost.cycles for cost in streams),
        "streamed_energy_pJ": sum(cost.energy_pj for cost in streams),
    }
