"""Arrays of a device in and out, without a copy: the emulated one's memory is numpy's."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cuda import compiled, error, needs_fibers
from tests.support.models import feed_for, host_net, model, small_net

import tilewright as tw
from tilewright.errors import InputError, UsageError
from tilewright.targets.cuda import dlpack
from tilewright.targets.cuda.device import DeviceError
from tilewright.targets.cuda.emulated.device import EmulatedGraph

pytestmark = needs_fibers


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins at a multiple of 64 bytes."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    place = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    place[...] = array
    return place


def test_inputs_and_outputs_stay_on_the_device() -> None:
    proto = small_net(8, 6)
    found = compiled(proto)
    feed = {name: aligned(value) for name, value in feed_for(proto).items()}
    results = found.run_on_device(feed)
    logits, activations = (np.from_dlpack(results[name]) for name in ("logits", "r1"))
    assert logits.ctypes.data == results["logits"].address
    assert error(proto, feed, [logits, activations]) < 1e-5
    kept = logits.copy()
    feed["image"][...] *= 2
    again = found.run_on_device(feed, stream=1)  # at the same address
    assert error(proto, feed, [again[name].numpy() for name in ("logits", "r1")]) < 1e-5
    np.testing.assert_array_equal(logits, kept)
    other = {"image": aligned(feed["image"] / 3)}
    third = [found.run_on_device(other)[name].numpy() for name in ("logits", "r1")]
    assert error(proto, other, third) < 1e-5
    for mine, there in zip(found.run(None, other), third, strict=True):
        np.testing.assert_array_equal(mine, there)


def test_memory_is_given_back_when_nothing_reads_it() -> None:
    before = len(dlpack._lent)
    found = compiled(small_net(8, 6))
    results = found.run_on_device({"image": aligned(np.zeros((1, 3, 6, 6), np.float32))})
    array = np.from_dlpack(results["logits"])
    results["r1"].__dlpack__()  # which nothing reads
    gc.collect()
    assert len(dlpack._lent) == before + 1
    del array
    gc.collect()
    assert len(dlpack._lent) == before


def test_a_run_that_fails_between_two_addresses_leaves_none_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["h"], "first", axis=1),
        helper.make_node("Softmax", ["h"], ["y"], "second", axis=0),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 40]) for name in "xy")
    found = compiled(model(nodes, [x], [y], []))
    array = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
    first, second = {"x": aligned(array)}, {"x": aligned(3 * array)}
    right = found.run_on_device(first)["y"].numpy()
    update = EmulatedGraph.update
    done: list[None] = []

    def fails_later(*args: Any) -> None:
        if done:
            raise DeviceError("no more")
        update(*args)
        done.append(None)

    with monkeypatch.context() as patch:
        patch.setattr(EmulatedGraph, "update", fails_later)
        with pytest.raises(DeviceError, match="no more"):
            found.run_on_device(second)
    np.testing.assert_array_equal(found.run_on_device(first)["y"].numpy(), right)


def test_what_is_told_of_kernels_after_a_run_leaves_its_memory_alone() -> None:
    found = compiled(small_net(8, 6))
    (result, *_) = found.run_on_device({"image": aligned(np.ones((1, 3, 6, 6), np.float32))}).values()
    array = np.from_dlpack(result)
    ctypes.memset(result.address, 0, array.nbytes)
    assert "sectors" in str(found.explain())
    assert not array.any()


def test_outputs_that_no_kernel_makes_are_copies_of_their_own() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], "relu"),
        helper.make_node("Reshape", ["y", "shape"], ["flat"], "reshape"),
        helper.make_node("Identity", ["y"], ["twice"], "again"),
        helper.make_node("Identity", ["x"], ["same"], "same"),
        helper.make_node("Identity", ["c"], ["constant"], "constant"),
    ]
    arrays = {"shape": np.array([6]), "c": np.array([1.5, 2.5], np.float32)}
    shapes = {"y": [2, 3], "flat": [6], "twice": [2, 3], "same": [2, 3], "constant": [2]}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    found = compiled(model(nodes, [x], outputs, weights))
    for scale in (1, -2):
        feed = {"x": aligned(scale * np.array([[1, -2, 3], [-4, 5, 6]], np.float32))}
        results = found.run_on_device(feed)
        expected = found.run(None, feed)
        for name, right in zip(shapes, expected, strict=True):
            np.testing.assert_array_equal(results[name].numpy(), right)
        assert len({r.address for r in results.values()} | {feed["x"].ctypes.data}) == 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("image", "message"),
    [
        ([1.0], "'image' is no array of a device"),
        (aligned(np.zeros((1, 3, 6, 6))), r"another type or shape than the model's float32\[1, 3, 6, 6\]"),
        (aligned(np.zeros((1, 3, 6, 7), np.float32))[..., :6], "is not contiguous and aligned"),
        (aligned(np.zeros(110, np.float32))[1:109].reshape(1, 3, 6, 6), "is not contiguous and aligned"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(image: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled(small_net(8, 6)).run_on_device({"image": image})


def test_what_has_no_part_on_the_device_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="the model has operators that run on the host: use run"):
        compiled(host_net()).run_on_device({"x": aligned(np.zeros((4, 8), np.float32))})
    with pytest.raises(UsageError, match="this model runs on the processor, whose memory run takes"):
        tw.compile(small_net(8, 6)).run_on_device({})
    with pytest.raises(UsageError, match="the model takes image, on the device"):
        compiled(small_net(8, 6)).run_on_device({})


def test_an_index_outside_its_axis_is_an_error_on_a_stream_as_well() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "rows")]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    found = compiled(model(nodes, inputs, [output], []))
    x = aligned(np.ones((4, 3), np.float32))
    with pytest.raises(InputError, match="Gather 'rows': index 9 lies outside axis 0"):
        found.run_on_device({"x": x, "i": aligned(np.array([1, 9]))}, stream=1)
