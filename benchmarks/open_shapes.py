"""Models with open shapes: right at every shape, how long first runs take, and whether later ones are as fast
as those of the model compiled for that shape alone.

    python -m benchmarks open_shapes --limit 900
    python -m benchmarks open_shapes --models encoder,detector --threads 1

Each model runs at five shapes. Its outputs are compared with onnxruntime's; then runs of the open model, of
the model compiled for the shape, and of onnxruntime take turns. A model in which data decide a shape is
compiled for no shape: there is nothing to compare it with. Where torch, torchvision and transformers are
installed, models that they export are there, too. Every shape is a line of JSON in `--output`: a run
that `--limit` ended goes on where it stopped, model by model. The table is printed in the end; with `--page`
it goes there, between its markers.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.exported_open_models import EXPORTED_MODELS, is_installed
from tests.support.open_models import OPEN_MODELS, OpenModel

import tilewright as tw
from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of, with_table
from tilewright.accuracy import relative_error
from tilewright.errors import UnsupportedOp
from tilewright.text.formatting import format_ms, format_shape

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Run = Callable[[], Any]

MIN_ROUNDS = 5
NUM_SHAPES = 5
"""That each model runs at: with fewer lines, a model was not measured to its end, and is again."""


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("--models", default="", help="names in order, separated by commas; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each shape, for runs in turns")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="begin nothing after so many seconds"
    )
    parser.add_argument("--output", default=Path("open_shapes.jsonl"))
    parser.add_argument("--page")


def main(arguments: Namespace) -> None:
    """Measure what is not in the output yet, and print the table of what is."""
    models = {m.name: m for m in (*(EXPORTED_MODELS if is_installed() else ()), *OPEN_MODELS)}
    chosen = arguments.models.split(",") if arguments.models else list(models)
    unknown = [name for name in chosen if name not in models]
    if unknown:
        raise SystemExit(f"no model {unknown[0]!r}: there are {', '.join(models)}")
    done = rows_of(arguments.output)
    counts = Counter((row["model"], row["threads"]) for row in done)
    known = {key for key, count in counts.items() if count >= NUM_SHAPES}
    done = [row for row in done if (row["model"], row["threads"]) in known]
    end_s = time.monotonic() + arguments.limit
    for name in chosen:
        if (name, arguments.threads) in known or time.monotonic() > end_s:
            continue
        rows = measured(models[name], arguments.threads, arguments.seconds)
        for row in rows:
            append_row(arguments.output, row)
        done += rows
    text = table(done)
    print(text)
    if arguments.page:
        arguments.page.write_text(with_table(arguments.page.read_text(), text))


def measured(model: OpenModel, num_threads: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each shape of a model, in the order in which they come."""
    import onnxruntime

    proto = model.build()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = num_threads, 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    compiled = tw.compile(proto, threads=num_threads, no_cache=True)
    rows = []
    for feed in model.feeds():
        started = time.perf_counter()
        found = compiled.run(None, feed)
        first_s = time.perf_counter() - started
        wanted = session.run(None, dict(feed))
        shapes = {name: list(array.shape) for name, array in feed.items()}
        runs: dict[str, Run] = {
            "open": lambda feed=feed: compiled.run(None, feed),  # type: ignore[misc]
            "onnxruntime": lambda feed=feed: session.run(None, dict(feed)),  # type: ignore[misc]
        }
        try:
            static = tw.compile(proto, shapes=shapes, threads=num_threads)
            static.load()
            runs["static"] = lambda feed=feed, static=static: static.run(None, feed)  # type: ignore[misc]
        except UnsupportedOp:
            pass  # data decide a shape
        times_s = in_turns(runs, seconds)
        rows.append(
            {
                "model": model.name,
                "family": model.family,
                "threads": num_threads,
                "shapes": shapes,
                "error": max(map(error, found, wanted)),
                "is_right": all(map(is_right, found, wanted)),
                "first_s": first_s,
                "times_s": times_s,
                "num_made": compiled.specialisations.num_made,
            }
        )
    return rows


def in_turns(runs: Mapping[str, Run], seconds: float) -> dict[str, list[float]]:
    """Times of each, run after run in turns."""
    times_s: dict[str, list[float]] = {name: [] for name in runs}
    end_s = time.monotonic() + seconds
    for number in range(1_000_000):
        if number >= MIN_ROUNDS and time.monotonic() > end_s:
            break
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times_s[name].append(time.perf_counter() - started)
    return times_s


def error(found: Array, wanted: Array) -> float:
    """The largest difference over the largest value; of integers, whether any differ."""
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    return float(relative_error(found, wanted)) if wanted.size else 0.0


def is_right(found: Array, wanted: Array) -> bool:
    """Within what two float32 computations may differ by."""
    return error(found, wanted) < 1e-4


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each model: how many shapes are right, and times over the shapes."""
    lines = [
        "| model | what is open | right | first run | later | onnxruntime, later | open / static |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        mine = [row for row in rows if (row["model"], row["threads"]) == (name, threads)][-NUM_SHAPES:]
        later = [statistics.median(row["times_s"]["open"]) for row in mine]
        peer = [statistics.median(row["times_s"]["onnxruntime"]) for row in mine]
        ratios = [
            statistics.median(row["times_s"]["open"]) / statistics.median(row["times_s"]["static"])
            for row in mine
            if "static" in row["times_s"]
        ]
        columns = (
            name,
            mine[0]["family"],
            f"{sum(row['is_right'] for row in mine)} of {len(mine)}",
            _range([row["first_s"] for row in mine]),
            _range(later),
            _range(peer),
            f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "data decide",
        )
        lines.append(f"| {' | '.join(columns)} |")
    wrong = [f"{row['model']} at {_shapes(row)}" for row in rows if not row["is_right"]]
    if wrong:
        lines += ["", f"Wrong: {'; '.join(wrong)}."]
    return "\n".join(lines) + "\n"


def _range(seconds: Sequence[float]) -> str:
    return f"{format_ms(1e3 * min(seconds))} to {format_ms(1e3 * max(seconds))}"


def _shapes(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}:{format_shape(shape)}" for name, shape in row["shapes"].items())
