"""Every operator of ONNX's node suite inside If, Loop and Scan: `python -m tests.fuzz.hunt_bodies 0 3000`.

Each seed is a case in one kind of body (`bodies.py`). Batches run in processes of their own, so that a crash
or a model that takes too long is a finding like any other.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter

from tests.fuzz.bodies import Verdict, composed, judge, usable_cases

BATCH = 100
SEED_TIMEOUT_S = 120
BATCH_TIMEOUT_S = 1800


def try_seed(seed: int) -> tuple[str, Verdict]:
    """What a seed is, and what becomes of it."""
    sample = composed(seed)
    label = f"{sample.case.name} in {sample.kind}{', open' if sample.is_open else ''}"
    return label, judge(sample)


def run_batch(first: int, last: int) -> None:
    """Print a line for each seed that is not right, and the counts so far."""
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        print(f"seed {seed}", flush=True)
        signal.alarm(SEED_TIMEOUT_S)
        label, verdict = try_seed(seed)
        signal.alarm(0)
        counts[verdict.status] += 1
        if verdict.is_failure:
            print(f"FAIL {seed} {label}: {verdict.status} {verdict.reason[:300]}", flush=True)
        elif verdict.status == "refused":
            print(f"REFUSED {seed} {label}: {verdict.reason[:200]}", flush=True)
        print(f"counts {json.dumps(counts)}", flush=True)


def hunt(first: int, last: int) -> Counter[str]:
    """Try every seed."""
    total: Counter[str] = Counter()
    began, start = time.monotonic(), first
    while start < last:
        stop = min(start + BATCH, last)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.fuzz.hunt_bodies",
            str(start),
            str(stop),
            "--batch",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=BATCH_TIMEOUT_S
            )
            code, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, output, errors = -1, (late.stdout or b"").decode(), "timed out"
        last_counts: dict[str, int] = {}
        seed = start
        for line in output.splitlines():
            if line.startswith(("FAIL ", "REFUSED ")):
                print(line, flush=True)
            elif line.startswith("counts "):
                last_counts = json.loads(line.removeprefix("counts "))
            elif line.startswith("seed "):
                seed = int(line.removeprefix("seed "))
        total.update(last_counts)
        if code:
            sample = composed(seed)
            print(f"FAIL {seed} {sample.case.name} in {sample.kind}: died with {code}: {errors[-300:]}")
            total["died"] += 1
            stop = seed + 1
        start = stop
        print(f"seeds {first} to {start}: {dict(total)}, {time.monotonic() - began:.0f} s", flush=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--batch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        run_batch(options.first, options.last)
        return 0
    print(f"{len(usable_cases())} cases")
    total = hunt(options.first, options.last)
    return 1 if total["wrong"] or total["crash"] or total["died"] else 0


if __name__ == "__main__":
    sys.exit(main())
