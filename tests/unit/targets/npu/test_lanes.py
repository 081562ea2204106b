"""Lanes: layers of a kernel on groups at the same time. Times, values, what a checker notices."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from tests.support.accelerator import checked, compiled, with_capacities
from tests.support.effort import num_instructions
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_feed, integer_network

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.hardware.element_types import element_types
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.memory.instances import _Expander
from tilewright.options import Options
from tilewright.partition import Partition, PartitionProblem, Reason
from tilewright.partition.base import build_partition
from tilewright.planning import Budget, Limits, Provenance
from tilewright.planning.portfolio import Recipe
from tilewright.schedule import Schedule, ScheduleProblem, check_schedule
from tilewright.schedule.base import Group, Instance, Stage, build_schedule
from tilewright.schedule.lane_search import parts_of
from tilewright.schedule.lanes import Lane, Sections
from tilewright.schedule.virtual_units import VirtualUnits
from tilewright.targets.npu.check_plan import check_plan
from tilewright.targets.npu.check_run import check_run
from tilewright.targets.npu.costs import UNPRICED
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.kernels import Kernel
from tilewright.targets.npu.plan import SimulatedPlan, simulated
from tilewright.targets.npu.policy import Policy
from tilewright.targets.npu.recipes import MEMORY
from tilewright.targets.npu.simulated_step import SimulatedStep
from tilewright.targets.npu.target import NpuTarget
from tilewright.targets.npu.tasks import StepTasks

A310 = load_preset("a310")
PLENTY = 4096


def machine(num_cores: int, *, binds: bool = True) -> Machine:
    """The A310 with so many cores; where memory does not bind, all levels are as fast as anybody could ask
    for, and nothing is to be waited for."""
    levels = list(A310.levels)
    of_core = [i for i, level in enumerate(levels) if level.per == "core"][-1]
    levels[of_core] = levels[of_core].model_copy(update={"num_instances_per_parent": num_cores})
    changed: dict[str, object] = {"num_cores_per_cluster": num_cores}
    if not binds:
        for place, level in enumerate(levels):
            rates = ("read_bytes_per_cycle", "write_bytes_per_cycle", "read_bytes_per_s", "write_bytes_per_s")
            known = {name: rate * PLENTY for name in rates if (rate := getattr(level, name)) is not None}
            levels[place] = level.model_copy(update=known)
        nothing = {"kernel_launch_ns": 0.0, "barrier_ns": 0.0}
        changed["overheads"] = A310.overheads.model_copy(update=nothing)
    return A310.model_copy(update={**changed, "levels": tuple(levels)})


def conv(b: GraphBuilder, x: Value, channels: int, kernel: int, name: str) -> Value:
    weight = b.constant(channels, x.shape[1], kernel, kernel)
    shape = (x.shape[0], channels, *x.shape[2:])
    return b.op("Conv", x, weight, shape=shape, name=name, pads=(kernel // 2,) * 4)


def example_4() -> Graph:
    """Four convolutions of one value, each of which fills the tile of one unit and no more."""
    b = GraphBuilder()
    x = b.input(1, 256, 4, 4)
    return b.finish(*(conv(b, x, 16, kernel, f"CONV{kernel}") for kernel in (1, 3, 5, 7)))


def block(b: GraphBuilder, x: Value) -> Value:
    """A value that passes two convolutions, and another one beside these."""
    y = conv(b, b.op("Relu", conv(b, x, 32, 3, "first")), 32, 3, "second")
    z = b.op("Relu", conv(b, x, 32, 1, "beside"))
    return conv(b, b.op("Add", y, z), 32, 1, "last")


def residual() -> Graph:
    """A block behind a convolution."""
    b = GraphBuilder()
    return b.finish(block(b, b.op("Relu", conv(b, b.input(1, 32, 14, 14), 32, 3, "stem"))))


def whole(graph: Graph) -> Partition:
    """All of a graph as one kernel."""
    return build_partition(
        PartitionProblem(graph),
        [graph.nodes],
        lambda *_: Reason.CLUSTER,
        Provenance("test"),
        quality=UNPRICED,
    )


def lanes_of(partition: Partition, num_cores: Sequence[int], subgraph: int = 0) -> Sections:
    """A block's two ways at the same time."""
    layers = partition.layers_of(partition.subgraphs[subgraph])

    def number(name: str) -> int:
        return next(i for i, x in enumerate(layers) if any(node.name.startswith(name) for node in x.nodes))

    ways = (("first", "second"), ("beside",))
    return (tuple(Lane(tuple(map(number, way)), count) for way, count in zip(ways, num_cores, strict=True)),)


def scheduled(partition: Partition, sections: Sections, num_cores: int | None = None) -> Schedule:
    group = Group((Instance(0),), num_cores, inside=(sections,))
    return Schedule(partition, (Stage((group,)),), UNPRICED, Provenance("test"))


@cache
def in_lanes() -> SimulatedPlan:
    partition = whole(residual())
    return checked(simulated(scheduled(partition, lanes_of(partition, (1, 1))), A310), A310)


# What they take


def planned(graph: Graph, on: Machine, *, inside: bool = True) -> tuple[float, Schedule, SimulatedPlan]:
    """The simulated seconds of one kernel on virtual units, and its plan."""
    partition = whole(graph)
    backend = NpuTarget(on).backend(graph, Options())
    problem = ScheduleProblem(
        partition, on, backend.costs, limits=backend.limits, allows_lanes=backend.runs_lanes
    )
    schedule = VirtualUnits(inside=inside).solve(problem, Budget())
    assert check_schedule(problem, schedule) == ()
    found = checked(simulated(schedule, on, types=element_types(on).inside), on)
    assert schedule.quality.cost == pytest.approx(found.simulation.time_s * 1e9)
    return found.simulation.time_s, schedule, found


def test_example_4_inside_a_kernel_one_unit_takes_the_sum_and_four_the_longest() -> None:
    found = {n: planned(example_4(), machine(n, binds=False)) for n in (1, 4)}
    works = [work for step in found[1][2].simulation.steps for work in step.works]
    alone = sorted(work.seconds for work in works if work.macs)
    assert [round(seconds / alone[0]) for seconds in alone] == [1, 9, 25, 49]
    assert found[1][0] == pytest.approx(sum(alone), rel=0.01)
    assert found[4][0] == pytest.approx(alone[-1], rel=0.01)
    assert not found[1][1].stages[0].groups[0].has_lanes
    (section,) = found[4][1].stages[0].groups[0].inside[0]
    assert [lane.num_cores for lane in section] == [1, 1, 1, 1]
    without, _, _ = planned(example_4(), machine(4, binds=False), inside=False)
    assert without == pytest.approx(sum(alone), rel=0.01)


def test_two_units_take_what_the_best_packing_does() -> None:
    seconds, schedule, found = planned(example_4(), machine(2, binds=False))
    alone = sorted(w.seconds for step in found.simulation.steps for w in step.works if w.macs)
    assert seconds == pytest.approx(alone[-1], rel=0.01)  # the other three together take less
    (section,) = schedule.stages[0].groups[0].inside[0]
    assert sorted(len(lane.layers) for lane in section) == [1, 3]


def test_a_kernel_has_no_lanes_where_its_layers_wait_for_each_other() -> None:
    b = GraphBuilder()
    x = b.input(1, 32, 4, 4)
    for name in "abc":
        x = conv(b, x, 16, 3, name)
    _, schedule, _ = planned(b.finish(x), machine(4, binds=False))
    assert not schedule.stages[0].groups[0].has_lanes


def test_runs_of_layers_fall_apart_where_they_do_not_meet() -> None:
    partition = whole(residual())
    (parts,) = parts_of(partition.layers_of(partition.subgraphs[0]))
    (section,) = lanes_of(partition, (1, 1))
    assert sorted(parts) == sorted(lane.layers for lane in section)


def test_kernels_beside_each_other_have_lanes_and_a_stage_takes_what_the_simulation_says() -> None:
    b = GraphBuilder()
    x = b.input(1, 32, 14, 14)
    graph = b.finish(block(b, x), block(b, x))
    half = len(graph.nodes) // 2
    clusters = [graph.nodes[:half], graph.nodes[half:]]
    partition = build_partition(
        PartitionProblem(graph), clusters, lambda *_: Reason.CLUSTER, Provenance("test"), quality=UNPRICED
    )
    on = machine(4)
    groups = (
        Group((Instance(0),), 2, inside=(lanes_of(partition, (1, 1)),)),
        Group((Instance(1),), 2, inside=(lanes_of(partition, (1, 1), 1),)),
    )
    backend = NpuTarget(on).backend(graph, Options())
    problem = ScheduleProblem(partition, on, backend.costs, limits=backend.limits, allows_lanes=True)
    schedule = build_schedule(problem, (Stage(groups),), Provenance("test"))
    assert check_schedule(problem, schedule) == ()
    found = checked(simulated(schedule, on, types=element_types(on).inside), on)
    assert schedule.quality.cost == pytest.approx(found.simulation.time_s * 1e9)
    lanes = {(s.kernel, s.lane.number) for s in found.simulation.steps if s.lane is not None}
    assert len(lanes) == 4


def test_lanes_of_blocks_of_threads() -> None:
    on = load_preset("v100")
    partition = whole(residual())
    found = checked(simulated(scheduled(partition, lanes_of(partition, (48, 32))), on), on)
    assert {s.lane.num_cores for s in found.simulation.steps if s.lane is not None} == {48, 32}


def test_plans_and_their_checks_take_time_that_grows_with_their_layers() -> None:
    """Of one kernel, layers of which run in lanes: a third part adds as much as a second one."""
    counts = []
    for num_diamonds in (4, 8, 12):
        b = GraphBuilder()
        x = b.input(2, 2)
        for _ in range(num_diamonds):
            x = b.op("Add", b.op("Relu", x), b.op("Sigmoid", x))
        partition = whole(b.finish(x))
        schedule = scheduled(partition, all_sections(partition, 2))
        assert len(schedule.stages[0].groups[0].inside[0]) == num_diamonds
        planned = simulated(schedule, A310)
        calls = (partial(simulated, schedule, A310), partial(check_plan, planned, A310))
        counts.append([num_instructions(call) for call in calls])
    for first, second, third in zip(*counts, strict=True):
        assert third - second < 1.004 * (second - first)


# What they compute


def all_sections(partition: Partition, num_cores: int) -> Sections:
    """Every run of layers that falls apart, its parts given to the cores in turns."""
    (subgraph,) = partition.subgraphs
    sections = []
    for parts in parts_of(partition.layers_of(subgraph)):
        lanes = [tuple(sorted(i for part in parts[n::num_cores] for i in part)) for n in range(num_cores)]
        sections.append(tuple(Lane(layers, 1) for layers in lanes if layers))
    return tuple(sections)


def small(num_cores: int, local_kib: int, shared_kib: int) -> Machine:
    """An A310 with other cores and buffers."""
    return with_capacities(machine(num_cores), {"L1": local_kib << 10, "LLC": shared_kib << 10})


def without_shared(found: Machine) -> Machine:
    """Main memory feeds the cores."""
    levels = tuple(level for level in found.levels if level.name != "LLC")
    return found.model_copy(update={"levels": levels})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "on",
    [small(3, 4, 16), small(2, 64, 256), without_shared(small(3, 16, 64))],
    ids=["small", "large", "without a shared buffer"],
)
def test_runs_in_lanes_obey_the_machine_and_values_are_those_of_the_network(seed: int, on: Machine) -> None:
    graph = integer_network(seed, 12, batch=2)
    partition = whole(graph)
    sections = all_sections(partition, on.num_cores_per_cluster)
    schedule = scheduled(partition, sections)
    limits = Limits(num_cores=on.num_cores_per_cluster)
    problem = ScheduleProblem(partition, limits=limits, allows_lanes=True)
    assert [v for v in check_schedule(problem, schedule) if v.rule not in ("cost", "bound")] == []
    try:
        found = checked(simulated(schedule, on), on)
    except InfeasibleMapping as error:
        assert "run its layers one after another" in str(error)  # noqa: PT017
        return
    feed = integer_feed(graph, seed)
    values, expected = execute(found.scopes, feed), run_graph(graph, feed)
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value)


def test_lanes_survive_the_artifact() -> None:
    program = compiled(residual(), A310, Recipe("graphturbo", "sequential", MEMORY)).program
    lanes = (Lane((1, 2), 1), Lane((3,), 1))
    stages = (Stage((Group((Instance(0),), inside=((lanes,),)),)), *program.schedule.stages[1:])
    laned = replace(program, schedule=replace(program.schedule, stages=stages))
    again = decode_plan(json.loads(json.dumps(encode_plan(laned))), laned.graph, laned.options)
    assert again.schedule.stages == stages


# What a checker notices


def said(planned: SimulatedPlan, on: Machine) -> str:
    return "\n".join(map(str, check_run(planned, on)))


def test_cores_that_are_used_before_their_section_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = StepTasks._enter_section

    def without_gate(tasks: StepTasks, section: int | None, step: SimulatedStep, kernel: Kernel) -> None:
        enter(tasks, section, step, kernel)
        tasks.gate = []

    monkeypatch.setattr(StepTasks, "_enter_section", without_gate)
    partition = whole(residual())
    planned = simulated(scheduled(partition, lanes_of(partition, (1, 1))), A310)
    assert "which step" in said(planned, A310)


def test_values_that_lanes_leave_in_their_own_cores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Expander, "_pass_between_lanes", lambda self: None)
    partition = whole(residual())
    planned = simulated(scheduled(partition, lanes_of(partition, (1, 1))), A310)
    assert "from buffers of other cores" in said(planned, A310)


def test_runs_on_other_cores_than_those_of_the_lane_are_noticed() -> None:
    planned = in_lanes()
    runs = planned.simulation.runs
    lane = next(s.number for s in planned.simulation.steps if s.lane is not None)
    place = next(i for i, run in enumerate(runs) if run.step == lane and run.unit == "CUBE")
    changed = (*runs[:place], replace(runs[place], num_cores=2), *runs[place + 1 :])
    wrong = replace(planned, simulation=replace(planned.simulation, runs=changed))
    assert "of its 1 cores" in said(wrong, A310)


def test_lanes_on_more_cores_than_the_kernel_holds_are_noticed_and_refused() -> None:
    planned = in_lanes()
    (launch,) = planned.bindings.launches
    sections = lanes_of(planned.partition, (2, 2))
    bindings = replace(planned.bindings, launches=(replace(launch, sections=sections),))
    assert "has lanes on 4" in said(replace(planned, bindings=bindings), A310)
    with pytest.raises(InfeasibleMapping, match="lanes take 4 cores at the same time, it has 2"):
        simulated(scheduled(planned.partition, sections), A310)


def test_more_than_a_lanes_cores_hold_is_noticed() -> None:
    planned = in_lanes()
    tiny = small(2, 1, 8192)
    assert "L1 of lane" in said(planned, tiny)


def test_one_program_has_no_lanes() -> None:
    partition = whole(residual())
    schedule = scheduled(partition, lanes_of(partition, (1, 1)))
    with pytest.raises(UsageError, match="one program runs all"):
        simulated(schedule, A310, policy=Policy(launches="once"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, b: ((a, b), ()), "fewer than two lanes"),
        (lambda a, b: ((a,),), "fewer than two lanes"),
        (lambda a, b: ((Lane(a.layers[:1], 1), Lane(a.layers[1:], 1)),), "which another lane makes"),
        (lambda a, b: ((Lane(a.layers[::-1], 1), b),), "in another order"),
        (lambda a, b: ((Lane(a.layers, 2), b),), "take more than 2 cores"),
        (lambda a, b: ((Lane((0,), 1), b),), "do not directly follow each other"),
        (lambda a, b: ((a, Lane((99,), 1)),), "do not directly follow each other"),
    ],
)
def test_a_schedule_with_lanes_that_may_not_be_is_noticed(
    change: Callable[[Lane, Lane], Sections], said: str
) -> None:
    partition = whole(residual())
    ((first, second),) = lanes_of(partition, (1, 1))
    schedule = scheduled(partition, change(first, second))
    problem = ScheduleProblem(partition, limits=Limits(num_cores=2), allows_lanes=True)
    found = [v for v in check_schedule(problem, schedule) if v.rule == "lanes"]
    assert any(said in str(violation) for violation in found)


def test_lanes_where_a_problem_allows_none_are_noticed() -> None:
    partition = whole(residual())
    schedule = scheduled(partition, lanes_of(partition, (1, 1)))
    problem = ScheduleProblem(partition, limits=Limits(num_cores=2))
    assert "which the problem does not allow" in str(check_schedule(problem, schedule)[0])
