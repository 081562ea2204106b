"""Networks that enlarge images: coarse pieces feed several fine ones as they lie; values are the same."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.accelerator import best_plan, graphturbo, plan, with_local_bytes
from tests.support.graphs import GraphBuilder
from tests.support.integer_networks import integer_feed

from tilewright import zoo
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.presets import load_preset
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interpret import run_graph
from tilewright.memory.check_scopes import check_scopes
from tilewright.partition.check_splits import check_splits
from tilewright.partition.graphturbo import GraphTurbo
from tilewright.passes import run_passes
from tilewright.schedule.check_instances import check_instances
from tilewright.schedule.instances import Kind
from tilewright.targets.npu.execute import execute
from tilewright.targets.npu.plan import SimulatedPlan


class Images(GraphBuilder):
    """Convolutions of small integers, and images enlarged by repeating their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def convolution(self, x: Value, channels: int) -> Value:
        weight = self.rng.integers(-1, 2, (channels, x.shape[1], 3, 3)).astype(np.float32)
        low, high = (self.graph.constant(np.array(v, np.float32), "bound") for v in (-9, 9))
        shape = (x.shape[0], channels, *x.shape[2:])
        y = self.op("Conv", x, self.graph.constant(weight, "w"), shape=shape, pads=(1,) * 4)
        return self.op("Clip", y, low, high)

    def enlarged(self, x: Value, factor: int) -> Value:
        n, c, h, w = x.shape
        scales = self.graph.constant(np.array([1, 1, factor, factor], np.float32), "scales")
        empty = self.graph.constant(np.zeros(0, np.float32), "roi")
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}
        return self.op("Resize", x, empty, scales, shape=(n, c, factor * h, factor * w), **how)


def decoder(batch: int, side: int) -> Graph:
    """A U-net of two depths: images halved and enlarged again, beside what was there before."""
    b = Images()

    def level(x: Value, depth: int) -> Value:
        x = b.convolution(x, 4)
        if depth == 0:
            return x
        n, c, h, w = x.shape
        small = b.op("MaxPool", x, shape=(n, c, h // 2, w // 2), kernel_shape=(2, 2), strides=(2, 2))
        back = b.enlarged(level(small, depth - 1), 2)
        return b.convolution(b.op("Concat", x, back, shape=(n, 2 * c, h, w), axis=1), 4)

    return b.finish(level(b.input(batch, 2, side, side), 2))


def assert_valid(planned: SimulatedPlan, graph: Graph) -> None:
    assert check_splits(planned.partition) == ()
    assert check_instances(planned.instances) == ()
    assert check_scopes(planned.scopes, planned.bindings) == ()
    feed = integer_feed(graph)
    expected = run_graph(graph, feed)
    for name, array in execute(planned.scopes, feed).items():
        np.testing.assert_array_equal(array, expected[name])


LARGER = [pytest.param(n, 16, size, marks=pytest.mark.slow) for n in (1, 3, 4) for size in (512, 4096)]


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("batch", "side", "local_bytes"), [(1, 8, 256), (3, 8, 256), (3, 8, 1024), (4, 8, 1024), *LARGER]
)
def test_a_decoder_computes_its_values_however_it_is_cut(batch: int, side: int, local_bytes: int) -> None:
    graph = decoder(batch, side)
    machine = with_local_bytes(load_preset("stcp920"), local_bytes)
    assert_valid(plan(graph, machine), graph)
    assert_valid(best_plan(graph, machine).planned, graph)


def test_a_coarse_piece_feeds_several_fine_ones_without_a_copy() -> None:
    b = Images()
    small = b.convolution(b.input(4, 8, 4, 4), 8)
    graph = b.finish(b.convolution(b.enlarged(small, 4), 8))
    partitioner = GraphTurbo(capacity_bytes=graph.outputs[0].size_bytes // 2, element_bytes=4)
    planned = plan(graph, load_preset("stcp920"), graphturbo(partitioner))
    assert_valid(planned, graph)
    assert [node.kind for node in planned.instances.nodes] == [Kind.INSTANCE] * 5
    (piece,) = planned.scopes.outputs_of(0)
    readers = [s for s in planned.scopes.steps if any(r.buffer == piece.id for r in s.reads)]
    parts = [read.region for step in readers for read in step.reads if read.buffer == piece.id]
    assert sorted(region[0] for region in parts) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert piece.last_step == planned.scopes.steps.index(readers[-1]), "it stays until the last has read"


def test_a_neck_of_yolo_computes_its_values() -> None:
    graph = load_onnx(zoo.build("yolov4_tiny", batch=2, image=64))
    run_passes(graph)
    planned = plan(graph, with_local_bytes(load_preset("stcp920"), 16 << 10))
    enlarging = {s.id for s in planned.partition.subgraphs for n in s.nodes if n.op_type == "Resize"}
    assert enlarging
    assert max(s.num_instances for s in planned.partition.splits) > 1
    assert check_splits(planned.partition) == ()
    assert check_scopes(planned.scopes, planned.bindings) == ()
    rng = np.random.default_rng(0)
    feed = {v.name: rng.random(v.shape, np.float32) for v in graph.inputs}
    expected = run_graph(graph, feed)
    for name, array in execute(planned.scopes, feed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-3)
