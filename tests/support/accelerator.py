"""Networks on described accelerators, as the compiler plans them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.compiler import Planned, plan_optimised
from tilewright.families import PARTITIONERS
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning import Budget
from tilewright.planning.member_options import with_options
from tilewright.planning.portfolio import Recipe
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import GRAPHTURBO, MEMORY, Baseline
from tilewright.targets.npu.target import NpuTarget


def with_capacities(machine: Machine, capacity_bytes: Mapping[str, int]) -> Machine:
    """The same machine with other capacities of levels, by their names; all of them for any tensor."""
    levels = tuple(
        level.model_copy(update={"capacity_bytes": capacity_bytes[level.name], "shares": ()})
        if level.name in capacity_bytes
        else level
        for level in machine.levels
    )
    return machine.model_copy(update={"levels": levels})


def with_local_bytes(machine: Machine, local_bytes: int) -> Machine:
    """The same machine with cores that hold so much."""
    assert machine.local is not None
    return with_capacities(machine, {machine.local.name: local_bytes})


def graphturbo(partitioner: GraphTurbo, order: str = "depth-first") -> Recipe:
    """GraphTurbo's recipe with a partitioner of some options."""
    return Recipe(str(PARTITIONERS.spec_of("graphturbo", partitioner)), order, MEMORY)


def plan(graph: Graph, machine: Machine, recipe: Recipe | Baseline = GRAPHTURBO) -> SimulatedPlan:
    """The simulated plan of a recipe, checked; the graph stays as it is."""
    planned = compiled(graph, machine, recipe)
    assert isinstance(planned.backend, NpuBackend)
    return checked(planned.backend.generate(planned.program).planned, machine)


def checked(planned: SimulatedPlan, machine: Machine) -> SimulatedPlan:
    """A plan whose run obeys the machine."""
    violations = check_run(planned, machine)
    assert not violations, "\n".join(map(str, violations[:10]))
    return planned


def compiled(
    graph: Graph, machine: Machine, recipe: Recipe | Baseline | None = None, budget: Budget | None = None
) -> Planned:
    """What the compiler planned; without a recipe the best that it knows."""
    target = NpuTarget(machine)
    options = Options(budget=budget)
    if isinstance(recipe, Baseline):
        target = with_options(target, recipe.target(TargetRef("machine")))
        recipe = recipe.recipe
    if recipe is not None:
        options = Options(partition=recipe.partition, schedule=recipe.schedule, memory=recipe.memory)
    return plan_optimised(graph, options, target=target)


@dataclass(frozen=True)
class Compared:
    """The best plan, and the seconds of everything that was tried by its name."""

    planned: SimulatedPlan
    tried: Mapping[str, float | None]
    num_simulated: int
    backend: NpuBackend


def best_plan(graph: Graph, machine: Machine, budget: Budget | None = None) -> Compared:
    """The best that the compiler knows, or finds within a budget."""
    planned = compiled(graph, machine, budget=budget)
    backend = planned.backend
    assert isinstance(backend, NpuBackend)
    tried = {a.what: None if a.cost is None else a.cost * 1e-9 for a in planned.attempts}
    best = checked(backend.generate(planned.program).planned, machine)
    return Compared(best, tried, backend.num_simulated, backend)
