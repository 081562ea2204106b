"""Modules of torchvision and transformers by `torch.compile(backend="tilewright")`, beside other paths.

Run: `python benchmarks/torch_compile.py [--threads 2] [--seconds 5] [--only resnet50,bert] [--page PAGE.md]`.
Needs torch, torchvision and transformers; weights are random. Paths run in turns in one process, with equal
threads and a pause before each burst; a line is appended for each network, and a later run goes on behind
it. `compile` is torch.compile, `unguarded` the same without TorchDynamo's checks of modules, `onnx` the
module loaded by `tw.load`, compiled and called, `eager` torch itself.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from results import append_row, rows_of, with_table

import tilewright as tw
from tilewright import dynamo
from tilewright.accuracy import relative_error
from tilewright.benchmark.statistics import Ratio, Timing

VISION = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "regnet_y_800mf")
LANGUAGE = ("bert", "gpt2")
PATHS = ("compile", "unguarded", "onnx", "eager")
ROUNDS = 12
SETTLE_S = 0.03
WARMUP_S = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """A module in evaluation mode, what it is called with by name, and the output that is compared."""

    module: Any
    inputs: Mapping[str, Any]
    output: Callable[[Any], Any]


def vision(name: str) -> Case:
    """A network of torchvision on one image; `forward` calls its argument x."""
    import torchvision

    module = getattr(torchvision.models, name)(weights=None).eval()
    return Case(module, {"x": torch.randn(1, 3, 224, 224)}, lambda y: y)


def bert() -> Case:
    """BERT of six layers on 128 tokens, with a mask."""
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(num_hidden_layers=6), add_pooling_layer=False).eval()
    ids = torch.randint(0, 30000, (1, 128))
    mask = torch.ones(1, 128, dtype=torch.long)
    return Case(module, {"input_ids": ids, "attention_mask": mask}, lambda y: y.last_hidden_state)


def gpt2() -> Case:
    """GPT-2 of six layers on 64 tokens, without a cache."""
    from transformers import GPT2Config, GPT2Model

    module = GPT2Model(GPT2Config(n_layer=6, use_cache=False)).eval()
    return Case(module, {"input_ids": torch.randint(0, 50000, (1, 64))}, lambda y: y.last_hidden_state)


CASES: Mapping[str, Callable[[], Case]] = {"bert": bert, "gpt2": gpt2}


def measure(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """One network: errors against float64, times of each path, and ratios round by round."""
    torch.manual_seed(0)
    case = CASES[name]() if name in CASES else vision(name)
    module, inputs = case.module, case.inputs
    exact = case.output(in_double(name)).numpy()
    settings = {"threads": threads}
    unguarded = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe, **settings}
    started = time.perf_counter()
    compiled = tw.compile(tw.load(module, dict(inputs)), threads=threads)
    prepared_s = time.perf_counter() - started
    arrays = [inputs[spec.name] for spec in compiled.get_inputs()]
    place = main_output(compiled, exact)
    known = set(dynamo.graphs())
    compile_all = torch.compile(module, backend=dynamo.backend, options=dict(settings))
    # Another function, or TorchDynamo would take the code that it has for equal options.
    compile_fast = torch.compile(module, backend=partial(dynamo.backend), options=unguarded)
    runs: dict[str, Callable[[], Any]] = {
        "compile": lambda: case.output(compile_all(**inputs)),
        "unguarded": lambda: case.output(compile_fast(**inputs)),
        "onnx": lambda: as_tuple(compiled(*arrays))[place],
        "eager": lambda: case.output(module(**inputs)),
    }
    started = time.perf_counter()
    runs["compile"]()
    first_s = time.perf_counter() - started
    errors = {path: relative_error(run().numpy(), exact) for path, run in runs.items()}
    timings = in_turns(runs, seconds)
    graphs = set(dynamo.graphs()) - known
    return {
        "network": name,
        "threads": threads,
        "first_call_s": first_s,
        "load_and_compile_s": prepared_s,
        "num_graphs": len(graphs),
        "remarks": [graph.remark for graph in graphs if graph.remark],
        "errors": errors,
        "median_ms": {path: timing.median_ms for path, timing in timings.items()},
        "onnx_over": {path: ratio_of(timings[path], timings["onnx"]) for path in PATHS},
        "eager_over": {path: ratio_of(timings[path], timings["eager"]) for path in PATHS},
    }


def in_double(name: str) -> Any:
    """The outputs of the same module, with the same weights and inputs, in float64."""
    torch.manual_seed(0)
    case = CASES[name]() if name in CASES else vision(name)
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in case.inputs.items()}
    return case.module.double()(**inputs)


def main_output(compiled: tw.CompiledModel, expected: Any) -> int:
    """The place of the output that has the shape of the one that is compared."""
    return [tuple(spec.shape) for spec in compiled.get_outputs()].index(expected.shape)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def in_turns(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Timing]:
    """Bursts of every path, round by round."""
    rounds: dict[str, list[list[float]]] = {path: [] for path in runs}
    for run in runs.values():
        burst(run, WARMUP_S)
    for number in range(ROUNDS):
        turn = number % len(runs)
        for path in (*list(runs)[turn:], *list(runs)[:turn]):
            rounds[path].append(burst(runs[path], seconds / ROUNDS / len(runs)))
    return {
        path: Timing(tuple(map(statistics.median, bursts)), tuple(ms for b in bursts for ms in b))
        for path, bursts in rounds.items()
    }


def burst(run: Callable[[], Any], seconds: float) -> list[float]:
    time.sleep(SETTLE_S)
    run()
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while not samples or time.perf_counter() < until:
        begin = time.perf_counter_ns()
        run()
        samples.append((time.perf_counter_ns() - begin) / 1e6)
    return samples


def ratio_of(ours: Timing, theirs: Timing) -> list[float]:
    """Their time over ours: the median over rounds, and its interval."""
    ratio = Ratio.of(ours, theirs)
    return [ratio.median, ratio.low, ratio.high]


def table(rows: list[dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    lines = [
        "| module | threads | torch.compile | without guards | ONNX path | eager | ONNX path / torch.compile "
        "| ONNX path / without guards | eager / torch.compile | error | error of eager |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["threads"], [*VISION, *LANGUAGE].index(row["network"]))):
        times = " | ".join(f"{row['median_ms'][path]:.2f} ms" for path in PATHS)
        ratios = " | ".join(
            f"{median:.2f} ({low:.2f}-{high:.2f})"
            for median, low, high in (
                row["onnx_over"]["compile"],
                row["onnx_over"]["unguarded"],
                row["eager_over"]["compile"],
            )
        )
        errors = f"{row['errors']['compile']:.1e} | {row['errors']['eager']:.1e}"
        lines.append(f"| {row['network']} | {row['threads']} | {times} | {ratios} | {errors} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, for each network")
    parser.add_argument("--only", default="", help="networks, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("torch_compile.jsonl"))
    parser.add_argument("--page", type=Path, help="write the table between its markers torch-compile")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(asked.threads)
    names = asked.only.split(",") if asked.only else [*VISION, *LANGUAGE]
    done = {(row["network"], row["threads"]) for row in rows_of(asked.output)}
    with torch.inference_mode():
        for name in names:
            if (name, asked.threads) not in done:
                torch._dynamo.reset()
                append_row(asked.output, measure(name, asked.threads, asked.seconds))
                print(name, "done", flush=True)
    text = table(rows_of(asked.output))
    print(text)
    if asked.page:
        asked.page.write_text(with_table(asked.page.read_text(), text, "torch-compile"))


if __name__ == "__main__":
    main()
