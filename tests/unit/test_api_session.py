"""The stand-in for onnxruntime's session does what onnxruntime's does, and shares memory where that can."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tests.support.models import feed_for, mixed_outputs, small_net

import tilewright as tw
from tilewright.api.values import OrtValue

WAIT_S = 60.0


@pytest.fixture(scope="module")
def net() -> onnx.ModelProto:
    net = small_net()
    net.producer_name, net.domain, net.doc_string, net.model_version = "maker", "vision", "what it is", 7
    net.graph.doc_string = "of the graph"
    onnx.helper.set_model_props(net, {"classes": "cat,dog"})
    return net


@pytest.fixture(scope="module")
def session(net: onnx.ModelProto) -> tw.InferenceSession:
    return tw.InferenceSession(net.SerializeToString())


@pytest.fixture(scope="module")
def theirs(net: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])


METADATA = (
    *("producer_name", "graph_name", "domain", "description", "graph_description", "version"),
    "custom_metadata_map",
)


def test_metadata_are_as_onnxruntime_reads_them_and_an_artifact_keeps_them(
    session: tw.InferenceSession, theirs: ort.InferenceSession, tmp_path: Path
) -> None:
    session.compiled.save(tmp_path / "net.tw")
    kept = tw.InferenceSession(tmp_path / "net.tw").get_modelmeta()
    expected = theirs.get_modelmeta()
    for name in METADATA:
        assert getattr(session.get_modelmeta(), name) == getattr(kept, name) == getattr(expected, name), name


@pytest.mark.parametrize("target", ["cpu", "interpreter", "stcp920"])
def test_outputs_lie_in_the_arrays_that_were_given_for_them(net: onnx.ModelProto, target: str) -> None:
    compiled = tw.compile(net, target)
    feed = feed_for(net)
    logits, r1 = compiled.run(None, feed)
    place = np.full_like(logits, np.nan)
    found = compiled.run_into(feed, {"logits": place})
    assert found[0] is place
    np.testing.assert_array_equal(place, logits)
    np.testing.assert_array_equal(found[1], r1)


def test_outputs_that_no_kernel_computes_lie_there_too() -> None:
    compiled = tw.compile(mixed_outputs())
    feed = feed_for(mixed_outputs())
    into = {info.name: np.full(info.shape, np.nan, np.float32) for info in compiled.get_outputs()}
    found = compiled.run_into(feed, into)
    for place, array, expected in zip(into.values(), found, compiled.run(None, feed), strict=True):
        assert array is place
        np.testing.assert_array_equal(place, expected)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_an_input_is_read_where_it_lies_at_any_address(net: onnx.ModelProto, offset: int) -> None:
    compiled = tw.compile(net)
    image = feed_for(net)["image"]
    expected = compiled.run(None, {"image": image})
    memory = np.zeros(image.size + 8, np.float32)
    moved = memory[offset : offset + image.size].reshape(image.shape)
    moved[...] = image
    (read,) = compiled.load()._checked({"image": moved})  # type: ignore[attr-defined]  # of the processor's
    assert read is moved
    for found, other in zip(compiled.run(None, {"image": moved}), expected, strict=True):
        np.testing.assert_array_equal(found, other)


def test_arrays_that_do_not_fit_are_named(net: onnx.ModelProto, session: tw.InferenceSession) -> None:
    feed = feed_for(net)
    wrong = np.empty((10, 2), np.float32)
    frozen = np.empty((1, 10), np.float32)
    frozen.flags.writeable = False
    both = np.empty((1, 24, 12, 12), np.float32)
    cases = {
        "unknown output 'other': this model gives logits, r1.": {"other": wrong},
        "'logits' is float32[10, 2], the model gives FLOAT32[1, 10].": {"logits": wrong},
        "'logits' is not contiguous, aligned and writeable": {"logits": wrong[:, :1].reshape(10, 1).T},
        "'logits' is not contiguous": {"logits": frozen},
        "'logits' shares memory with that of 'r1'": {"r1": both, "logits": both.reshape(-1)[:10][None]},
        "'r1' shares memory with that of 'image'": {"r1": both},
    }
    for text, into in cases.items():
        given = {"image": both.reshape(-1)[: 3 * 144].reshape(1, 3, 12, 12)} if "image" in text else feed
        with pytest.raises(tw.UsageError) as caught:
            session.compiled.run_into(given, into)
        assert text.lower() in str(caught.value).lower()


def test_a_binding_reads_and_writes_what_was_bound(
    net: onnx.ModelProto, session: tw.InferenceSession, theirs: ort.InferenceSession
) -> None:
    image = feed_for(net)["image"].copy()
    logits = np.empty((1, 10), np.float32)
    ours, other = session.io_binding(), theirs.io_binding()
    for binding in (ours, other):
        binding.bind_cpu_input("image", image)
    ours.bind_output("logits", "cpu", 0, np.float32, (1, 10), logits.ctypes.data)
    ours.bind_output("r1")
    other.bind_output("logits")
    other.bind_output("r1")
    for factor in (1.0, -2.0):
        image *= np.float32(factor)  # the binding reads the array, not a copy
        session.run_with_iobinding(ours)
        other.bind_cpu_input("image", image)
        theirs.run_with_iobinding(other)
        expected = other.copy_outputs_to_cpu()
        np.testing.assert_allclose(logits, expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours.get_outputs()[1].numpy(), expected[1], rtol=1e-3, atol=1e-4)
    copied = ours.copy_outputs_to_cpu()[0]
    assert not np.shares_memory(copied, logits)
    ours.clear_binding_outputs()
    with pytest.raises(tw.UsageError, match="no output is bound"):
        ours.run()


def test_values_of_onnxruntime_are_bound_without_a_copy(
    net: onnx.ModelProto, session: tw.InferenceSession
) -> None:
    image = ort.OrtValue.ortvalue_from_numpy(feed_for(net)["image"])
    logits = ort.OrtValue.ortvalue_from_shape_and_type((1, 10), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("image", image)
    binding.bind_ortvalue_output("logits", logits)
    binding.run()
    expected = session.run(["logits"], feed_for(net))[0]
    np.testing.assert_array_equal(logits.numpy(), expected)
    assert binding.get_outputs()[0].data_ptr() == logits.data_ptr()
    (value,) = session.run_with_ort_values(["logits"], {"image": image})
    np.testing.assert_array_equal(value.numpy(), expected)


def test_mistakes_with_bindings_are_usage_errors(session: tw.InferenceSession) -> None:
    binding = session.io_binding()
    with pytest.raises(tw.UsageError, match=r"cannot bind 'x': known are image\."):
        binding.bind_cpu_input("x", np.zeros(3))
    with pytest.raises(tw.UsageError, match=r"cannot bind 'x': known are logits, r1\."):
        binding.bind_output("x")
    with pytest.raises(tw.UsageError, match="device 'cuda': values lie on the cpu"):
        binding.bind_output("logits", "cuda")
    with pytest.raises(tw.UsageError, match="expected an OrtValue, found a ndarray"):
        binding.bind_ortvalue_input("image", np.zeros(3))


def test_a_value_is_as_onnxruntimes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours, theirs = OrtValue.ortvalue_from_numpy(array), ort.OrtValue.ortvalue_from_numpy(array)
    for name in ("shape", "data_type", "device_name", "is_tensor", "has_value"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    assert np.shares_memory(np.from_dlpack(ours), array)
    assert np.shares_memory(OrtValue.from_dlpack(array).numpy(), array)
    ours.update_inplace(array + 1)
    assert array[0, 0] == 1.0
    with pytest.raises(tw.UsageError, match="give one that fits"):
        ours.update_inplace(array.T)


def test_runs_that_nobody_waits_for_tell_their_outputs(
    net: onnx.ModelProto, session: tw.InferenceSession
) -> None:
    told: dict[int, tuple[list, str]] = {}
    all_told = threading.Event()
    feeds = [feed_for(net, seed) for seed in range(6)]

    def callback(outputs: list, number: int, error: str) -> None:
        told[number] = (outputs, error)
        if len(told) == len(feeds):
            all_told.set()

    for number, feed in enumerate(feeds):
        session.run_async(["logits"], feed, callback, number)
    assert all_told.wait(WAIT_S)
    for number, feed in enumerate(feeds):
        assert told[number][1] == ""
        np.testing.assert_array_equal(told[number][0][0], session.run(["logits"], feed)[0])


def test_a_run_that_nobody_waits_for_tells_its_error(session: tw.InferenceSession) -> None:
    told: list[tuple[list, object, str]] = []
    is_told = threading.Event()

    def callback(*what: object) -> None:
        told.append(what)  # type: ignore[arg-type]  # three of them
        is_told.set()

    session.run_async(None, {}, callback, "mine")
    assert is_told.wait(WAIT_S)
    assert told[0][:2] == ([], "mine")
    assert told[0][2].startswith("input 'image' is missing")


def test_a_compiled_model_is_called_with_inputs_by_place_or_name(
    net: onnx.ModelProto, session: tw.InferenceSession
) -> None:
    image = feed_for(net)["image"]
    expected = session.run(None, {"image": image})
    for found in (session.compiled(image), session.compiled(image=image)):
        assert isinstance(found, tuple)
        for array, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array, other)
    alone = tw.compile(onnx.helper.make_model(_last_output_alone(net)), "interpreter")
    assert isinstance(alone(image), np.ndarray)


def _last_output_alone(net: onnx.ModelProto) -> onnx.GraphProto:
    graph = onnx.GraphProto()
    graph.CopyFrom(net.graph)
    del graph.output[1:]
    return graph


def test_wrong_calls_of_a_compiled_model_are_usage_errors(session: tw.InferenceSession) -> None:
    image = np.zeros((1, 3, 12, 12), np.float32)
    with pytest.raises(tw.UsageError, match=r"2 inputs were given: this model takes image\."):
        session.compiled(image, image)
    with pytest.raises(tw.UsageError, match="input 'image' was given twice"):
        session.compiled(image, image=image)
    with pytest.raises(tw.UsageError, match="input 'image' is missing"):
        session.compiled()
