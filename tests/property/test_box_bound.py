"""The bound of plans whose layers are cut along few axes, against plans of that space drawn at random."""

from __future__ import annotations

import random
from math import inf

import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.one_program import network

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.joint.overlapped.kernels import Kernels
from tilewright.joint.overlapped.moves import Moves
from tilewright.joint.overlapped.plan import RULES, NestPlan, nests_of
from tilewright.options import Options
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.progress import PhaseClock
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.box_bound import box_bound, is_in_space
from tilewright.targets.npu.nest_judge import recipe_of
from tilewright.targets.npu.ports import DMA
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT
from tilewright.targets.npu.target import NpuTarget

MEMORIES = GRAPHTURBO.memory, f"{GRAPHTURBO.memory}{{pack=next-fit}}"


def setting(graph: Graph, machine_name: str, local_bytes: int = 0) -> tuple[NpuBackend, NestPlan, Moves]:
    """A backend, a plan of the paper, and moves from there."""
    machine = load_preset(machine_name)
    target = NpuTarget(with_local_bytes(machine, local_bytes) if local_bytes else machine)
    options = Options(budget=Budget(1))
    backend = target.backend(graph, options)
    judge = backend.nest_judge()
    schedule = Planner(graph, target, backend, options, PhaseClock(None, None)).program(GRAPHTURBO).schedule
    splitter = GraphTurbo(alpha=1.25).splitter(judge.problem)
    kernels = Kernels(judge.numbered, judge.problem.analysis.axes, splitter, splitter, 1.25, judge.share)
    moves = Moves(kernels, (), MEMORIES, ("", RESIDENT), random.Random(0))
    return backend, NestPlan(nests_of(judge.numbered, schedule, RULES[0]), GRAPHTURBO.memory), moves


def check(graph: Graph, machine: str, num_plans: int, local_bytes: int = 0) -> int:
    """How many plans of a random walk are in the space, which goes on from these; none is below the bound."""
    backend, plan, moves = setting(graph, machine, local_bytes)
    judge = backend.nest_judge()
    maps, input_s = backend.analysis.maps, backend._least_seconds[DMA]
    bound = box_bound(backend.works, graph, maps, backend.machine, input_s)
    count = 0
    for _ in range(num_plans):
        move = moves.draw(plan, [1.0] * len(plan.kernels))
        if move is None:
            continue
        try:
            schedule, placed, _ = judge.schedule(move.plan)
            planned, cost = judge.simulate(schedule, recipe_of(placed), inf)
        except InternalError:
            raise
        except (TilewrightError, ValueError):
            continue
        if is_in_space(planned, backend.works):
            plan = placed
            count += 1
            assert not bound.is_violated(cost), str(move.what)
    return count


@pytest.mark.parametrize(("seed", "machine"), [(2, "stcp920"), (2, "ipu-mk2")])
def test_no_plan_of_the_space_is_below_the_bound(seed: int, machine: str) -> None:
    assert check(network(seed, 4), machine, num_plans=30) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_none_of_many_plans_of_the_space_is_below_the_bound(seed: int) -> None:
    machine = "ipu-mk2" if seed % 3 == 2 else "stcp920"
    assert check(network(seed, 5), machine, 200, 4096 if seed % 3 == 1 else 0) > 20


def test_a_dense_layer_begins_when_all_that_it_reads_is_there() -> None:
    """A pool over all pixels and a dense layer run on different units, and one after the other."""
    b = GraphBuilder()
    x = b.conv(b.input(1, 4, 8, 8), 4)
    pooled = b.op("Flatten", b.op("GlobalAveragePool", x, shape=(1, 4, 1, 1)), shape=(1, 4))
    dense = b.op("MatMul", pooled, b.constant(4, 16), shape=(1, 16))
    graph = b.finish(dense)
    backend, _, _ = setting(graph, "stcp920")
    bound = box_bound(backend.works, graph, backend.analysis.maps, backend.machine, 0.0)
    works = list(backend.works.least_of_nodes(graph.nodes, graph.outputs, backend.analysis.maps))
    launch_ns = backend.machine.overheads.kernel_launch_ns
    (dense_s,) = (w.seconds for node, found in works if node is dense.producer for w in found)
    pool_s = sum(w.seconds for node, found in works if node.op_type == "GlobalAveragePool" for w in found)
    assert bound.value >= launch_ns + (dense_s + pool_s) * 1e9 * (1 - 1e-9)


def test_only_what_a_dense_layer_needs_ends_before_it() -> None:
    """A few channels of a convolution feed the dense layer, the others may be computed behind it: the
    convolution that has most to do counts as it does beside such a layer."""

    def bound_ns(is_fed: bool) -> float:
        b = GraphBuilder()
        x = b.conv(b.input(1, 32, 16, 16), 128)
        source = x if is_fed else b.input(1, 128, 16, 16)
        few = b.op("Slice", source, *map(b.integers, (0, 4, 1)), shape=(1, 4, 16, 16))
        pooled = b.op("Flatten", b.op("GlobalAveragePool", few, shape=(1, 4, 1, 1)), shape=(1, 4))
        dense = b.op("MatMul", pooled, b.constant(4, 16), shape=(1, 16))
        behind = b.op("Exp", b.op("Add", dense, b.constant(1024, 1), shape=(1024, 16)))
        graph = b.finish(behind, x)
        backend = NpuTarget(load_preset("stcp920")).backend(graph, Options())
        return box_bound(backend.works, graph, backend.analysis.maps, backend.machine, 0.0).value

    assert bound_ns(is_fed=True) == pytest.approx(bound_ns(is_fed=False), rel=1e-9)
