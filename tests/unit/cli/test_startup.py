"""Starting costs little: what a verb needs is imported by that verb."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

HEAVY = ("numpy", "onnx", "llvmlite", "pydantic", "yaml")
# Twice the promise: other work on the machine slows what is counted here, too.
SLACK = 2.0


def cpu_seconds(*command: str) -> float:
    """Least user and system time of three runs."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


@pytest.mark.parametrize(
    ("promise_s", "command"),
    [(0.4, ("-c", "import tilewright")), (0.3, ("-m", "tilewright.cli.main", "--help"))],
    ids=["import", "help"],
)
def test_starting_keeps_its_promise(promise_s: float, command: tuple[str, ...]) -> None:
    assert cpu_seconds(*command) <= SLACK * promise_s


@pytest.mark.parametrize("module", ["tilewright", "tilewright.cli.main"])
def test_nothing_heavy_is_imported_before_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == ""
