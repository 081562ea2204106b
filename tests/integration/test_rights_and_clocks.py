"""Files without rights, and clocks that jump: typed errors, and answers that are right."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.api import cache
from tilewright.api.inputs import read_arrays
from tilewright.api.kept import compile_or_reuse
from tilewright.hardware.machine_file import load_machine
from tilewright.options import Options

FOREIGN_UID = 65534


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As another user, where this one is root and may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(FOREIGN_UID)
    try:
        yield
    finally:
        os.seteuid(0)


READERS: dict[str, Callable[[Path], object]] = {
    "load": lambda folder: tw.load(folder / "m.onnx"),
    "compile": lambda folder: tw.compile(folder / "m.onnx"),
    "session": lambda folder: tw.InferenceSession(folder / "m.onnx"),
    "check": lambda folder: tw.check(folder / "m.onnx"),
    "open": lambda folder: tw.open(folder / "m.tw"),
    "inspect": lambda folder: tw.inspect(folder / "m.tw"),
    "machine": lambda folder: load_machine(folder / "chip.yaml"),
    "arrays": lambda folder: read_arrays(folder / "i.npz"),
}


@pytest.mark.parametrize("closed", ["files", "folder"])
def test_what_may_not_be_read_is_a_typed_error(closed: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    onnx.save(small_net(), folder / "m.onnx")
    tw.compile(folder / "m.onnx").save(folder / "m.tw")
    (folder / "chip.yaml").write_text("name: chip\n")
    np.savez(folder / "i.npz", x=np.zeros(2))
    for read in READERS.values():  # the other user may not be able to import what is not loaded yet
        with contextlib.suppress(tw.TilewrightError):
            read(folder)
    for path in folder.iterdir() if closed == "files" else [folder]:
        path.chmod(0)
    try:
        for name, read in READERS.items():
            with without_rights(), pytest.raises(tw.UsageError, match="Permission denied") as caught:
                read(folder)
            assert str(folder) in str(caught.value), name
    finally:
        folder.chmod(0o700)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("jump_s", [-1.7e9, -3600.0, 1e10])
def test_a_clock_that_jumps_changes_no_answer(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    feed, options = feed_for(small_net()), Options(threads=1)
    now_s, jumps = time.time(), itertools.cycle((0.0, jump_s))
    expected = tw.compile(small_net(), threads=1).run(None, feed)
    monkeypatch.setattr(time, "time", lambda: max(0.0, now_s + next(jumps)))
    for _ in range(3):
        model = compile_or_reuse(tw.load(small_net()), options)
        for a, b in zip(model.run(None, feed), expected, strict=True):
            assert a.tobytes() == b.tobytes()
    assert "reuse" in model.phase_s
    assert cache.verify().ok
