"""Arrays of other libraries are read, and given, without a copy."""

# mypy: disable-error-code="dict-item"

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.dlpack import as_numpy, as_torch, is_torch_tensor


class OnlyDlpack:
    """A tensor that knows no protocol but DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnAnotherDevice(OnlyDlpack):
    def __dlpack_device__(self) -> Any:
        return (2, 0)

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("lies on a GPU")


def test_a_model_reads_tensors_that_know_dlpack_alone() -> None:
    feed = feed_for(small_net())
    compiled = tw.compile(small_net())
    expected = compiled.run(None, feed)
    tensor = OnlyDlpack(feed["image"])
    assert np.shares_memory(as_numpy(tensor), feed["image"])
    for found, other in zip(compiled.run(None, {"image": tensor}), expected, strict=True):
        np.testing.assert_array_equal(found, other)


def test_a_tensor_elsewhere_is_a_usage_error() -> None:
    compiled = tw.compile(small_net(), "interpreter")
    with pytest.raises(tw.UsageError, match=r"'image': a OnAnotherDevice is no array \(lies on a GPU\)"):
        compiled.run(None, {"image": OnAnotherDevice(np.zeros(3))})


def test_numpy_sees_outputs_of_a_run_through_dlpack() -> None:
    (logits, _) = tw.compile(small_net())(feed_for(small_net())["image"])
    assert np.shares_memory(np.from_dlpack(logits), logits)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_tensors_of_torch_share_their_memory_both_ways(torch: Any, name: str) -> None:
    tensor = torch.tensor([[1.0, 0.0], [3.0, -4.0]]).to(
        torch.uint8 if name == "uint8" else getattr(torch, name)
    )
    array = as_numpy(tensor)
    assert array.dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert array.ctypes.data == tensor.data_ptr()
    back = as_torch(array)
    assert is_torch_tensor(back)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)


def test_a_tensor_that_records_gradients_is_read_as_it_is(torch: Any) -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert as_numpy(tensor).ctypes.data == tensor.data_ptr()


def test_a_model_called_with_tensors_gives_tensors(torch: Any) -> None:
    compiled = tw.compile(small_net())
    image = torch.from_numpy(feed_for(small_net())["image"])
    outputs = compiled(image)
    assert all(map(is_torch_tensor, outputs))
    np.testing.assert_array_equal(outputs[0].numpy(), compiled(image.numpy())[0])


def test_a_strided_tensor_is_read_right(torch: Any) -> None:
    compiled = tw.compile(small_net())
    image = torch.from_numpy(feed_for(small_net())["image"])
    expected = compiled(image)[0]
    assert torch.equal(compiled(image.to(memory_format=torch.channels_last))[0], expected)
