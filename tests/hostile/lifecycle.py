"""Random lives of models: threads that run, close, compile and fork, and signals that come at any moment.

    python -m tests.hostile.lifecycle 200          # that many lives, and what became of them
    python -m tests.hostile.lifecycle 1 --seed 17  # one of them again

Each life is a process of its own, so that a crash or a hang is an answer and not the end of the hunt. In it
every run must give the right values or `ModelClosed`; every forked child must compile and run.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIFE_S = 0.6
HANG_S = 20.0
"""Far beyond what a life takes on a busy machine: who is not back by then never comes."""

_NUM_MODELS = 3
_CHILD_CODES = {0: "child ran", 3: "child found its model closed"}
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one life ended: `problem` is None if all went as promised."""

    seed: int
    events: dict[str, int]
    problem: str | None


def live(seed: int) -> Outcome:
    """One life in a process of its own."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            __name__ if __name__ != "__main__" else "tests.hostile.lifecycle",
            "--live",
            str(seed),
        ],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=HANG_S + 10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Outcome(seed, {}, f"hangs: {err[-3000:]}")
    if process.returncode != 0:
        return Outcome(seed, {}, f"ends with {process.returncode}: {err[-3000:]}")
    words = (line.rsplit(" ", 1) for line in out.splitlines())
    return Outcome(seed, {name: int(count) for name, count in words}, None)


class Life:
    """Models, threads that do random things to them, and a count of what happened."""

    def __init__(self, seed: int) -> None:
        import numpy as np
        from tests.support.models import feed_for, host_net, small_net

        import tilewright as tw

        self.tw, self.np = tw, np
        self.random = random.Random(seed)
        protos = [small_net(channels=4, size=8), small_net(channels=24, size=24), host_net()]
        self.sources = [proto.SerializeToString() for proto in protos]
        self.feeds = [feed_for(proto) for proto in protos]
        self.events: Counter[str] = Counter()
        self.failures: list[str] = []
        self.end_s = 0.0
        self.is_in_handler = False
        self.early = self.random.random() < 0.25  # threads begin before anything is imported or compiled
        self.wanted = [None if self.early else self.compiled(i).run(None, self.feeds[i]) for i in range(3)]
        self.models = [None if self.early else self.compiled(i) for i in range(_NUM_MODELS)]

    def compiled(self, number: int) -> Any:
        """A model, compiled anew half of the time."""
        threads = self.random.choice((1, 2, 3))
        if self.random.random() < 0.5:
            return self.tw.compile(self.sources[number], threads=threads, cache_dir=None, no_cache=True)
        return self.tw.compile(self.sources[number], threads=threads)

    def model(self, number: int) -> Any:
        """The model of that number at this moment."""
        if self.models[number] is None:
            self.models[number] = self.compiled(number)
        return self.models[number]

    def check(self, number: int, got: Any) -> None:
        """Note other values than a run alone gives."""
        want = self.wanted[number]
        if want is not None and not all(self.np.array_equal(a, b) for a, b in zip(got, want, strict=True)):
            self.failures.append(f"model {number} gave other values")

    def run(self, number: int) -> None:
        """Runs, or is refused."""
        try:
            model = self.model(number)
            for _ in range(self.random.randint(1, 30)):
                self.check(number, model.run(None, self.feeds[number]))
                self.events["run"] += 1
        except self.tw.ModelClosed:
            self.events["run refused"] += 1

    def close(self, number: int) -> None:
        """Closes, once or twice or by leaving it, and puts a new model in its place; or just drops it."""
        model = self.model(number)
        how = self.random.randrange(4)
        if how == 0:
            with model:
                pass
        elif how < 3:
            for _ in range(how):
                model.close()
        self.models[number] = None
        self.events["close"] += 1

    def compile(self, number: int) -> None:
        """Compiles and runs."""
        self.check(number, self.compiled(number).run(None, self.feeds[number]))
        self.events["compile"] += 1

    def fork(self, number: int) -> None:
        """A child compiles, or runs what it was born with."""
        inherited = self.model(number) if self.random.random() < 0.5 else None
        child = os.fork()
        if child == 0:
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(int(HANG_S / 2))
            try:
                code = self.child(number, inherited)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code in _CHILD_CODES:
            self.events[_CHILD_CODES[code]] += 1
        else:
            self.failures.append(f"a child ended with {code}")

    def child(self, number: int, inherited: Any) -> int:
        """The life of a forked child; its exit code."""
        try:
            for model in (inherited, self.compiled(number)):
                if model is not None:
                    self.check(number, model.run(None, self.feeds[number]))
                    model.close()
        except self.tw.ModelClosed:
            return 3
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
            return 1
        return 1 if self.failures else 0

    def on_signal(self, *_: Any) -> None:
        """Closes a model in the midst of whatever the main thread does, which may be its run."""
        model = self.models[self.random.randrange(_NUM_MODELS)]
        if model is None or self.is_in_handler:
            return
        self.is_in_handler = True
        try:
            model.close()
            self.events["closed by a signal"] += 1
        except self.tw.UsageError:
            self.events["signal refused"] += 1
        finally:
            self.is_in_handler = False

    def act(self) -> None:
        """What one thread does."""
        actions: list[Callable[[int], None]] = [self.run] * 6 + [
            self.close,
            self.close,
            self.compile,
            self.fork,
        ]
        try:
            while time.monotonic() < self.end_s and not self.failures:
                self.random.choice(actions)(self.random.randrange(_NUM_MODELS))
        except BaseException as error:
            self.failures.append(repr(error))
            raise

    def last(self) -> int:
        """The whole life: the exit code."""
        self.end_s = time.monotonic() + LIFE_S
        threads = [threading.Thread(target=self.act) for _ in range(self.random.randint(1, 4))]
        signal.signal(signal.SIGALRM, self.on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.05, self.random.uniform(0.01, 0.1))
        for thread in threads:
            thread.start()
        self.act()
        for thread in threads:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self.random.random() < 0.5:  # the interpreter ends while a thread runs, or one closes
            threading.Thread(target=self.go_on, daemon=True).start()
            time.sleep(self.random.uniform(0, 0.02))
        for name, count in sorted(self.events.items()):
            print(name, count)
        print(*self.failures, sep="\n", end="", file=sys.stderr)
        return 1 if self.failures else 0

    def go_on(self) -> None:
        """Runs until there is no interpreter."""
        model = self.compiled(1)
        while True:
            model.run(None, self.feeds[1])


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lives", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--live", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.live is not None:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        return Life(given.live).last()
    total: Counter[str] = Counter()
    bad = 0
    for seed in range(given.seed, given.seed + given.lives):
        outcome = live(seed)
        total.update(outcome.events)
        if outcome.problem is not None:
            bad += 1
            print(f"seed {seed}: {outcome.problem}", flush=True)
    print(
        f"{given.lives} lives, {bad} bad: "
        + ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
