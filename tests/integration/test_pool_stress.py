"""The pool under stress: any number of threads beside other load gives the same bits and returns."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# In a process of its own, so that a hang is an error and not the end of the tests. `seconds` are divided
# among 1 to 8 threads; every second pool runs in two Python threads at a time.
PROGRAM = """
    import sys, threading, time
    import numpy as np
    import tilewright as tw
    from tests.support.models import feed_for, small_net

    seconds = float(sys.argv[1])
    model = small_net(channels=48, size=20)
    feed = feed_for(model)
    source = model.SerializeToString()
    want = tw.compile(source, threads=1).run(None, feed)
    runs = 0

    def stress(compiled, until, failures):
        global runs
        while time.monotonic() < until:
            got = compiled.run(None, feed)
            runs += 1
            if not all(np.array_equal(a, b) for a, b in zip(got, want, strict=True)):
                failures.append(compiled)
                return

    for threads in range(1, 9):
        compiled = tw.compile(source, threads=threads)
        until, failures = time.monotonic() + seconds / 8, []
        callers = [
            threading.Thread(target=stress, args=(compiled, until, failures))
            for _ in range(1 + threads % 2)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not failures, f"other bits with {threads} threads"
    print(runs)
"""
HOG = "while True: pass"


def stress(seconds: float, num_hogs: int) -> int:
    """Runs that were made."""
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(num_hogs)]
    try:
        finished = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(seconds)],
            capture_output=True,
            text=True,
            check=False,
            timeout=20 * seconds + 120,
        )
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert finished.returncode == 0, finished.stderr
    return int(finished.stdout)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_hogs", [0, 2])
def test_one_to_eight_threads_give_the_same_bits_and_return(num_hogs: int) -> None:
    assert stress(1.6, num_hogs) > 100


@pytest.mark.slow
@pytest.mark.parametrize("num_hogs", [0, 1, 2, 4])
def test_for_a_minute_with_other_load(num_hogs: int) -> None:
    assert stress(60, num_hogs) > 1000
