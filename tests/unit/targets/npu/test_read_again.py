"""Operands that are read again: what the shared buffer holds of them gives way to the next in time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.accelerator import checked, graphturbo, plan, with_capacities
from tests.support.graphs import GraphBuilder

from tilewright.compiler import plan_optimised
from tilewright.hardware.presets import load_preset
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.target_ref import TargetRef
from tilewright.targets.npu.backend import NpuBackend
from tilewright.targets.npu.recipes import BASELINES
from tilewright.targets.npu.tile_tasks import _blocks
from tilewright.targets.npu.tiles import Passage

sizes = st.integers(1, 5000)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(outer=sizes, more=sizes, held=sizes, num_tiles=st.integers(1, 64))
def test_blocks_come_once_and_are_read_as_often_as_they_are(
    outer: int, more: int, held: int, num_tiles: int
) -> None:
    passage = Passage(outer + more, outer, 1, False, held)
    edges = [(0, 0)]
    for tile in range(num_tiles):
        ends = tuple(passage.moved_bytes * t // num_tiles for t in (tile, tile + 1))
        found = _blocks(passage, (ends[0], ends[1]), num_tiles)
        assert found[0] == edges[-1], "a tile goes on where the one before ended"
        edges += found[1:]
    assert edges[-1] == (passage.outer_bytes, passage.moved_bytes)
    for (come, read), (come_end, read_end) in pairwise(edges):
        assert come <= come_end
        assert read_end - read >= come_end - come, "what comes is read"
        if come_end > come and come % held == 0:
            # Whatever lay there has been read as often as all of it is.
            assert (read + 1) * outer > come * passage.moved_bytes


def test_weights_that_are_fetched_again_pass_the_shared_buffer_in_turn() -> None:
    """Half of the weights at a time are there, for all tiles that read them, under the paper's rule."""
    b = GraphBuilder()
    x = b.input(16, 1024, 14, 14)
    conv = b.op("Conv", x, b.constant(2048, 1024, 1, 1), shape=(16, 2048, 7, 7), strides=(2, 2))
    graph = b.finish(conv)
    for name in ("variant-2", "variant-2-overlapped"):
        options = BASELINES[name].options(TargetRef.parse("stcp920{mapper=paper}"))
        planned = plan_optimised(graph, options)
        assert isinstance(planned.backend, NpuBackend)
        simulated = planned.backend.generate(planned.program).planned
        ((step,), run) = simulated.simulation.steps, checked(simulated, load_preset("stcp920")).simulation
        (passage,) = step.tiling.weights
        assert passage.outer_held_bytes < passage.outer_bytes < passage.moved_bytes
        fetched = sum(r.size_bytes for r in run.runs if r.what == "fetch")
        read = sum(r.size_bytes for r in run.runs if r.what == "weights")
        assert (fetched, read) == (passage.outer_bytes, passage.moved_bytes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("width", "size", "local_bytes", "shared_bytes", "slice_bytes", "order"),
    [
        # A kept row is there earlier than the rest of the same value, which other runs bring.
        (32, 32, 59478, 95157, 113481, "breadth-first"),
        # An operand is read again whose part in the shared buffer is smaller than it is.
        (16, 16, 2633, 5697, 12698, "depth-first"),
        (32, 16, 9898, 37214, 32158, "breadth-first"),
    ],
)
def test_parts_of_operands_keep_to_small_buffers(
    width: int, size: int, local_bytes: int, shared_bytes: int, slice_bytes: int, order: str
) -> None:
    b = GraphBuilder()
    shape = (1, width, size, size)
    x = skipped = b.op("Relu", b.input(*shape), shape=shape)
    for _ in range(2):
        x = b.op("Conv", x, b.constant(width, width, 3, 3), shape=shape, pads=(1, 1, 1, 1))
    graph = b.finish(b.op("Add", x, skipped, shape=shape))
    machine = load_preset("a310")
    assert machine.local is not None
    assert machine.shared is not None
    sizes = {machine.local.name: local_bytes, machine.shared.name: shared_bytes}
    recipe = graphturbo(GraphTurbo(capacity_bytes=slice_bytes, rows="keep"), order)
    plan(graph, with_capacities(machine, sizes), recipe)
