"""Arrays in and out: any name, no pickles, equal bytes."""

# mypy: disable-error-code="arg-type, attr-defined"

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

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


def _npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version, allow_pickle=True)
    return buffer.getvalue()


def _header(text: str) -> bytes:
    padded = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


_ENTRY = "{'descr': %s, 'fortran_order': %s, 'shape': %s}"
_BODY = bytes(24)
HOSTILE_MEMBERS = {
    "no array": b"text",
    "nothing": b"",
    "magic alone": b"\x93NUMPY",
    "another version": b"\x93NUMPY\x09\x00" + bytes(100),
    "true as an extent": _header(_ENTRY % ("'<f8'", False, "(True, 3)")) + _BODY,
    "a negative extent": _header(_ENTRY % ("'<f8'", False, "(-1, -3)")) + _BODY,
    "a float as an extent": _header(_ENTRY % ("'<f8'", False, "(3.0,)")) + _BODY,
    "no tuple": _header(_ENTRY % ("'<f8'", False, "3")) + _BODY,
    "a short descr": _header(_ENTRY % ("()", False, "(3,)")) + _BODY,
    "an empty descr": _header(_ENTRY % ("''", False, "(3,)")) + _BODY,
    "objects": _header(_ENTRY % ("'|O'", False, "(3,)")) + _BODY,
    "a type of nothing": _header(_ENTRY % ("[('x', '|O')]", False, "(3,)")) + _BODY,
    "more than follows": _header(_ENTRY % ("'<f8'", False, "(2**40,)".replace("2**40", str(2**40)))) + _BODY,
    "less than follows": _header(_ENTRY % ("'<f8'", False, "(2,)")) + _BODY,
    "code": _header("__import__('os').abort()") + _BODY,
    "deep": _header("(" * 5000),
    "a long header": _header(_ENTRY % ("'<f8'", False, "(3,)") + " " * 60000) + _BODY,
    "a pickle": _npy(np.array([1, "x"], object)),
}


@pytest.mark.parametrize("what", HOSTILE_MEMBERS)
def test_a_member_that_is_no_array_is_named(what: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("first.npy", _npy(np.arange(3)))
        archive.writestr("second.npy", HOSTILE_MEMBERS[what])
    with pytest.raises(
        UsageError, match=r"x\.npz: not a readable .npz file \(member 'second\.npy': "
    ) as caught:
        read_arrays(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("place", ["compression", "encrypted", "checksum"])
def test_a_member_that_cannot_be_unpacked_is_named(place: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(100))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    central = data.index(b"PK\x01\x02")
    match place:
        case "compression":
            data[8:10] = data[central + 10 : central + 12] = (77).to_bytes(2, "little")
        case "encrypted":
            data[6] |= 1
            data[central + 8] |= 1
        case _:
            data[300] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(UsageError, match=r"member 'x\.npy'"):
        read_arrays(tmp_path / "x.npz")


def test_arrays_do_not_inflate_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.files.MAX_INFLATED_BYTES", 10_000)
    zeros = np.zeros(1000)
    np.savez_compressed(tmp_path / "x.npz", x=zeros)
    assert list(read_arrays(tmp_path / "x.npz")) == ["x"]
    np.savez_compressed(tmp_path / "x.npz", x=zeros, y=zeros)
    with pytest.raises(
        UsageError, match=r"member 'y\.npy': compressed arrays of more than MAX_INFLATED_BYTES"
    ):
        read_arrays(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=zeros, y=zeros)
    assert list(read_arrays(tmp_path / "x.npz")) == ["x", "y"]


def test_a_pipe_is_no_file_of_arrays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(UsageError, match="not a regular file"):
        read_arrays(tmp_path / "x.npz")


def test_arrays_of_every_order_and_version_come_back(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(24, dtype=">i4").reshape(2, 3, 4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for version in ((1, 0), (2, 0)):
            archive.writestr(f"v{version[0]}.npy", _npy(array, version))
    for found in read_arrays(tmp_path / "x.npz").values():
        assert found.tolist() == array.tolist()


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
