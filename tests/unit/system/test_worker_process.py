"""A process that is asked: answers, ends of any kind, and that no end of it is waited for without a limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright
from tilewright.system import worker_process
from tilewright.system.worker_process import WorkerDied, WorkerProcess, module_command

ANSWERS = """
import os, sys, time
from tilewright.system.worker_process import READY, read_texts, write_texts
write_texts(1, [READY])
texts = read_texts(0)
"""


def started(what_follows: str) -> WorkerProcess:
    process = WorkerProcess(
        ["-c", ANSWERS + what_follows], start_s=60.0, environment={"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.is_ready()
    return process


def test_texts_come_back_as_they_are() -> None:
    process = started("write_texts(1, texts[::-1]); read_texts(0)")
    try:
        assert process.ask([b"", b"a" * (1 << 21)], 60.0) == [b"a" * (1 << 21), b""]
        assert process.is_usable()
    finally:
        process.end()


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(3)", "it ended with status 3"),
        ("os.abort()", "SIGABRT"),
        ("os.close(1); time.sleep(600)", "it closed its pipes"),
    ],
)
def test_an_end_is_told_and_is_not_waited_for(end: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_DEATH_S", 0.5 if "sleep" in end else 60.0)
    process = started(end)
    try:
        with pytest.raises(WorkerDied, match=said):
            process.ask([b"question"], 60.0)
        assert not process.is_usable()
    finally:
        process.end()


def test_an_answer_that_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    process = started("time.sleep(600)")
    try:
        with pytest.raises(TimeoutError):
            process.ask([b"question"], 0.2)
        assert not process.is_usable()
    finally:
        process.end()


BUSY = "re.fullmatch('(a+)+b', 'a' * 64)"
"""A call that holds the interpreter's lock for years."""

PARENTS = {
    "worker": f"""
from tilewright.system.worker_process import *
process = WorkerProcess(["-c", "import re; {BUSY}"], start_s=60.0)
process.is_ready()
""",
    "thread that ended": f"""
from tilewright.system.worker_process import *
def begin():
    global process
    process = start_process([sys.executable, "-c", "import re; {BUSY}"])
thread = threading.Thread(target=begin)
thread.start()
thread.join()
time.sleep(3600)
""",
    "pattern": """
from tilewright.ir.regex import full_matches
full_matches("(a+)+b", ["a" * 64])
""",
    "pool": """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tilewright.system.worker_process import end_with_parent
with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
    pool.submit(re.fullmatch, "(a+)+b", "a" * 64).result()
""",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel is asked, which is Linux")
@pytest.mark.parametrize("what", PARENTS)
def test_a_busy_process_ends_with_its_parent(what: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", f"import re, sys, threading, time\n{PARENTS[what]}"])
    try:
        deadline_s = time.monotonic() + 60
        while not any(map(_is_busy, children := list(_children(parent.pid)))):
            assert parent.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait(60)
    deadline_s = time.monotonic() + 60
    try:
        while any(_stat(child) not in ("", "Z") for child in children):
            assert time.monotonic() < deadline_s, "it goes on"
            time.sleep(0.01)
    finally:
        for child in children:
            if _stat(child):
                os.kill(child, signal.SIGKILL)


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name), 1) == str(parent):
            yield int(entry.name)


def _is_busy(process: int) -> bool:
    """Whether it computed for a while, in clock ticks, beyond what its imports take."""
    return int(_stat(process, 11) or 0) > 0.3 * os.sysconf("SC_CLK_TCK")


def _stat(process: int, place: int = 0) -> str:
    """A field of `/proc/PID/stat` after the name; nothing of a process that is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[place]


def test_processes_of_the_package_find_it_and_do_not_take_its_modules_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    command, environment = module_command("tilewright.version")
    root = Path(tilewright.__file__).resolve().parent
    assert command == ["-m", "tilewright.version"]
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(root.parent), "elsewhere"]
    found = "import tilewright, importlib.util as u; print(tilewright.__file__, u.find_spec('registry'))"
    process = subprocess.run(
        [sys.executable, "-S", "-c", found], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == [tilewright.__file__, "None"]


def test_every_process_of_the_package_ends_with_its_parent() -> None:
    root = Path(tilewright.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        if path.name != "worker_process.py":
            assert "Popen(" not in text, f"{path}: start_process ends with its parent"
        for pool in re.findall(r"ProcessPoolExecutor\(.*", text):
            assert "end_with_parent" in pool, f"{path}: {pool}"
