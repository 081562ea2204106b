"""A search that is interrupted ends with the best that it has; a second signal ends the command at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.models import small_net

GRAPH = Path(__file__).parents[1] / "data" / "graph-scheduling" / "mlsys-2026-9.json"

# The command, which says when its search has an answer, so that a signal meets it then.
COMMAND = """
import sys
from tilewright.cli import interrupts, start
from tilewright.planning.budget import Meter
real = Meter.ending_early
def told(meter):
    Meter.ending_early = real
    context = real(meter)
    context.__enter__()
    print("searching", file=sys.stderr, flush=True)
    return context
class Entered:
    def __init__(self, meter):
        self.context = told(meter)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return self.context.__exit__(*error)
Meter.ending_early = lambda meter: Entered(meter)
"""
PRINTS_SLOWLY = """
import time
from tilewright.cli import output
output.print_result = lambda result: print("printing", file=sys.stderr, flush=True) or time.sleep(60)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def started(arguments: list[str], folder: Path, change: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{COMMAND}{change}\nstart.main()", "simulate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if word in line:
            return
    raise AssertionError("".join(said))


def network(folder: Path) -> str:
    (folder / "net.onnx").write_bytes(small_net().SerializeToString())
    return "net.onnx"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", ["joint", "grid", "search"])
def test_an_interrupted_search_prints_the_best_plan(tmp_path: Path, recipe: str) -> None:
    machine = "v100" if recipe != "search" else "stcp920"
    arguments = [network(tmp_path), "-t", machine, "--recipe", recipe, "--budget", "1h", "--json"]
    process = started(arguments, tmp_path)
    wait_for(process, "searching")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    told = [line for line in err.splitlines() if "interrupted" in line]
    assert told == ["tilewright: interrupted; this is the best plan that the search had until then."]
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["is_interrupted"]
    assert document["time_s"] > 0
    assert document["num_untried"] > 0


def test_an_interrupted_schedule_of_the_contest_is_written(tmp_path: Path) -> None:
    process = started([str(GRAPH), "--budget", "1h", "-o", "solution.json"], tmp_path)
    wait_for(process, "searching")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    told = [line for line in err.splitlines() if "interrupted" in line]
    assert told == ["tilewright: interrupted; this is the best plan that the search had until then."]
    assert "solution in solution.json" in out
    operators = {
        i for step in json.loads((tmp_path / "solution.json").read_text())["subgraphs"] for i in step
    }
    assert operators == set(range(32))


def test_a_second_interrupt_ends_the_command_at_once(tmp_path: Path) -> None:
    arguments = [network(tmp_path), "-t", "v100", "--recipe", "joint"]
    process = started(arguments, tmp_path, PRINTS_SLOWLY)
    wait_for(process, "searching")
    process.send_signal(signal.SIGINT)
    wait_for(process, "printing")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted again" in err
