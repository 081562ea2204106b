"""Long differential runs: `python -m tests.fuzz.hunt 0 5000` tries the graphs and models of seeds 0 to 4999.

Each seed makes a graph for the CPU target against the reference semantics, under a random configuration,
and an ONNX model of a random opset, whose nodes and whole are also judged by ONNX Runtime and by ONNX's
reference. Differences that `explained.py` has a rule for are counted, everything else is a finding.

Each batch runs in a process of its own, so that a crash is a finding like any other; one of ONNX Runtime
itself is explained and passed over. `tests.fuzz.reduce` makes what graphs find small.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.differential import check, random_setting
from tests.fuzz.explained import CRASHES, EXPLAINED
from tests.fuzz.opsets import judge
from tests.fuzz.steps import random_maker

BATCH = 50
# A batch takes about a minute; one that takes this long hangs.
BATCH_TIMEOUT_S = 900


def try_seed(seed: int, cache_dir: Path | None) -> str | None:
    """One line on what is wrong with a seed's graph, None if nothing is."""
    m = random_maker(seed)
    if not m.graph.nodes:
        return None
    setting = random_setting(seed)
    try:
        check(m.graph, m.feed(), exact=m.exact, setting=setting, cache_dir=cache_dir)
    except Exception as error:  # whatever goes wrong is the finding
        return f"{_where(error)} {setting}"
    return None


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__} {where} {' '.join(str(error).split())[:300]}"


def try_model(
    seed: int, cache_dir: Path | None, without_runtime: frozenset[int]
) -> tuple[list[str], Counter[str]]:
    """What is wrong with a seed's model, and counts of what was judged and explained."""
    try:
        judged = judge(seed, cache_dir, without_runtime=without_runtime)
    except Exception as error:  # whatever goes wrong is the finding
        return [_where(error)], Counter()
    counts = Counter(judged.counts)
    counts["nodes"] += len(judged.sketch.nodes)
    counts[f"models of opset {judged.sketch.opset}"] += 1
    for rule, count in judged.explained.items():
        counts[f"rule {EXPLAINED.index(rule)}"] += count
    return judged.findings, counts


def run_batch(first: int, last: int, cache_dir: Path, skipped: dict[int, frozenset[int]], only: str) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, last):
        print(f"seed {seed}", flush=True)
        if only != "models":
            found = try_seed(seed, cache_dir)
            if found is not None:
                print(f"FAIL {seed} graph {found}", flush=True)
        if only != "graphs":
            findings, counts = try_model(seed, cache_dir, skipped.get(seed, frozenset()))
            for text in findings:
                print(f"FAIL {seed} model {text}", flush=True)
            total += counts
            print(f"counts {json.dumps(total)}", flush=True)


@dataclass
class Tally:
    """What a hunt came to."""

    failures: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def read(self, lines: list[str]) -> None:
        """Take over what a batch printed; its counts are those of all its seeds so far."""
        last: dict[str, int] = {}
        for line in lines:
            if line.startswith("FAIL "):
                self.failures += 1
                print(line, flush=True)
            elif line.startswith("counts "):
                last = json.loads(line.removeprefix("counts "))
        self.counts.update(last)


def hunt(first: int, last: int, only: str = "") -> Tally:
    """Try every seed; each failure is printed."""
    tally, began = Tally(), time.monotonic()
    skipped: dict[int, frozenset[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = first
        while start < last:
            stop = min(start + BATCH, last)
            command = [sys.executable, "-m", "tests.fuzz.hunt", str(start), str(stop), "--batch", folder]
            command += ["--only", only, "--skip", json.dumps({s: sorted(n) for s, n in skipped.items()})]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=BATCH_TIMEOUT_S
                )
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                code, output, errors = -1, (late.stdout or b"").decode(), "timed out"
            lines = output.splitlines()
            tally.read(lines)
            if code:
                seed, number, operator = _died_at(lines, start)
                if operator in CRASHES and code < 0:
                    # The same seed again, without asking ONNX Runtime about this node.
                    skipped[seed] = skipped.get(seed, frozenset()) | {number}
                    tally.counts[f"onnxruntime crashed on {operator}"] += 1
                    stop = seed
                else:
                    print(f"FAIL {seed} died with {code} at {number} {operator}: {errors[-300:]}", flush=True)
                    tally.failures += 1
                    stop = seed + 1
            start = stop
    print(f"seeds {first} to {last}: {tally.failures} failures, {time.monotonic() - began:.0f} s")
    return tally


def _died_at(lines: list[str], start: int) -> tuple[int, int, str]:
    """Seed, number and operator of what ran last."""
    seed, number, operator = start, 0, "?"
    for line in lines:
        words = line.split()
        if words[:1] == ["seed"]:
            seed, number, operator = int(words[1]), 0, "?"
        elif words[:1] == ["now"]:
            number, operator = int(words[1]), words[2]
    return seed, number, operator


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--only", choices=("", "graphs", "models"), default="")
    parser.add_argument("--batch", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--skip", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch is not None:
        skipped = {int(s): frozenset(n) for s, n in json.loads(options.skip).items()}
        run_batch(options.first, options.last, options.batch, skipped, options.only)
        return 0
    tally = hunt(options.first, options.last, options.only)
    for name, count in sorted(tally.counts.items()):
        if name.startswith("rule "):
            rule = EXPLAINED[int(name.removeprefix("rule "))]
            print(f"{count:7} explained: {rule.other} on {', '.join(rule.operators[:4])}: {rule.reason}")
        else:
            print(f"{count:7} {name}")
    return int(tally.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
