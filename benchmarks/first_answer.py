"""Processor time until the first answer, and peak memory, beside onnxruntime: each in a process of its own.

    python -m benchmarks first_answer model.onnx zoo:mobilenet_v2 'ocr.onnx@x:1x3x48x320' --repeats 3
    python -m benchmarks first_answer 'vad.onnx@input:1x512,sr=16000' --modes default,quick

A model is a file or `zoo:` and a name, then `@` and what its inputs are: a shape, or a number where the value
matters. A second `@` gives other inputs: those of a second call of the same open model. Other dimensions that
are open are 1. The kernel cache is empty each time, Python's bytecode is cached, as after an installation,
and the engines use one thread. Time is that of the processor, helper processes included, from before the
model is read to the end of the first run; importing the engine is told apart. A second shape is timed on the
thread that asks, for the quick mode compiles on another. Memory is the largest resident set of the process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import SUPPRESS, Namespace, Parser, again

MODES = ("default", "quick", "onnxruntime")


def processor_s() -> float:
    """Processor time of this process and of helpers that have ended."""
    times = os.times()
    return sum(times[:4])


def peak_mib() -> float:
    """Largest resident set so far of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def parsed_inputs(text: str) -> dict[str, tuple[int, ...] | float]:
    """Shapes and values by the names of inputs: `x:1x3,sr=16000`."""
    found: dict[str, tuple[int, ...] | float] = {}
    for item in filter(None, text.split(",")):
        if "=" in item:
            name, value = item.rsplit("=", 1)
            found[name] = float(value)
        else:
            name, shape = item.rsplit(":", 1)
            found[name] = tuple(map(int, shape.split("x")))
    return found


def feed_for(path: str, asked: Mapping[str, tuple[int, ...] | float]) -> dict[str, Any]:
    """Random arrays for the inputs of a model's file."""
    import numpy as np
    import onnx

    proto = onnx.load(path, load_external_data=False)
    rng, feed = np.random.default_rng(0), {}
    constants = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        given = asked.get(value.name, ())
        declared = [max(1, dim.dim_value) for dim in tensor.shape.dim]
        shape = given if isinstance(given, tuple) and given else tuple(declared)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if not isinstance(given, tuple):
            feed[value.name] = np.full(shape, given, dtype)
        elif dtype.kind == "f":
            feed[value.name] = rng.random(shape).astype(dtype)
        else:
            feed[value.name] = rng.integers(0, 2 if dtype.kind == "b" else 16, shape).astype(dtype)
    return feed


def measure(path: str, feeds: Path, mode: str) -> dict[str, Any]:
    """The first answers of one model in this process."""
    import numpy as np

    with np.load(feeds) as stored:
        calls: dict[str, dict[str, Any]] = {}
        for key in stored.files:
            number, name = key.split("/", 1)
            calls.setdefault(number, {})[name] = stored[key]
    marks = [processor_s()]
    seconds = [time.perf_counter()]
    phases: Mapping[str, float] = {}
    if mode == "onnxruntime":
        import onnxruntime

        marks.append(processor_s())
        setup = onnxruntime.SessionOptions()
        setup.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, setup, providers=["CPUExecutionProvider"])
    else:
        import tilewright as tw

        marks.append(processor_s())
        session = tw.compile(path, threads=1, **({} if mode == "default" else {"first_answer": mode}))
        phases = session.phase_s
    before = peak_mib()
    made = processor_s()
    seconds.append(time.perf_counter())
    own_s = 0.0
    for feed in calls.values():
        begun_s = time.thread_time()
        session.run(None, feed)
        own_s = time.thread_time() - begun_s
        marks.append(processor_s())
        seconds.append(time.perf_counter())
    return {
        "import_s": marks[1] - marks[0],
        "compile_s": made - marks[1],
        "first_s": marks[2] - marks[1],
        "first_wall_s": seconds[2] - seconds[0],
        "second_shape_s": None if len(marks) < 4 else own_s,
        "peak_mib": peak_mib(),
        "peak_compiled_mib": before,
        "phase_wall_s": dict(phases),
    }


def environment(folder: Path, cache: Path) -> dict[str, str]:
    """What a process is given: an empty kernel cache, and a folder for bytecode that all of them share."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"TILEWRIGHT_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(folder)}


def rows_of(
    model: str, modes: Sequence[str], repeats: int, bytecode: Path
) -> dict[str, list[dict[str, Any]]]:
    """Rows by mode, measured in turns."""
    name, *texts = model.split("@")
    with tempfile.TemporaryDirectory() as folder:
        path = name
        if name.startswith("zoo:"):
            from tilewright import zoo

            path = str(Path(folder) / "model.onnx")
            Path(path).write_bytes(zoo.build(name[4:]).SerializeToString())
        import numpy as np

        feeds, arrays = Path(folder) / "feeds.npz", {}
        for number, text in enumerate(texts or [""]):
            arrays |= {f"{number}/{n}": a for n, a in feed_for(path, parsed_inputs(text)).items()}
        np.savez(feeds, **arrays)
        rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
        for number in range(-1, repeats):  # the first leaves bytecode
            for mode in modes:
                cache = Path(folder) / f"cache-{mode}-{number}"
                cache.mkdir(mode=0o700)
                command = again("first_answer", path, "--child", mode, "--feeds", str(feeds))
                done = subprocess.run(
                    command,
                    env=environment(bytecode, cache),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                    print(f"{name} {mode}: {reason[-1]}", file=sys.stderr)
                    continue
                if number >= 0:
                    rows[mode].append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def middle(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Median over repeats."""
    found = [float(row[key]) for row in rows if row[key] is not None]
    return statistics.median(found) if found else None


def cell(value: float | None, digits: int = 2) -> str:
    """A number of the table."""
    return "" if value is None else f"{value:.{digits}f}"


def table(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], modes: Sequence[str]) -> str:
    """A line for each model; the median of all at the end."""
    keys = ("first_s", "second_shape_s", "peak_mib")
    head = [f"{mode} {key}" for mode in modes for key in keys]
    lines = ["| model | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    columns: dict[tuple[str, str], list[float]] = {}
    for name, rows in found.items():
        cells = []
        for mode in modes:
            for key in keys:
                value = middle(rows[mode], key)
                cells.append(cell(value, 0 if key == "peak_mib" else 2))
                if value is not None:
                    columns.setdefault((mode, key), []).append(value)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    last = [
        cell(statistics.median(columns[mode, key]) if (mode, key) in columns else None)
        for mode in modes
        for key in keys
    ]
    lines.append("| **median** | " + " | ".join(last) + " |")
    return "\n".join(lines) + "\n"


def ratios(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], modes: Sequence[str]) -> str:
    """Peak memory beside onnxruntime's and import times, as medians."""
    lines = []
    for mode in modes:
        pairs = [(middle(r[mode], "peak_mib"), middle(r["onnxruntime"], "peak_mib")) for r in found.values()]
        own = [a / b for a, b in pairs if a and b]
        imports = [s for r in found.values() if (s := middle(r[mode], "import_s")) is not None]
        if own:
            lines.append(
                f"{mode}: peak memory {statistics.median(own):.2f} x onnxruntime's "
                f"(most {max(own):.2f}), import {statistics.median(imports):.2f} s"
            )
    return "\n".join(lines)


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("models", nargs="+", help="files, or zoo:NAME; then @inputs")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", help="all rows, as JSON")
    parser.add_argument("--child", help=SUPPRESS)
    parser.add_argument("--feeds", type=Path, help=SUPPRESS)


def main(asked: Namespace) -> None:
    """Measure and print."""
    if asked.child:
        print(json.dumps(measure(asked.models[0], asked.feeds, asked.child)))
        return
    modes = asked.modes.split(",")
    bytecode = Path(tempfile.gettempdir()) / f"bytecode-of-{os.getuid()}"
    found = {}
    for model in asked.models:
        name = Path(model.split("@")[0]).name
        found[name] = rows_of(model, modes, asked.repeats, bytecode)
        for mode, rows in found[name].items():
            for row in rows[:1]:
                phases = {key: round(value, 2) for key, value in row["phase_wall_s"].items()}
                print(
                    f"{name} {mode}: import {row['import_s']:.2f}, compile {row['compile_s']:.2f}, first "
                    f"answer {row['first_s']:.2f}, {row['peak_mib']:.0f} MiB {phases or ''}",
                    file=sys.stderr,
                    flush=True,
                )
        if asked.output:
            asked.output.write_text(json.dumps(found, indent=1))
    print(table(found, modes))
    if "onnxruntime" in modes:
        print(ratios(found, [mode for mode in modes if mode != "onnxruntime"]))
