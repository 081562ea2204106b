"""The accelerator's backend: a plan is simulated once, and what is forgotten of it is made again."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from tests.support.graphs import GraphBuilder

from tilewright.hardware.presets import load_preset
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.target import NpuTarget

NUM_PLANS = 20


def test_many_plans_are_priced_and_few_are_kept() -> None:
    b = GraphBuilder()
    x = b.input(64, 64)
    graph = b.finish(b.op("Relu", b.op("MatMul", x, b.constant(64, 64), shape=(64, 64))))
    target, options = NpuTarget(load_preset("stcp920")), Options()
    backend = target.backend(graph, options)
    assert isinstance(backend, NpuBackend)
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    limits = (1 << 20 << n for n in range(NUM_PLANS))
    recipes = [
        Recipe("layerwise", "depth-first", f"longest-liveness{{most_bytes={size}}}") for size in limits
    ]
    programs = [planner.program(recipe) for recipe in recipes]
    assert backend.num_simulated == NUM_PLANS
    assert max(len(backend._plans), len(backend._scopes), len(backend._instances)) < NUM_PLANS
    again = planner.program(recipes[0])
    assert backend.num_simulated == NUM_PLANS
    assert again.memory == programs[0].memory
    assert backend.place(programs[0]) is not None


def test_stages_differ_by_what_their_kernels_read_of_each_other() -> None:
    b = GraphBuilder()
    first, second = (b.op("Relu", b.input(512, 512)) for _ in range(2))
    graph = b.finish(first, second, b.op("Relu", first))
    backend = NpuTarget(load_preset("stcp920")).backend(graph, Options())
    partition = PARTITIONERS.get("none").solve(backend.partition_problem, Budget())
    assert isinstance(partition, Partition)
    made = {subgraph.outputs[0]: subgraph for subgraph in partition.subgraphs}
    maker, other, reader = (made[value] for value in graph.outputs)
    passed_on = backend.costs.stage([[maker, reader]])
    apart = backend.costs.stage([[other, reader]])
    assert passed_on.time_ns < apart.time_ns


def test_a_result_that_its_own_kernel_reads_is_written_all_the_same() -> None:
    moved_ns = []
    for is_result in (False, True):
        b = GraphBuilder()
        first = b.op("Relu", b.input(512, 512))
        second = b.op("Tanh", first)
        graph = b.finish(second, first) if is_result else b.finish(second)
        backend = NpuTarget(load_preset("a310")).backend(graph, Options())
        partition = PARTITIONERS.get("pcgc").solve(backend.partition_problem, Budget(100))
        assert isinstance(partition, Partition)
        (kernel,) = partition.subgraphs
        moved = backend.costs.occupied_ns(kernel)
        assert moved is not None
        moved_ns.append(moved[1])
    assert moved_ns[1] >= 1.5 * moved_ns[0]
