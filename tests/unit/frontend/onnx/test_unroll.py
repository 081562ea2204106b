"""Loops over a known number of steps become these steps; others stay one node."""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.frontend.onnx.unroll import MAX_UNROLLED_NODES
from tilewright.ir.interpret import run_graph

F32 = TensorProto.FLOAT


def info(name: str, kind: int, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], **constants: Any
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [info("x", F32, [2, 3])], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loop(
    body_nodes: list[onnx.NodeProto], *, count: str = "n", going: str = "", **constants: Any
) -> onnx.ModelProto:
    """A loop over `state`; its body makes `on`, `next` and `row`."""
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("state", F32, None)],
        [info("on", TensorProto.BOOL, []), info("next", F32, None), info("row", F32, None)],
    )
    node = helper.make_node("Loop", [count, going, "x"], ["last", "rows"], body=body)
    return model([node], [info("last", F32, None), info("rows", F32, None)], **constants)


def assert_unrolled(proto: onnx.ModelProto) -> None:
    """Nothing of it runs on the host, and it computes what ONNX Runtime computes."""
    import onnxruntime as ort

    graph = load_onnx(proto)
    assert not {"Loop", "Scan"} & {node.op_type for node in graph.nodes}
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    for found, wanted in zip(run_graph(graph, {"x": x}).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    compiled = tw.compile(proto, threads=1)
    assert not [kernel for kernel in compiled.kernels if kernel.is_host]
    for found, wanted in zip(compiled.run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


KEEP_ON = helper.make_node("Identity", ["going"], ["on"])


def test_a_counted_loop_reads_outer_weights_and_its_own_step() -> None:
    nodes = [
        KEEP_ON,
        helper.make_node("MatMul", ["state", "w"], ["product"]),
        helper.make_node("Cast", ["i"], ["step"], to=F32),
        helper.make_node("Add", ["product", "step"], ["next"]),
        helper.make_node("Neg", ["next"], ["row"]),
    ]
    weight = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    assert_unrolled(loop(nodes, n=np.array(5, np.int64), w=weight))


def test_a_condition_that_follows_from_the_step_ends_a_loop() -> None:
    nodes = [
        helper.make_node("Less", ["i", "end"], ["on"]),
        helper.make_node("Mul", ["state", "state"], ["next"]),
        helper.make_node("Identity", ["next"], ["row"]),
    ]
    proto = loop(nodes, count="", going="start", start=np.array(True), end=np.array(2, np.int64))
    assert sum(n.op_type == "Mul" for n in load_onnx(proto).nodes) == 3
    assert_unrolled(proto)


def test_a_state_that_grows_has_a_known_shape_in_each_step() -> None:
    nodes = [
        KEEP_ON,
        helper.make_node("Concat", ["state", "x"], ["next"], axis=0),
        helper.make_node("ReduceSum", ["next"], ["row"], keepdims=0),
    ]
    proto = loop(nodes, n=np.array(3, np.int64))
    assert [v.shape for v in load_onnx(proto).outputs] == [(8, 3), (3,)]
    assert_unrolled(proto)


def test_a_loop_that_its_data_ends_stays_one_node() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "bound"], ["on"]),
        helper.make_node("Add", ["state", "state"], ["next"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("state", F32, [2, 3])],
        [info("on", TensorProto.BOOL, []), info("next", F32, [2, 3])],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last"], body=body)
    proto = model([node], [info("last", F32, [2, 3])], n=np.array(9, np.int64), bound=np.float32(50))
    assert [n.op_type for n in load_onnx(proto).nodes] == ["Loop"]


def test_a_long_loop_stays_one_node_and_leaves_nothing_behind() -> None:
    nodes = [
        KEEP_ON,
        helper.make_node("Add", ["state", "x"], ["next"]),
        helper.make_node("Neg", ["next"], ["row"]),
    ]
    # Two nodes a step and a Reshape of its row; then one that joins them, and the names of the outputs.
    count = MAX_UNROLLED_NODES // 2
    assert len(load_onnx(loop(nodes, n=np.array(count // 8, np.int64))).nodes) == count // 8 * 3 + 3
    graph = load_onnx(loop(nodes, n=np.array(count + 1, np.int64)))
    assert [n.op_type for n in graph.nodes] == ["Loop"]
    assert [v.shape for v in graph.outputs] == [(2, 3), (count + 1, 2, 3)]


def test_growth_that_depends_on_data_is_refused_as_before() -> None:
    nodes = [
        KEEP_ON,
        helper.make_node("NonZero", ["state"], ["places"]),
        helper.make_node("Cast", ["places"], ["next"], to=F32),
        helper.make_node("Neg", ["next"], ["row"]),
    ]
    with pytest.raises(UnsupportedOp, match="depends on data"):
        load_onnx(loop(nodes, n=np.array(3, np.int64)))


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1)])
def test_a_scan_walks_slices_of_its_axis_in_either_direction(directions: tuple[int, int]) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "column"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
        ],
        "body",
        [info("state", F32, [2]), info("column", F32, [2])],
        [info("next", F32, [2]), info("square", F32, [2])],
    )
    node = helper.make_node(
        "Scan",
        ["zero", "x"],
        ["last", "squares"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        scan_input_directions=[directions[0]],
        scan_output_directions=[directions[1]],
    )
    proto = model(
        [node], [info("last", F32, [2]), info("squares", F32, [2, 3])], zero=np.zeros(2, np.float32)
    )
    graph = load_onnx(proto)
    assert "Scan" not in {n.op_type for n in graph.nodes}
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    order = x[:, ::-1] if directions[0] else x
    sums = np.cumsum(order, axis=1)
    squares = (sums**2)[:, ::-1] if directions[1] else sums**2
    found = run_graph(graph, {"x": x})
    np.testing.assert_allclose(found["last"], sums[:, -1], rtol=1e-5)
    np.testing.assert_allclose(found["squares"], squares, rtol=1e-5)


def test_a_loop_inside_a_loop_is_unrolled_with_it() -> None:
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Add", ["s", "x"], ["t"]),
        ],
        "inner",
        [info("j", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("s", F32, [2, 3])],
        [info("still", TensorProto.BOOL, []), info("t", F32, [2, 3])],
    )
    nodes = [
        KEEP_ON,
        helper.make_node("Loop", ["n", "", "state"], ["next"], body=inner),
        helper.make_node("Neg", ["next"], ["row"]),
    ]
    proto = loop(nodes, n=np.array(3, np.int64))
    assert sum(n.op_type == "Add" for n in load_onnx(proto).nodes) == 9
    assert_unrolled(proto)
