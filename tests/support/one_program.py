"""Small networks on machines that run one program: all plans of a small space, each simulated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.machine import Machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph
from tilewright.ir.graph_regions import value_regions
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan
from tilewright.options import Options
from tilewright.partition.base import kept_as
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, split_of
from tilewright.planner import Planner
from tilewright.planning import Bound, Budget
from tilewright.planning.portfolio import Recipe
from tilewright.progress import PhaseClock
from tilewright.schedule.base import Group, Instance, Schedule, Stage
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.box_bound import begins_whole, box_bounds, is_in_space
from tilewright.targets.npu.nest_judge import NestJudge
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import ports_of
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT
from tilewright.targets.npu.target import NpuTarget

ROUNDING = 1 + 1e-9
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


def least_cost(backend: NpuBackend, judge: NestJudge, most: float) -> Least:
    """The least simulated cost of all plans of a network, and the plan if it is below `most`. Plans are all
    kernels of all layers, whole or by samples, in all orders or those of the rules, with values in low places
    or late ones, with and without weights that stay. One that is seen to cost as much as the least so far,
    `most` at first, is not simulated: all pass the network's inputs and results, those that fetch weights
    these, too, and each does the work of its own slices."""
    numbers = Numbered(backend.graph).numbers
    layers = [tuple(numbers[n] for n in layer.nodes) for layer in cut_layers(backend.graph)]
    least = Least(most)
    executions = [e for e in (RESIDENT, "") if _passing_ns(backend, e) < least.below]
    for parts in partitions(range(len(layers))) if executions else ():
        for splits in product(SPLITS, repeat=len(parts)):
            kernels = tuple(
                Kernel(tuple(sorted((layers[i] for i in part), key=max)), split)
                for part, split in zip(parts, splits, strict=True)
            )
            for schedule, execution in product(_schedules(backend, judge, kernels, least), executions):
                for memory in MEMORIES:
                    try:
                        recipe = Recipe("", "", memory, execution)
                        planned, cost = judge.simulate(schedule, recipe, least.below)
                    except InternalError:
                        raise
                    except (TilewrightError, ValueError):
                        continue
                    # What others were left out for has to hold of those that are simulated.
                    assert cost * ROUNDING >= max(least.working_ns, _passing_ns(backend, execution))
                    least.num_simulated += 1
                    if cost < least.cost:
                        least.cost, least.plan = cost, planned
                    if not planned.scopes.spilled_bytes and not any(
                        s.after for s in planned.simulation.steps
                    ):
                        break  # no step waits for a place, wherever values lie
    return least


@dataclass
class Least:
    """The least cost of some plans so far, and the plan if it is below what was known before; what the
    slices of the kernels that are looked at take at least."""

    cost: float
    plan: SimulatedPlan | None = None
    num_simulated: int = 0
    working_ns: float = 0.0

    @property
    def below(self) -> float:
        """What a plan must cost less than to be of interest, sums of floats apart."""
        return self.cost * (2 - ROUNDING)


def _passing_ns(backend: NpuBackend, execution: str) -> float:
    """What main memory's port takes at least for inputs and results, and for weights unless they stay."""
    graph, ports = backend.graph, ports_of(backend.machine)
    values = [*graph.inputs, *graph.outputs]
    size_bytes = sum(v.num_elements * v.dtype.size_bytes for v in values)
    if not execution:
        size_bytes += sum(
            v.num_elements * backend.types.stored(v.dtype).size_bytes
            for v in graph.initializers
            if v.num_elements > 1
        )
    return backend.machine.overheads.kernel_launch_ns + size_bytes / ports.main_bytes_per_s * 1e9


def _working_ns(backend: NpuBackend, graph: InstanceGraph) -> float:
    """What the busiest unit takes at least for the slices of a graph."""
    seconds: dict[str, float] = {}
    for node in graph.nodes:
        if node.kind is not Kind.INSTANCE:
            continue
        operators = graph.partition.subgraphs[node.subgraph_id].nodes
        regions = value_regions(operators, node.outputs, graph.maps)
        for operator in operators:
            if operator.output in regions and node.rows is None:
                for work in backend.works.at_least(operator, regions[operator.output]):
                    seconds[work.unit] = seconds.get(work.unit, 0.0) + work.seconds
    return backend.machine.overheads.kernel_launch_ns + max(seconds.values(), default=0.0) * 1e9


def _schedules(
    backend: NpuBackend, judge: NestJudge, kernels: tuple[Kernel, ...], least: Least
) -> list[Schedule]:
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
            least.working_ns = _working_ns(backend, graph)
            if least.working_ns >= least.below:
                return []
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


@dataclass(frozen=True)
class Found:
    """The least cost of all plans that is below the search's, else that; what the search found; the bound.

    Of all plans `num_simulated` were simulated."""

    least: float
    joint: float
    bound: float
    num_simulated: int = 0

    @property
    def is_least(self) -> bool:
        """Whether no plan is better than the search's."""
        return self.joint <= self.least * ROUNDING


def found(seed: int, most: int, trials: int) -> Found:
    """The least of all plans, and what the search finds from GraphTurbo's on."""
    graph, machine = network(seed, most), machine_of(seed)
    target, options = NpuTarget(machine), Options(budget=Budget(trials))
    backend = target.backend(graph, options)
    planner = Planner(graph, target, backend, options, PhaseClock(None, None))
    start = planner.program(GRAPHTURBO)
    improved = backend.improve(start, planner.ordered, Budget(trials)).program
    # A plan's own bound is of those that fetch weights as it does.
    executions = improved.recipe.execution, RESIDENT
    plans = [backend.plan(improved.schedule, replace(improved.recipe, execution=e)) for e in executions]
    planned = plans[0]
    joint = improved.schedule.quality.cost
    bound_ns = min(plan.simulation.lower_bound_s for plan in plans) * 1e9
    least = least_cost(backend, backend.nest_judge, joint)
    known = [plan for plan in (planned, least.plan) if plan is not None]
    is_boxed = all(is_in_space(plan, backend.works) for plan in known)
    bound = bound_of_boxes(backend, begins=all(map(begins_whole, known)), is_boxed=is_boxed)
    bound_ns = max(bound_ns, bound.value)
    return Found(least.cost, joint, bound_ns, least.num_simulated)


def bound_of_boxes(
    backend: NpuBackend, *, begins: bool, is_mapped: bool = True, is_boxed: bool = True
) -> Bound:
    """The bound of plans whose layers are cut into boxes, or anyhow, and whose steps begin as a whole if
    asked for; boxes are mapped, or some of them, while others count with the tiles that they fill, or layers
    as a whole."""
    is_late = itertools.cycle((False, True, True))
    *_, bound = sorted(
        box_bounds(
            backend.works,
            backend.graph,
            backend.analysis.maps,
            is_late=lambda: not is_mapped and next(is_late),
            is_boxed=lambda: is_boxed,
            begins_whole=lambda: begins,
        ),
        key=lambda bound: bound.value,
    )
    return bound
