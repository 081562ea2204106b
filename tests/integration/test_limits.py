"""Limits of the system on memory, processes and threads: answers, or one line and the exit code of limits."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import OutOfMemory
from tilewright.system.memory_errors import is_out_of_memory, memory_errors_typed, require_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")

VERBS = (
    *("check MODEL", "compile MODEL -o OUT", "run MODEL --random", "simulate MODEL -t jetson-nano"),
    *("map 3_14_256_256_1 -t simba-cosa-repo", "doctor"),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [weights],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def limited(
    line: str, model: Path, limit: int, value: int, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """A verb in a process of its own under a limit."""
    words = [str({"MODEL": model, "OUT": model.with_suffix(".tw")}.get(word, word)) for word in line.split()]
    return subprocess.run(
        [*before, sys.executable, "-m", "tilewright", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "TILEWRIGHT_NO_CACHE": "1", "HOME": str(model.parent)},
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
    )


def assert_answered(done: subprocess.CompletedProcess[str], what: object) -> None:
    assert done.returncode in (0, 5), (what, done)
    last = done.stderr.splitlines()[-1] if done.stderr else ""
    if done.returncode == 5:
        assert last.startswith("tilewright: not enough memory: raise the limit"), (what, done)


def test_too_little_memory_is_one_line(model: Path) -> None:
    for size_mb in (100, 300):
        done = limited("compile MODEL -o OUT", model, resource.RLIMIT_AS, size_mb << 20)
        assert done.returncode == 5
        assert_answered(done, size_mb)
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("line", VERBS)
def test_every_verb_answers_or_says_that_memory_ends(line: str, model: Path) -> None:
    for size_mb in (60, 150, 200, 250, 300, 350, 400, 450, 500, 700):
        done = limited(line, model, resource.RLIMIT_AS, size_mb << 20)
        assert_answered(done, (line, size_mb))


def test_no_processes_and_threads_are_done_without(model: Path) -> None:
    before: list[str] = []
    if os.geteuid() == 0:  # limits on processes are not for root
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root has no limit on processes, and setpriv is not there to be someone else")
        keep = "-all,+dac_read_search,+dac_override"
        before = [setpriv, "--reuid=61234", "--clear-groups", f"--inh-caps={keep}", f"--ambient-caps={keep}"]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # for the other user
        readable = Path(shutil.copy(model, folder))
        done = limited("check MODEL", readable, resource.RLIMIT_NPROC, 1, before)
    assert done.returncode == 0, done
    assert done.stderr.splitlines() == [
        "tilewright: warning: models are checked in this process: no process could be started (Resource "
        "temporarily unavailable): check the limits on processes and memory (ulimit -u, -v)."
    ]


def test_what_tells_of_the_end_of_memory_is_known() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    general = OSError("Could not find/load shared object file")
    general.__context__ = OSError("libllvmlite.so: failed to map segment from shared object")
    assert is_out_of_memory(general)
    for other in (ImportError("no module named x"), OSError(2, "No such file"), ValueError("out of memory")):
        assert not is_out_of_memory(other)
        with pytest.raises(type(other)), memory_errors_typed():
            raise other
    with pytest.raises(OutOfMemory), memory_errors_typed():
        raise ImportError("libx.so: failed to map segment from shared object")
    require_memory(1 << 20)
    with pytest.raises(OutOfMemory):
        require_memory(1 << 60)
