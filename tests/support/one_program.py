"""Small networks on machines that run one program: all plans of a small space, each simulated."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan
from tilewright.partition.base import kept_as
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, split_of
from tilewright.planning.portfolio import Recipe
from tilewright.schedule.base import Group, Instance, Schedule, Stage
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.nest_judge import NestJudge
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT

SPLITS = WHOLE, split_of([(0, 2)])
MEMORIES = GRAPHTURBO.memory, f"{GRAPHTURBO.memory}{{pack=next-fit}}"
MOST_ORDERS = 12
"""Orders of the slices of some kernels that are all tried; of more, those of the rules."""


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


def machine_of(seed: int) -> Machine:
    """The machine of a network: cores of every second one have little memory."""
    machine = load_preset("ipu-mk2" if seed % 5 == 4 else "stcp920")
    return with_local_bytes(machine, 4096) if seed % 2 and machine.name == "stcp920" else machine


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


def least_cost(backend: NpuBackend, judge: NestJudge, most: float) -> tuple[float, SimulatedPlan | None]:
    """The least simulated cost of all plans of a network, and the plan if it is below `most`; one that is
    seen to cost more than the least so far, `most` at first, is not simulated. Plans are all kernels of all
    layers, whole or by samples, in all orders or those of the rules, with values in low places or late ones,
    with and without weights that stay."""
    numbers = Numbered(backend.graph).numbers
    layers = [tuple(numbers[n] for n in layer.nodes) for layer in cut_layers(backend.graph)]
    executions = ("", RESIDENT) if backend.graph.initializers else ("",)
    least, best = most, None
    for parts in partitions(range(len(layers))):
        for splits in product(SPLITS, repeat=len(parts)):
            kernels = tuple(
                Kernel(tuple(sorted((layers[i] for i in part), key=max)), split)
                for part, split in zip(parts, splits, strict=True)
            )
            for schedule, execution in product(_schedules(judge, kernels), executions):
                for memory in MEMORIES:
                    try:
                        planned, cost = judge.simulate(schedule, Recipe("", "", memory, execution), least)
                    except InternalError:
                        raise
                    except (TilewrightError, ValueError):
                        continue
                    if cost < least:
                        least, best = cost, planned
                    if not planned.scopes.spilled_bytes and not any(
                        s.after for s in planned.simulation.steps
                    ):
                        break  # no step waits for a place, wherever values lie
    return least, best


def _schedules(judge: NestJudge, kernels: tuple[Kernel, ...]) -> list[Schedule]:
    """Schedules of kernels that differ in the order of slices, of which no two are the same."""
    found: dict[tuple[Instance, ...], Schedule] = {}
    for rule in RULES:
        try:
            schedule, _, _ = judge.schedule(NestPlan((Nest(kernels, rule),), MEMORIES[0]))
        except (TilewrightError, ValueError):
            return []
        if not found:
            graph = instance_graph(
                kept_as(schedule.partition, judge.types), schedule.splits, judge.problem.analysis.maps
            )
            orders = list(_orders(graph))
            if len(orders) <= MOST_ORDERS:
                return [replace(schedule, stages=tuple(Stage((Group((i,)),)) for i in o)) for o in orders]
        found.setdefault(tuple(schedule.instances()), schedule)
    return list(found.values())


def _orders(graph: InstanceGraph) -> Iterator[tuple[Instance, ...]]:
    """Orders in which instances can run, up to one more than are tried; samples are alike, so that the first
    slice of all is the first sample's."""
    places = [node.id for node in graph.nodes if node.kind is Kind.INSTANCE]

    def before(place: int) -> set[int]:
        found = set(graph.predecessors(place))
        return found.union(*(before(p) for p in found if graph.nodes[p].kind is not Kind.INSTANCE))

    needs = {place: before(place) & set(places) for place in places}
    count = 0

    def grow(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        nonlocal count
        if len(done) == len(places):
            count += 1
            yield done
            return
        for place in places:
            is_ready = place not in done and needs[place] <= set(done)
            if is_ready and count <= MOST_ORDERS and (done or graph.nodes[place].index == 0):
                yield from grow((*done, place))

    for order in grow(()):
        yield tuple(Instance(graph.nodes[p].subgraph_id, graph.nodes[p].index) for p in order)
