"""Whole models on the emulated GPU: values, order, the host's part, errors."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.support.cuda import EMULATED, compiled, error, needs_fibers, templates
from tests.support.models import host_net, model, small_net

import tilewright as tw
from tilewright.errors import InputError, ModelClosed, TilewrightError, UsageError

pytestmark = needs_fibers
RNG = np.random.default_rng(7)
IMAGE = {"image": RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)}


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
    ]
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [6])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("flat", [6]), ("same", [2, 3]))
    ]
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    flat, same = compiled(model(nodes, inputs, outputs, [shape])).run(None, {"x": x})
    np.testing.assert_array_equal(flat, x.reshape(6))
    np.testing.assert_array_equal(same, x)


def test_a_closed_model_and_a_wrong_feed_are_refused() -> None:
    found = compiled(small_net(8, 6))
    with pytest.raises(UsageError, match="image"):
        found.run(None, {"image": np.zeros((1, 3, 5, 6), np.float32)})
    found.close()
    with pytest.raises(ModelClosed):
        found.run(None, IMAGE)


def test_without_a_driver_the_error_says_what_to_do() -> None:
    with pytest.raises(TilewrightError, match="device=emulated"):
        tw.compile(small_net(8, 6), target="cuda").run(None, IMAGE)


def test_a_machine_that_is_no_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="has no threads; give a GPU"):
        tw.compile(small_net(8, 6), target="cuda{gpu=eyeriss}")
