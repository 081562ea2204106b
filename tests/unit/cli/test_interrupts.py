"""A signal unwinds the work of a command, but never the loading of a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADING = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""
RUN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from tilewright.cli import interrupts
interrupts.unwind()
try:
    {work}
except KeyboardInterrupt:
    print("unwound")
"""


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("import loading", 130, ""),
        ("import os; os.kill(os.getpid(), signal.SIGINT); signal.pause()", 0, "unwound\n"),
    ],
    ids=["while a module loads", "in the middle of work"],
)
def test_only_work_is_unwound(tmp_path: Path, work: str, code: int, said: str) -> None:
    (tmp_path / "loading.py").write_text(LOADING)
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(work=work), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr
