"""Running graphs with reference semantics."""

# mypy: disable-error-code="arg-type, list-item"

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.errors import InputError, ModelRejected, UnsupportedOp, UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, SubgraphAttribute, Value
from tilewright.ir.interpret import run_graph, run_node
from tilewright.ir.ops import describe


def chain(*op_types: str, dtype: DType = DType.FLOAT32) -> Graph:
    graph = Graph("chain")
    value = graph.add_input(Value("x", dtype, (2, 3)))
    for number, op_type in enumerate(op_types):
        result = graph.value(f"v{number}", dtype, (2, 3))
        graph.append(Node(op_type, [value], [result], name=f"{op_type}_{number}"))
        value = result
    graph.outputs = [value]
    return graph


X = np.array([[-1, 0, 1], [2, 3, 4]], np.float32)


def test_outputs_come_by_name_and_taps_with_them() -> None:
    results = run_graph(chain("Neg", "Relu"), {"x": X}, taps=["v0"])
    assert sorted(results) == ["v0", "v1"]
    np.testing.assert_array_equal(results["v0"], -X)
    np.testing.assert_array_equal(results["v1"], np.maximum(-X, 0))


def test_an_input_and_a_constant_can_be_outputs() -> None:
    graph = chain("Neg")
    constant = graph.constant(np.arange(3, dtype=np.int64), "c")
    graph.outputs = [graph.inputs[0], constant]
    results = run_graph(graph, {"x": X})
    np.testing.assert_array_equal(results["x"], X)
    np.testing.assert_array_equal(results["c"], [0, 1, 2])


def test_float64_holds_every_value_in_float64() -> None:
    graph = chain("Neg")
    third = graph.constant(np.full((2, 3), 1 / 3, np.float64).astype(np.float32), "third")
    total = graph.value("total", DType.FLOAT32, (2, 3))
    graph.append(Node("Add", [graph.nodes[0].output, third], [total]))
    graph.outputs = [total]
    x = X.astype(np.float64) + 1e-12
    result = run_graph(graph, {"x": x}, dtype=DType.FLOAT64)["total"]
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, -x + np.float64(np.float32(1 / 3)))


def test_half_types_compute_in_float32_and_round_once_per_node() -> None:
    graph = Graph("sum")
    x = graph.add_input(Value("x", DType.FLOAT16, (4096,)))
    y = graph.value("y", DType.FLOAT16, (1,))
    graph.append(Node("ReduceSum", [x], [y], opset=13))
    graph.outputs = [y]
    # A sum in float16 would stop growing at 2048, where adding one changes nothing.
    assert run_graph(graph, {"x": np.ones(4096, np.float16)})["y"].tolist() == [4096.0]


def test_values_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import tilewright.ir.interpret as module

    alive: list[weakref.ref[np.ndarray]] = []  # freed at once, without a search for cycles
    most = 0

    def watched(node: Node, arrays: object, **options: Any) -> tuple[np.ndarray | None, ...]:
        nonlocal most
        results = run_node(node, arrays, **options)  # type: ignore[arg-type]
        alive.extend(weakref.ref(r) for r in results if r is not None)
        most = max(most, sum(ref() is not None for ref in alive))
        return results

    monkeypatch.setattr(module, "run_node", watched)
    run_graph(chain(*["Neg"] * 10), {"x": X})
    assert most <= 2


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        ({}, "input 'x' float32[2, 3] is missing from the feed."),
        ({"x": X[:1]}, "input 'x' has shape [1, 3], but the graph takes [2, 3]."),
        ({"x": X.astype(np.int64)}, "input 'x' is int64, but the graph takes float32."),
        ({"x": X, "y": X}, "the feed names 'y', but the graph's inputs are: x."),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(feed: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_graph(chain("Neg"), feed)
    assert str(caught.value) == text


def test_an_unknown_tap_is_refused() -> None:
    with pytest.raises(UsageError, match="tap 'nowhere' names no value of graph 'chain'"):
        run_graph(chain("Neg"), {"x": X}, taps=["nowhere"])


def test_operators_without_a_reference_of_ours_run_through_onnx() -> None:
    # Det is in no family, and its name in the registry would make this test prove nothing.
    node = Node("Det", [Value("x", DType.FLOAT32, (2, 2))], [Value("y", DType.FLOAT32, ())], opset=22)
    matrix = np.array([[1, 2], [3, 5]], np.float32)
    (result,) = run_node(node, [matrix])
    assert result is not None
    np.testing.assert_allclose(result, -1, rtol=1e-6)


def test_control_flow_sees_its_captures() -> None:
    def branch(op_type: str) -> SubgraphAttribute:
        body = helper.make_graph(
            [helper.make_node(op_type, ["outer"], ["r"])],
            op_type,
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3])],
        )
        return SubgraphAttribute(body.SerializeToString())

    outer = Value("outer", DType.FLOAT32, (2, 3))
    node = Node(
        "If",
        [Value("c", DType.BOOL, ())],
        [Value("y", DType.FLOAT32, (2, 3))],
        {"then_branch": branch("Neg"), "else_branch": branch("Abs")},
        opset=21,
        captures=[outer],
    )
    for condition, expected in ((True, -X), (False, abs(X))):
        (result,) = run_node(node, [np.array(condition)], captures=[X])
        np.testing.assert_array_equal(result, expected)


def test_an_operator_nobody_knows_is_unsupported_with_its_name_and_reason() -> None:
    node = Node("Frobnicate", [Value("x", DType.FLOAT32, (2, 3))], [Value("y", DType.FLOAT32, (2, 3))])
    with pytest.raises(UnsupportedOp, match=r"Frobnicate 'y' \(opset 21\) cannot run: .+"):
        run_node(node, [X])


def test_a_result_of_another_shape_than_declared_is_refused() -> None:
    graph = chain("Neg")
    graph.outputs[0].shape = (3, 2)
    with pytest.raises(ModelRejected, match=r"'v0' is declared \[3, 2\], but is \[2, 3\]"):
        run_graph(graph, {"x": X})


def test_attributes_of_every_kind_reach_onnx() -> None:
    from tilewright.ir.interpret import node_model

    attributes = {
        "i": 3,
        "f": 0.5,
        "s": "text",
        "is": (1, 2),
        "fs": (0.5, 1.5),
        "ss": ("a", "b"),
        "none": (),
        "t": np.arange(3, dtype=np.int64),
    }
    node = Node("Any", [], [Value("y", DType.FLOAT32, ())], attributes)
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node_model(node, []).graph.node[0].attribute}
    assert onnx.numpy_helper.to_array(found.pop("t")).tolist() == [0, 1, 2]
    assert found == {
        "i": 3,
        "f": 0.5,
        "s": b"text",
        "is": [1, 2],
        "fs": [0.5, 1.5],
        "ss": [b"a", b"b"],
        "none": [],
    }


def fed(
    op_type: str, arrays: list[np.ndarray | None], shape: tuple[int, ...], **attributes: Attribute
) -> Node:
    """A node whose operands are inputs, with a result of this shape."""
    values = [
        None if a is None else Value(f"x{i}", DType.from_numpy(a.dtype), a.shape)
        for i, a in enumerate(arrays)
    ]
    return Node(op_type, values, [Value("y", DType.FLOAT32, shape)], attributes, name="n", opset=18)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


FLAT = np.arange(6, dtype=np.float32)
STEPPED = np.ones((2, 1, 1), np.float32)
BOXES = np.array([[0, 0, 1e9, 1e9]], np.float32)
# The values of operands that no shape or attribute shows to be wrong: of references here and of ONNX's.
IMPOSSIBLE: list[tuple[str, list[np.ndarray | None], tuple[int, ...], dict[str, Attribute]]] = [
    ("Slice", [FLAT, ints(0), ints(6), ints(0), ints(0)], (6,), {}),
    ("Slice", [FLAT, ints(0), ints(6), ints(7), ints(1)], (6,), {}),
    ("Tile", [FLAT, ints(-1)], (6,), {}),
    ("Expand", [FLAT, ints(5)], (5,), {}),
    ("Reshape", [FLAT, ints(4)], (4,), {}),
    ("ConstantOfShape", [ints(-2)], (2,), {}),
    ("Range", [np.float32(0), np.float32(1), np.float32(0)], (1,), {}),
    ("Gather", [FLAT, ints(6)], (1,), {}),
    ("ScatterElements", [FLAT, ints(-7), FLAT[:1]], (6,), {}),
    ("Split", [FLAT, ints(7)], (7,), {}),
    ("RoiAlign", [np.ones((1, 1, 2, 2), np.float32), BOXES, ints(0)], (1, 1, 1, 1), {}),
    ("RNN", [STEPPED, STEPPED[:1], STEPPED[:1], None, np.array([3], np.int32)], (2, 1, 1, 1), {}),
    ("Col2Im", [np.ones((1, 5, 5), np.float32), ints(4, 4), ints(1, 5)], (1, 1, 5, 5), {}),
]


@pytest.mark.parametrize("one", IMPOSSIBLE, ids=lambda one: one[0])
def test_values_that_cannot_be_are_the_fault_of_what_was_fed(
    one: tuple[str, list[np.ndarray | None], tuple[int, ...], dict[str, Attribute]],
) -> None:
    op_type, arrays, shape, attributes = one
    arrays = [None if a is None else np.asarray(a) for a in arrays]
    node = fed(op_type, arrays, shape, **attributes)
    describe(node)  # neither shapes nor attributes are wrong
    with pytest.raises(InputError, match=f"^{op_type} 'n': .+") as caught:
        run_node(node, arrays)
    assert "\n" not in str(caught.value)


def test_what_a_reference_does_not_run_is_unsupported() -> None:
    # numpy has no determinants of half types.
    x = np.ones((2, 2), np.float16)
    with pytest.raises(UnsupportedOp, match=r"^Det 'n' \(opset 18\) cannot run: "):
        run_node(fed("Det", [x], ()), [x.astype(object)])


# Results of an operator on `x` of this shape: of the same shape, or with the axis 0 of one element.
SAME = ("Hardmax", "Softmax", "LogSoftmax", "LpNormalization", "Relu")
REDUCED = (
    "ArgMax",
    "ArgMin",
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceSum",
    "ReduceLogSumExp",
    "ReduceL2",
)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("op_type", [*SAME, *REDUCED])
def test_tensors_without_elements_are_refused_when_described_or_run(
    op_type: str, shape: tuple[int, ...]
) -> None:
    x = Value("x", DType.FLOAT32, shape)
    result = Value("y", DType.FLOAT32, shape if op_type in SAME else (1, *shape[1:]))
    if op_type.startswith("Arg"):
        result.dtype = DType.INT64
    axis: Attribute = (0,) if op_type.startswith("Reduce") else 0
    name = "axes" if op_type.startswith("Reduce") else "axis"
    # Before opset 13 the axes of every reduction are an attribute.
    node = Node(op_type, [x], [result], {name: axis} if op_type != "Relu" else {}, opset=11)
    try:
        describe(node)
    except ModelRejected:
        return
    (found,) = run_node(node, [np.zeros(shape, np.float32)])
    assert found is not None
    assert found.shape == result.shape
