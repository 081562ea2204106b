"""Whole models on the emulated GPU: values, order, the host's part, errors."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cuda import EMULATED, compiled, error, needs_fibers, templates
from tests.support.models import host_net, model, small_net, tensor

import tilewright as tw
from tilewright.compiler import compile_graph
from tilewright.errors import InputError, ModelClosed, TilewrightError, UsageError
from tilewright.frontend.onnx import load_onnx
from tilewright.options import Options
from tilewright.private_files import default_cache_directory
from tilewright.target_ref import TargetRef
from tilewright.targets.cuda.code import CudaCode
from tilewright.targets.cuda.emulated.device import EmulatedDevice
from tilewright.targets.cuda.ptx import gpu_isa, ptx_of
from tilewright.targets.llvm.cache import ObjectCache

pytestmark = needs_fibers
CACHE = ObjectCache(default_cache_directory())
RNG = np.random.default_rng(7)
IMAGE = {"image": RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["sequential", "greedy", "ios", "random"])
def test_a_small_network_is_right_in_every_schedule(schedule: str) -> None:
    proto = small_net(8, 6)
    found = compiled(proto, schedule=schedule)
    assert error(proto, IMAGE, found.run(None, IMAGE)) < 1e-5
    assert "host" not in templates(found)


def test_an_operator_without_kernels_runs_on_the_host_with_a_warning(caplog: Any) -> None:
    proto = host_net()
    feed = {"x": RNG.standard_normal((4, 8)).astype(np.float32)}
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = compiled(proto)
    assert error(proto, feed, found.run(None, feed)) < 1e-5
    assert templates(found).count("host") == 1
    assert [r.getMessage() for r in caplog.records if "TopK 'largest' runs on the host" in r.getMessage()]
    report = tw.check(proto, target=EMULATED)
    assert [o.op_type for o in report.on_host] == ["TopK"]


def test_the_emulated_device_is_not_measured() -> None:
    with pytest.raises(UsageError, match="runs on an emulated device, whose time says nothing"):
        tw.bench(compiled(small_net(8, 6)), duration=0.1)


def test_an_index_outside_its_axis_is_an_error_and_the_next_run_is_right() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "rows")]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
    ]
    proto = model(nodes, inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])], [])
    found = compiled(proto)
    x = RNG.standard_normal((4, 3)).astype(np.float32)
    with pytest.raises(InputError, match="Gather 'rows': index 9 lies outside axis 0, which has 4"):
        found.run(None, {"x": x, "i": np.array([1, 9])})
    (y,) = found.run(None, {"x": x, "i": np.array([-1, 2])})
    np.testing.assert_array_equal(y, x[[3, 2]])


def test_outputs_that_no_kernel_writes_are_there_too() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["flat"], "reshape"),
        helper.make_node("Identity", ["x"], ["same"], "identity"),
        helper.make_node("Relu", ["nothing"], ["empty"], "relu"),
    ]
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [6])
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", [2, 3]), ("nothing", [0, 3]))
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("flat", [6]), ("same", [2, 3]), ("empty", [0, 3]))
    ]
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    found = compiled(model(nodes, inputs, outputs, [shape]))
    flat, same, empty = found.run(None, {"x": x, "nothing": np.zeros((0, 3), np.float32)})
    assert empty.shape == (0, 3)
    np.testing.assert_array_equal(flat, x.reshape(6))
    np.testing.assert_array_equal(same, x)


def test_a_closed_model_and_a_wrong_feed_are_refused() -> None:
    found = compiled(small_net(8, 6))
    with pytest.raises(UsageError, match="image"):
        found.run(None, {"image": np.zeros((1, 3, 5, 6), np.float32)})
    found.close()
    with pytest.raises(ModelClosed):
        found.run(None, IMAGE)


def test_explain_tells_what_a_run_on_the_emulated_device_counts() -> None:
    found = compiled(small_net(8, 6))
    assert "sectors used" not in str(found.explain())
    found.run(None, IMAGE)
    notes = {kernel.template: kernel.notes[-1] for kernel in found.explain().kernels}
    assert all("% of global sectors used" in note for note in notes.values())
    assert "bank conflicts" in notes["product"]


def test_without_a_driver_the_error_says_what_to_do() -> None:
    with pytest.raises(TilewrightError, match="device=emulated"):
        tw.compile(small_net(8, 6), target="cuda").run(None, IMAGE)


def test_a_machine_that_is_no_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="has no threads; give a GPU"):
        tw.compile(small_net(8, 6), target="cuda{gpu=eyeriss}")


def branches() -> Any:
    """A small network with branches of products, pooling and a concatenation, and a sum across them."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", ["x", "w0"], ["s"], "stem", pads=[1, 1, 1, 1])]
    weights = [tensor(rng, "w0", 8, 3, 3, 3)]
    for number, size in enumerate((1, 3, 1), 1):
        pads = [size // 2] * 4
        nodes.append(
            helper.make_node("Conv", ["s", f"w{number}"], [f"c{number}"], f"conv{number}", pads=pads)
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"))
        weights.append(tensor(rng, f"w{number}", 8, 8, size, size))
    nodes += [
        helper.make_node("MaxPool", ["s"], ["p"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["r1", "r2", "p"], ["joined"], "join", axis=1),
        helper.make_node("Conv", ["joined", "w4"], ["c4"], "conv4"),
        helper.make_node("Add", ["c4", "r3"], ["sum"], "sum"),
        helper.make_node("Softmax", ["sum"], ["y"], "softmax", axis=1),
    ]
    weights.append(tensor(rng, "w4", 8, 24, 1, 1))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])]
    return model(
        nodes, inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 6, 6])], weights
    )


PLANS = [
    ("none", "sequential"),
    ("layerwise", "greedy"),
    ("layerwise", "ios"),
    ("ago", "greedy"),
    ("pcgc", "ios"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("partition", "schedule"), PLANS)
@pytest.mark.parametrize("edges", ["stages", "data"])
def test_every_order_that_edges_leave_open_gives_the_same(partition: str, schedule: str, edges: str) -> None:
    proto = branches()
    feed = {"x": RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)}
    options = Options(
        target=TargetRef.parse(f"cuda{{device=emulated,edges={edges}}}"),
        partition=partition,
        schedule=schedule,
    )
    code = compile_graph(load_onnx(proto), options).code
    assert isinstance(code, CudaCode)
    (expected,) = tw.compile(proto, target="interpreter").run(None, feed)
    runs = set()
    device = EmulatedDevice(cache=CACHE)
    loaded = code.load_on(device)
    for seed in range(12):
        device.seed, device.copies = seed, ("early", "late")[seed % 2]
        (found,) = loaded.run(feed).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        runs.add(found.tobytes())
    assert len(runs) == 1


def test_groups_of_a_stage_have_no_edges_between_them() -> None:
    options = Options(target=TargetRef.parse(EMULATED), partition="layerwise", schedule="greedy")
    code = compile_graph(load_onnx(branches()), options).code
    assert isinstance(code, CudaCode)
    nodes = code.placed.planned.nodes
    beside = {stage: [i for i, n in enumerate(nodes) if n.stage == stage and n.work] for stage in range(9)}
    widest = max(beside.values(), key=len)
    assert len(widest) >= 3
    assert not any(set(nodes[i].after) & set(widest) for i in widest[:3])


def test_a_kernel_is_assembled_for_each_gpu() -> None:
    code = compile_graph(
        load_onnx(branches()), Options(target=TargetRef.parse(EMULATED), accuracy="relaxed")
    ).code
    assert isinstance(code, CudaCode)
    texts = sorted({launch.kernel.text for launch in code.placed.launches})
    for isa in ("sm_80", "sm_90"):
        made = b"".join(ptx_of(texts, gpu_isa(isa), cache=CACHE))
        assert b"mma.sync" in made
        assert b"cp.async" in made
        assert b"ldmatrix" in made


def test_branches_of_a_concatenation_are_made_in_place() -> None:
    code = compile_graph(
        load_onnx(branches()), Options(target=TargetRef.parse(EMULATED), partition="layerwise")
    ).code
    assert isinstance(code, CudaCode)
    named = [node.name for launch in code.placed.launches for node in launch.nodes]
    assert "join" not in named
    parts = {v.name: code.placed.lowered.place(v) for v in code.program.graph.values()}
    (whole,) = {parts[name][0] for name in ("r1", "r2", "p")}
    assert [parts[name][1] for name in ("r1", "r2", "p")] == [0, 8 * 36 * 4, 16 * 36 * 4]
    assert whole is parts["joined"][0]


def test_rows_of_padding_leave_neighbours_to_one_thread() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads", "fill"], ["padded"], mode="constant"),
        helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[3, 1], pads=[1, 0, 1, 0]),
    ]
    constants = [
        numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 0, 2, 0]), "pads"),
        numpy_helper.from_array(np.array(2.5, np.float32), "fill"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 16])]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 9, 16]) for name in ("padded", "y")
    ]
    proto = model(nodes, inputs, outputs, constants)
    feed = {"x": RNG.standard_normal((1, 8, 6, 16)).astype(np.float32) - 3}
    found = compiled(proto)
    assert error(proto, feed, found.run(None, feed)) == 0
    assert all("4 lanes a thread" in kernel.notes for step in found.steps for kernel in step.kernels)


@pytest.mark.parametrize("order", [["flat", "joined"], ["joined", "flat"]])
def test_an_output_is_no_part_of_another_tensor(order: list[str]) -> None:
    nodes = {
        "flat": helper.make_node("Reshape", ["r", "shape"], ["flat"], "flatten"),
        "joined": helper.make_node("Concat", ["r", "x"], ["joined"], "join", axis=1),
    }
    relu = helper.make_node("Relu", ["x"], ["r"], "relu")
    shapes = {"x": [1, 4, 4], "flat": [16], "joined": [1, 8, 4]}
    infos = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [16])
    last = helper.make_node("Abs", ["joined"], ["y"], "abs")
    outputs = [infos["flat"], helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 4])]
    proto = model([relu, *(nodes[name] for name in order), last], [infos["x"]], outputs, [shape])
    code = compile_graph(
        load_onnx(proto), Options(target=TargetRef.parse(EMULATED), partition="layerwise")
    ).code
    assert isinstance(code, CudaCode)
    for value in code.program.graph.outputs:
        root, offset = code.placed.lowered.place(value)
        assert (root.size_bytes, offset) == (value.size_bytes, 0)
    feed = {"x": RNG.standard_normal((1, 4, 4)).astype(np.float32)}
    assert error(proto, feed, compiled(proto).run(None, feed)) == 0
