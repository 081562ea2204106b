"""The bound of plans whose layers are cut along few axes, against plans of that space drawn at random."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from tests.support.accelerator import with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.one_program import bound_of_boxes, network

from tilewright.errors import InternalError, TilewrightError
from tilewright.hardware.machine_file import load_machine
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Node
from tilewright.ir.region import Region
from tilewright.joint.launched.content import Kernel, Numbered
from tilewright.joint.overlapped.kernels import Kernels
from tilewright.joint.overlapped.moves import Moves, Ways
from tilewright.joint.overlapped.plan import RULES, Nest, NestPlan, nests_of
from tilewright.options import Options
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.planner import Planner
from tilewright.planning import UNLIMITED, Budget
from tilewright.progress import PhaseClock
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.box_bound import _Boxes, begins_whole, bound_in_time, is_in_space
from tilewright.targets.npu.nest_judge import recipe_of
from tilewright.targets.npu.recipes import GRAPHTURBO, RESIDENT
from tilewright.targets.npu.target import NpuTarget

MEMORIES = GRAPHTURBO.memory, f"{GRAPHTURBO.memory}{{pack=next-fit}}"


def setting(graph: Graph, machine_name: str, local_bytes: int = 0) -> tuple[NpuBackend, NestPlan, Moves]:
    """A backend, a plan of the paper, and moves from there."""
    machine = load_preset(machine_name)
    target = NpuTarget(with_local_bytes(machine, local_bytes) if local_bytes else machine)
    options = Options(budget=Budget(1))
    backend = target.backend(graph, options)
    judge = backend.nest_judge
    schedule = Planner(graph, target, backend, options, PhaseClock(None, None)).program(GRAPHTURBO).schedule
    splitter = GraphTurbo(alpha=1.25).splitter(judge.problem)
    kernels = Kernels(judge.numbered, splitter, splitter, 1.25, judge.share)
    moves = Moves(kernels, (), Ways(MEMORIES, ("", RESIDENT)), random.Random(0))
    return backend, NestPlan(nests_of(judge.numbered, schedule, RULES[0]), GRAPHTURBO.memory), moves


def check(graph: Graph, machine: str, num_plans: int, local_bytes: int = 0, *, is_mapped: bool = True) -> int:
    """How many plans of a random walk are in the space, which goes on from these; none is below the bound."""
    backend, plan, moves = setting(graph, machine, local_bytes)
    judge = backend.nest_judge
    bound, narrower = (
        bound_of_boxes(backend, begins=begins, is_mapped=is_mapped) for begins in (False, True)
    )
    anyhow = [bound_of_boxes(backend, begins=begins, is_boxed=False) for begins in (False, True)]
    assert narrower.value >= bound.value
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
        assert not anyhow[begins_whole(planned)].is_violated(cost), str(move.what)
        if is_in_space(planned, backend.works):
            plan = placed
            count += 1
            held = narrower if begins_whole(planned) else bound
            assert not held.is_violated(cost), str(move.what)
    return count


@pytest.mark.sampled(1)
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
    bound = bound_of_boxes(backend, begins=False)
    works = list(backend.works.least_of_nodes(graph.nodes, graph.outputs, backend.analysis.maps))
    launch_ns = backend.machine.overheads.kernel_launch_ns
    (dense_s,) = (w.seconds for node, found in works if node is dense.producer for w in found)
    pool_s = sum(w.seconds for node, found in works if node.op_type == "GlobalAveragePool" for w in found)
    assert bound.value >= launch_ns + (dense_s + pool_s) * 1e9 * (1 - 1e-9)


def test_weights_that_find_no_place_are_fetched_unless_groups_of_cores_hold_more() -> None:
    """Half of each level, 9 MiB of 18, is for weights that stay, if every step runs on all cores."""
    b = GraphBuilder()
    x = b.input(1, 1024)
    for _ in range(8):
        x = b.op("MatMul", x, b.constant(1024, 1024), shape=(1, 1024))
    graph = b.finish(x)
    backend, plan, _ = setting(graph, "stcp920")
    judge = backend.nest_judge
    resident = replace(plan, execution=RESIDENT)
    planned, cost = judge.simulate(judge.schedule(resident)[0], recipe_of(resident), inf)
    assert planned.simulation.residents.scopes
    bound = bound_in_time(planned, backend.works, graph, Budget(UNLIMITED).start())
    assert bound is not None
    moved_bytes = 8 * 1024 * 1024 * 2 - 9 * 2**20
    assert moved_bytes / 27 <= bound.value <= cost
    assert "on all cores" in str(bound.space)


def test_a_bound_maps_as_many_boxes_as_its_budget_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = []
    of_box = _Boxes.of_box

    def counted(boxes: _Boxes, node: Node, box: Region) -> float:
        mapped.append(box)
        return of_box(boxes, node, box)

    monkeypatch.setattr(_Boxes, "of_box", counted)
    b = GraphBuilder()
    x = b.input(1, 5, 13, 11)
    for channels in (7, 9, 3):
        x = b.conv(x, channels)
    graph = b.finish(x)
    backend, plan, _ = setting(graph, "stcp920")
    judge = backend.nest_judge
    planned, _ = judge.simulate(judge.schedule(plan)[0], recipe_of(plan), inf)
    assert is_in_space(planned, backend.works)
    counts, values = [], []
    for most in (0, 3, UNLIMITED):
        bound = bound_in_time(planned, backend.works, graph, Budget(most).start())
        assert bound is not None
        counts.append(len(mapped))
        values.append(bound.value)
        mapped.clear()
    assert counts[:2] == [0, 3]
    assert counts[2] > 3
    assert values == sorted(values)


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
        return bound_of_boxes(backend, begins=False).value

    assert bound_ns(is_fed=True) <= bound_ns(is_fed=False) * (1 + 1e-9)


FAST = """
name: fast
description: Movers and vectors that take next to nothing, so that plans come near their bounds.
launches: {value: once, source: test}
num_cores_per_cluster: {value: 8, source: test}
clock_hz: {value: 1 GHz, source: test}
levels:
  - {name: L1, per: core, num_instances_per_parent: 8, capacity_bytes: LOCAL KiB, word_bits: 16,
     read_bytes_per_s: 100 TB/s, write_bytes_per_s: 100 TB/s, source: test}
  - {name: LLB, per: cluster, capacity_bytes: 64 MiB, word_bits: 16, has_shared_port: true,
     read_bytes_per_s: 100 TB/s, write_bytes_per_s: 100 TB/s, source: test}
  - {name: DDR, per: cluster, capacity_bytes: 4 GiB, word_bits: 16, has_shared_port: true,
     read_bytes_per_s: 100 GB/s, write_bytes_per_s: 100 GB/s, source: test}
units:
  - {name: MME, kind: matrix, level: L1, runs: [contraction], macs_per_cycle: {float16: 2048},
     tile: [64, 32], source: test}
  - {name: VEC, kind: vector, level: L1, runs: [elementwise, reduction, special],
     ops_per_cycle: {float16: 100000}, source: test}
  - {name: MTE, kind: mover, level: LLB, between: [L1, LLB], bytes_per_s: 100 TB/s, source: test}
  - {name: DMA, kind: mover, level: LLB, between: [LLB, DDR], bytes_per_s: 100 GB/s, source: test}
overheads: {kernel_launch_ns: 0 us, barrier_ns: 0 us, source: test}
"""


def cost_and_bound_ns(graph: Graph, splits: list[Split], folder: Path, local_kib: int) -> tuple[float, float]:
    """What a plan takes on a fast machine, whose kernels are the layers, or one for all if there is only one
    split; and the bound."""
    path = folder / "fast.yaml"
    path.write_text(FAST.replace("LOCAL", str(local_kib)))
    backend = NpuTarget(load_machine(path)).backend(graph, Options(budget=Budget(1)))
    numbers = Numbered(graph).numbers
    layers = [tuple(numbers[node] for node in layer.nodes) for layer in cut_layers(graph)]
    groups = [layers] if len(splits) == 1 else [[layer] for layer in layers]
    kernels = tuple(Kernel(tuple(part), split) for part, split in zip(groups, splits, strict=True))
    judge = backend.nest_judge
    plan = NestPlan((Nest(kernels, RULES[0]),), GRAPHTURBO.memory, RESIDENT)
    planned, cost = judge.simulate(judge.schedule(plan)[0], recipe_of(plan), inf)
    is_boxed, begins = is_in_space(planned, backend.works), begins_whole(planned)
    assert is_boxed
    assert begins
    return cost, bound_of_boxes(backend, begins=begins, is_boxed=is_boxed).value


def test_rows_that_windows_leave_out_count_in_no_bound(tmp_path: Path) -> None:
    """Slices of a row each compute an eighth of the rows between the first and the last one that is read."""
    b = GraphBuilder()
    x = b.input(1, 32, 32, 64)
    x = b.op("Conv", x, b.constant(256, 32, 3, 3), shape=(1, 256, 32, 64), pads=(1,) * 4)
    y = b.op("Conv", x, b.constant(16, 256, 1, 1), shape=(1, 16, 4, 64), strides=(8, 1))
    split = replace(split_of([(2, 4)]), cores=(1, 1, 1, 8))
    cost, bound = cost_and_bound_ns(b.finish(y), [split], tmp_path, 1280)
    assert bound <= cost


def test_tiles_that_have_come_are_computed_before_the_rest_of_their_box(tmp_path: Path) -> None:
    """A product in tiles ends one tile behind its operand, however long a box of as many rows would take."""
    b = GraphBuilder()
    x = b.op("MatMul", b.input(512, 512), b.constant(512, 32), shape=(512, 32))
    graph = b.finish(b.op("ReduceMax", x, b.integers(0), shape=(1, 32), keepdims=1))
    cost, bound = cost_and_bound_ns(graph, [replace(WHOLE, cores=(8, 1)), WHOLE], tmp_path, 64)
    assert bound <= cost <= bound * 1.01


def image_network(seed: int) -> Graph:
    """Convolutions with strides over an image, some of them gated by what all of it says."""
    rng = random.Random(seed)
    b = GraphBuilder()
    side = rng.choice((16, 32, 48))
    x = b.input(rng.choice((1, 2)), 3, side, side)
    for _ in range(rng.randint(2, 4)):
        n, c, h, w = x.shape
        kind = rng.choice(("conv", "gate", "shortcut"))
        if kind == "conv" or c == 3:
            channels, stride = rng.choice((16, 32, 64)), rng.choice((1, 2))
            shape = (n, channels, -(-h // stride), -(-w // stride))
            weights = b.constant(channels, c, 3, 3)
            strides = (stride, stride)
            x = b.op("Relu", b.op("Conv", x, weights, shape=shape, strides=strides, pads=(1,) * 4))
        elif kind == "gate":
            pooled = b.op("GlobalAveragePool", x, shape=(n, c, 1, 1))
            gate = b.op("Conv", pooled, b.constant(c, c, 1, 1), shape=(n, c, 1, 1))
            x = b.op("Mul", x, b.op("Sigmoid", gate))
        else:
            x = b.op("Add", x, b.conv(x, c))
    return b.finish(x)


def test_what_waits_for_an_image_is_computed_behind_it() -> None:
    """Every element behind a gate needs all of the image, so what is multiplied there follows its arrival."""
    b = GraphBuilder()
    image = b.input(1, 3, 64, 64)
    x = b.op("Conv", image, b.constant(32, 3, 3, 3), shape=(1, 32, 64, 64), pads=(1,) * 4)
    x = b.op("Mul", x, b.op("GlobalAveragePool", x, shape=(1, 32, 1, 1)))
    last = b.op("Conv", x, b.constant(64, 32, 3, 3), shape=(1, 64, 64, 64), pads=(1,) * 4)
    graph = b.finish(b.op("GlobalAveragePool", last, shape=(1, 64, 1, 1)))
    backend, _, _ = setting(graph, "stcp920")
    works = backend.works.least_of_nodes(graph.nodes, graph.outputs, backend.analysis.maps)
    last_s = sum(w.seconds for node, found in works if node is last.producer for w in found)
    # As long as one element is missing.
    image_s = (image.num_elements - 1) * image.dtype.size_bytes / backend.works.ports.main_bytes_per_s
    narrower = bound_of_boxes(backend, begins=True, is_mapped=False).value
    launch_ns = backend.machine.overheads.kernel_launch_ns
    assert narrower >= launch_ns + (image_s + last_s) * 1e9 * (1 - 1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(40))
def test_no_plan_of_a_network_over_images_is_below_the_bound(seed: int) -> None:
    check(image_network(seed), ("stcp920", "ipu-mk2")[seed % 2], num_plans=25, is_mapped=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_none_of_many_plans_of_a_network_over_images_is_below_the_bound(seed: int) -> None:
    local_bytes = 65536 if seed % 4 == 2 else 0
    check(image_network(1000 + seed), ("stcp920", "ipu-mk2")[seed % 2], 150, local_bytes)
