"""Subgraphs beside joint tilings of their operators."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from tests.support.accelerator import graphturbo, plan, with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.models import small_net

import tilewright as tw
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.mapping.chains.chain import chain_of
from tilewright.mapping.chains.plan import Tiling
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.partition.split import WHOLE, Split, split_of
from tilewright.targets.npu.joint_tilings import joint_tilings, plan_of_slices


def conv(build: GraphBuilder, x: Value, channels: int, window: int, group: int = 1) -> Value:
    weights = build.constant(channels, x.shape[1] // group, window, window)
    shape = (x.shape[0], channels, *x.shape[2:])
    return build.op("Conv", x, weights, shape=shape, pads=(window // 2,) * 4, group=group)


def two_convolutions(side: int) -> Graph:
    build = GraphBuilder()
    y = build.op("Relu", conv(build, build.input(1, 8, side, side), 16, 3))
    return build.finish(conv(build, y, 8, 3))


def inverted_residual(channels: int, side: int) -> Graph:
    build = GraphBuilder()
    y = conv(build, build.input(1, channels, side, side), 6 * channels, 1)
    return build.finish(conv(build, conv(build, y, 6 * channels, 3, 6 * channels), channels, 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", ["recompute", "keep"])
@pytest.mark.parametrize("local_bytes", [4096, 8192, 16384])
def test_slices_move_what_is_counted_of_them_as_a_joint_tiling(
    rows: Literal["recompute", "keep"], local_bytes: int
) -> None:
    machine = with_local_bytes(load_preset("stcp920"), local_bytes)
    planned = plan(two_convolutions(64), machine, graphturbo(GraphTurbo(rows=rows)))
    (split,) = planned.instances.splits
    assert split.num_instances > 1
    (tiling,) = joint_tilings(planned, machine, 5.0)
    traffic = planned.simulation.traffic
    assert tiling.moved_bytes == traffic.main_read + traffic.main_written
    assert tiling.least_bytes is not None
    assert tiling.joint_bytes is not None
    assert tiling.sliced_bytes is not None
    assert tiling.least_bytes <= tiling.joint_bytes <= tiling.sliced_bytes
    # What passes more often than counted are weights alone: the first convolution's, or the second one's.
    weight_bytes = 2 * 8 * 16 * 9
    again, rest = divmod(tiling.moved_bytes - tiling.sliced_bytes, weight_bytes)
    assert rest == 0
    assert 0 <= again <= 2 * (split.num_instances - 1)
    if local_bytes == 8192:
        assert again == 0


def test_steps_of_all_subgraphs_move_what_the_network_moves() -> None:
    machine = with_local_bytes(load_preset("stcp920"), 256)
    planned = plan(inverted_residual(4, 12), machine)
    tilings = joint_tilings(planned, machine, 1.0)
    traffic = planned.simulation.traffic
    assert len(tilings) == len(planned.partition.subgraphs) > 1
    assert sum(t.moved_bytes for t in tilings) == traffic.main_read + traffic.main_written
    assert [t.subgraph for t in tilings] == list(range(len(tilings)))


def test_cuts_are_loops_in_equal_tiles_or_no_joint_tiling() -> None:
    chain = chain_of(two_convolutions(12).nodes)
    loops = {loop.name: place for place, loop in enumerate(chain.loops)}
    made = plan_of_slices(chain, split_of(((2, 4), (3, 2)), keeps_rows=True))
    assert made is not None
    assert made.tiling == Tiling((loops["oh"], loops["ow"]), (3, 6))
    by_kind = {part.kind: depth for part, depth in zip(chain.parts, made.depths, strict=True)}
    assert by_kind == {"result": 0, "intermediate": 1, "input": 2, "constant": 0}
    whole = plan_of_slices(chain, WHOLE)
    assert whole is not None
    assert whole.tiling == Tiling((), ())
    assert plan_of_slices(chain, Split(2, 5)) is None  # of twelve rows
    assert plan_of_slices(chain, Split(0, 2)) is None  # of one sample


def test_why_a_subgraph_has_no_joint_tiling_is_said() -> None:
    build = GraphBuilder()
    graph = build.finish(build.op("Softmax", build.input(4, 4)))
    machine = load_preset("stcp920")
    (tiling,) = joint_tilings(plan(graph, machine), machine, 1.0)
    assert (tiling.sliced_bytes, tiling.joint_bytes, tiling.least_bytes) == (None, None, None)
    assert tiling.why.startswith("0 operators sum products")


def test_a_simulation_says_it_where_that_is_asked_for() -> None:
    result = tw.simulate(small_net(), recipe="graphturbo", joint_tilings=True)
    assert result.joint_tilings is not None
    assert len(result.joint_tilings) == len(result.subgraphs)
    assert sum(t.moved_bytes for t in result.joint_tilings) == (
        result.bytes["main_read"] + result.bytes["main_written"]
    )
    # A result that the network keeps is written as the file's type says, beside what reads it.
    first = result.joint_tilings[0]
    assert first.moved_bytes == first.joint_bytes == first.least_bytes
    assert "tiled jointly" in str(result)
    assert "joint_tilings" not in tw.simulate(small_net(), recipe="graphturbo").to_json()


def test_figures_of_subgraphs_that_are_alike_are_worked_out_once() -> None:
    machine = with_local_bytes(load_preset("stcp920"), 64)
    build = GraphBuilder()
    x = build.input(1, 4, 8, 8)
    for _ in range(3):
        x = build.op("MaxPool", conv(build, x, 4, 1), kernel_shape=(1, 1))
    planned = plan(build.finish(x), machine, graphturbo(GraphTurbo(group=False)))
    tilings = joint_tilings(planned, machine, 5.0)
    inside = [t for t in tilings if t.joint_bytes is not None][1:]
    assert len({dataclasses.replace(t, subgraph=0, moved_bytes=0) for t in inside}) == 1
