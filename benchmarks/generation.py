"""Generation beside onnxruntime: time of a token and of the first one, equal tokens, memory.

    python -m benchmarks generation --models gpt2,llama --threads 2 --tokens 100

Models are decoders of transformers with random weights, exported by PyTorch with all lengths open: GPT-2
small (124 million parameters) and a Llama of 134 million. Both engines run in the same loop
(`tilewright.generation`), in turns, token by token; the first prompt compiles and is not counted. Times are
those of the clock, so the machine must be idle; the processor's time of all threads is beside. Memory is what
a process of its own has alone (private pages that were written to, as Linux counts them), while it generates
and at most, more than before. With `--bits` products have weights of so many bits in blocks of 32. It needs
torch, transformers and onnxscript.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.support.exported_caches import batched_decoder

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row
from tilewright.generation import DecoderSignature, Sampling, Sequences, next_tokens

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Array]]

MODELS = {
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257},
    "llama": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 32000},
    "tiny": {"layers": 2, "width": 64, "heads": 4, "vocabulary": 128},
}


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument(
        "--models", default="gpt2,llama", help="names, separated by commas: gpt2, llama, tiny"
    )
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bits", type=int, choices=(4, 8), help="of weights; floats if it is left out")
    parser.add_argument("--output", help="a line of JSON for each model is appended")


def main(arguments: Namespace) -> None:
    """Measure the models that are asked for, and print a line for each."""
    for name in arguments.models.split(","):
        if name not in MODELS:
            raise SystemExit(f"no model {name!r}: there are {', '.join(MODELS)}")
        with tempfile.TemporaryDirectory() as folder:
            path = built(name, Path(folder), arguments.bits)
            row = measured(name, path, arguments.prompt, arguments.tokens, arguments.threads)
        print(line(row), flush=True)
        if arguments.output:
            append_row(arguments.output, row)


def built(name: str, folder: Path, bits: int | None) -> Path:
    """The file of a model by its name."""
    path = folder / f"{name}.onnx"
    model = batched_decoder("gpt2" if name == "tiny" else name, **MODELS[name])
    onnx.save(model, path)
    if bits is not None:
        quantised = folder / f"{name}_{bits}.onnx"
        shapes = {
            value.name: [1, 8] if value.name == "attention_mask" else [1, *_extents(value)]
            for value in model.graph.input
        }
        tw.quantize(path, quantised, method="weights", bits=bits, block=32, shapes=shapes)
        path = quantised
    return path


def _extents(value: onnx.ValueInfoProto) -> list[int]:
    """Of an input behind that of the batch, four where one is open: new tokens, and as many before."""
    return [dim.dim_value or 4 for dim in value.type.tensor_type.shape.dim[1:]]


def engine(name: str, model: Path, num_threads: int) -> tuple[Run, DecoderSignature]:
    """What runs a model, and what it is fed."""
    decoder = tw.Decoder(model, threads=num_threads) if name == "tilewright" else None
    if decoder is not None:
        return lambda names, feed: decoder.model.run(list(names), feed), decoder.signature
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = num_threads, 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    signature = tw.Decoder(model, threads=1).signature  # nothing is compiled before a run
    return lambda names, feed: session.run(list(names), dict(feed)), signature


def tokens_of(run: Run, signature: DecoderSignature, prompt: Sequence[int], count: int) -> Iterator[int]:
    """The likeliest tokens after a prompt."""
    steps = next_tokens(run, Sequences(signature, [prompt]), Sampling(), max_new_tokens=count)
    return (int(step.tokens[0]) for step in steps)


def measured(name: str, model: Path, num_prompt: int, num_tokens: int, num_threads: int) -> dict[str, Any]:
    """Times of all tokens by both engines, in turns."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, MODELS[name]["vocabulary"], num_prompt).tolist()
    runs = {e: engine(e, model, num_threads) for e in ("tilewright", "onnxruntime")}
    for run, signature in runs.values():
        list(tokens_of(run, signature, prompt, 3))
    wall_ms: dict[str, list[float]] = {e: [] for e in runs}
    busy_ms: dict[str, list[float]] = {e: [] for e in runs}
    said: dict[str, list[int]] = {e: [] for e in runs}
    streams = {e: tokens_of(run, signature, prompt, num_tokens) for e, (run, signature) in runs.items()}
    for _ in range(num_tokens):
        for e, stream in streams.items():
            started, busy = time.perf_counter(), time.process_time()
            said[e].append(next(stream))
            busy_ms[e].append(1e3 * (time.process_time() - busy))
            wall_ms[e].append(1e3 * (time.perf_counter() - started))
    return {
        "model": name,
        "threads": num_threads,
        "prompt": num_prompt,
        "tokens": num_tokens,
        "equal": sum(a == b for a, b in zip(*said.values(), strict=True)),
        "first_ms": {e: times[0] for e, times in wall_ms.items()},
        "token_ms": {e: statistics.median(times[1:]) for e, times in wall_ms.items()},
        "token_processor_ms": {e: statistics.median(times[1:]) for e, times in busy_ms.items()},
        "weights_mib": model.stat().st_size / 2**20,
        "memory_mib": {e: memory_mib(model, e, prompt, num_tokens, num_threads) for e in runs},
    }


def memory_mib(
    model: Path, name: str, prompt: Sequence[int], count: int, num_threads: int
) -> tuple[float, float]:
    """What a process has alone for a model and its tokens, more than before: at the end, and at most."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_generate, args=(queue, model, name, prompt, count, num_threads))
    process.start()
    end, most = queue.get()
    process.join()
    return end, most


def _generate(
    queue: Any, model: Path, name: str, prompt: Sequence[int], count: int, num_threads: int
) -> None:
    import onnxruntime  # noqa: F401  # both engines are there before

    before, most, is_done = _private_mib(), [0.0], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.02):
            most[0] = max(most[0], _private_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run, signature = engine(name, model, num_threads)
    list(tokens_of(run, signature, prompt, count))
    is_done.set()
    watcher.join()
    end = _private_mib()
    queue.put((end - before, max(end, most[0]) - before))


def _private_mib() -> float:
    """Memory that this process has alone and wrote to."""
    for text in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if text.startswith("Private_Dirty:"):
            return int(text.split()[1]) / 1024
    raise SystemExit("memory is told by Linux alone")


def line(row: dict[str, Any]) -> str:
    """A model's figures for people."""
    ours, theirs = ({k: row[k][e] for k in _FIGURES} for e in ("tilewright", "onnxruntime"))
    times, busy = (theirs[key] / ours[key] for key in ("token_ms", "token_processor_ms"))
    return (
        f"{row['model']}, {row['threads']} threads: {ours['token_ms']:.2f} ms a token, onnxruntime "
        f"{theirs['token_ms']:.2f} ({times:.2f} times; of the processor {busy:.2f}); {row['prompt']} "
        f"tokens first {ours['first_ms']:.1f} ms, onnxruntime {theirs['first_ms']:.1f}; {row['equal']} of "
        f"{row['tokens']} equal; weights {row['weights_mib']:.0f} MiB, memory {_shown(ours)}, onnxruntime "
        f"{_shown(theirs)}"
    )


def _shown(figures: Mapping[str, Any]) -> str:
    end, most = figures["memory_mib"]
    return f"{end:.0f} (at most {most:.0f})"


_FIGURES = ("token_ms", "token_processor_ms", "first_ms", "memory_mib")
