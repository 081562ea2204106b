"""Networks tuned on this processor and raced: our untuned plan, `flat`, AGO, and other engines."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onnx import ModelProto

from tilewright import zoo
from tilewright.benchmark import Ratio, Timing
from tilewright.benchmark.engines import PEERS, is_installed, make_engine
from tilewright.compiler import Compilation, compile_graph
from tilewright.frontend.onnx import load_onnx
from tilewright.hardware.probe import load_average_1min
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.planning import UNLIMITED, Budget
from tilewright.reproduce.in_turns import Plans, Run, feed_of, in_turns
from tilewright.steps import SearchName, TuningSettings

UNTUNED, FLAT, AGO = "layerwise", "flat", "AGO"
"""Our own: the default plan by estimates; with products tuned one by one; subgraphs of AGO's partition with
their forms tuned, parts first."""
ON_DEVICE: Plans = {
    UNTUNED: {"partition": "layerwise", "schedule": "sequential"},
    AGO: {"partition": "ago", "schedule": "sequential"},
    "AGO, groups side by side": {"partition": "ago", "schedule": "greedy"},
}
"""What is compared on a GPU, where nothing is tuned."""


@dataclass(frozen=True, slots=True)
class Job:
    """A network at a size on so many threads; every search has this budget."""

    network: str
    size: Mapping[str, int]
    num_threads: int
    budget: Budget
    seconds: float = 6.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile: a partition, what is searched (None: nothing)."""

    partition: str
    search: SearchName | None


VARIANTS: Mapping[str, Variant] = {
    UNTUNED: Variant("auto", None),
    FLAT: Variant("auto", "flat"),
    AGO: Variant("ago", "reformer"),
}


@dataclass(frozen=True, slots=True)
class Raced:
    """The times of all contestants in the same rounds; `said` is what searches say, `load` the machine's."""

    job: Job
    timings: Mapping[str, Timing]
    said: Mapping[str, str]
    load: float | None

    def ratio(self, name: str, other: str) -> Ratio | None:
        """How many times faster the one is than the other; None if one is not there."""
        if name not in self.timings or other not in self.timings:
            return None
        return Ratio.of(self.timings[name], self.timings[other])


def raced(job: Job, variants: Mapping[str, Variant] = VARIANTS, peers: tuple[str, ...] = PEERS) -> Raced:
    """Compile and tune a network of the zoo by each variant, and run all of them and the peers in turns."""
    return race_model(zoo.build(job.network, **job.size), job, variants, peers)


def race_model(
    model: ModelProto, job: Job, variants: Mapping[str, Variant], peers: tuple[str, ...] = ()
) -> Raced:
    """The same of any model of floats."""
    graph = load_onnx(model)
    feed = feed_of(graph)
    said: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-ago-")))
        runs: dict[str, Run] = {}
        for name, variant in variants.items():
            compilation = compiled(graph, variant, job, folder / name)
            executable = compilation.code.load(job.num_threads)
            stack.callback(executable.close)
            runs[name] = partial(executable.run, feed)
            said[name] = "" if compilation.tuning is None else compilation.tuning.outcome
        if peers:
            path = folder / "model.onnx"
            path.write_bytes(model.SerializeToString())
            for peer in filter(is_installed, peers):
                engine = make_engine(peer, str(path), job.num_threads, {})
                runs[peer] = partial(engine.run, feed)
        return Raced(job, in_turns(runs, job.seconds), said, load_average_1min())


def compiled(graph: Graph, variant: Variant, job: Job, cache: Path) -> Compilation:
    """A network as a variant says; its findings are not kept for other variants.

    Raises:
        KeyboardInterrupt: the user ended the search; what is best so far is no result of its budget.
    """
    options = Options(threads=job.num_threads, partition=variant.partition, cache_dir=cache)
    if variant.search is None:
        return compile_graph(graph, options)
    options = replace(options, budget=job.budget)
    compilation = compile_graph(graph, options, tuning=TuningSettings("afresh", variant.search))
    if compilation.tuning is not None and compilation.tuning.is_interrupted:
        raise KeyboardInterrupt
    return compilation


def seconds(budget_s: float) -> Budget:
    """A budget that is a time."""
    return Budget(UNLIMITED, budget_s)
