"""Graphs read back from their text as they were."""

# mypy: disable-error-code="assignment, attr-defined"

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilewright.errors import UsageError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.ir.text import MAX_INLINE_ELEMENTS, constants_of, parse_graph, print_graph
from tilewright.ir.verify import verify


def sample() -> Graph:
    graph = Graph("two words")
    x = graph.add_input(Value("x", DType.FLOAT32, (1, 4)))
    w = graph.constant(np.arange(20, dtype=np.float32).reshape(4, 5), "layer/w")
    b = graph.constant(np.array([0.1, -0.0, np.inf, 1e-45, 3.0], np.float32), "b")
    h = graph.value("h", DType.FLOAT32, (1, 5))
    y = graph.value("y", DType.FLOAT32, (1, 5))
    graph.append(Node("Gemm", [x, w, b], [h], {"alpha": 1.0, "transB": 0}, opset=17))
    graph.append(Node("Clip", [h, None, b], [y, None], name="the clip", opset=17, domain="com.example"))
    graph.outputs = [y, h]
    return graph


def assert_equal(found: Graph, expected: Graph) -> None:
    """Structural equality, with nothing of the printer in it."""
    assert found.name == expected.name
    for mine, theirs in ((found.inputs, expected.inputs), (found.outputs, expected.outputs)):
        assert [(v.name, v.dtype, v.shape) for v in mine] == [(v.name, v.dtype, v.shape) for v in theirs]
    assert len(found.nodes) == len(expected.nodes)
    for a, b in zip(found.nodes, expected.nodes, strict=True):
        assert (a.op_type, a.domain, a.name, a.opset) == (b.op_type, b.domain, b.name, b.opset)
        for mine, theirs in ((a.inputs, b.inputs), (a.outputs, b.outputs), (a.captures, b.captures)):
            assert [v and v.name for v in mine] == [v and v.name for v in theirs]
            assert [v and (v.dtype, v.shape) for v in mine] == [v and (v.dtype, v.shape) for v in theirs]
        assert list(a.attributes) == list(b.attributes)
        for mine, theirs in zip(a.attributes.values(), b.attributes.values(), strict=True):
            assert type(mine) is type(theirs)
            if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
                assert_same_bits(mine, theirs)
            else:
                assert repr(mine) == repr(theirs)
    for mine, theirs in zip(found.initializers, expected.initializers, strict=True):
        assert mine.name == theirs.name
        assert mine.data is not None
        assert theirs.data is not None
        assert_same_bits(mine.data, theirs.data)


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:  # type: ignore[type-arg]  # any array
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def test_golden_text() -> None:
    text = print_graph(sample())
    lines = text.splitlines()
    weight = lines.pop(2)
    assert weight.startswith('  const %"layer/w": float32[4, 5] = sha256:')
    assert weight.endswith(hashlib.sha256(np.arange(20, dtype="<f4").tobytes()).hexdigest())
    assert lines == [
        'graph "two words" opset 17 {',
        "  input %x: float32[1, 4]",
        "  const %b: float32[5] = [0.1, -0.0, inf, 1e-45, 3.0]",
        '  %h: float32[1, 5] = Gemm(%x, %"layer/w", %b) {alpha = 1.0, transB = 0}',
        '  %y: float32[1, 5], _ = "com.example::Clip"(%h, _, %b) "the clip"',
        "  return %y, %h",
        "}",
    ]


def test_the_text_with_weights_holds_everything() -> None:
    graph = sample()
    found = parse_graph(print_graph(graph, weights=True))
    assert_equal(found, graph)
    assert verify(found) == ()


def test_digests_are_resolved_from_the_given_constants() -> None:
    graph = sample()
    assert_equal(parse_graph(print_graph(graph), constants=constants_of(graph)), graph)


def test_one_digest_is_read_as_the_type_and_shape_that_the_text_says() -> None:
    data = np.arange(600, dtype=np.float32)
    graph = Graph("g")
    views = {"a": data.reshape(20, 30), "b": data.reshape(30, 20), "c": data.view(np.int32)}
    graph.outputs = [graph.constant(value, name) for name, value in views.items()]
    text = print_graph(graph)
    assert print_graph(parse_graph(text, constants=constants_of(graph))) == text
    with pytest.raises(UsageError, match=r"float32\[20, 31\] is given the bytes of"):
        parse_graph(text.replace("[20, 30]", "[20, 31]"), constants=constants_of(graph))


def test_a_digest_without_its_data_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"line 3: .* digest .* weights"):
        parse_graph(print_graph(sample()))


def test_bodies_and_captures_read_back() -> None:
    for body in (b"short", b"long" * 100):
        graph = Graph()
        c = graph.add_input(Value("c", DType.BOOL, ()))
        x = graph.add_input(Value("x", DType.INT64, (0, 3)))
        y = graph.value("y", DType.INT64, (0, 3))
        node = Node("If", [c], [y], {"then_branch": SubgraphAttribute(body)}, captures=[x, c], opset=13)
        graph.append(node)
        graph.outputs = [y]
        assert_equal(parse_graph(print_graph(graph, weights=True)), graph)
        assert_equal(parse_graph(print_graph(graph), constants=constants_of(graph)), graph)


names = st.text(min_size=1, max_size=12)
scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=8)
)
lists = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple),
    st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    st.lists(st.text(max_size=5), max_size=4).map(tuple),
)
dtypes = st.sampled_from(
    [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.uint64, np.bool_, ml_dtypes.bfloat16]
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:  # type: ignore[type-arg]  # any array
    """Any bits, NaN payloads included, of sizes on both sides of the inline limit."""
    dtype = np.dtype(draw(dtypes))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=MAX_INLINE_ELEMENTS // 3))
    size = int(np.prod(shape, dtype=int))
    if dtype == np.bool_:
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(shape)
    bits = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    return np.frombuffer(bits, dtype).reshape(shape)


@pytest.mark.parametrize("bits", [0x7F81, 0xFF81])
def test_a_nan_that_signals_is_written_by_its_bits(bits: int) -> None:
    signalling = np.array(bits, np.uint16).view(DType.BFLOAT16.numpy)
    graph = Graph("nan")
    graph.outputs = [Value("c", DType.BFLOAT16, (), signalling)]
    text = print_graph(graph, weights=True)
    found = parse_graph(text).outputs[0].data
    assert found is not None
    assert found.view(np.uint16) == bits


@given(
    st.lists(names, min_size=4, max_size=4, unique=True),
    arrays(),
    st.dictionaries(names, st.one_of(scalars, lists, arrays()), max_size=3),
    names,
)
def test_any_graph_reads_back(
    value_names: list[str],
    data: np.ndarray,
    attributes: dict[str, Any],
    node_name: str,  # type: ignore[type-arg]
) -> None:
    x_name, w_name, y_name, graph_name = value_names
    graph = Graph(graph_name)
    x = graph.add_input(Value(x_name, DType.FLOAT16, (1,)))
    w = Value(w_name, DType.from_numpy(data.dtype), data.shape, data)
    y = Value(y_name, DType.STRING, ())
    graph.append(Node("Op", [x, None, w], [y], attributes, name=node_name, opset=3))  # type: ignore[arg-type]
    graph.outputs = [y]
    text = print_graph(graph, weights=True)
    found = parse_graph(text)
    assert_equal(found, graph)
    assert print_graph(found, weights=True) == text
    assert_equal(parse_graph(print_graph(graph), constants=constants_of(graph)), graph)


def test_strings_read_back() -> None:
    graph = Graph()
    data = np.array(["a", "ü\n", '"'] * 9, dtype=object)
    small, large = graph.constant(data[:3], "small"), graph.constant(data, "large")
    graph.outputs = [small, large]
    assert_equal(parse_graph(print_graph(graph, weights=True)), graph)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected 'graph', found the end"),
        ('graph "g" opset 17', "line 1: expected '{', found the end"),
        ('graph "g" opset 17 {\n  input %x: float99[1]\n', "line 2: 'float99' is no element type"),
        ('graph "g" opset 17 {\n  return %y\n}', "line 2: value 'y' is read before it is defined"),
        ('graph "g" opset 17 {\n  ~', "line 2: cannot read '~'"),
        (
            'graph "g" opset 17 {\n  input %x: float32[1]\n  input %x: float32[1]\n  return\n}',
            "line 3: value 'x' is defined twice",
        ),
        (
            'graph "g" opset 17 {\n  const %x: float32[3] = [1.0]\n  return\n}',
            "line 2: .* needs 3 elements, 1 are given",
        ),
        (
            'graph "g" opset 17 {\n  const %x: float32[1] = base64:AAAA\n  return\n}',
            "line 2: .* needs 4 bytes, 3 are given",
        ),
        ('graph "g" opset 17 {\n  const %x: float32[1] = base64:A\n}', "line 2: base64 text is damaged"),
        ('graph "g" opset 17 {\n  return\n}\nmore', "line 4: expected the end of the text, found 'more'"),
    ],
)
def test_a_mistake_in_the_text_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_graph(text)
