from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tilewright.artifact.tensors import decode_tensors, encode_tensors
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, SubgraphAttribute, Value
from tilewright.ir.text import parse_graph, print_graph
from tilewright.targets.named_constants import named_constants, resolved_constants

TYPES = [d.numpy for d in DType if d is not DType.STRING and not str(d).startswith("complex")]


def sample(dtype: np.dtype) -> np.ndarray:
    return np.arange(-3, 9).astype(dtype).reshape(3, 4)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_comes_back(dtype: np.dtype) -> None:
    tensors = {"t": sample(dtype), "scalar": np.zeros((), dtype), "none": np.zeros((0, 2), dtype)}
    decoded = decode_tensors(b"".join(encode_tensors(tensors)))
    for name, tensor in tensors.items():
        assert decoded[name].dtype == tensor.dtype
        assert decoded[name].shape == tensor.shape
        assert decoded[name].tobytes() == tensor.tobytes()


def test_the_layout_is_that_of_safetensors() -> None:
    raw = b"".join(encode_tensors({"a": np.ones((2, 2), np.float32), "b": np.array([7], np.int64)}))
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert header == {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]},
    }
    assert (8 + size) % 64 == 0
    assert raw[8 + size :] == np.ones(4, np.float32).tobytes() + np.array([7], np.int64).tobytes()


def test_views_in_any_order_are_written_row_by_row() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(decode_tensors(b"".join(encode_tensors({"t": tensor})))["t"], tensor)


@pytest.mark.parametrize(
    "header",
    [
        {"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}},
        {"t": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
        {"t": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}},
        {"t": {"dtype": "F32", "shape": [3], "data_offsets": [0, 15]}},
    ],
)
def test_tensors_outside_the_file_are_refused(header: dict) -> None:
    text = json.dumps(header).encode()
    with pytest.raises(ValueError, match=r"t\.(data_offsets|shape)"):
        decode_tensors(len(text).to_bytes(8, "little") + text + bytes(16))


def test_a_graph_with_all_kinds_of_constants_comes_back() -> None:
    graph = Graph("all")
    x = graph.add_input(Value("x", DType.FLOAT32, (20,)))
    big = graph.constant(np.linspace(0, 1, 20, dtype=np.float32), "big")
    words = graph.constant(np.array([f"word{i}" for i in range(20)], dtype=object), "words")
    half = graph.constant(np.arange(20).astype(ml_dtypes.bfloat16), "half")
    y = graph.value("y", DType.FLOAT32, (20,))
    body = SubgraphAttribute(bytes(range(100)))
    tensor = np.arange(40, dtype=np.int32)
    graph.append(Node("Odd", [x, big, words, half], [y], {"body": body, "table": tensor}, domain="test"))
    graph.outputs = [y]
    tensors, table = named_constants(graph)
    assert {"big", "words", "half"} <= set(tensors)
    stored = decode_tensors(b"".join(encode_tensors(tensors)))
    text = print_graph(graph)
    again = parse_graph(text, constants=resolved_constants(stored, table))
    assert print_graph(again, weights=True) == print_graph(graph, weights=True)
