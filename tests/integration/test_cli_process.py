"""The command line as a process: light to start, interruptible, plain where nobody looks at colours."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from tests.support.models import small_net

from tilewright import zoo
from tilewright.tuning import TuningDatabase

pytestmark = pytest.mark.sampled(4)

COMMAND = (sys.executable, "-m", "tilewright")
# What a user must not wait for before there is anything to compute.
HEAVY = ("numpy", "onnx", "llvmlite", "pydantic", "yaml", "rich", "torch", "onnxruntime")
MOST_HELP, MOST_IMPORT = 8.0, 4.0  # times what modules of the standard library take, on whatever machine
STOP_S = 2.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the processes."""
    return {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(small_net(), path)
    return path


def cpu_s(command: Sequence[str]) -> float:
    """User and system time of the cheapest of five runs."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        times.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return min(times)


def test_help_and_import_cost_little() -> None:
    standard_s = cpu_s([sys.executable, "-c", "import asyncio, inspect, dataclasses"])
    assert cpu_s([*COMMAND, "--help"]) <= MOST_HELP * standard_s
    assert cpu_s([sys.executable, "-c", "import tilewright"]) <= MOST_IMPORT * standard_s


@pytest.mark.parametrize("module", ["tilewright", "tilewright.cli.main"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = result.stdout.split()
    assert set(HEAVY) & set(loaded) == set()
    assert not [name for name in loaded if name.endswith("_verb")]


# Interrupts.


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that takes some seconds to compile."""
    path = tmp_path_factory.mktemp("zoo") / "densenet121.onnx"
    path.write_bytes(zoo.build("densenet121", image=64).SerializeToString())
    return path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize(("phase", "delay_s"), [("passes", 0.0), ("generate", 0.0), ("kernels", 0.3)])
def test_an_interrupt_ends_a_compilation_at_once_and_leaves_the_old_artifact(
    network: Path, tmp_path: Path, number: signal.Signals, phase: str, delay_s: float
) -> None:
    artifact = tmp_path / "m.tw"
    artifact.write_bytes(b"what was there before")
    command = [*COMMAND, "compile", str(network), "-o", str(artifact), "--no-cache", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        spoken = []
        for line in process.stderr:
            spoken.append(line)
            if line.startswith(f"tilewright: {phase}"):
                break
        time.sleep(delay_s)
        sent = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        took_s = time.monotonic() - sent
    assert process.returncode == 128 + number, (spoken, err)
    assert took_s < STOP_S
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("tilewright: interrupted")
    assert os.listdir(tmp_path) == ["m.tw"]
    assert artifact.read_bytes() == b"what was there before"


def test_an_interrupt_while_an_object_is_destroyed_is_not_lost(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, sys, time\n"
        "from tilewright.cli import main\n"
        "class Fragile:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "def app(**_):\n"
        "    Fragile()\n"
        "    time.sleep(20)\n"
        "main.app = app\n"
        "main.main([])\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=15)
    assert ended.returncode == 130
    assert ended.stderr.splitlines() == ["tilewright: interrupted; no half-written file was left behind."]


@pytest.mark.sampled(0)
def test_an_impatient_second_interrupt_ends_the_process(network: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "compile", str(network), "-o", str(tmp_path / "m.tw"), "--no-cache", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("tilewright: generate") for line in process.stderr)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=STOP_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "tilewright: interrupted" in err
    assert {Path(n).suffix for n in os.listdir(tmp_path)} <= {".part"}


@pytest.mark.sampled(0)
def test_an_interrupted_search_keeps_what_it_measured_and_writes_the_artifact(tmp_path: Path) -> None:
    network = tmp_path / "squeezenet.onnx"
    network.write_bytes(zoo.build("squeezenet1_1", image=96).SerializeToString())
    artifact, cache = tmp_path / "m.tw", tmp_path / "cache"
    command = [
        *COMMAND,
        "tune",
        str(network),
        "-o",
        str(artifact),
        "--cache",
        str(cache),
        "--budget",
        "1h",
        "--search",
        "flat",
        "-v",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("tilewright: tune subgraphs") for line in process.stderr)
        while TuningDatabase.in_folder(cache).summary().num_trials == 0:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "goes on from there" in err
    assert artifact.exists()
    assert TuningDatabase.in_folder(cache).summary().num_trials > 0


# Terminals and pipes.


def on_terminal(command: Sequence[str], environment: dict[str, str]) -> str:
    """What a terminal of 100 columns would be sent, from both streams."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "COLUMNS": "100"}
    )
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(mine, 65536)
        except OSError:  # how Linux says that the other side has closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(mine)
    assert process.wait() == 0
    return b"".join(chunks).decode()


@pytest.mark.sampled(0)
def test_colours_appear_on_a_terminal_and_can_be_switched_off(small: Path, cache: dict[str, str]) -> None:
    command = [*COMMAND, "inspect", str(small)]
    terminal = {k: v for k, v in cache.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    terminal["TERM"] = "xterm-256color"
    assert "\x1b[1m" in on_terminal(command, terminal)
    plain = on_terminal(command, {**terminal, "NO_COLOR": "1"})
    assert "conv1" in plain or "Conv" in plain
    assert "\x1b[3" not in plain  # 30 to 39 are the colours


@pytest.mark.sampled(0)
def test_a_pipe_gets_neither_colours_nor_bars(small: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    command = [*COMMAND, "compile", str(small), "-o", str(tmp_path / "m.tw")]
    environment = {k: v for k, v in cache.items() if k != "FORCE_COLOR"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "\x1b" not in result.stdout + result.stderr
    assert "\r" not in result.stderr
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["next"]


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "zoo", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("words", "code"), [("inspect {}", 0), ("inspect {}.missing", 2), ("--version", 0)])
def test_streams_that_take_nothing_change_no_exit_code(
    words: str, code: int, redirection: str, small: Path, cache: dict[str, str]
) -> None:
    command = f"{sys.executable} -m tilewright {words.format(small)} {redirection}"
    finished = subprocess.run(["/bin/sh", "-c", command], env=cache, capture_output=True, text=True)
    assert finished.returncode == code
    assert "internal error" not in finished.stdout + finished.stderr


def test_results_that_a_full_disk_loses_are_an_error(small: Path, cache: dict[str, str]) -> None:
    command = f"{sys.executable} -m tilewright inspect {small} >/dev/full"
    finished = subprocess.run(["/bin/sh", "-c", command], env=cache, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "No space left on device" in finished.stderr


def test_a_command_that_is_suggested_can_be_typed(cache: dict[str, str], tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "-a model.onnx")
    command = [*COMMAND, "inspect", "./-a model.onnx"]
    shown = subprocess.run(
        command, env=cache, capture_output=True, text=True, cwd=tmp_path, check=True
    ).stderr
    assert "tilewright check './-a model.onnx'" in shown


@pytest.mark.sampled(0)
def test_a_terminal_of_another_encoding_gets_what_it_can_show(cache: dict[str, str]) -> None:
    environment = {**cache, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    table = subprocess.run([*COMMAND, "targets"], capture_output=True, check=True, env=environment)
    assert table.stdout.isascii()
    assert b"interpreter" in table.stdout
    error = subprocess.run([*COMMAND, "inspect", "größe.onnx"], capture_output=True, env=environment)
    assert error.returncode == 2
    assert error.stderr.startswith(rb"tilewright: gr\udcc3\udcb6\udcc3\udc9fe.onnx: no such file")
    assert error.stderr.count(b"\n") == 1
