"""Modules of torchvision and transformers by `torch.compile(backend="tilewright")`, beside other paths.

Run: `python -m benchmarks torch_compile [--threads 2] [--seconds 5] [--only resnet50,bert] [--page PAGE.md]`,
on a machine that others use with `--threads 1 --clock cpu`, which counts the process's own CPU time.
Needs torch, torchvision and transformers; weights are random. Paths run in turns in one process, with equal
threads and a pause before each burst; a line is appended for each network, and a later run goes on behind
it. `compile` is torch.compile as it is, `constant` the same for a module that does not change: torch leaves
out its checks of modules and takes weights for constants, and so does the backend. `onnx` is the module
loaded by `tw.load`, compiled and called with the same tensors, `eager` torch itself.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from tests.support.torch_modules import NETWORKS, torch_case

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright import dynamo
from tilewright.accuracy import relative_error
from tilewright.benchmark.statistics import Ratio, Timing

PATHS = ("compile", "constant", "onnx", "eager")
HEADS = {
    "compile": "torch.compile",
    "constant": "of a constant module",
    "onnx": "ONNX path",
    "eager": "eager",
}
CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}
ROUNDS = 12
SETTLE_S = 0.03
WARMUP_S = 0.2


def measure(name: str, threads: int, seconds: float, clock: str, paths: list[str]) -> dict[str, Any]:
    """One network: errors against float64, times of each path, and ratios round by round."""
    case = torch_case(name)
    module, inputs = case.module, case.inputs
    exact = case.exact().numpy()
    settings = {"threads": threads}
    skip = torch.compiler.skip_guard_on_all_nn_modules_unsafe
    constant = {"guard_filter_fn": skip, "check_weights": False, **settings}
    started = time.perf_counter()
    compiled = tw.compile(tw.load(module, dict(inputs)), threads=threads)
    prepared_s = time.perf_counter() - started
    arrays = [inputs[spec.name] for spec in compiled.get_inputs()]
    place = main_output(compiled, exact)
    known = set(dynamo.graphs())
    compile_all = torch.compile(module, backend=dynamo.backend, options=dict(settings))
    # Another function, or TorchDynamo would take the code that it has for equal options.
    compile_constant = torch.compile(module, backend=partial(dynamo.backend), options=constant)
    runs: dict[str, Callable[[], Any]] = {
        "compile": lambda: case.output(compile_all(**inputs)),
        "constant": lambda: case.output(compile_constant(**inputs)),
        "onnx": lambda: as_tuple(compiled(*arrays))[place],
        "eager": lambda: case.output(module(**inputs)),
    }
    runs = {path: runs[path] for path in paths}
    started = time.perf_counter()
    runs["compile"]()
    first_s = time.perf_counter() - started
    if "constant" in runs:
        with torch._inductor.config.patch(freezing=True):  # asked for where a graph is taken
            runs["constant"]()
    errors = {path: relative_error(run().numpy(), exact) for path, run in runs.items()}
    timings = in_turns(runs, seconds, CLOCKS[clock])
    graphs = set(dynamo.graphs()) - known
    return {
        "network": name,
        "threads": threads,
        "clock": clock,
        "first_call_s": first_s,
        "load_and_compile_s": prepared_s,
        "num_graphs": len(graphs),
        "remarks": [graph.remark for graph in graphs if graph.remark],
        "errors": errors,
        "median_ms": {path: timing.median_ms for path, timing in timings.items()},
        "onnx_over": {path: ratio_of(timings[path], timings["onnx"]) for path in paths},
    }


def main_output(compiled: tw.CompiledModel, expected: Any) -> int:
    """The place of the output that has the shape of the one that is compared."""
    return [tuple(spec.shape) for spec in compiled.get_outputs()].index(expected.shape)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def in_turns(
    runs: Mapping[str, Callable[[], Any]], seconds: float, clock_ns: Callable[[], int]
) -> dict[str, Timing]:
    """Bursts of every path, round by round."""
    rounds: dict[str, list[list[float]]] = {path: [] for path in runs}
    for run in runs.values():
        burst(run, WARMUP_S, clock_ns)
    for number in range(ROUNDS):
        turn = number % len(runs)
        for path in (*list(runs)[turn:], *list(runs)[:turn]):
            rounds[path].append(burst(runs[path], seconds / ROUNDS / len(runs), clock_ns))
    return {
        path: Timing(tuple(map(statistics.median, bursts)), tuple(ms for b in bursts for ms in b))
        for path, bursts in rounds.items()
    }


def burst(run: Callable[[], Any], seconds: float, clock_ns: Callable[[], int]) -> list[float]:
    time.sleep(SETTLE_S)
    run()
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while not samples or time.perf_counter() < until:
        begin = clock_ns()
        run()
        samples.append((clock_ns() - begin) / 1e6)
    return samples


def ratio_of(ours: Timing, theirs: Timing) -> list[float]:
    """Their time over ours: the median over rounds, and its interval."""
    ratio = Ratio.of(ours, theirs)
    return [ratio.median, ratio.low, ratio.high]


def table(rows: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    paths = [path for path in PATHS if any(path in row["median_ms"] for row in rows)]
    heads = ["module", "threads", "clock", *(HEADS[path] for path in paths)]
    ratios = [path for path in paths if path in ("compile", "constant")]
    heads += [*(f"ONNX path / {HEADS[path]}" for path in ratios), "error", "first call"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in sorted(rows, key=lambda row: (row["threads"], NETWORKS.index(row["network"]))):
        medians = row["median_ms"]
        times = " | ".join(f"{medians[path]:.2f} ms" if path in medians else "-" for path in paths)
        shown = [row["onnx_over"].get(path) for path in ratios]
        ratio = " | ".join("-" if r is None else f"{r[0]:.2f} ({r[1]:.2f}-{r[2]:.2f})" for r in shown)
        last = f"{row['errors']['compile']:.1e} | {row['first_call_s']:.0f} s"
        lines.append(f"| {row['network']} | {row['threads']} | {row['clock']} | {times} | {ratio} | {last} |")
    return "\n".join(lines) + "\n"


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, for each network")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--paths", default="compile,constant,onnx", help="compile, onnx and others")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which none is begun")
    parser.add_argument("--only", default="", help="networks, separated by commas")
    parser.add_argument("--output", default=Path("torch_compile.jsonl"))
    parser.add_argument("--page")


def main(asked: Namespace) -> None:
    """Measure what is missing, and print."""
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(asked.threads)
    names = asked.only.split(",") if asked.only else list(NETWORKS)
    done = {(row["network"], row["threads"]) for row in rows_of(asked.output)}
    until = time.monotonic() + asked.limit
    with torch.inference_mode():
        for name in names:
            if (name, asked.threads) not in done and time.monotonic() < until:
                torch._dynamo.reset()
                row = measure(name, asked.threads, asked.seconds, asked.clock, asked.paths.split(","))
                append_row(asked.output, row)
                print(name, "done", flush=True)
    text = table(rows_of(asked.output))
    print(text)
    if asked.page:
        asked.page.write_text(with_table(asked.page.read_text(), text, "torch-compile"))
