"""Rates of ports, bytes of steps, bounds: each held against what the pieces and the machine's words say."""

# mypy: disable-error-code="arg-type, attr-defined"

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any, get_args

import pytest
from tests.support.accelerator import graphturbo, plan
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_network

from tilewright.hardware.machine import Machine, Work
from tilewright.hardware.presets import load_preset
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Value
from tilewright.ir.region import Region, volume
from tilewright.memory.scopes import PlacedBuffer, levels_of
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.planning.portfolio import Recipe
from tilewright.schedule.binding import Scope, transfers
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.node_work import AS_IN_FILE, work_of
from tilewright.targets.npu.plan import SimulatedPlan
from tilewright.targets.npu.ports import CORE_DMA, DMA, ports_of
from tilewright.targets.npu.recipes import BASELINES
from tilewright.targets.npu.simulate import Overlap, Policy, Traffic, simulate
from tilewright.targets.npu.work import Works

SEEDS = range(12)
MACHINE = load_preset("stcp920")
WITHOUT_SHARED = load_preset("ipu-mk1")


def with_level(machine: Machine, name: str, **changes: Any) -> Machine:
    levels = tuple(x.model_copy(update=changes) if x.name == name else x for x in machine.levels)
    return machine.model_copy(update={"levels": levels})


def with_unit(machine: Machine, name: str, **changes: Any) -> Machine:
    units = tuple(x.model_copy(update=changes) if x.name == name else x for x in machine.units)
    return machine.model_copy(update={"units": units})


def one_memory(machine: Machine) -> Machine:
    """The same machine with one main memory for all of its clusters."""
    inner = with_level(machine, "LLB", num_instances_per_parent=machine.num_clusters)
    return with_level(inner, "DDR", per="machine", num_instances_per_parent=1)


def test_ports_of_the_published_machine() -> None:
    """Section 4.2 of the specification: 27 GB/s and 256 GB/s for each cluster."""
    ports = ports_of(MACHINE)
    assert (ports.main_bytes_per_s, ports.local_bytes_per_s) == (27e9, 256e9)


def test_clusters_that_share_a_memory_share_its_bandwidth_and_its_capacity() -> None:
    shared = one_memory(MACHINE)
    assert ports_of(shared).main_bytes_per_s == 27e9 / 4
    card = with_level(shared, "DDR", read_bytes_per_s=108e9, write_bytes_per_s=108e9, capacity_bytes=2**34)
    both = ports_of(card), ports_of(MACHINE)
    assert len({ports.main_bytes_per_s for ports in both}) == len({p.local_bytes_per_s for p in both}) == 1
    graph = integer_network(1)
    own, planned = plan(graph, MACHINE), plan(graph, card)
    assert planned.simulation.time_s == own.simulation.time_s
    assert levels_of(planned.instances, card) == levels_of(own.instances, MACHINE)
    fourth = plan(graph, shared).simulation
    assert fourth.busy_s[DMA] == pytest.approx(4 * own.simulation.busy_s[DMA])


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({"bytes_per_s": 9e9}, 9e9),
        ({"bytes_per_s": 9e9, "num_per_instance": 2}, 18e9),
        ({"bytes_per_s": None, "bytes_per_cycle": 5.0}, 5e9),
        ({"bytes_per_s": 90e9}, 90e9),
    ],
)
def test_a_port_is_no_faster_than_its_engine(changes: dict[str, Any], engine: float) -> None:
    assert ports_of(with_unit(MACHINE, "DMA", **changes)).main_bytes_per_s == min(27e9, engine)
    assert ports_of(with_unit(MACHINE, "MTE", **changes)).local_bytes_per_s == min(256e9, engine)


def test_an_engine_takes_energy_for_each_byte() -> None:
    dear = with_unit(with_unit(MACHINE, "DMA", pj_per_byte=3.0), "MTE", pj_per_byte=0.5)
    graph = integer_network(4)
    free, paid = (plan(graph, machine).simulation for machine in (MACHINE, dear))
    outside = paid.traffic.main_read + paid.traffic.main_written
    assert paid.energy_pj[DMA] == pytest.approx(3.0 * outside)
    assert paid.energy_pj[CORE_DMA] == pytest.approx(0.5 * paid.busy_s[CORE_DMA] * 256e9)
    assert paid.energy_j == pytest.approx(
        free.energy_j + (paid.energy_pj[DMA] + paid.energy_pj[CORE_DMA]) * 1e-12
    )


def test_where_no_buffer_is_shared_bytes_pass_no_such_level() -> None:
    planned = plan(integer_network(2), WITHOUT_SHARED)
    traffic = planned.simulation.traffic
    assert (traffic.shared_read, traffic.shared_written) == (0, 0)
    host = WITHOUT_SHARED.outermost
    outside = traffic.main_read + traffic.main_written
    assert host.read_pj is not None
    assert planned.simulation.energy_pj["Host"] == pytest.approx(outside / 8 * host.read_pj)


LAUNCH_S = 5e-6


def big(graph: GraphBuilder) -> Value:
    return graph.input(8, 64, 64, 64)


def test_an_input_with_two_readers_counts_once_in_the_bound() -> None:
    b = GraphBuilder()
    x = big(b)
    graph = b.finish(b.op("Relu", x), b.op("Neg", x))
    found = plan(graph, MACHINE).simulation
    assert found.bound_by == DMA
    assert found.lower_bound_s == pytest.approx(LAUNCH_S + 3 * 4 * x.num_elements / 27e9)
    assert found.busy_s[DMA] == pytest.approx(4 * 4 * x.num_elements / 27e9)


def test_rows_that_two_slices_read_count_once_in_the_bound() -> None:
    b = GraphBuilder()
    x = b.input(1, 8, 256, 256)
    weight = b.constant(8, 8, 3, 3)
    y = b.op("Conv", x, weight, pads=(1, 1, 1, 1))
    recipe = graphturbo(GraphTurbo(capacity_bytes=2 * x.num_elements, dims="any"))
    planned = plan(b.finish(y), MACHINE, recipe)
    loads = [load for step in planned.simulation.steps for load in step.loads]
    assert len(loads) > 1
    assert sum(load.size_bytes for load in loads) > 4 * x.num_elements
    bytes_once = 4 * (x.num_elements + y.num_elements) + 2 * weight.num_elements
    found = planned.simulation
    assert found.bound_by == DMA
    assert found.lower_bound_s == pytest.approx(LAUNCH_S + bytes_once / 27e9)


def test_rows_that_nobody_reads_do_not_count_in_the_bound() -> None:
    b = GraphBuilder()
    x = big(b)
    rows = (
        b.op("Slice", x, b.integers(start), b.integers(start + 1), b.integers(0), shape=(1, 64, 64, 64))
        for start in (0, 7)
    )
    found = plan(b.finish(*(b.op("Relu", row) for row in rows)), MACHINE).simulation
    assert found.bound_by == DMA
    assert found.lower_bound_s == pytest.approx(LAUNCH_S + 4 * 4 * 64**3 / 27e9)


def recipe_for(graph: Graph, share: float) -> Recipe:
    largest = max(v.size_bytes for v in graph.values())
    return graphturbo(GraphTurbo(capacity_bytes=int(largest * share), dims="any"))


def shared_weights(seed: int) -> Graph:
    """A random network between two products with one weight, which read one input."""
    graph = integer_network(seed)
    b = GraphBuilder()
    b.graph = graph
    weight = b.constant(64, 64)
    x = b.input(32, 64)
    graph.outputs += [b.op("MatMul", x, weight), b.op("MatMul", b.op("Relu", x), weight)]
    return graph


def assert_no_policy_is_faster_than_the_bound(graph: Graph, machine: Machine) -> None:
    for recipe in (recipe_for(graph, 0.3), recipe_for(graph, 1.0), *BASELINES.values()):
        planned = plan(graph, machine, recipe).simulation
        steps, pools = planned.steps, planned.residents
        for overlap in get_args(Overlap):
            for keeps_weights in (False, True):
                for launches in ("once", "each step"):
                    found = simulate(steps, machine, pools, Policy(overlap, keeps_weights, launches))  # type: ignore[arg-type]
                    assert found.time_s >= found.lower_bound_s > 0
                    assert found.time_s >= max(found.busy_s.values()) * (1 - 1e-12)


def machines() -> tuple[Machine, ...]:
    return MACHINE, one_memory(MACHINE), WITHOUT_SHARED


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_policy_is_faster_than_the_bound(seed: int) -> None:
    """Each machine has some of the networks."""
    machine = machines()[seed % len(machines())]
    assert_no_policy_is_faster_than_the_bound(shared_weights(seed), machine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_no_policy_is_faster_than_the_bound_of_many(seed: int) -> None:
    for machine in machines():
        assert_no_policy_is_faster_than_the_bound(shared_weights(seed), machine)


def bytes_of(planned: SimulatedPlan, piece: PlacedBuffer | None, value: Value, region: Region) -> int:
    """Of a part of a buffer, or of an input: these and results as wide as in the file."""
    graph = planned.instances
    is_result = piece is not None and value in graph.results and piece.scope is Scope.MAIN
    width = value.dtype.size_bytes
    if piece is not None and not (is_result and graph.nodes[piece.node].kind is Kind.INSTANCE):
        width = min(2, width) if value.dtype.is_float else width
    return volume(region) * width


def recounted(planned: SimulatedPlan) -> dict[str, int]:
    """Bytes at each level from the pieces of the plan, weights apart."""
    plan, graph = planned.scopes, planned.instances
    moved = transfers(graph, planned.bindings, plan.scopes)
    found: Counter[str] = Counter()
    for step in plan.steps:
        is_concat = graph.nodes[step.node].kind is Kind.CONCAT
        for read in step.reads:
            piece = None if read.buffer is None else plan.buffers[read.buffer]
            size = bytes_of(planned, piece, read.value, read.region)
            scope = Scope.MAIN if piece is None else piece.scope
            found["main_read"] += size * (scope is Scope.MAIN)
            found["shared_written"] += size * (scope is Scope.MAIN)
            found["shared_read"] += size * (scope is not Scope.LOCAL)
            # Parts that are put together are written once, as what they make.
            found["local_written"] += size * (scope is not Scope.LOCAL and not is_concat)
            found["local_read"] += size * (scope is Scope.LOCAL or not is_concat)
            found["between_cores"] += size * (scope is Scope.LOCAL and is_concat)
        for piece in (plan.buffers[i] for i in step.writes):
            size = bytes_of(planned, piece, piece.value, piece.region)
            found["local_written"] += size
            found["local_read"] += size * (piece.scope is not Scope.LOCAL)
            found["shared_written"] += size * (piece.scope is not Scope.LOCAL)
            found["shared_read"] += size * (piece.scope is Scope.MAIN)
            found["main_written"] += size * (piece.scope is Scope.MAIN)
    for edge, inserted in moved.items():
        is_moved = any(t.kind is Kind.REDISTRIBUTE for t in inserted)
        source = plan.buffer_of(edge.producer, edge.value)
        if is_moved and source.scope is Scope.LOCAL and graph.nodes[edge.consumer].kind is Kind.INSTANCE:
            size = graph.bytes_of(edge.value, edge.region)
            for name in ("between_cores", "local_read", "local_written"):
                found[name] += size
    return found


def weight_bytes(planned: SimulatedPlan, num_copies: bool = False) -> int:
    weights = [w for step in planned.simulation.steps for w in step.weights]
    return sum(w.size_bytes * (w.num_copies if num_copies else 1) for w in weights)


def num_read_by_two_layers(planned: SimulatedPlan) -> int:
    """Pieces that are dealt anew for an instance and read by more than one of its layers."""
    plan, graph = planned.scopes, planned.instances
    moved = transfers(graph, planned.bindings, plan.scopes)
    count = 0
    for edge, inserted in moved.items():
        piece = plan.buffer_of(edge.producer, edge.value)
        readers = [
            s for s in plan.steps_of(edge.consumer) for r in plan.steps[s].reads if r.buffer == piece.id
        ]
        is_moved = any(t.kind is Kind.REDISTRIBUTE for t in inserted)
        count += is_moved and piece.scope is Scope.LOCAL and len(readers) > 1
    return count


@pytest.mark.sampled(0)
def test_traffic_at_every_level_is_that_of_the_pieces() -> None:
    num_concats = num_read_twice = num_mapped = 0
    for seed in range(60):
        graph = integer_network(seed, 20)
        planned = plan(graph, MACHINE, recipe_for(graph, 0.6))
        traffic = planned.simulation.traffic
        weights, expected = weight_bytes(planned), recounted(planned)
        expected["shared_read"] += weights
        expected["local_written"] += weight_bytes(planned, num_copies=True)
        for step in planned.simulation.steps:
            products = [work.products for work in step.works if work.products is not None]
            if products:
                # Of the cores' buffers, units read and write what their mapping counts, not each piece once.
                read, written = map(sum, zip(*(x.local_bytes("L1") for x in products), strict=True))
                factors = sum(x.size_bytes for x in step.loads if x.value in step.multiplied)
                expected["local_read"] += read - factors
                expected["local_written"] += written - sum(x.size_bytes for x in step.stores)
                num_mapped += 1
        fetched = traffic.main_read - expected["main_read"]
        assert 0 <= fetched <= weights
        expected["main_read"] += fetched
        expected["shared_written"] += fetched
        assert {f.name: getattr(traffic, f.name) for f in fields(Traffic)} == {
            f.name: expected[f.name] for f in fields(Traffic)
        }
        num_concats += sum(n.kind is Kind.CONCAT for n in planned.instances.nodes)
        num_read_twice += num_read_by_two_layers(planned)
    assert num_concats > 10
    assert num_read_twice > 0
    assert num_mapped > 60


def moved_s(graph: Graph, machine: Machine = MACHINE) -> float:
    """Seconds of the engine around the cores beyond bringing what is read and taking away what is made."""
    found = plan(graph, machine).simulation
    outside = sum(
        x.size_bytes for s in found.steps for x in (*s.loads, *s.stores) if x.scope is not Scope.LOCAL
    )
    return found.busy_s[CORE_DMA] - outside / ports_of(machine).local_bytes_per_s


def layouts() -> dict[str, tuple[Graph, int]]:
    """Graphs of one operator of layout, and how many elements it moves; views move none."""
    found = {}

    def add(name: str, b: GraphBuilder, y: Value, moved: int | None = None) -> None:
        found[name] = b.finish(y), y.num_elements if moved is None else moved

    shape = (2, 6, 8, 10)
    for name, perm in (("Transpose", (0, 2, 3, 1)), ("Transpose of nothing", (0, 1, 2, 3))):
        b = GraphBuilder()
        x = b.input(*shape)
        turned = b.op("Transpose", x, shape=tuple(shape[i] for i in perm), perm=perm)
        add(name, b, turned, None if name == "Transpose" else 0)
    b = GraphBuilder()
    add("Reshape", b, b.op("Reshape", b.input(*shape), b.integers(12, 80), shape=(12, 80)), 0)
    b = GraphBuilder()
    add("Flatten", b, b.op("Flatten", b.input(*shape), shape=(2, 480)), 0)
    b = GraphBuilder()
    pads = b.integers(0, 0, 1, 1, 0, 0, 1, 1)
    add("Pad", b, b.op("Pad", b.input(*shape), pads, shape=(2, 6, 10, 12)))
    b = GraphBuilder()
    numbers = b.integers(1), b.integers(6), b.integers(1)
    add("Slice", b, b.op("Slice", b.input(*shape), *numbers, shape=(2, 5, 8, 10)))
    b = GraphBuilder()
    numbers = b.integers(1), b.integers(2), b.integers(0)
    add("Slice of samples", b, b.op("Slice", b.input(*shape), *numbers, shape=(1, 6, 8, 10)), 0)
    b = GraphBuilder()
    add("Concat", b, b.op("Concat", b.input(*shape), b.input(*shape), shape=(2, 12, 8, 10), axis=1))
    b = GraphBuilder()
    add("Expand", b, b.op("Expand", b.input(1, 6, 1, 10), b.integers(*shape), shape=shape))
    b = GraphBuilder()
    turned = b.op("Transpose", b.input(*shape), shape=(2, 8, 10, 6), perm=(0, 2, 3, 1))
    rows = b.op("Reshape", turned, b.integers(160, 6), shape=(160, 6))
    add("Transpose and Reshape, one layer", b, rows)
    return found


@pytest.mark.parametrize("name", layouts())
def test_what_lies_otherwise_afterwards_takes_time_and_a_view_takes_none(name: str) -> None:
    graph, num_moved = layouts()[name]
    assert Works(MACHINE, AS_IN_FILE).only_moves(graph.nodes) == bool(num_moved)
    assert moved_s(graph) == pytest.approx(2 * num_moved / 256e9, abs=1e-15)


def test_a_unit_that_the_machine_names_for_it_changes_layouts() -> None:
    graph, num_moved = layouts()["Transpose"]
    by_vector = with_unit(MACHINE, "VEC", runs=("elementwise", "reduction", "special", "movement"))
    assert moved_s(graph, by_vector) == pytest.approx(0, abs=1e-15)
    assert plan(graph, by_vector).simulation.busy_s["VEC"] == pytest.approx(num_moved / (64 * 0.6 * 8) / 1e9)


def test_rows_of_a_table_arrive_where_they_are_wanted() -> None:
    b = GraphBuilder()
    table = b.constant(100, 16)
    rows = Value("rows", DType.INT64, (4, 8))
    graph = b.finish(b.op("Gather", table, b.graph.add_input(rows), shape=(4, 8, 16)))
    assert not Works(MACHINE, AS_IN_FILE).only_moves(graph.nodes)


@pytest.mark.parametrize(
    "op_type", ["Exp", "Tan", "Asinh", "Atanh", "Erf", "Sigmoid", "Reciprocal", "Softplus"]
)
def test_every_function_that_takes_long_is_work_of_functions(op_type: str) -> None:
    b = GraphBuilder()
    assert work_of(b.node(b.op(op_type, b.input(2, 3)))) is Work.SPECIAL


@pytest.mark.parametrize("op_type", ["Relu", "Neg", "Floor", "Abs"])
def test_plain_arithmetic_is_no_work_of_functions(op_type: str) -> None:
    b = GraphBuilder()
    assert work_of(b.node(b.op(op_type, b.input(2, 3)))) is Work.ELEMENTWISE
