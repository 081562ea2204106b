"""Every answer passes its checker: a member of a family that answers wrongly is refused, in one line."""

# mypy: disable-error-code="arg-type, attr-defined, union-attr"

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.graphs import GraphBuilder, random_graph
from tests.unit.mapping.chains.test_solve import with_buffer

import tilewright as tw
from tilewright.compiler import compile_graph
from tilewright.errors import InternalError
from tilewright.families import MAPPERS, MEMORY_PLANNERS, PARTITIONERS, SCHEDULERS
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.loops.mapping import LevelLoops, Loop, Mapping
from tilewright.mapping import gpu
from tilewright.mapping.base import MappingSolution
from tilewright.mapping.chains import solve as chains
from tilewright.mapping.chains.nested_search import NestedRanking
from tilewright.mapping.chains.runs import runs_of
from tilewright.mapping.chains.search import Ranking
from tilewright.mapping.exact import Exact
from tilewright.mapping.launch import Launch
from tilewright.memory import MemoryPlan
from tilewright.options import Options
from tilewright.partition import Partition
from tilewright.partition.base import priced_at
from tilewright.planning import Budget
from tilewright.registry import Registry
from tilewright.schedule import Schedule
from tilewright.schedule.binding import Scope
from tilewright.target_ref import TargetRef
from tilewright.targets.npu import backend as npu_backend
from tilewright.targets.npu.plan import SimulatedPlan

SOURCE = Path(tw.__file__).parent
FAULTY = "faulty"
TARGETS = ("cpu", "interpreter", "null", "stcp920", "v100")


@dataclass(frozen=True)
class Faulty:
    """A member that damages what another one answers."""

    member: Any
    damage: Callable[[Any], Any]
    name: str = FAULTY

    def solve(self, problem: Any, budget: Budget) -> Any:
        """The other one's answer, damaged."""
        return self.damage(self.member.solve(problem, budget))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Registry[Any], str, Callable[[Any], Any]], None]:
    """Registers a member that damages the answers of one that there is."""

    def register(family: Registry[Any], member: str, damage: Callable[[Any], Any]) -> None:
        faulty = Faulty(family.get(member), damage)
        monkeypatch.setitem(family._loaders, FAULTY, lambda: faulty)
        monkeypatch.setitem(family._members, FAULTY, faulty)

    return register


def network() -> Graph:
    """Branches of convolutions, so that several values live side by side and one after another."""
    build = GraphBuilder("branches")

    def convolution(x: Value) -> Value:
        return build.op("Conv", x, build.constant(8, 8, 3, 3), shape=(1, 8, 8, 8), pads=(1, 1, 1, 1))

    stem = build.op("Relu", convolution(build.input(1, 8, 8, 8)))
    left, right = convolution(stem), convolution(build.op("Sigmoid", convolution(stem)))
    return build.finish(convolution(build.op("Add", build.op("Relu", left), right)))


def refusal(graph: Graph, **settings: Any) -> str:
    """What a compilation is refused with."""
    with pytest.raises(InternalError) as refused:
        compile_graph(graph, Options(**settings))
    message = str(refused.value)
    assert "\n" not in message
    assert "tilewright doctor --json" in message
    return message


def without_last(partition: Partition) -> Partition:
    return replace(partition, subgraphs=partition.subgraphs[:-1])


def cheaper_partition(partition: Partition) -> Partition:
    return replace(partition, price=priced_at(replace(partition.quality, cost=partition.quality.cost / 2)))


def backwards(partition: Partition) -> Partition:
    subgraphs = tuple(replace(s, id=n) for n, s in enumerate(reversed(partition.subgraphs)))
    return replace(partition, subgraphs=subgraphs, splits=())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("damage", "rule"), [(without_last, "cover"), (cheaper_partition, "cost"), (backwards, "order")]
)
def test_a_wrong_partition_is_refused(plant: Any, target: str, damage: Any, rule: str) -> None:
    plant(PARTITIONERS, "layerwise", damage)
    message = refusal(network(), target=target, partition=FAULTY)
    assert message.startswith("partitioner 'faulty' gave a Partition that is wrong: ")
    assert f"wrong: {rule}" in message


def reversed_stages(schedule: Schedule) -> Schedule:
    return replace(schedule, stages=schedule.stages[::-1])


def without_a_stage(schedule: Schedule) -> Schedule:
    return replace(schedule, stages=schedule.stages[1:])


def cheaper_schedule(schedule: Schedule) -> Schedule:
    return replace(schedule, quality=replace(schedule.quality, cost=schedule.quality.cost / 2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("damage", "rule"), [(reversed_stages, "order"), (without_a_stage, "cover"), (cheaper_schedule, "cost")]
)
def test_a_wrong_schedule_is_refused(plant: Any, target: str, damage: Any, rule: str) -> None:
    plant(SCHEDULERS, "sequential", damage)
    message = refusal(network(), target=target, schedule=FAULTY, partition="layerwise")
    assert message.startswith(f"scheduler 'faulty' gave a Schedule that is wrong: {rule}")


def all_at_the_beginning(plan: MemoryPlan) -> MemoryPlan:
    return replace(plan, offsets=dict.fromkeys(plan.offsets, 0), in_place_of={})


def smaller_arena(plan: MemoryPlan) -> MemoryPlan:
    return replace(plan, uses=tuple(replace(u, peak_bytes=u.peak_bytes // 2) for u in plan.uses))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("damage", [all_at_the_beginning, smaller_arena])
def test_a_wrong_memory_plan_is_refused(plant: Any, target: str, damage: Any) -> None:
    plant(MEMORY_PLANNERS, "longest-liveness" if target in ("stcp920", "v100") else "arena", damage)
    message = refusal(network(), target=target, memory=FAULTY, partition="layerwise", schedule="sequential")
    assert message.startswith("memory planner 'faulty' gave a MemoryPlan that is wrong: ")


def cheaper_mapping(solution: MappingSolution) -> MappingSolution:
    cost = replace(solution.cost, energy_pj=solution.cost.energy_pj * 0.9)
    return replace(solution, cost=cost, bound_energy_pj=0.0)


def fewer_iterations(solution: MappingSolution) -> MappingSolution:
    return with_loops(solution, lambda loop: replace(loop, factor=1) if loop.dim == "P" else loop)


def all_inside(solution: MappingSolution) -> MappingSolution:
    *_, inner = solution.mapping.levels
    loops = tuple(loop for _, _, loop in solution.mapping.loops())
    outer = tuple(LevelLoops(level.level) for level in solution.mapping.levels[:-1])
    return replace(solution, mapping=Mapping((*outer, LevelLoops(inner.level, loops))))


def with_loops(solution: MappingSolution, change: Callable[[Loop], Loop]) -> MappingSolution:
    levels = tuple(
        replace(x, temporal=tuple(map(change, x.temporal)), spatial=tuple(map(change, x.spatial)))
        for x in solution.mapping.levels
    )
    return replace(solution, mapping=Mapping(levels))


@pytest.mark.parametrize(
    ("damage", "rule"), [(cheaper_mapping, "cost"), (fewer_iterations, "cover"), (all_inside, "capacity")]
)
def test_a_wrong_mapping_is_refused(plant: Any, damage: Any, rule: str) -> None:
    plant(MAPPERS, "cosa", damage)
    with pytest.raises(InternalError) as refused:
        tw.map("3_14_16_16_1", machine="simba-cosa-repo", mapper=FAULTY)
    message = str(refused.value)
    assert message.startswith(f"mapper 'faulty' gave a MappingSolution that is wrong: {rule}")
    assert "tilewright doctor --json" in message


def more_registers(launch: Launch) -> Launch:
    return replace(launch, registers_per_thread=launch.registers_per_thread + 1)


def fewer_blocks(launch: Launch) -> Launch:
    return replace(launch, grid=launch.grid[1:])


@pytest.mark.parametrize(("damage", "rule"), [(more_registers, "registers"), (fewer_blocks, "grid")])
def test_a_wrong_launch_is_refused(monkeypatch: pytest.MonkeyPatch, damage: Any, rule: str) -> None:
    launch_of = gpu.launch_of
    monkeypatch.setattr(gpu, "launch_of", lambda *arguments: damage(launch_of(*arguments)))
    with pytest.raises(InternalError, match=f"gave a MappingSolution that is wrong: {rule}"):
        tw.map("3_14_16_16_1", machine="v100", mapper="cosa")


def chained(channels: int = 2, extent: int = 8) -> Graph:
    """Two convolutions, the second of which can have the rows that the first makes."""
    build = GraphBuilder("chained")
    x = build.input(1, channels, extent, extent)
    for _ in range(2):
        weights = build.constant(channels, channels, 3, 3)
        x = build.op("Conv", x, weights, shape=(1, channels, extent, extent), pads=(1, 1, 1, 1))
    return build.finish(x)


@pytest.mark.parametrize(("field", "rule"), [("read_words", "read"), ("num_macs", "macs")])
@pytest.mark.parametrize("verify", [False, True])
def test_a_wrong_joint_tiling_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: str, rule: str, verify: bool
) -> None:
    rank_plans = chains.rank_plans

    def damaged(*arguments: Any, **settings: Any) -> Ranking:
        ranking = rank_plans(*arguments, **settings)
        plans = tuple(
            replace(p, count=replace(p.count, **{field: getattr(p.count, field) + 1})) for p in ranking.plans
        )
        return replace(ranking, plans=plans)

    (run,) = runs_of(chained())
    solver = chains.ChainSolver(load_preset("eyeriss"), verify=verify)
    assert solver.solve(run).segments[0].tiling is not None
    monkeypatch.setattr(chains, "rank_plans", damaged)
    nothing = NestedRanking(None, None, is_whole=True, num_tilings=0)
    monkeypatch.setattr(chains, "best_tree", lambda *_, **__: nothing)
    solver = chains.ChainSolver(load_preset("eyeriss"), verify=verify)
    with pytest.raises(InternalError, match=rf"the joint tiling of .* is wrong: {rule}"):
        solver.solve(run)


def test_a_wrong_nested_tiling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    best_tree = chains.best_tree

    def damaged(*arguments: Any, **settings: Any) -> NestedRanking:
        found = best_tree(*arguments, **settings)
        return replace(found, count=found.count and replace(found.count, held_words=0))

    build = GraphBuilder()
    x = build.op("MatMul", build.input(8, 8), build.constant(8, 8), shape=(8, 8))
    (run,) = runs_of(build.finish(build.op("MatMul", x, build.constant(8, 8), shape=(8, 8))))
    monkeypatch.setattr(chains, "best_tree", damaged)
    solver = chains.ChainSolver(with_buffer(load_preset("eyeriss"), 128))
    with pytest.raises(InternalError, match=r"the joint tiling of .* is wrong: held"):
        solver.solve(run)


def test_a_mapping_of_a_step_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that tile operands on their way through the cores' buffers, and those of steps of chains."""
    solve = Exact.solve
    monkeypatch.setattr(Exact, "solve", lambda *arguments: cheaper_mapping(solve(*arguments)))
    with pytest.raises(InternalError, match=r"the mapping of .* by 'exact' is wrong: cost"):
        compile_graph(chained(64, 16), Options(target=TargetRef.parse("stcp920"), partition="layerwise"))
    (run,) = runs_of(chained())
    with pytest.raises(InternalError, match=r"the mapping of .* by 'exact' is wrong: cost"):
        chains.ChainSolver(load_preset("eyeriss"), "energy").solve(run)


def shorter_runs(planned: SimulatedPlan) -> SimulatedPlan:
    simulation = planned.simulation
    runs = tuple(replace(r, end_s=(r.start_s + r.end_s) / 2) for r in simulation.runs)
    return replace(planned, simulation=replace(simulation, runs=runs))


def moved_less(planned: SimulatedPlan) -> SimulatedPlan:
    traffic = planned.simulation.traffic
    less = replace(traffic, main_read=traffic.main_read - 1)
    return replace(planned, simulation=replace(planned.simulation, traffic=less))


def other_order(planned: SimulatedPlan) -> SimulatedPlan:
    return replace(planned, order=planned.order[::-1])


def lost_edge(planned: SimulatedPlan) -> SimulatedPlan:
    instances = replace(planned.instances, edges=planned.instances.edges[1:])
    return replace(planned, instances=instances)


def lost_step(planned: SimulatedPlan) -> SimulatedPlan:
    timeline = planned.scopes.timeline
    shorter = replace(timeline, steps=timeline.steps[:-1])
    return replace(planned, scopes=replace(planned.scopes, timeline=shorter))


def another_scope(planned: SimulatedPlan) -> SimulatedPlan:
    scopes = tuple(Scope.LOCAL if s is Scope.MAIN else Scope.MAIN for s in planned.bindings.scopes)
    return replace(planned, bindings=replace(planned.bindings, scopes=scopes))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", ["stcp920", "v100", "jetson-nano"])
@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (shorter_runs, "rate"),
        (moved_less, "bytes"),
        (other_order, "order"),
        (lost_edge, "edge"),
        (lost_step, "steps"),
        (another_scope, "scope"),
    ],
)
def test_a_wrong_simulated_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: str, damage: Any, rule: str
) -> None:
    simulated_order = npu_backend.simulated_order
    monkeypatch.setattr(npu_backend, "simulated_order", lambda *a, **k: damage(simulated_order(*a, **k)))
    recipe = {"partition": "layerwise", "schedule": "sequential", "memory": "longest-liveness"}
    message = refusal(network(), target=target, **recipe)
    assert message.startswith("the plan 'layerwise, sequential, longest-liveness' of 'branches' on ")
    assert f"is wrong: {rule}" in message or "makes no sense: KeyError" in message


def test_plans_that_are_only_compared_are_checked_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of all plans is wrong, and so slow that another one is chosen."""
    simulated_order, num_made = npu_backend.simulated_order, 0

    def damaged(*arguments: Any, **settings: Any) -> SimulatedPlan:
        nonlocal num_made
        num_made += 1
        planned = simulated_order(*arguments, **settings)
        if num_made > 1 or settings.get("keeps") == "tasks":
            return planned
        late = tuple(
            replace(r, start_s=r.start_s + 1, end_s=r.end_s + 1) for r in planned.simulation.runs[:1]
        )
        simulation = replace(planned.simulation, time_s=9.0, runs=(*late, *planned.simulation.runs[1:]))
        return replace(planned, simulation=simulation)

    monkeypatch.setattr(npu_backend, "simulated_order", damaged)
    graph = random_graph(2, 9)
    compile_graph(graph, Options(target=TargetRef.parse("stcp920"), effort=0))
    assert num_made > 1
    num_made = 0
    refusal(graph, target="stcp920", effort=0, verify=True)


# Where answers are made: what the compiler, `tw.map`, chains and targets hand out passes there.
ANSWERED_BY: dict[str, set[str]] = {
    "joint.check": {"contest.schedule"},
    "mapping.chains.check": {"mapping.chains.check_nested", "mapping.chains.solve"}
    | {"partition.check_splits", "targets.npu.check_tilings"},
    "mapping.chains.check_nested": {"mapping.chains.solve"},
    "mapping.check": {"mapping.checked", "mapping.gpu", "mapping.solve"},
    "mapping.check_launch": {"mapping.solve"},
    "mapping.checked": {"mapping.chains.price", "mapping.solve"}
    | {"targets.npu.mapped_products", "targets.npu.tile_mapping"},
    "memory.check": {"memory", "memory.check_scopes", "targets.base"}
    | {"targets.npu.backend", "targets.validate"},
    "memory.check_scopes": {"targets.npu.check_plan"},
    "partition.check": {"partition", "targets.validate"},
    "partition.check_forms": {"artifact.plan", "partition.check"}
    | {"targets.cpu.tune.form_sites", "targets.cpu.forms.space"},
    "partition.check_fusions": {"partition.check"},
    "partition.check_rows": {"memory.check_scopes", "partition.check_splits"}
    | {"schedule.check", "schedule.check_instances"},
    "partition.check_splits": {"artifact.plan", "partition.check", "targets.npu.check_plan"},
    "schedule.check": {"schedule", "targets.validate"},
    "schedule.check_instances": {"memory.check_scopes", "schedule.scheduled", "targets.npu.check_plan"},
    "schedule.check_lanes": {"schedule.check"},
    "schedule.check_merges": {"schedule.check"},
    "targets.cpu.lower.check_places": {"targets.cpu.target"},
    "targets.cuda.check_graph": {"targets.cuda.executable"},
    "targets.npu.check_energies": {"targets.npu.check_run"},
    "targets.npu.check_levels": {"targets.npu.check_run"},
    "targets.npu.check_order": {"targets.npu.check_run"},
    "targets.npu.check_plan": {"targets.npu.backend"},
    "targets.npu.check_run": {"targets.npu.check_plan"},
    "targets.npu.check_tilings": {"targets.npu.check_run"},
    "targets.npu.check_sections": {"targets.npu.check_levels", "targets.npu.check_run"},
}
NO_CHECKERS_OF_ANSWERS = {
    "cli.check_verb",
    "ir.ops.check_shape",
    "private_files.checks",
    "planning.checking",
}
"""`tilewright check`, an operator of graphs, files of the cache, and what becomes of a fault."""


_IMPORTS_A_CHECKER = re.compile(r"import .*check|from tilewright\S*check")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, for more than their types."""
    tree = ast.parse(path.read_text())
    typed = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    for node in typed:
        node.body = [ast.Pass()]
    return {
        node.module.removeprefix("tilewright.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright.")
    }


def test_every_checker_is_reached_from_where_answers_are_made() -> None:
    checkers = {module_name(p) for p in SOURCE.rglob("check*.py")} - NO_CHECKERS_OF_ANSWERS
    importers: dict[str, set[str]] = {checker: set() for checker in checkers}
    for path in SOURCE.rglob("*.py"):
        if not _IMPORTS_A_CHECKER.search(path.read_text()):
            continue
        for module in imported(path) & checkers:
            importers[module].add(module_name(path))
    assert importers == ANSWERED_BY
