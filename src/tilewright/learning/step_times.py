"""The process that measures kernels: each takes until the next one begins, so that what is between counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arrays import Array
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.tune import measuring
from tilewright.tuning.measuring import RunTime, serve


@dataclass(frozen=True, slots=True)
class _Stepping:
    """See `Contestant`."""

    executable: CpuExecutable

    def run(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        return self.executable.run(feed)

    def time(self, feed: Mapping[str, Array]) -> RunTime:
        steps = self.executable.run_profiled(feed)
        ends = [*(step.start_ns for step in steps[1:]), steps[-1].start_ns + steps[-1].duration_ns]
        times_ns = tuple(end - step.start_ns for step, end in zip(steps, ends, strict=True))
        return RunTime(sum(times_ns), times_ns)

    def close(self) -> None:
        self.executable.close()


def load(facts: Mapping[str, Any], parts: Mapping[str, bytes]) -> _Stepping:
    """Make code run in this process.

    Raises:
        UsageError: it is not for this processor.
        ValueError: its tables do not fit each other.
    """
    return _Stepping(measuring.load(facts, parts).executable)


if __name__ == "__main__":
    serve(load)
