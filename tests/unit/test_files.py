"""Files are whole or absent; arrays come back as they were."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.files import (
    npz_bytes,
    read_npz,
    require_other_file,
    require_writable,
    write_atomically,
    write_output,
)


def test_a_file_is_replaced_whole_with_the_permissions_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"one", b"another"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_failure_leaves_the_old_file_and_nothing_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)) as caught:
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path), "the file the user named, not the temporary one"


def test_pieces_are_written_in_order(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", (bytes([i]) for i in range(5)))
    assert (tmp_path / "x").read_bytes() == bytes(range(5))


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"data")
        assert os.read(reader, 10) == b"data"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="the system has no device that is full")
def test_a_full_device_is_an_error_that_leaves_the_device() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_atomically("/dev/full", b"x" * 10_000)
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(("name", "error"), [("nowhere/x", FileNotFoundError), (".", IsADirectoryError)])
def test_an_error_names_the_file(name: str, error: type[OSError], tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        write_atomically(tmp_path / name, b"")
    assert caught.value.filename == str(tmp_path / name)


def test_a_file_that_a_user_named_and_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"none/x: cannot be written \(No such file or directory\)\. Check the path\.$"
    ):
        write_output(tmp_path / "none" / "x", b"data")


@pytest.mark.parametrize("name", ["none/x", ".", "file/x", "locked/x"])
def test_what_cannot_be_written_is_refused_before_the_work_as_after_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "locked").mkdir(mode=0o500)
    if name.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):

        def refused(*_: object, **__: object) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        # Root writes everywhere: the system's answers to anybody else.
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
        monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UsageError) as before:
        require_writable(tmp_path / name)
    with pytest.raises(UsageError) as after:
        write_output(tmp_path / name, b"data")
    assert str(before.value) == str(after.value)


def test_files_pipes_and_links_that_can_be_written_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("new")
    for name in ("file", "pipe", "link", "none"):
        require_writable(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_equal_arrays_give_equal_bytes() -> None:
    assert npz_bytes({"x": np.arange(9)}) == npz_bytes({"x": np.arange(9)})


def test_bfloat16_survives_a_format_that_does_not_know_it(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    (tmp_path / "x.npz").write_bytes(npz_bytes({"x": values, "y": np.arange(3)}))
    dtypes = {"x": values.dtype, "y": values.dtype, "absent": values.dtype}
    found = read_npz(tmp_path / "x.npz", dtypes)
    assert found["x"].dtype == values.dtype
    np.testing.assert_array_equal(found["x"], values)
    np.testing.assert_array_equal(found["y"], np.arange(3))


def test_a_single_array_is_not_an_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ValueError, match="single array"):
        read_npz(tmp_path / "x.npy")


def test_what_is_written_replaces_no_file_that_it_is_made_from(tmp_path: Path) -> None:
    model, link = tmp_path / "m.onnx", tmp_path / "link"
    model.write_bytes(b"model")
    link.symlink_to(model)
    for output in (model, link, tmp_path / "." / "m.onnx"):
        with pytest.raises(UsageError, match="would replace what was given"):
            require_other_file(output, None, b"bytes", str(model))
    require_other_file(tmp_path / "new", model)
    require_other_file(model, tmp_path / "gone")
    other = tmp_path / "other"
    other.write_bytes(b"old")
    require_other_file(other, model)


@pytest.mark.parametrize("data", [b"", b"this is no archive", b"\x80\x04pickle"])
def test_files_without_arrays_are_not_taken_for_pickles(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="no arrays of numpy"):
        read_npz(tmp_path / "x")
