"""A run computes with what its feed held when it began, whatever other threads do to it meanwhile."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.calls import own_feed
from tilewright.errors import InputError, UsageError


class Changing(UserDict[str, Any]):
    """As if another thread put something in while the feed is read."""

    def __iter__(self) -> Iterator[str]:
        for number, name in enumerate(self.data):
            self.data[f"other{number}"] = 0
            yield name


class Clearing:
    """An input that takes all inputs out of its feed while it becomes an array."""

    def __init__(self, feed: dict[str, Any]) -> None:
        self.feed = feed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self.feed.clear()
        return np.ones(2, np.float32)


def _sum(shape: list[int | str]) -> onnx.ModelProto:
    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "abc")
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "g", [a, b], [c])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("shape", [[2], ["n"]], ids=["closed", "open"])
def test_inputs_are_those_of_the_beginning(shape: list[int | str]) -> None:
    with tw.compile(_sum(shape), target="interpreter") as model:
        feed: dict[str, Any] = {"b": np.ones(2, np.float32)}
        feed["a"] = Clearing(feed)
        np.testing.assert_array_equal(model.run(None, feed)[0], [2, 2])
        assert not feed
        with pytest.raises(InputError, match="changed while it was read; give each run a dict"):
            model.run(None, Changing(a=np.ones(2, np.float32), b=np.ones(2, np.float32)))


def test_a_feed_is_a_mapping() -> None:
    assert own_feed(UserDict(a=1)) == {"a": 1}
    with pytest.raises(UsageError, match="feed is a list"):
        own_feed([1])  # type: ignore[arg-type]
