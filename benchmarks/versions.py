"""Two versions of tilewright beside each other: run time and compile time of the zoo, in turns, in one run.

    git worktree add /tmp/before v0.1.0
    python -m benchmarks versions /tmp/before . --networks resnet50,bert_base --threads 2
    python -m benchmarks versions . . --accuracies relaxed,default

Each version runs from its own source tree in processes of its own, with an empty cache for each compile.
Ratios are the first version's time over the second's: above 1 the second is faster, 0.95 to 1.05 is a
tie. Writes `OUTPUT.json` (all samples) and `OUTPUT.md` (the table) after each row, so that a run that was
interrupted, or that `--limit` ended, goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import Namespace, Parser
from benchmarks.results import commit, provenance
from benchmarks.zoo import SETS, built, wait_for_idle
from tilewright import zoo
from tilewright.benchmark import BenchPlan, Entrant, compare_engines
from tilewright.benchmark.statistics import quantile
from tilewright.files import write_atomically

SEED = 0
COMPILE = """
import sys, time
import tilewright as tw
started = time.perf_counter()
asked = {"accuracy": sys.argv[4]} if sys.argv[4] else {}
compiled = tw.compile(sys.argv[1], threads=int(sys.argv[2]), **asked)
print(time.perf_counter() - started)
compiled.save(sys.argv[3])
"""


@dataclass(frozen=True)
class Version:
    """A source tree under a name; `accuracy` is what it is asked for, empty for its default."""

    label: str
    tree: Path
    accuracy: str = ""

    def environment(self, cache: Path) -> dict[str, str]:
        """What makes a process use this version, with a cache of its own."""
        return {"PYTHONPATH": str(self.tree / "src"), "TILEWRIGHT_CACHE": str(cache)}

    def compile_s(self, model: Path, num_threads: int) -> float:
        """Seconds to compile a model from nothing, without starting Python and importing."""
        with tempfile.TemporaryDirectory() as folder:
            return self._compile_s(model, num_threads, Path(folder) / "model.tw", Path(folder) / "cache")

    def artifact(self, model: Path, num_threads: int, cache: Path) -> Path:
        """The model as this version compiles it."""
        path = model.with_name(f"{self.label}.tw")
        self._compile_s(model, num_threads, path, cache)
        return path

    def _compile_s(self, model: Path, num_threads: int, artifact: Path, cache: Path) -> float:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(model), str(num_threads), str(artifact), self.accuracy],
            env={**os.environ, **self.environment(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)


def measure(
    name: str, versions: Sequence[Version], num_threads: int, duration_s: float, num_compiles: int
) -> dict[str, Any]:
    """Samples of one network: run times from `compare_engines`, compile times in alternating order."""
    model = built(name)
    feed = zoo.example_inputs(model, SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        compile_s: dict[str, list[float]] = {v.label: [] for v in versions}
        for number in range(num_compiles):
            for version in versions if number % 2 == 0 else versions[::-1]:
                compile_s[version.label].append(version.compile_s(path, num_threads))
        entrants = [
            Entrant(
                version.label,
                "tilewright",
                version.artifact(path, num_threads, Path(folder) / version.label),
                environment=version.environment(Path(folder) / version.label),
                accuracy=version.accuracy or "default",
            )
            for version in versions
        ]
        comparison = compare_engines(entrants, feed, BenchPlan(num_threads, duration_s), model=name)
    before, after = (versions[0].label, versions[1].label)
    ratios = [b / a for b, a in zip(compile_s[before], compile_s[after], strict=True)]
    return {
        **comparison.to_json(),
        "compile_s": compile_s,
        "compile_ratio": quantile(ratios, 0.5) if ratios else None,
        "is_busy": comparison.machine.is_busy,
        "versions": facts(versions),
    }


def facts(versions: Sequence[Version]) -> list[list[str]]:
    """What tells a comparison from others: rows of another one do not stand in a table with these."""
    return [[commit(version.tree), version.accuracy] for version in versions]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each network and number of threads, then geometric means."""
    labels = [c["label"] for c in rows[0]["contestants"]]
    timed = [f"{c['label']} ({c['accuracy']}) ms" for c in rows[0]["contestants"]]
    heads = ["network", "threads", *timed, "run ratio"]
    heads += [*(f"{x} compile s" for x in labels), "compile ratio"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        first, second = row["contestants"]
        if first["error"] or second["error"]:
            lines.append(f"| {row['model']} | {row['num_threads']} | {first['error'] or second['error']} |")
            continue
        cells = [row["model"] + (" *" if row["is_busy"] else ""), str(row["num_threads"])]
        cells += [f"{c['median_ms']:.3f}" for c in (first, second)]
        cells.append(
            f"{run_ratio(row):.3f} ({1 / second['ratio']['high']:.2f}-{1 / second['ratio']['low']:.2f})"
        )
        cells += [f"{quantile(row['compile_s'][x], 0.5):.2f}" if row["compile_s"][x] else "-" for x in labels]
        cells.append("-" if row["compile_ratio"] is None else f"{row['compile_ratio']:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    whole = [row for row in rows if not any(c["error"] for c in row["contestants"])]
    for what, values in (
        ("run time", [run_ratio(row) for row in whole]),
        ("compile time", [row["compile_ratio"] for row in whole if row["compile_ratio"] is not None]),
    ):
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            lines.append(
                f"\nGeometric mean of {what}, {labels[0]} / {labels[1]}, {len(values)} rows: {mean:.3f}"
            )
    lines.append("\n\\* measured while other programs took time of the machine.")
    return "\n".join(lines) + "\n"


def run_ratio(row: dict[str, Any]) -> float:
    """The first version's time over the second's."""
    return 1 / float(row["contestants"][1]["ratio"]["median"])


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("before", type=Path, help="a source tree")
    parser.add_argument("after", type=Path, help="another")
    every = ",".join(name for one in SETS for name in one.networks)
    parser.add_argument("--networks", default=every)
    parser.add_argument("--threads", default="2", help="numbers of threads, by commas")
    parser.add_argument("--duration", type=float, default=4.0, help="seconds for each row")
    parser.add_argument(
        "--compiles", type=int, default=3, help="compilations of each network by each version"
    )
    parser.add_argument(
        "--wait", type=float, default=60.0, help="seconds to wait for an idle machine, at most"
    )
    parser.add_argument(
        "--accuracies", default=",", help="of the first version, of the second; default: theirs"
    )
    parser.add_argument("--limit", type=float, help="begin no row after so many seconds")
    parser.add_argument("--output", default=Path("benchmarks/results/versions"))


def main(arguments: Namespace) -> None:
    """Measure what is missing, and print."""
    started_s = time.monotonic()
    first, second = arguments.accuracies.split(",")
    versions = [
        Version("before", arguments.before.resolve(), first),
        Version("after", arguments.after.resolve(), second),
    ]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    samples = arguments.output.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(samples.read_text()) if samples.exists() else []
    if any(row.get("versions") != facts(versions) for row in rows):
        raise SystemExit(f"{samples} is of other versions or accuracies: give another --output, or remove it")
    done = {(row["model"], row["num_threads"]) for row in rows}
    for name in arguments.networks.split(","):
        for num_threads in map(int, arguments.threads.split(",")):
            is_over = arguments.limit is not None and time.monotonic() - started_s > arguments.limit
            if (name, num_threads) in done or is_over:
                continue
            wait_for_idle(arguments.wait)
            row = measure(name, versions, num_threads, arguments.duration, arguments.compiles)
            rows.append({**provenance(), **row})
            write_atomically(samples, json.dumps(rows).encode())
            write_atomically(arguments.output.with_suffix(".md"), table(rows).encode())
            print(table([row]).splitlines()[2], file=sys.stderr, flush=True)
    print(table(rows))
