"""The zoo's functions: names, sizes, errors, example inputs, weights and export style."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.cli import tilewright

from tilewright import zoo
from tilewright.errors import UsageError
from tilewright.zoo.builder import Builder
from tilewright.zoo.catalog import NETWORKS
from tilewright.zoo.weights import uniform_weights


def test_every_name_has_an_entry_whose_shapes_are_those_of_the_model() -> None:
    assert zoo.names() == tuple(sorted(zoo.names()))
    for name in zoo.names():
        entry = zoo.entry(name)
        assert entry.name == name
        assert entry.description
        assert entry.paper
        assert all(extent > 0 for shape in entry.input_shapes.values() for extent in shape)
    model = zoo.build("bert_tiny")
    assert {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    } == dict(zoo.entry("bert_tiny").input_shapes)


def test_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(UsageError, match=r"no network 'ResNet-5O'. Did you mean .*resnet50"):
        zoo.build("ResNet-5O")
    with pytest.raises(UsageError, match=r"no network 'xyzzy'. Known: bert_base, "):
        zoo.entry("xyzzy")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet18", {"batch": 0}, "batch 0 is not a positive number"),
        ("resnet18", {"image": 16}, "image 16 does not fit; it takes sizes from 32."),
        ("resnet18", {"sequence": 8}, "resnet18 has no sequence size"),
        ("bert_tiny", {"image": 224}, "bert_tiny has no image size"),
        ("bert_tiny", {"sequence": 513}, "sequence 513 does not fit; it takes sizes from 1 to 512."),
        ("yolov5s", {"image": 100}, "it takes sizes from 32 in multiples of 32."),
        (
            "yolov5s",
            {"image": (96, 100)},
            "image 100 does not fit; it takes sizes from 32 in multiples of 32.",
        ),
        (
            "yolov5s",
            {"image": (100, 96)},
            "image 100 does not fit; it takes sizes from 32 in multiples of 32.",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        zoo.build(name, **arguments)
    assert message in str(caught.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in zoo.names() if NETWORKS[name].image is not None])
def test_images_may_be_wider_than_high(name: str) -> None:
    image = NETWORKS[name].image
    assert image is not None
    height = image.smallest
    width = next(side for side in range(height + 1, 4 * height) if image.accepts(side))
    model = zoo.build(name, image=(width, height))
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in shape[2:]] == [height, width]
    onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.parametrize("text", ["640x", "x512", "640x512x3", "-640", "640.5", "\u0661"])
def test_image_sizes_that_cannot_be_read_are_refused_in_one_line(text: str) -> None:
    result = tilewright("zoo", "build", "resnet18", f"--image={text}")
    assert result.code == 2
    assert "expected pixels as 640, or width x height as 640x512" in " ".join(result.err.split())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in zoo.names() if NETWORKS[name].sequence is not None])
def test_sequence_sets_the_length_of_the_inputs(name: str) -> None:
    network = NETWORKS[name]
    assert network.sequence is not None
    length = network.sequence.smallest + 24
    if name != "bert_large":
        model = zoo.build(name, sequence=length, batch=2)
        for value in model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            expected = [2, 1] if name == "gpt2_decode" and len(shape) == 2 else [2, length]  # one token
            assert (shape if len(shape) < 4 else shape[::2])[:2] == expected


def test_example_inputs_fit_their_meaning() -> None:
    inputs = zoo.example_inputs("bert_tiny", seed=3)
    assert {name: array.dtype for name, array in inputs.items()} == dict.fromkeys(inputs, np.dtype(np.int64))
    assert 0 <= inputs["input_ids"].min() < inputs["input_ids"].max() < 30522
    for name, first in (("attention_mask", 1), ("token_type_ids", 0)):
        (row,) = inputs[name]
        changes = np.flatnonzero(np.diff(row))
        assert row[0] == first
        assert set(row) <= {0, 1}
        assert len(changes) <= 1
    image = zoo.example_inputs("resnet18")["input"]
    assert image.shape == (1, 3, 224, 224)
    assert 0.3 < image.std() < 3


def test_example_inputs_depend_on_the_seed_alone() -> None:
    first, same, other = (zoo.example_inputs("dlrm_s", seed) for seed in (0, 0, 1))
    for name in first:
        assert np.array_equal(first[name], same[name])
        assert not np.array_equal(first[name], other[name])


def _foreign(element: int, shape: list[int | str]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", element, shape)
    y = helper.make_tensor_value_info("y", element, shape)
    return helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y]))


def test_example_inputs_of_a_model_from_elsewhere() -> None:
    assert zoo.example_inputs(_foreign(TensorProto.FLOAT, [2, 3]))["x"].dtype == np.float32
    assert set(np.unique(zoo.example_inputs(_foreign(TensorProto.INT64, [50]))["x"])) == {0, 1}
    with pytest.raises(UsageError, match="Input 'x' has no fixed shape"):
        zoo.example_inputs(_foreign(TensorProto.FLOAT, ["batch", 3]))
    with pytest.raises(UsageError, match="Input 'x' is STRING"):
        zoo.example_inputs(_foreign(TensorProto.STRING, [2]))


def test_weights_are_the_scaled_words_of_the_keyed_stream() -> None:
    """More than one piece and an odd count; the first words recomputed one by one."""
    import hashlib

    count = (1 << 16) + 3
    weights = uniform_weights("a/0/w", (count,), mean=1.0, deviation=2.0)
    key = int.from_bytes(hashlib.blake2b(b"a/0/w", digest_size=16).digest(), "little")
    words = np.random.Philox(key=key).random_raw(count // 2 + 1)
    half_width = np.sqrt(3.0) * 2.0
    for index in (0, 1, 2, count - 1):
        word = int(words[index // 2]) >> (32 * (index % 2)) & 0xFFFFFFFF
        unit = (word >> 8) / 2**24
        assert weights[index] == pytest.approx(1.0 - half_width + 2 * half_width * unit, abs=1e-5)
    assert weights.mean() == pytest.approx(1.0, abs=0.05)
    assert weights.std() == pytest.approx(2.0, abs=0.05)


def test_names_never_clash_even_with_numbered_ones() -> None:
    b = Builder("clash", seed=0)
    x = b.input("x", (1, 4))
    made = [b.relu(x), b.relu(x, name="relu_1"), b.relu(x), b.relu(x)]
    assert len({tensor.name for tensor in made}) == 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x: b.conv(x, 4, 9), "a window of (9, 9) does not fit"),
        (lambda b, x: b.reshape(x, (7,)), "does not reshape to (7,)"),
    ],
)
def test_builder_refuses_shapes_that_cannot_be(build, message: str) -> None:  # type: ignore[no-untyped-def]
    b = Builder("wrong", seed=0)
    with pytest.raises(ValueError, match=r"fit|reshape") as caught:
        build(b, b.input("x", (1, 3, 8, 8)))
    assert message in str(caught.value)


def _ops(name: str, **sizes: int) -> Counter[str]:
    return Counter(node.op_type for node in zoo.build(name, **sizes).graph.node)


def test_graphs_look_like_an_export_before_optimisation() -> None:
    resnet = _ops("resnet50", image=32)
    assert resnet["Conv"] == resnet["BatchNormalization"] == 53
    assert (resnet["Relu"], resnet["Add"], resnet["Gemm"]) == (49, 16, 1)

    bert = _ops("bert_tiny")
    assert bert["Erf"] == bert["Softmax"] == 2
    assert bert["Sqrt"] == 5  # layer normalisations: one of the embeddings, two per layer
    assert not {"LayerNormalization", "Gelu", "Attention"} & bert.keys()
    assert bert["Gather"] == 4  # words, types, positions, and the pooler's first token

    assert _ops("mobilenet_v2")["Clip"] == 35
    assert _ops("yolox_nano")["Slice"] == 8  # the focus layer takes two slices per quarter
    shuffle = _ops("shufflenet_v2_x1_0")
    assert shuffle["Transpose"] == 16
    assert shuffle["Split"] == 13
