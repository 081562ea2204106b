"""Arrays in and out: any name, no pickles, equal bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.api.inputs import random_feed, read_arrays, write_arrays
from tilewright.compiled_facts import TensorInfo
from tilewright.errors import UsageError
from tilewright.ir.dtype import DType


def test_arrays_of_any_name_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "file": np.arange(3),  # numpy.savez reserves this name
        "a/b:0": np.ones((2, 0), np.float16),
        "scalar": np.array(True),
    }
    write_arrays(tmp_path / "x.npz", arrays)
    found = read_arrays(tmp_path / "x.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_pickled_arrays_are_not_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "x.npz", x=np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(UsageError, match=r"x\.npz"):
        read_arrays(tmp_path / "x.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.STRING], ids=str)
def test_random_inputs_have_the_type_and_shape_asked_for(dtype: DType) -> None:
    feed = random_feed([TensorInfo("x", dtype, (4, 5))], seed=0)
    assert feed["x"].dtype == dtype.numpy
    assert feed["x"].shape == (4, 5)
    assert len(np.unique(feed["x"].astype(np.complex128))) > 1


def test_random_scalars_are_arrays() -> None:
    feed = random_feed([TensorInfo("x", DType.FLOAT32, ()), TensorInfo("n", DType.INT64, ())], seed=0)
    assert all(isinstance(a, np.ndarray) and a.shape == () for a in feed.values())


def test_text_cannot_be_made_up() -> None:
    with pytest.raises(UsageError, match="'words'"):
        random_feed([TensorInfo("words", DType.STRING, (2,))], seed=0)
