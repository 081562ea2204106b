"""The search over plans of one program against all plans of a small space: it reaches the least, or finds
less, as its own space is larger, and no bound is above it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder

from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan
from tilewright.options import Options
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, split_of
from tilewright.planner import Planner
from tilewright.planning import Budget
from tilewright.progress import PhaseClock
from tilewright.targets.npu.box_bound import box_bound, is_in_space
from tilewright.targets.npu.ports import DMA
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT
from tilewright.targets.npu.target import NpuTarget

SPLITS = WHOLE, split_of([(0, 2)])


def network(seed: int, most: int) -> Graph:
    """A chain, fork or diamond of convolutions and pools of up to so many layers, on two samples."""
    rng = random.Random(seed)
    b = GraphBuilder()
    channels, side = rng.choice((4, 16, 32)), rng.choice((4, 8, 14))
    values = [b.input(2, channels, side, side) for _ in range(rng.choice((1, 1, 2)))]
    num_layers = rng.randint(2, most)
    while sum(1 for v in values if v.producer is not None) < num_layers:
        x = rng.choice(values[-2:])
        kind = rng.randrange(3)
        if kind == 0:
            values.append(b.conv(x, channels))
        elif kind == 1:
            values.append(b.op("MaxPool", x, kernel_shape=(1, 1)))
        else:
            values.append(b.op("Add", x, rng.choice(values)))
    return b.finish(*(v for v in values if v.producer is not None and not v.users))


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to cut items into sets."""
    if not items:
        yield []
        return
    first, *rest = items
    for others in partitions(rest):
        yield [[first], *others]
        for place, part in enumerate(others):
            yield [*others[:place], [first, *part], *others[place + 1 :]]


def plans(graph: Graph) -> Iterator[NestPlan]:
    """All kernels of all layers, whole or by samples, in all orders, with and without weights that stay."""
    numbers = Numbered(graph).numbers
    layers = [tuple(numbers[n] for n in layer.nodes) for layer in cut_layers(graph)]
    for parts in partitions(range(len(layers))):
        for choice in range(2 ** len(parts)):
            kernels = tuple(
                Kernel(tuple(sorted((layers[i] for i in part), key=max)), SPLITS[choice >> place & 1])
                for place, part in enumerate(parts)
            )
            for rule in RULES if choice else RULES[:1]:
                for execution in ("", RESIDENT):
                    yield NestPlan((Nest(kernels, rule),), GRAPHTURBO.memory, execution)


@dataclass(frozen=True)
class Found:
    least: float
    joint: float
    bound: float


def found(seed: int, most: int, trials: int) -> Found:
    """The least of all plans, and what the search finds from GraphTurbo's on."""
    graph = network(seed, most)
    machine = load_preset("stcp920")
    if seed % 2:
        machine = with_local_bytes(machine, 4096)
    target, options = NpuTarget(machine), Options(budget=Budget(trials))
    backend = target.backend(graph, options)
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    judge = backend.nest_judge()
    costs = [judged.cost for plan in plans(graph) if (judged := judge(plan, inf)) is not None]
    start = planner.program(GRAPHTURBO)
    improved = backend.improve(start, planner.ordered, Budget(trials)).program
    planned = backend.plan(improved.schedule, improved.recipe)
    bound_ns = planned.simulation.lower_bound_s * 1e9
    if is_in_space(planned, backend.works):
        input_s = backend.works.least_seconds(graph, backend.analysis.maps, converts=True)[DMA]
        maps = backend.analysis.maps
        bound_ns = max(bound_ns, box_bound(backend.works, graph, maps, machine, input_s).value)
    return Found(min(costs), improved.schedule.quality.cost, bound_ns)


@pytest.mark.parametrize("seed", [2, 8])
def test_the_search_reaches_the_least_of_all_plans_and_no_bound_is_above_it(seed: int) -> None:
    case = found(seed, most=3, trials=30)
    assert case.bound <= case.least * (1 + 1e-9)
    assert case.bound <= case.joint * (1 + 1e-9)
    assert case.joint <= case.least * (1 + 1e-9)


@pytest.mark.slow
def test_the_search_reaches_the_least_of_all_plans_nearly_always() -> None:
    cases = [found(seed, most=4, trials=300) for seed in range(100)]
    assert all(case.bound <= case.least * (1 + 1e-9) for case in cases)
    assert sum(case.joint <= case.least * (1 + 1e-9) for case in cases) >= 95
