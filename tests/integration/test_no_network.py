"""No verb talks to anybody: an attempt to reach an address, in any of our processes, is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.models import small_net

# Read by every Python process that starts with it on its path.
GUARD = """
import sys

def refuse(event, arguments):
    reaches = event == "socket.getaddrinfo" or (
        event in ("socket.connect", "socket.bind", "socket.sendto") and isinstance(arguments[1], tuple)
    )
    if reaches:
        raise PermissionError(f"the network was asked for: {event} {arguments!r}")

sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("offline")
    (folder / "guard").mkdir()
    (folder / "guard" / "sitecustomize.py").write_text(GUARD)
    (folder / "m.onnx").write_bytes(small_net().SerializeToString())
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "guard"),
        "TILEWRIGHT_CACHE": str(folder / "cache"),
    }
    return folder, environment


def test_the_guard_guards(guarded: tuple[Path, dict[str, str]]) -> None:
    folder, environment = guarded
    code = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9', timeout=1)"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert "the network was asked for" in run.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command",
    [
        "compile m.onnx -o m.tw",
        "run m.onnx --random",
        "doctor",
        "bench m.onnx --duration 0.1 --warmup 0 --no-advice",
    ],
)
def test_a_verb_works_without_a_network(command: str, guarded: tuple[Path, dict[str, str]]) -> None:
    folder, environment = guarded
    run = subprocess.run(
        [sys.executable, "-m", "tilewright.cli.main", *command.split()],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "the network was asked for" not in run.stderr
