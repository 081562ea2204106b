"""A model read in two parts is the model that a parser reads, byte by byte and value by value."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import ModelRejected
from tilewright.frontend.onnx import load_onnx, open_model, read, split
from tilewright.frontend.onnx.split import Split, split_model

F32 = TensorProto.FLOAT


def model_of(*weights: TensorProto) -> ModelProto:
    """A sum with each of these weights."""
    nodes = [helper.make_node("Add", ["x", w.name], [f"sum {w.name}"]) for w in weights]
    x = helper.make_tensor_value_info("x", F32, [64])
    outputs = [helper.make_tensor_value_info(f"sum {w.name}", F32, None) for w in weights]
    graph = helper.make_graph(nodes, "sums", [x], outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weight(name: str, rows: int, *, raw: bool = True) -> TensorProto:
    array = np.arange(64 * rows, dtype=np.float32).reshape(rows, 64)
    return helper.make_tensor(name, F32, array.shape, array.tobytes() if raw else array.reshape(-1), raw=raw)


def split_of(data: bytes, size_bytes: int | None = None) -> Split:
    return split_model(io.BytesIO(data), len(data) if size_bytes is None else size_bytes)


def together(parts: Split) -> ModelProto:
    model = ModelProto.FromString(parts.rest)
    for number, array in parts.data.items():
        model.graph.initializer[number].raw_data = array.tobytes()
    return model


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_BYTES", 1024)
    monkeypatch.setattr(read, "_MIN_SPLIT_BYTES", 0)


def test_large_initializers_are_apart_and_nothing_is_lost() -> None:
    weights = weight("a", 8), weight("b", 1), weight("c", 16), weight("d", 8, raw=False)
    data = model_of(*weights).SerializeToString()
    parts = split_of(data)
    assert sorted(parts.data) == [0, 2]
    assert len(parts.rest) < len(data) - 24 * 256
    assert b"".join(map(bytes, parts.pieces)) == data
    assert together(parts) == ModelProto.FromString(data)
    assert not any(array.flags.writeable for array in parts.data.values())


def twice(data: bytes) -> bytes:
    """A model of two graph fields, of which a parser makes one."""
    return data + data


def twice_in_a_tensor(data: bytes) -> bytes:
    tensor = weight("a", 8).SerializeToString()
    graph = onnx.GraphProto(name="g").SerializeToString() + field(5, tensor + field(9, b"\1" * 2048))
    return ModelProto(ir_version=9).SerializeToString() + field(7, graph)


def field(number: int, content: bytes) -> bytes:
    size, count = bytearray(), len(content)
    while count > 127:
        size.append(count & 127 | 128)
        count >>= 7
    return bytes((number << 3 | 2, *size, count)) + content


@pytest.mark.parametrize(
    "change",
    [
        twice,
        twice_in_a_tensor,
        lambda data: data[:-3],
        lambda data: data + b"\x0b",
        lambda data: b"\xff" * 11 + data,
        lambda data: data + b"\x3a\xff\xff\xff\x7f",
    ],
)
def test_what_nobody_writes_stays_whole(change: object) -> None:
    data = change(model_of(weight("a", 8)).SerializeToString())  # type: ignore[operator]
    parts = split_of(data)
    assert parts.data == {}
    assert parts.rest == b"".join(map(bytes, parts.pieces)) == data


def test_more_fields_than_any_model_has_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model_of(weight("a", 8)).SerializeToString()
    monkeypatch.setattr(split, "MAX_FIELDS", 40)
    assert split_of(data).data
    many = split_of(data + b"\x08\x09" * 40)  # the version of its format, again and again
    assert many.data == {}
    assert many.rest == data + b"\x08\x09" * 40


@pytest.mark.parametrize("known_bytes", [0, 100, 3000, 10**6])
def test_a_file_that_changes_meanwhile_stays_whole(known_bytes: int) -> None:
    data = model_of(weight("a", 8), weight("b", 8)).SerializeToString()
    parts = split_of(data, known_bytes)
    assert parts.rest == data
    assert parts.size_bytes == len(data)


@given(st.binary(max_size=300), st.integers(0, 5000), st.integers(0, 40))
def test_any_bytes_are_kept(noise: bytes, at: int, gone: int) -> None:
    data = model_of(weight("a", 8), weight("b", 16)).SerializeToString()
    data = data[: at % len(data)] + noise + data[at % len(data) + gone :]
    parts = split_of(data)
    assert b"".join(map(bytes, parts.pieces)) == data
    if parts.data:
        assert parsed(lambda: together(parts)) == parsed(lambda: ModelProto.FromString(data))


def parsed(make: Callable[[], ModelProto]) -> bytes | None:
    """A model in its one form; None if the parser refuses it."""
    try:
        return make().SerializeToString(deterministic=True)
    except DecodeError:
        return None


@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
def test_every_source_gives_the_same_model(kind: str, tmp_path: Path) -> None:
    proto = model_of(weight("a", 8), weight("b", 1), weight("c", 16, raw=False))
    data = proto.SerializeToString(deterministic=True)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    source: tw.Model | Path | bytes | ModelProto = {"path": path, "bytes": data, "proto": proto}[kind]
    opened = open_model(source)
    assert opened.sha256() == hashlib.sha256(data).hexdigest()
    assert list(opened.data) == [0]
    graph = load_onnx(source)
    for value in graph.initializers:
        expected = numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == value.name))
        assert value.data is not None
        np.testing.assert_array_equal(value.data, expected)
    opened.embed()
    assert opened.model == proto


@pytest.mark.parametrize("num_bytes", [2044, 2052])
def test_data_of_another_size_than_the_shape_are_refused(num_bytes: int) -> None:
    tensor = weight("a", 8)
    tensor.raw_data = b"\0" * num_bytes
    with pytest.raises(ModelRejected, match=f"needs 2048 bytes, but has {num_bytes}"):
        tw.load(model_of(tensor))


def test_raw_data_count_before_those_of_other_fields() -> None:
    tensor = weight("a", 8)
    tensor.float_data.append(1.0)
    (value,) = tw.load(model_of(tensor)).graph.initializers
    assert value.data is not None
    np.testing.assert_array_equal(value.data, np.arange(512, dtype=np.float32).reshape(8, 64))


def test_of_weights_with_one_name_the_last_counts() -> None:
    proto = model_of(weight("a", 512))
    other = weight("a", 512)
    other.raw_data = bytes(len(other.raw_data))
    proto.graph.initializer.append(other)
    data = proto.SerializeToString()
    assert len(data) >= 1 << 17
    (value,) = tw.load(data).graph.initializers
    assert value.data is not None
    assert not value.data.any()


def test_old_models_are_converted_whole() -> None:
    proto = model_of(weight("a", 8))
    proto.opset_import[0].version = 9
    (value,) = tw.load(proto).graph.initializers
    assert value.data is not None
    np.testing.assert_array_equal(value.data, np.arange(512, dtype=np.float32).reshape(8, 64))
