"""Layers whose operators are tiled jointly: planned, simulated, computed and checked."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder
from tests.support.launched_kernels import planner_of, pricer_of

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.compiler import plan_optimised
from tilewright.errors import InternalError
from tilewright.fields import FieldError
from tilewright.hardware.element_types import element_types
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.region import Region, volume
from tilewright.joint.launched.content import Content, Numbered, assembled
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.tiling import JointTiler, Run, best_runs
from tilewright.mapping.chains.chain import Chain, chain_of
from tilewright.mapping.chains.plan import ChainPlan, Tiling, count_plan
from tilewright.options import Options
from tilewright.partition import PartitionProblem
from tilewright.partition.layers import cut_layers
from tilewright.partition.split import WHOLE, Split, split_of, tiled_jointly
from tilewright.planning import Provenance
from tilewright.schedule.base import Schedule
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.check_plan import check_plan
from tilewright.targets.npu.costs import UNPRICED
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan, simulated
from tilewright.targets.npu.tilings import RECOMPUTED, JointTilings
from tilewright.targets.npu.work import Works

pytestmark = pytest.mark.sampled(5)


def conv(build: GraphBuilder, x: Value, channels: int, window: int, group: int = 1, stride: int = 1) -> Value:
    weights = build.constant(channels, x.shape[1] // group, window, window)
    shape = (x.shape[0], channels, *(-(-side // stride) for side in x.shape[2:]))
    pads = (window // 2,) * 4
    bias = build.constant(channels)
    return build.op("Conv", x, weights, bias, shape=shape, pads=pads, group=group, strides=(stride,) * 2)


def residual(channels: int = 3, side: int = 6) -> Graph:
    """An inverted residual block, whose input is added to its result."""
    build = GraphBuilder()
    x = build.input(1, channels, side, side)
    y = build.op("Relu", conv(build, x, 3 * channels, 1))
    y = build.op("Relu", conv(build, y, 3 * channels, 3, 3 * channels))
    return build.finish(build.op("Relu", build.op("Add", conv(build, y, channels, 1), x)))


def expanded(channels: int, side: int) -> Graph:
    """The first half of such a block: a product of channels, and a window of each channel."""
    build = GraphBuilder()
    y = build.op("Relu", conv(build, build.input(1, channels, side, side), 3 * channels, 1))
    return build.finish(build.op("Relu", conv(build, y, 3 * channels, 3, 3 * channels)))


def windows() -> Graph:
    """Two windows one behind the other, the second of which strides, over two images."""
    build = GraphBuilder()
    y = build.op("Relu", conv(build, build.input(2, 3, 6, 6), 5, 3))
    return build.finish(build.op("Relu", conv(build, y, 4, 3, stride=2)))


def feed_forward() -> Graph:
    build = GraphBuilder()
    x = build.input(12, 8)
    y = build.op("Relu", build.op("Gemm", x, build.constant(8, 24), build.constant(24), shape=(12, 24)))
    return build.finish(build.op("Gemm", y, build.constant(24, 10), build.constant(10), shape=(12, 10)))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "residual": residual,
    "windows": windows,
    "feed-forward": feed_forward,
}


def simulated_as(
    graph: Graph, machine: str, layers: Sequence[Sequence[int]], split: Split = WHOLE
) -> SimulatedPlan:
    """One kernel of a graph, in such layers."""
    content = Content.of_kernel(layers, split)
    found = assembled(PartitionProblem(graph), [content], Numbered(graph).nodes.__getitem__)
    schedule = Schedule(found.partition, found.stages, UNPRICED, Provenance("test"), found.splits)
    return simulated(schedule, load_preset(machine))


def tiled(graph: Graph, machine: str, plan: ChainPlan) -> SimulatedPlan:
    return simulated_as(graph, machine, [range(len(graph.nodes))], tiled_jointly({0: plan}))


def some_plan(chain: Chain, rng: random.Random) -> ChainPlan:
    """Any loops in any order, any tiles, any value retained from any loop on."""
    chosen = rng.sample(range(len(chain.loops)), rng.randint(0, len(chain.loops)))
    tiles = {loop: rng.randint(1, chain.loops[loop].extent) for loop in chosen}
    order = tuple(loop for loop, tile in tiles.items() if tile < chain.loops[loop].extent)
    depths = (0, *(rng.randint(0, len(order)) for _ in chain.parts[1:]))
    return ChainPlan(Tiling(order, tuple(tiles[loop] for loop in order)), depths)


def whole_chain(graph: Graph) -> Chain:
    return chain_of(graph.nodes, frozenset(graph.outputs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("machine", ["jetson-nano", "a310", "k80"])
@pytest.mark.parametrize("seed", [7, 8])
def test_any_tiling_computes_the_values_and_passes_every_check(name: str, machine: str, seed: int) -> None:
    graph = GRAPHS[name]()
    generator = np.random.default_rng(1)
    feed = {v.name: generator.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = run_graph(graph, feed)
    chain, rng = whole_chain(graph), random.Random(seed)
    for _ in range(4):
        plan = some_plan(chain, rng)
        planned = tiled(graph, machine, plan)
        assert check_plan(planned, load_preset(machine)) == (), plan
        for output, values in execute(planned.scopes, feed).items():
            np.testing.assert_allclose(values, expected[output], rtol=1e-4, atol=1e-4, err_msg=str(plan))


def some_tiled_plan() -> tuple[SimulatedPlan, Chain, ChainPlan]:
    """Rows in halves, sums in thirds, values between operators made anew in each tile."""
    graph = residual()
    chain = whole_chain(graph)
    loops = {loop.name: place for place, loop in enumerate(chain.loops)}
    tiling = Tiling((loops["oh"], loops["c"]), (3, 3))
    depths = tuple(2 if part.kind == "intermediate" else 0 for part in chain.parts)
    plan = ChainPlan(tiling, depths)
    return tiled(graph, "jetson-nano", plan), chain, plan


def test_what_a_kernel_moves_is_what_its_tiling_counts() -> None:
    planned, chain, plan = some_tiled_plan()
    count, traffic = count_plan(chain, plan), planned.simulation.traffic
    ones = sum(part.num_words for part in chain.parts if part.kind == "constant" and part.num_words == 1)
    assert traffic.main_read == 4 * (count.read_words - ones)
    assert traffic.main_written == 4 * count.written_words
    assert sum(work.macs for work in planned.simulation.steps[0].works) == count.num_macs > chain.num_macs


@pytest.mark.parametrize("what", ["inside", "works", "loads"])
def test_a_step_that_holds_computes_or_moves_too_little_is_found(what: str) -> None:
    planned, _, _ = some_tiled_plan()
    (step,) = planned.simulation.steps
    runs = planned.simulation.runs
    if what == "inside":
        passages = tuple(replace(x, held_bytes=x.held_bytes // 2) for x in step.tiling.loads)
        step = replace(step, tiling=replace(step.tiling, inside_bytes=0, loads=passages))
    elif what == "works":
        step = replace(step, works=tuple(replace(work, macs=work.macs / 2) for work in step.works))
    else:
        runs = tuple(replace(r, size_bytes=r.size_bytes // 2) if r.what == "load" else r for r in runs)
    spoilt = replace(planned, simulation=replace(planned.simulation, steps=(step,), runs=runs))
    texts = [str(v) for v in check_plan(spoilt, load_preset("jetson-nano"))]
    said = {"inside": "lie there", "works": "are computed", "loads": "its tiles fetch"}[what]
    assert any(said in text for text in texts), texts


def test_a_tiling_of_other_loops_or_layers_is_refused() -> None:
    graph = residual()
    chain = whole_chain(graph)
    good = ChainPlan(Tiling((1,), (3,)), (0,) * len(chain.parts))
    for plan, layer in (
        (replace(good, tiling=Tiling((9,), (4,))), 0),
        (replace(good, tiling=Tiling((1,), (99,))), 0),
        (replace(good, depths=(0, 0)), 0),
        (good, 3),
    ):
        planned = tiled(graph, "jetson-nano", good)
        splits = (tiled_jointly({layer: plan}),)
        partition = replace(planned.partition, splits=splits)
        spoilt = replace(planned, instances=replace(planned.instances, partition=partition))
        assert check_plan(spoilt, load_preset("jetson-nano"))[0].rule == "tiling"


def test_values_that_no_buffer_holds_are_an_error() -> None:
    planned, _, _ = some_tiled_plan()
    scopes, (x,) = planned.scopes, planned.partition.graph.inputs
    (step,) = scopes.steps
    short = tuple(replace(r, region=(*r.region[:2], (0, 3), r.region[3])) for r in step.reads)
    timeline = replace(scopes.timeline, steps=(replace(step, reads=short),))
    with pytest.raises(InternalError, match="is read, there is"):
        execute(replace(scopes, timeline=timeline), {x.name: np.zeros(x.shape, np.float32)})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", ["jetson-nano", "a310"])
def test_proposed_tilings_fit_and_compute_little_again(machine: str) -> None:
    graph, described = residual(4, 8), load_preset(machine)
    types = element_types(described)

    def bytes_of(value: Value, region: Region) -> int:
        return volume(region) * types.stored(value.dtype).size_bytes

    proposed = JointTilings(Works(described, types), described, bytes_of).of(graph.nodes, graph.outputs)
    assert proposed
    chain = whole_chain(graph)
    for plan in proposed:
        assert check_plan(tiled(graph, machine, plan), described) == ()
        assert count_plan(chain, plan).num_macs <= chain.num_macs * (1 + RECOMPUTED)


def test_units_that_overlap_tiles_take_less_than_layers_one_after_another() -> None:
    """On `a310` products of channels and of windows have units of their own."""
    graph, machine = residual(16, 28), load_preset("a310")
    chain = whole_chain(graph)
    rows = next(place for place, loop in enumerate(chain.loops) if loop.name == "oh")
    plan = ChainPlan(Tiling((rows,), (4,)), (0,) * len(chain.parts))
    numbers = Numbered(graph).numbers
    layers = [[numbers[node] for node in layer.nodes] for layer in cut_layers(graph)]
    together, apart = tiled(graph, "a310", plan).simulation, simulated_as(graph, "a310", layers).simulation
    assert together.time_s < 0.9 * apart.time_s
    assert check_plan(tiled(graph, "a310", plan), machine) == ()


def test_a_search_of_tilings_alone_keeps_the_kernels_and_computes_the_values() -> None:
    graph = expanded(16, 56)
    options = Options(target=TargetRef("a310"), partition="pcgc", plan="joint", only=("tilings",))
    planned = plan_optimised(graph, options)
    (split,) = planned.program.schedule.splits
    assert split.tilings
    assert not split.is_whole
    given = plan_optimised(graph, Options(target=TargetRef("a310"), partition="pcgc"))
    assert planned.program.schedule.quality.cost < 0.9 * given.program.schedule.quality.cost
    others = plan_optimised(graph, replace(options, only=("lanes",))).program.schedule
    assert not any(split.tilings for split in others.splits)
    document = json.loads(json.dumps(encode_plan(planned.program)))
    read = decode_plan(document, graph, options)
    assert read.schedule.splits == planned.program.schedule.splits
    document["partition"]["tilings"][0]["loops"] = [7] * len(split.tilings[0][1].tiling.order)
    with pytest.raises(FieldError, match="no loops"):
        decode_plan(document, graph, options)


def test_the_runs_that_gain_most_together_are_chosen() -> None:
    rng = random.Random(3)
    for _ in range(20):
        runs = []
        for _ in range(6):
            start = rng.randrange(6)
            gain = float(rng.randint(1, 9))
            runs.append(Run(start, start + rng.randint(1, 3), (), ChainPlan(Tiling((), ()), ()), gain))
        runs = [run for run in runs if run.stop <= 6]
        sets = (found for n in range(len(runs) + 1) for found in itertools.combinations(runs, n))
        apart = (
            found
            for found in sets
            if all(a.stop <= b.start or b.stop <= a.start for a, b in itertools.combinations(found, 2))
        )
        best = max(sum(run.gain for run in found) for found in apart)
        assert sum(run.gain for run in best_runs(runs, 6)) == best


def test_layers_of_a_kernel_in_slices_are_tiled_as_those_of_a_whole_one() -> None:
    graph = residual(8, 16)
    pricer = pricer_of(planner_of(graph, "a310"), Numbered(graph))
    moves, tiler = Moves(pricer, 1), JointTiler(pricer, lambda: False)
    whole, sliced = moves.fused(pricer.goal), moves.fused(pricer.goal, split_of([(2, 2)]))
    assert sliced.kernels[0].split.num_instances == 2
    found = list(tiler.tiled(sliced))
    assert found == list(tiler.tiled(whole))
    assert min(map(pricer.cost, found)) < pricer.cost(sliced) < pricer.cost(whole)
