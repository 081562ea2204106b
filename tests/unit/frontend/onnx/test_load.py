"""What becomes of a model: static shapes, folded shape arithmetic, expanded definitions, control flow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import ModelRejected, UnsupportedOp, UsageError
from tilewright.frontend.onnx import build, load_onnx, open_model
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.verify import verify


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def operators(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]


def assert_equals_onnx(model: onnx.ModelProto, graph: Graph, **feed: np.ndarray) -> None:  # type: ignore[type-arg]
    assert verify(graph) == ()
    found = run_graph(graph, feed)
    for value, expected in zip(graph.outputs, ReferenceEvaluator(model).run(None, feed), strict=True):
        np.testing.assert_allclose(found[value.name], expected, rtol=1e-5, atol=1e-6)
        assert value.shape == expected.shape


RESHAPE_TO_BATCH = """g (float[N,3,4] x) => (float[N,K] y) {
    s = Shape(x)
    zero = Constant<value = int64 {0}>()
    batch = Gather(s, zero)
    axes = Constant<value = int64[1] {0}>()
    first = Unsqueeze(batch, axes)
    rest = Constant<value_ints = [-1]>()
    shape = Concat<axis = 0>(first, rest)
    y = Reshape(x, shape)
}"""


def test_an_exporters_shape_arithmetic_folds_to_a_constant() -> None:
    model = parsed(RESHAPE_TO_BATCH)
    graph = load_onnx(model, shapes={"x": (5, 3, 4)})
    assert operators(graph) == ["Reshape"]
    assert graph.outputs[0].shape == (5, 12)
    assert_equals_onnx(model, graph, x=np.arange(60, dtype=np.float32).reshape(5, 3, 4))


def test_a_symbol_fixed_by_one_input_is_fixed_for_all() -> None:
    model = parsed("g (float[N,2] a, float[N,2] b) => (float[N,2] y) { y = Add(a, b) }")
    graph = load_onnx(model, shapes={"a": (7, 2)})
    assert [v.shape for v in graph.inputs] == [(7, 2), (7, 2)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"input 'a' leaves dimension 0 \(N\), 2 \(H\) open; fix it with --shapes a:\?x2x\?"),
        ({"a": (7, 2)}, "has 2 dimensions, but input 'a' has 3"),
        ({"a": (7, 3, 1)}, "sets dimension 1 to 3, but the model fixes it to 2"),
        ({"a": (7, 2, -1)}, "negative dimension"),
        ({"a": (7, 2, 1), "b": (8,)}, "sets dimension 'N' to 7 and, at 'b', to 8"),
        ({"aa": (7, 2, 1)}, "names 'aa', which is no input of the model; did you mean 'a'"),
    ],
)
def test_shapes_that_do_not_fit_are_explained(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    model = parsed("g (float[N,2,H] a, float[N] b) => (float[N,2,H] y) { y = Relu(a) }")
    with pytest.raises(UsageError, match=message):
        load_onnx(model, shapes=shapes)


def test_names_of_the_model_are_kept() -> None:
    graph = load_onnx(parsed("g (float[2] x) => (float[2] y) { h = Relu(x) y = Neg(h) }"))
    assert graph.name == "g"
    assert [v.name for v in graph.values()] == ["x", "h", "y"]
    assert [n.name for n in graph.nodes] == ["h", "y"]


def test_equal_node_names_become_distinct() -> None:
    nodes = [helper.make_node("Relu", [a], [b], name="n") for a, b in (("x", "a"), ("a", "y"))]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:]))
    graph = load_onnx(model)
    assert len({node.name for node in graph.nodes}) == 2


def test_nodes_in_the_wrong_order_are_sorted() -> None:
    model = parsed("g (float[2] x) => (float[2] y) { h = Relu(x) y = Neg(h) }")
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert operators(load_onnx(model)) == ["Relu", "Neg"]


def test_an_output_that_is_an_input_gets_a_node_of_its_name() -> None:
    graph = load_onnx(parsed("g (float[2] x) => (float[2] x, float[2] y) { y = Relu(x) }"))
    assert [v.name for v in graph.outputs] == ["x", "y"]
    assert graph.outputs[0] is graph.inputs[0]


def test_a_constant_output_is_an_initializer() -> None:
    graph = load_onnx(parsed("g (float[2] x) => (int64[1] s) { s = Shape(x) }"))
    assert graph.nodes == ()
    assert graph.outputs[0].name == "s"
    assert run_graph(graph, {"x": np.zeros(2, np.float32)})["s"].tolist() == [2]


def test_local_functions_are_inlined() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        twice (a) => (b) { h = local.once(a) b = local.once(h) }
        <domain: "local", opset_import: ["": 17]>
        once (a) => (b) { b = Relu(a) }"""
    )
    graph = load_onnx(model)
    assert operators(graph) == ["Relu", "Relu"]
    assert graph.outputs[0].name == "y"


def test_an_operator_we_do_not_know_is_expanded_by_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed("g (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = 0>(x) }")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    assert operators(load_onnx(model)) == ["Softmax"]
    monkeypatch.setattr(build, "find_operator", lambda node: None if node.op_type == "Softmax" else node)
    graph = load_onnx(model)
    assert set(operators(graph)) == {"ReduceMax", "Sub", "Exp", "ReduceSum", "Div"}
    assert all(node.name.startswith("y") for node in graph.nodes)
    monkeypatch.undo()
    assert_equals_onnx(model, graph, x=x)


IF = """g (float[2] x{cond_input}) => (float[2] y) {{
    {cond}
    y = If(c) <then_branch = t () => (float[2] r) {{ r = Relu(x) }},
               else_branch = e () => (float[2] r) {{ r = Neg(x) }}>
}}"""


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_on_a_constant_becomes_the_branch_it_takes(taken: bool) -> None:
    text = IF.format(cond_input="", cond=f"c = Constant<value = bool {{{int(taken)}}}>()")
    graph = load_onnx(parsed(text))
    assert operators(graph) == ["Relu" if taken else "Neg"]
    assert graph.outputs[0].name == "y"


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_on_data_captures_what_its_branches_read(taken: bool) -> None:
    model = parsed(IF.format(cond_input=", bool c", cond=""))
    graph = load_onnx(model)
    (node,) = graph.nodes
    assert [v.name for v in node.captures] == ["x"]
    assert_equals_onnx(model, graph, x=np.array([-1, 2], np.float32), c=np.array(taken))


def loop(trip_count: int, step: str = "Add") -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node(step, ["state", "x"], ["next"]),
            helper.make_node("Neg", ["next"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [2, 3]),
        ],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "rows"], body=body)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 2, 3]),
        ],
        [numpy_helper.from_array(np.array(trip_count, np.int64), "n")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("trip_count", [0, 1, 4])
def test_a_loop_of_known_length_stacks_its_rows(trip_count: int) -> None:
    graph = load_onnx(loop(trip_count))
    assert [v.shape for v in graph.outputs] == [(2, 3), (trip_count, 2, 3)]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = run_graph(graph, {"x": x})
    sums = [x * (step + 2) for step in range(trip_count)]
    np.testing.assert_array_equal(found["last"], sums[-1] if sums else x)
    np.testing.assert_array_equal(found["rows"], -np.array(sums).reshape(trip_count, 2, 3))


def test_a_shape_that_depends_on_data_is_refused_by_name() -> None:
    model = parsed("g (float[4] x) => (int64[R, C] y) { y = NonZero(x) }")
    with pytest.raises(UnsupportedOp, match="node NonZero 'y': the shape of its result 'y' depends on data"):
        load_onnx(model)


def test_an_old_opset_is_converted() -> None:
    model = parsed("g (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = 1>(x) }", opset=11)
    graph = load_onnx(model)
    assert all(node.opset >= 13 for node in graph.nodes)
    assert_equals_onnx(model, graph, x=np.array([[1, 2, 3], [0, 0, 9]], np.float32))


def test_an_input_with_an_initializer_is_a_constant_unless_its_shape_is_given() -> None:
    model = parsed("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    assert [v.name for v in load_onnx(model).inputs] == ["x"]
    assert [v.name for v in load_onnx(model, shapes={"w": (2,)}).inputs] == ["x", "w"]


@pytest.mark.parametrize("number", [d.value for d in DType if not d.name.startswith("COMPLEX")])
def test_every_element_type_is_read_from_raw_and_typed_fields(number: int) -> None:
    dtype = DType(number)
    data = np.array(["a", "b"], object) if dtype is DType.STRING else np.array([0, 1]).astype(dtype.numpy)
    typed = helper.make_tensor("w", number, [2], data.tolist())
    tensors = [typed]
    if dtype is not DType.STRING:
        tensors.append(helper.make_tensor("w", number, [2], data.tobytes(), raw=True))
    for tensor in tensors:
        node = helper.make_node("Identity", ["w"], ["y"])
        out = helper.make_tensor_value_info("y", number, [2])
        graph = helper.make_graph([node], "g", [], [out], [tensor])
        loaded = load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
        found = loaded.outputs[0].data
        assert found is not None
        assert found.dtype == dtype.numpy
        assert found.tolist() == data.tolist()


def test_external_data_are_read_from_a_folder_below_the_model(tmp_path: Path) -> None:
    weight = np.array([3, 4], np.float32)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(4) + weight.tobytes() + bytes(4))
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "data/w.bin"), ("offset", "4"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_onnx(path).initializers[0].data.tolist() == [3, 4]  # type: ignore[union-attr]  # a constant
    before = open_model(path).sha256()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(16))
    assert open_model(path).sha256() != before
    with pytest.raises(ModelRejected, match="load it by its path"):
        load_onnx(path.read_bytes())


def test_path_bytes_and_message_give_the_same_graph_and_digest(tmp_path: Path) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    data = model.SerializeToString(deterministic=True)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert [operators(load_onnx(s)) for s in (model, data, path, str(path))] == [["Relu"]] * 4
    assert len({open_model(s).sha256() for s in (model, data, path)}) == 1


def test_the_callers_message_is_not_changed() -> None:
    model = parsed(RESHAPE_TO_BATCH)
    before = model.SerializeToString(deterministic=True)
    load_onnx(model, shapes={"x": (5, 3, 4)})
    assert model.SerializeToString(deterministic=True) == before


def test_another_kind_of_source_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot load a model from int"):
        load_onnx(3)  # type: ignore[arg-type]  # the mistake under test


def test_a_definition_that_knows_fewer_types_than_its_operator_is_not_looked_into() -> None:
    """Range takes int16 from opset 11 on; its definition subtracts, which int16 knows from opset 14 on."""
    model = parsed("g (int16 a, int16 b, int16 c) => (int16[N] y) { y = Range(a, b, c) }", 13)
    assert tw.compile(model)(*np.array([0, 5, 2], np.int16)).tolist() == [0, 2, 4]
