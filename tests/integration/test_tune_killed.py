"""A tune that is killed at any moment: what it had recorded stays, and the next compilation uses the best."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.models import small_net

import tilewright as tw
from tilewright.tuning import TuningDatabase


@pytest.mark.slow
def test_a_tune_that_is_killed_keeps_what_it_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"
    onnx.save(small_net(channels=40, size=20), path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(cache))
    command = [sys.executable, "-m", "tilewright", "tune", str(path), "--search", "reformer"]
    database = TuningDatabase.in_folder(cache)
    num_known = 0
    for wait_s in (0.0, 0.3, 0.9, 2.1):
        process = subprocess.Popen(
            [*command, "--budget", "60s", "--threads", "1"],
            env=os.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + 90.0
        while database.summary().num_trials == num_known and process.poll() is None:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        time.sleep(wait_s)
        process.kill()
        process.wait()
        assert database.verify() == 0
        assert database.summary().num_trials >= num_known
        num_known = database.summary().num_trials
    assert num_known > 0
    compiled = tw.compile(path, threads=1)
    assert compiled.tuning is None or compiled.tuning.is_stored
    untuned = tw.compile(path, threads=1, no_cache=True)
    feed = {v.name: np.ones(v.shape, np.float32) for v in compiled.get_inputs()}
    for got, expected in zip(compiled.run(None, feed), untuned.run(None, feed), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max())
