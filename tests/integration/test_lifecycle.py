"""A model that is closed, forked, interrupted or left running ends in good order: no crash and no hang."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.lifecycle import live
from tests.support.models import feed_for, host_net, small_net

import tilewright as tw
from tilewright.errors import BudgetExceeded, ModelClosed
from tilewright.system import forks
from tilewright.targets.cpu.runtime.executor import Lifecycle
from tilewright.targets.cpu.runtime.pool import AlignedBuffer, WorkerPool

pytestmark = pytest.mark.sampled(5)

ROOT = Path(__file__).parents[2]
HANG_S = 60.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def in_process(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, so that a crash or a hang is an error and not the end of the tests."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def slow_model() -> tuple[tw.CompiledModel, threading.Event, threading.Event]:
    """A model whose runs say that they are under way, and end when they are told to."""
    compiled = tw.compile(host_net(), threads=1)
    executor = compiled.load()._executor  # type: ignore[attr-defined]
    begun, go_on = threading.Event(), threading.Event()

    def paused(callback: Any) -> Any:
        def call(bases: Any) -> None:
            begun.set()
            assert go_on.wait(HANG_S)
            callback(bases)

        return call

    executor._segments = tuple(s if isinstance(s, int) else paused(s) for s in executor._segments)
    return compiled, begun, go_on


def test_close_waits_for_a_run_in_progress_and_refuses_later_ones() -> None:
    compiled, begun, go_on = slow_model()
    results, feed = [], feed_for(host_net())
    executor = compiled.load()._executor  # type: ignore[attr-defined]
    runner = threading.Thread(target=lambda: results.append(compiled.run(None, feed)))
    runner.start()
    assert begun.wait(HANG_S)
    closer = threading.Thread(target=compiled.close)
    closer.start()
    while executor._lifecycle is Lifecycle.OPEN:
        time.sleep(0.001)
    with pytest.raises(ModelClosed, match=r"^this model is closed; compile or open it again\.$"):
        compiled.run(None, feed)
    assert closer.is_alive()
    assert executor._lifecycle is Lifecycle.CLOSING
    go_on.set()
    runner.join(HANG_S)
    closer.join(HANG_S)
    assert executor._lifecycle is Lifecycle.CLOSED
    assert len(results) == 1
    compiled.close()
    with pytest.raises(ModelClosed), compiled:
        compiled.run(None, feed)


def test_close_within_a_run_of_the_same_thread_is_refused_and_changes_nothing() -> None:
    compiled, _, go_on = slow_model()
    go_on.set()
    executor = compiled.load()._executor  # type: ignore[attr-defined]
    refusals: list[str] = []

    def closing(callback: Any) -> Any:
        def call(bases: Any) -> None:
            with pytest.raises(tw.UsageError) as refused:
                compiled.close()
            refusals.append(str(refused.value))
            callback(bases)

        return call

    executor._segments = tuple(s if isinstance(s, int) else closing(s) for s in executor._segments)
    feed = feed_for(host_net())
    assert compiled.run(None, feed)
    assert compiled.run(None, feed)
    assert refusals
    assert all("in the middle of a run" in text for text in refusals)
    compiled.close()


def test_a_dropped_model_lives_as_long_as_what_runs_it() -> None:
    feed = feed_for(small_net())
    executable = tw.compile(small_net()).load()
    assert executable.run(feed)


def test_an_interrupted_close_is_taken_up_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, begun, go_on = slow_model()
    executor = compiled.load()._executor  # type: ignore[attr-defined]
    runner = threading.Thread(target=compiled.run, args=(None, feed_for(host_net())))
    runner.start()
    assert begun.wait(HANG_S)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(executor._available, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compiled.close()
    assert executor._lifecycle is Lifecycle.CLOSING
    go_on.set()
    compiled.close()
    runner.join(HANG_S)
    assert executor._lifecycle is Lifecycle.CLOSED


@pytest.mark.sampled(1)
@needs_fork
@pytest.mark.parametrize("seed", range(2))
def test_random_lives_end_well(seed: int) -> None:
    assert live(seed).problem is None


@pytest.mark.slow
@needs_fork
def test_many_random_lives_end_well() -> None:
    assert [problem for seed in range(100, 300) if (problem := live(seed).problem) is not None] == []


FORKED_TOO_LATE = """
    import os, sys, threading, time
    import tilewright as tw
    from tests.support.models import feed_for, small_net
    from tilewright.system import forks

    forks.FORK_WAIT_S = 0.2
    tw.compile(small_net()).run(None, feed_for(small_net()))
    from llvmlite.binding import ffi
    held = threading.Event()
    def hold():
        with ffi.lib._lock:
            held.set()
            time.sleep(30)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            tw.compile(small_net(channels=7), no_cache=True, cache_dir=None)
        except tw.UsageError as error:
            print(error, flush=True)
            os._exit(4)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.flush()
    os._exit(0)
"""


@needs_fork
def test_a_child_whose_compiler_was_in_use_says_so_at_once() -> None:
    ended = in_process(FORKED_TOO_LATE)
    line, code = ended.stdout.splitlines()
    assert code == "4"
    assert line.startswith("this process was forked while another thread compiled")
    assert ended.stderr == ""


@needs_fork
def test_the_locks_that_a_fork_waits_for_are_those_of_the_installed_compilers() -> None:
    import numba.core.compiler_lock  # noqa: F401

    tw.compile(small_net())
    assert len(forks._compiler_locks()) == 3


FORKED_WHILE_A_VALIDATOR_IS_MADE = """
    import os, threading, time
    import pydantic.main
    import tilewright as tw
    from tilewright.system import forks

    held = threading.Event()
    def hold():
        with pydantic.main._rebuild_lock:
            held.set()
            time.sleep(0.2)
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if pydantic.main._rebuild_lock.acquire(timeout=5) else 4)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_fork
def test_a_forked_child_makes_validators_that_another_thread_had_begun() -> None:
    ended = in_process(FORKED_WHILE_A_VALIDATOR_IS_MADE)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_memory_that_the_system_does_not_give_is_one_line() -> None:
    with pytest.raises(
        BudgetExceeded, match=r"^the arena of a run takes 1,073,741,824 MiB, which the system"
    ):
        AlignedBuffer(1 << 50, "the arena of a run")


def test_scratch_that_could_not_be_had_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(3)
    try:
        before = pool._scratch_bytes
        with pytest.raises(BudgetExceeded, match="scratch of a worker thread"):
            pool.ensure_scratch(1 << 50)
        assert pool._scratch_bytes == before
    finally:
        assert pool.stop()


AT_EXIT = """
    import atexit, sys
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    compiled = tw.compile(small_net(), threads=2)
    closed = tw.compile(small_net(channels=9), threads=2)
    path = compiled.save(sys.argv[1])
    feed = feed_for(small_net())

    def last():
        first = compiled.run(None, feed)[0]
        again = tw.open(path).run(None, feed)[0]
        fresh = tw.compile(small_net(), threads=2, no_cache=True).run(None, feed)[0]
        print((first == again).all(), (first == fresh).all())
        closed.close()
        try:
            closed.run(None, feed)
        except tw.ModelClosed:
            print("closed")

    atexit.register(last)
"""


def test_a_model_first_runs_and_compiles_while_the_interpreter_ends(tmp_path: Path) -> None:
    ended = in_process(AT_EXIT, tmp_path / "m.tw")
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == ["True True", "closed"]
    assert ended.stderr == ""


NO_THREADS = """
    import logging, sys, threading
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    logging.basicConfig(format="%(message)s")
    want = tw.compile(small_net(), threads=1).run(None, feed_for(small_net()))

    def start(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start
    compiled = tw.compile(small_net(), threads=4, no_cache=True)
    for _ in range(3):
        got = compiled.run(None, feed_for(small_net()))
    compiled.save(sys.argv[1])
    again = tw.open(sys.argv[1], threads=4).run(None, feed_for(small_net()))
    print(all((a == b).all() and (a == c).all() for a, b, c in zip(got, want, again)))
"""


def test_where_no_thread_can_be_started_the_caller_does_it_all_with_one_warning(tmp_path: Path) -> None:
    ended = in_process(NO_THREADS, tmp_path / "m.tw")
    assert ended.stdout == "True\n"
    assert ended.stderr == "running on 1 of 4 threads: can't start new thread\n"


RUNS_AT_THE_END = """
    import sys, threading, time
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    model = small_net(channels=48, size=32)
    feed = feed_for(model)
    compiled = tw.compile(model, threads=int(sys.argv[1]))
    compiled.run(None, feed)
    def go():
        while True:
            compiled.run(None, feed)
    for _ in range(3):
        threading.Thread(target=go, daemon=True).start()
    time.sleep(0.05)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_interpreter_ends_while_daemon_threads_run(threads: int) -> None:
    ended = in_process(RUNS_AT_THE_END, threads)
    assert (ended.returncode, ended.stderr) == (0, "")


COUNTS_AT_THE_END = """
    import threading, time
    import numpy as np
    from tilewright.arrays import distinct

    values = np.arange(100)
    def go():
        while True:
            distinct(values)
    for _ in range(2):
        threading.Thread(target=go, daemon=True).start()
    time.sleep(0.05)
"""

COMPILES_AT_THE_END = """
    import threading, time
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    model = small_net()
    def go():
        while True:
            tw.compile(model, threads=1)
            begun.set()
    begun = threading.Event()
    threading.Thread(target=go, daemon=True).start()
    begun.wait()
"""


MAPS_AT_THE_END = """
    import threading, time
    import tilewright as tw
    begun = threading.Event()
    def go():
        while True:
            tw.map("1_14_64_64_1", "simba-cosa-repo", mapper="cosa")
            begun.set()
    for _ in range(2):
        threading.Thread(target=go, daemon=True).start()
    begun.wait()
"""
ENDS_AFTER_A_CALL = """
    import atexit, threading, time
    inside = threading.Event()
    # The handlers that are registered first run last.
    atexit.register(lambda: print("inside" if inside.is_set() else "outside"))
    from tilewright.system.exit_calls import finished_before_the_end

    def go():
        while True:
            with finished_before_the_end():
                inside.set()
                time.sleep(0.3)
                inside.clear()
    threading.Thread(target=go, daemon=True).start()
    inside.wait()
    with finished_before_the_end():
        pass
"""


def test_the_interpreter_ends_once_a_daemon_thread_has_left_a_library() -> None:
    ended = in_process(ENDS_AFTER_A_CALL)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "outside\n", "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "program",
    [COUNTS_AT_THE_END, COMPILES_AT_THE_END, MAPS_AT_THE_END],
    ids=["count", "compile", "map"],
)
def test_the_interpreter_ends_while_a_daemon_thread_makes_plans(program: str) -> None:
    ended = in_process(program)
    assert (ended.returncode, ended.stderr) == (0, "")


# What refuses memory that was written and is then executed: the kernel's own switch, and a filter of system
# calls as systemd installs it.
REFUSALS = {
    "prctl": """
        import ctypes, sys
        if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
            sys.exit(77)
    """,
    "seccomp": """
        import ctypes, platform, struct, sys
        if platform.machine() != "x86_64":
            sys.exit(77)
        MPROTECT, PROT_EXEC = 10, 4
        code = b"".join(struct.pack("<HBBI", *instruction) for instruction in (
            (0x20, 0, 0, 0),                # the number of the call
            (0x15, 0, 3, MPROTECT),
            (0x20, 0, 0, 32),               # its third argument
            (0x45, 0, 1, PROT_EXEC),
            (0x06, 0, 0, 0x00050000 | 1),   # EPERM
            (0x06, 0, 0, 0x7FFF0000),       # allowed
        ))
        held = ctypes.create_string_buffer(code)
        head = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(held))
        program = ctypes.create_string_buffer(head)
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)
        if libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
            sys.exit(77)
    """,
}
REFUSED_RUN = """
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    compiled = tw.compile(small_net(), threads=2)
    try:
        compiled.run(None, feed_for(small_net()))
    except tw.UsageError as error:
        print(error)
    assert tw.compile(small_net(), target="interpreter").run(None, feed_for(small_net()))
    print("interpreted")
"""
REFUSED_MAP = """
    import tilewright as tw
    try:
        import tilewright.cost.nest_table
    except tw.UsageError as error:
        print(error)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("program", [REFUSED_RUN, REFUSED_MAP], ids=["run", "map"])
def test_where_generated_code_may_not_run_one_line_says_so(refusal: str, program: str) -> None:
    ended = in_process(textwrap.dedent(REFUSALS[refusal]) + textwrap.dedent(program))
    if ended.returncode == 77:
        pytest.skip("this kernel has no such switch")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0].startswith("this process may not run code that it generates")
    assert program is REFUSED_MAP or ended.stdout.splitlines()[1:] == ["interpreted"]
    assert ended.stderr == ""
