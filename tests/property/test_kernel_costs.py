"""Groups of kernels that run at the same time: never longer than in sequence, never shorter than any of them,
and no gain where a kernel fills the machine."""

# mypy: disable-error-code="return-value, var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.hardware.machine import Machine
from tilewright.hardware.machine_file import load_machine
from tilewright.ir.graph import Graph, Value
from tilewright.ir.region import full_region
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem
from tilewright.partition.base import Subgraph
from tilewright.planning import Budget
from tilewright.planning.portfolio import Recipe
from tilewright.schedule import SCHEDULERS, Schedule, ScheduleProblem
from tilewright.targets.npu import stage_times
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.costs import NpuCosts
from tilewright.targets.npu.ports import DMA
from tilewright.targets.npu.recipes import MEMORY
from tilewright.targets.npu.target import NpuTarget

MACHINE = load_machine(Path(__file__).parents[2] / "examples" / "manycore.yaml")
FED = MACHINE.model_copy(
    update={
        "levels": tuple(
            level.model_copy(update={"read_bytes_per_cycle": 4096.0, "write_bytes_per_cycle": 4096.0})
            if level.name == "Local"
            else level
            for level in MACHINE.levels
        )
    }
)
"""The same with buffers that keep up with the matrix units: how full their tiles are decides."""
LAUNCH_NS = MACHINE.overheads.kernel_launch_ns
SEEDS = (0, 1, 2, 4, 5, 6)


def backend_for(graph: Graph, machine: Machine = MACHINE) -> NpuBackend:
    backend = NpuTarget(machine).backend(graph, Options())
    assert isinstance(backend, NpuBackend)
    return backend


def costs_for(graph: Graph, machine: Machine = MACHINE) -> NpuCosts:
    return backend_for(graph, machine).costs


def partition_of(graph: Graph, name: str = "none") -> Partition:
    found = PARTITIONERS.get(name).solve(PartitionProblem(graph, MACHINE), Budget())
    assert isinstance(found, Partition)
    return found


def antichains(partition: Partition) -> list[list[Subgraph]]:
    """Subgraphs at the same distance from the inputs, which do not depend on each other."""
    depth: dict[int, int] = {}
    for subgraph in partition.subgraphs:
        depth[subgraph.id] = 1 + max((depth[p.id] for p in partition.predecessors(subgraph)), default=-1)
    levels: dict[int, list[Subgraph]] = {}
    for subgraph in partition.subgraphs:
        levels.setdefault(depth[subgraph.id], []).append(subgraph)
    return [level for level in levels.values() if len(level) > 1]


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_compiled_code_times_a_kernel_as_the_simulator_does(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    graph = integer_network(seed)
    kernels = [*partition_of(graph).subgraphs, *partition_of(graph, "layerwise").subgraphs]
    found = []
    for most_tasks in (1 << 40, 0):
        monkeypatch.setattr(stage_times, "_MANY_TASKS", most_tasks)
        costs = costs_for(graph)
        found.append([costs.fused(kernel) for kernel in kernels])
    assert found[0] == found[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stage_takes_as_long_as_its_longest_group_and_no_longer_than_all_in_sequence(seed: int) -> None:
    graph = integer_network(seed)
    costs = costs_for(graph)
    for subgraphs in antichains(partition_of(graph)):
        groups: Sequence[Sequence[Subgraph]] = [[s] for s in subgraphs]
        each = [costs.stage([group]).time_ns for group in groups]
        together = costs.stage(groups)
        assert max(each) * (1 - 1e-9) <= together.time_ns <= sum(each) * (1 + 1e-9)
        in_sequence = costs.stage([[s for group in groups for s in group]])
        assert in_sequence.time_ns == pytest.approx(sum(each))
        assert together.bound_ns <= together.time_ns
        assert costs.least(subgraphs, len(groups)).time_ns <= together.time_ns


def test_the_networks_of_these_tests_have_independent_kernels() -> None:
    assert sum(len(antichains(partition_of(integer_network(seed)))) for seed in SEEDS) > len(SEEDS)


def branches(*shapes: tuple[int, ...]) -> tuple[Graph, list[Subgraph]]:
    """A product for each shape of a result, on inputs of their own."""
    b = GraphBuilder()
    results: list[Value] = []
    for rows, columns in shapes:
        results.append(b.op("MatMul", b.input(rows, 512), b.constant(512, columns), shape=(rows, columns)))
    graph = b.finish(*results)
    return graph, list(partition_of(graph).subgraphs)


FULL, QUARTER = (512, 512), (256, 256)
"""What fills all 64 cores with tiles of 64 x 64, and what fills 16."""


def test_a_kernel_that_fills_the_machine_gains_nothing_from_company() -> None:
    graph, (full, other, small) = branches(FULL, FULL, QUARTER)
    costs = costs_for(graph)
    alone, few = costs.kernel(full).time_ns, costs.kernel(small).time_ns
    assert costs.stage([[full], [other]]).time_ns == pytest.approx(2 * alone)
    assert costs.stage([[full], [small]]).time_ns == pytest.approx(alone + few)


def test_kernels_that_fill_a_quarter_run_beside_each_other() -> None:
    graph, subgraphs = branches(*[QUARTER] * 5)
    costs = costs_for(graph, FED)
    alone = costs.kernel(subgraphs[0]).time_ns
    main_ns = 2 * sum(v.num_elements for v in (*graph.nodes[0].inputs, graph.nodes[0].output) if v) / 1600
    four = costs.stage([[s] for s in subgraphs[:4]]).time_ns
    assert four <= alone + 3 * main_ns + 1e-6 < 2 * alone, "they share the port of main memory only"
    five = costs.stage([[s] for s in subgraphs]).time_ns
    assert five >= four + LAUNCH_NS, "the fifth waits for cores"


def test_a_kernel_takes_no_more_cores_than_it_may() -> None:
    graph, (full, small) = branches(FULL, QUARTER)
    costs = costs_for(graph)
    times = [costs.kernel(full, cores).time_ns for cores in (1, 4, 16, 64)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 10 * times[-1]
    assert times[-1] == costs.kernel(full).time_ns
    fed = costs_for(graph, FED)
    of_fed = [fed.kernel(full, cores).time_ns for cores in (1, 4, 16, 64)]
    assert of_fed == sorted(of_fed, reverse=True), "parts for more cores fill their units' tiles, too"
    assert fed.kernel(small, 16).time_ns == fed.kernel(small).time_ns, "more do not help"
    as_program = MACHINE.model_copy(update={"launches": "once"})
    program = costs_for(graph, as_program)
    assert program.kernel(full, 4).time_ns == pytest.approx(times[1])


@pytest.mark.parametrize("num_cores", [1, 7, 16, 64])
@pytest.mark.parametrize("shape", [FULL, QUARTER, (1, 1000), (100, 130), (65, 64)])
@pytest.mark.parametrize("machine", [MACHINE, FED], ids=["as-described", "fed"])
def test_no_distribution_is_faster_and_none_as_fast_takes_fewer_cores(
    machine: Machine, shape: tuple[int, int], num_cores: int
) -> None:
    """Against every distribution of a small product."""
    graph, (subgraph,) = branches(shape)
    works = backend_for(graph, machine).works
    node = subgraph.nodes[0]
    region = full_region(shape)

    def seconds(binding: tuple[int, ...]) -> float:
        return works.of(node, region, binding)[0].seconds

    chosen = works.fewest_cores(node, region, num_cores)
    every = [
        (rows, columns)
        for rows in range(1, min(shape[0], num_cores) + 1)
        for columns in range(1, min(shape[1], num_cores // rows) + 1)
    ]
    fastest = min(map(seconds, every))
    assert seconds(chosen) == pytest.approx(fastest)
    as_fast = [rows * columns for rows, columns in every if seconds((rows, columns)) <= fastest * (1 + 1e-12)]
    assert chosen[0] * chosen[1] == min(as_fast)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_at_no_time_are_more_cores_taken_than_there_are(seed: int) -> None:
    graph = integer_network(seed)
    compiled = backend_for(graph)
    partition = partition_of(graph, "layerwise")
    problem = ScheduleProblem(partition, MACHINE, compiled.costs, limits=compiled.limits)
    schedule = SCHEDULERS.get("greedy").solve(problem, Budget())
    assert isinstance(schedule, Schedule)
    simulation = compiled.plan(schedule, Recipe("layerwise", "greedy", MEMORY)).simulation
    kernels = {step.kernel for step in simulation.steps}
    spans = {}
    for run in simulation.runs:
        kernel = simulation.steps[run.step].kernel
        assert kernel is not None
        assert run.num_cores == (0 if run.unit == DMA else kernel.num_cores)
        start, end = spans.get(kernel, (run.start_s, run.end_s))
        spans[kernel] = min(start, run.start_s), max(end, run.end_s)
    for start, _ in spans.values():
        running = [k for k, (a, b) in spans.items() if a <= start < b]
        assert sum(k.num_cores for k in running) <= MACHINE.num_cores_per_cluster
        assert len({k.stage for k in running}) == 1
    for one in spans:
        for two in spans:
            if one.stage < two.stage:
                assert spans[one][1] <= spans[two][0]
    assert len(kernels) == len(partition.subgraphs)
