"""The process of one contestant: loads a model, then runs bursts when told to.

Speaks JSON lines on standard input and output. Between bursts it waits for input, so it takes no time
from what is measured then.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.benchmark.engines import Engine, Feed, make_engine
from tilewright.errors import TilewrightError
from tilewright.files import npz_bytes, read_npz
from tilewright.ir.dtype import DType


def main() -> None:
    """Serve one engine until standard input closes."""
    # Libraries print to standard output; keep it for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    request = json.loads(sys.stdin.readline())
    feed = read_npz(request["inputs"], {name: DType[d].numpy for name, d in request["dtypes"].items()})
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    try:
        if request["preload"]:
            importlib.import_module(request["preload"]).prepare(
                request["engine"], Path(request["inputs"]).parent
            )
        started = time.perf_counter()
        engine = make_engine(
            request["engine"],
            request["model"],
            request["threads"],
            shapes,
            request["accuracy"],
            request["streams"],
        )
        load_s = time.perf_counter() - started
        started = time.perf_counter()
        outputs = engine.run(feed)
        first_s = time.perf_counter() - started
    except Exception as error:  # a peer's own failure is a result of the comparison, not a crash of it
        answer(error=failure_text(request["engine"], error))
        return
    # In double precision, which holds every value of the types that are compared.
    wide = (o if o.dtype.kind == "c" else o.astype(np.float64) for o in outputs)
    Path(request["outputs"]).write_bytes(npz_bytes({str(i): o for i, o in enumerate(wide)}))
    answer(version=engine.version, load_s=load_s, first_s=first_s)
    with ThreadPoolExecutor(1 + len(engine.others)) as threads:
        for line in sys.stdin:
            seconds = json.loads(line)["seconds"]
            try:
                streams = burst(engine, feed, seconds, threads)
            except Exception as error:
                answer(error=failure_text(request["engine"], error))
                return
            answer(
                samples_ns=[sample for stream in streams for sample in stream.samples_ns],
                queries_per_s=sum(stream.queries_per_s for stream in streams),
                peak_bytes=peak_bytes(),
            )


def failure_text(engine: str, error: Exception) -> str:
    """Why an engine did not run, in one line.

    >>> failure_text("onnxruntime", ValueError("no such kernel\\nat line 3"))
    'onnxruntime: ValueError: no such kernel'
    """
    if isinstance(error, TilewrightError):
        return str(error)
    reason = (str(error).splitlines() or [""])[0][:300]
    return f"{engine}: {type(error).__name__}: {reason}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class Stream:
    """Times of runs one after another, and how many ended in a second."""

    samples_ns: list[int]
    queries_per_s: float


def burst(engine: Engine, feed: Feed, seconds: float, threads: ThreadPoolExecutor) -> list[Stream]:
    """Run every stream of an engine for so long, all at the same time; at least once each.

    What one stream raises is raised here, and not that the others waited for it in vain.
    """
    runs = (engine.run, *engine.others)
    begin_together = threading.Barrier(len(runs))

    def stream(run: Callable[[Feed], object]) -> Stream:
        try:
            run(feed)  # wakes the engine's threads; the bursts of the others have put them to sleep
        except BaseException:
            begin_together.abort()  # nothing waits for it
            raise
        begin_together.wait()
        samples: list[int] = []
        started_ns = time.perf_counter_ns()
        until_ns = started_ns + 1e9 * seconds
        while not samples or time.perf_counter_ns() < until_ns:
            begin_ns = time.perf_counter_ns()
            run(feed)
            samples.append(time.perf_counter_ns() - begin_ns)
        return Stream(samples, 1e9 * len(samples) / (time.perf_counter_ns() - started_ns))

    if len(runs) == 1:
        return [stream(engine.run)]
    futures = [threads.submit(stream, run) for run in runs]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]


def peak_bytes() -> int:
    """The most memory this process has held.

    Not `ru_maxrss` where it can be avoided: on Linux that starts at what the parent held.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
