"""Weights of a loaded model are let go of when it has been compiled, unless the caller has the model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.models import model

import tilewright as tw
from tilewright.api import compilation
from tilewright.api.models import Model, as_model

F32 = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def _collects_nothing() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def network() -> bytes:
    """A convolution whose weights a normalisation scales."""
    shapes = {"w": (8, 3, 3, 3), "scale": (8,), "bias": (8,), "mean": (8,), "var": (8,)}
    weights = [numpy_helper.from_array(np.full(s, 2, np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", F32, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", F32, [1, 8, 6, 6])
    data: bytes = model(nodes, [x], [y], weights).SerializeToString()
    return data


def weight_of(loaded: Model) -> weakref.ref[np.ndarray]:  # type: ignore[type-arg]  # of any type
    (data,) = [v.data for v in loaded.graph.initializers if v.name == "w"]
    assert data is not None
    return weakref.ref(data)


def test_a_model_that_was_loaded_to_be_compiled_is_gone_then(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []

    def watched(*arguments: object) -> Model:
        loaded = as_model(*arguments)  # type: ignore[arg-type]
        weights.append(weight_of(loaded))
        return loaded

    monkeypatch.setattr(compilation, "as_model", watched)
    compiled = tw.compile(network(), threads=1)
    assert [weight() for weight in weights] == [None]
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = tw.compile(tw.load(network()), threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(compiled.run(None, {"x": x}), expected)


def test_a_model_that_the_caller_has_keeps_its_weights() -> None:
    loaded = tw.load(network())
    weight = weight_of(loaded)
    tw.compile(loaded, threads=1)
    assert weight() is not None
    assert all(value.data is not None for value in loaded.graph.initializers)
