"""Models run in turns: plans of a network on this processor, beside other engines."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.benchmark.statistics import Timing

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph

SECONDS = 10.0
"""The least time that plans of a network run."""
# Threads of other engines, which may spin for a while after a run, go to sleep before a block.
_SETTLE_S = 0.02
_BLOCK_S = 0.06
_MIN_ROUNDS = 9

Run = Callable[[], object]
Plans = Mapping[str, Mapping[str, str]]
"""What is compared: by name, the options of a compilation, such as its partition and schedule."""


def measured(network: str, num_threads: int, plans: Plans, peers: Sequence[str] = ()) -> dict[str, Timing]:
    """A network of the zoo by each of these plans on so many threads of this processor.

    Of `peers` those that are installed run in the same rounds.
    """
    from tilewright import zoo
    from tilewright.benchmark.engines import is_installed, make_engine
    from tilewright.compiler import compile_graph
    from tilewright.frontend.onnx import load_onnx
    from tilewright.options import options_of

    model = zoo.build(network)
    graph = load_onnx(model)
    feed = feed_of(graph)
    with contextlib.ExitStack() as stack:
        runs: dict[str, Run] = {}
        for name, fields in plans.items():
            options = options_of({**fields, "threads": num_threads})
            executable = compile_graph(graph, options).code.load(num_threads)
            stack.callback(executable.close)
            runs[name] = partial(executable.run, feed)
        path = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-reproduce-")))
            / "model.onnx"
        )
        for peer in filter(is_installed, peers):
            path.write_bytes(model.SerializeToString())
            runs[peer] = partial(make_engine(peer, str(path), num_threads, {}).run, feed)
        return in_turns(runs, SECONDS)


def feed_of(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs of a model."""
    rng = np.random.default_rng(0)
    feed: dict[str, np.ndarray[Any, Any]] = {}
    for value in graph.inputs:
        if value.dtype.is_float:
            feed[value.name] = rng.standard_normal(value.shape).astype(value.dtype.numpy)
        else:
            feed[value.name] = rng.integers(0, 2, value.shape).astype(value.dtype.numpy)
    return feed


def in_turns(runs: Mapping[str, Run], seconds: float) -> dict[str, Timing]:
    """The times of each, by name; a round's is the median of its block."""
    for run in runs.values():
        run()
    rounds: dict[str, list[float]] = {name: [] for name in runs}
    every: dict[str, list[float]] = {name: [] for name in runs}
    started_s = time.perf_counter()
    number = 0
    while runs and (number < _MIN_ROUNDS or time.perf_counter() - started_s < seconds):
        names = list(runs)
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            block = sorted(_block_ms(runs[name]))
            rounds[name].append(block[len(block) // 2])
            every[name] += block
        number += 1
    return {name: Timing(tuple(rounds[name]), tuple(every[name])) for name in runs}


def _block_ms(run: Run) -> list[float]:
    """Times of the runs of one block; the first warms the caches."""
    time.sleep(_SETTLE_S)
    run()
    block: list[float] = []
    started_s = time.perf_counter()
    while not block or time.perf_counter() - started_s < _BLOCK_S:
        start_ns = time.perf_counter_ns()
        run()
        block.append((time.perf_counter_ns() - start_ns) / 1e6)
    return block
