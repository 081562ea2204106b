"""What a measuring process runs in tests: contestants that count, crash, hang or compute something else.

`python -m tests.support.fake_contestants` is the process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.tuning.measuring import RunTime, serve
from tilewright.tuning.runners import PROTOCOL, Greeting
from tilewright.tuning.workers import PackedCode

Array = np.ndarray[Any, Any]

MODULE = "tests.support.fake_contestants"


def fake(does: str = "double", *, run_ns: float = 1000.0, marker: Path | None = None) -> PackedCode:
    """A candidate that gives twice its input `x` as `y`, or does something worse, and takes so long."""
    facts = {"does": does, "run_ns": run_ns, "marker": str(marker)}
    return PackedCode(facts, {"weights": (b"12", memoryview(b"34")), "none": ()})


@dataclass(frozen=True, slots=True)
class _Fake:
    does: str
    run_ns: float
    marker: Path

    def run(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        y = 2 * feed["x"]
        if self.does == "slow":
            time.sleep(0.1)
        if self.does == "crash" or (self.does == "crash once" and not self.marker.exists()):
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.does == "hang":
            self.marker.write_text(str(os.getpid()))
            while True:
                time.sleep(60)
        if self.does == "triple":
            y = 3 * feed["x"]
        if self.does == "not a number":
            y = y * np.nan
        if self.does == "change":  # its second result is another one
            if self.marker.exists():
                return {"y": y + 1}
            self.marker.touch()
        return {"y": y} if self.does != "nothing" else {}

    def time(self, feed: Mapping[str, Array]) -> RunTime:
        return RunTime(self.run_ns, (self.run_ns / 4, self.run_ns * 3 / 4))

    def close(self) -> None:
        pass


def load(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> _Fake:
    """See `measuring.Load`."""
    if parts != {"weights": b"1234", "none": b""}:
        raise ValueError(f"parts {parts!r}")
    if facts["does"] == "refuse":
        raise UsageError("made for another machine")
    return _Fake(facts["does"], facts["run_ns"], Path(facts["marker"]))


def greeting() -> list[bytes]:
    """This machine's, for runners and a cluster of its own."""
    return Greeting(PROTOCOL, "0", "1", "a processor", "", ("neon",), ("this machine",)).texts()


if __name__ == "__main__":
    serve(load, greeting)
