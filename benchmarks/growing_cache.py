"""A decoder generates token by token through its cache: CPU time of a token beside onnxruntime, equal tokens,
what was compiled and when, and memory.

    python -m benchmarks growing_cache --tokens 500
    python -m benchmarks growing_cache --models gpt2,ScatterND --threads 2

Models are decoders of transformers, four layers with random weights, whose past is concatenated (they need
torch, transformers and onnxscript), and steps of one layer whose keys and values are written at a position of
a buffer. Both engines generate in turns, each from its own cache; the first token is the prompt. Times are
those of the processor, of all threads together, so that other processes do not count. Memory is what the
process grows by while an engine loads the model and generates, each in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from tests.support.caches import WRITES, buffer_step
from tests.support.exported_caches import KINDS, decoder_with_cache, is_installed

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
Run = Callable[[Feed], Sequence[Array]]

SIZES = {"layers": 4, "width": 768, "heads": 12, "vocabulary": 8000}
FIRST_PAST = 2
BUFFER = {"heads": 12, "places": 1024, "depth": 64}
RANDOM = 0.02
"""Scale of the first keys and values."""


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument(
        "--models", default=",".join(names()), help="names, separated by commas; default: all"
    )
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", help="a line of JSON for each model is appended")


def main(arguments: Namespace) -> None:
    """Measure the models that are asked for, and print a line for each."""
    for name in arguments.models.split(","):
        if name not in names():
            raise SystemExit(f"no model {name!r}: there are {', '.join(names())}")
        row = measured(name, arguments.tokens, arguments.threads)
        print(line(row), flush=True)
        if arguments.output:
            append_row(arguments.output, row)


def names() -> list[str]:
    """The models that can be built here."""
    return [*(KINDS if is_installed() else ()), *WRITES]


def built(name: str) -> ModelProto:
    """A model by its name."""
    return buffer_step(name, **BUFFER) if name in WRITES else decoder_with_cache(name, **SIZES)


def first_feed(model: ModelProto) -> Feed:
    """What the first run is fed."""
    rng = np.random.default_rng(0)
    feed: Feed = {}
    for info in model.graph.input:
        shape = [d.dim_value or FIRST_PAST for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT64:
            feed[info.name] = np.zeros(shape, np.int64)
        else:
            feed[info.name] = (RANDOM * rng.standard_normal(shape)).astype(np.float32)
    return feed


def next_feed(model: ModelProto, feed: Feed, results: Sequence[Array]) -> Feed:
    """What the run after that is fed: the likeliest token or the next place, and the caches."""
    names = [info.name for info in model.graph.input]
    caches = dict(zip((n for n in names if n.startswith("past")), results[1:], strict=True))
    if "ids" in names:
        return {"ids": results[0][:, -1].argmax(-1, keepdims=True), **caches}
    return {**feed, "place": feed["place"] + 1, **caches}


def engines(model: ModelProto, num_threads: int) -> tuple[dict[str, Run], tw.CompiledModel]:
    """Both engines, and the model as tilewright compiled it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = num_threads, 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    compiled = tw.compile(model, threads=num_threads)
    return {
        "tilewright": lambda feed: compiled.run(None, feed),
        "onnxruntime": lambda feed: session.run(None, feed),
    }, compiled


def measured(name: str, num_tokens: int, num_threads: int) -> dict[str, Any]:
    """Times of all tokens by both engines, in turns."""
    model = built(name)
    runs, compiled = engines(model, num_threads)
    feeds = {engine: first_feed(model) for engine in runs}
    times_ms: dict[str, list[float]] = {engine: [] for engine in runs}
    compiled_at: list[int] = []
    num_equal, num_code = 0, 0
    for number in range(num_tokens):
        answers: list[Array] = []
        for engine, run in runs.items():
            started = time.process_time()
            results = run(feeds[engine])
            times_ms[engine].append(1e3 * (time.process_time() - started))
            answers.append(results[0])
            feeds[engine] = next_feed(model, feeds[engine], results)
        num_equal += bool((answers[0].argmax(-1) == answers[1].argmax(-1)).all())
        code = _num_code(compiled)
        if code > num_code:
            compiled_at.append(number)
        num_code = code
    steady = {engine: statistics.median(times[2:]) for engine, times in times_ms.items()}
    return {
        "model": name,
        "threads": num_threads,
        "tokens": num_tokens,
        "equal": num_equal,
        "compiled_in_runs": compiled_at,
        "first_ms": times_ms["tilewright"][0],
        "median_ms": steady,
        "slowest_later_ms": max(times_ms["tilewright"][2:]),
        "memory_mib": {engine: memory_mib(name, engine, num_tokens, num_threads) for engine in runs},
    }


def _num_code(compiled: tw.CompiledModel) -> int:
    """For how many sets of shapes there is code."""
    made = getattr(compiled, "specialisations", None)
    return 1 if made is None else len({s.by_code_for or tuple(s.shapes.items()) for s in made.kept})


def memory_mib(name: str, engine: str, num_tokens: int, num_threads: int) -> float:
    """What a process needs at most for a model, more than before it loads it."""
    model = built(name)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_generate, args=(model, engine, num_tokens, num_threads, queue))
    process.start()
    found = float(queue.get())
    process.join()
    return found


def _generate(model: ModelProto, engine: str, num_tokens: int, num_threads: int, queue: Any) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import onnxruntime

    if engine == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = num_threads, 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        run: Run = lambda feed: session.run(None, feed)  # noqa: E731
    else:
        compiled = tw.compile(model, threads=num_threads)
        run = lambda feed: compiled.run(None, feed)  # noqa: E731
    feed = first_feed(model)
    for _ in range(num_tokens):
        feed = next_feed(model, feed, run(feed))
    queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024)


def line(row: dict[str, Any]) -> str:
    """A model's figures for people."""
    ours, theirs = row["median_ms"]["tilewright"], row["median_ms"]["onnxruntime"]
    memory = row["memory_mib"]
    return (
        f"{row['model']}, {row['threads']} threads: {ours:.2f} ms a token, onnxruntime {theirs:.2f} "
        f"({theirs / ours:.2f} times); {row['equal']} of {row['tokens']} tokens equal; compiled in runs "
        f"{row['compiled_in_runs']}, the first in {row['first_ms']:.0f} ms, the slowest after two "
        f"{row['slowest_later_ms']:.1f} ms; {memory['tilewright']:.0f} MiB, onnxruntime "
        f"{memory['onnxruntime']:.0f}"
    )
