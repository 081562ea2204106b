"""The process of one contestant."""

import subprocess
import sys

import numpy as np

CODE = "from tilewright.benchmark.worker import peak_bytes; print(peak_bytes())"


def test_the_memory_of_a_contestant_is_its_own() -> None:
    """A child that was started by a large process does not count that process's memory."""
    ballast = np.ones(64 << 20, np.float64)  # 512 MiB, all touched
    child = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(child.stdout) < ballast.nbytes
