"""Long differential runs: `python -m tests.fuzz.hunt 1000 2000` tries the graphs of seeds 1000 to 1999.

Each batch runs in a process of its own, so that a crash is a finding like any other. `tests.fuzz.reduce`
makes what it finds small.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.differential import check, random_setting
from tests.fuzz.steps import random_maker

BATCH = 100


def try_seed(seed: int, cache_dir: Path | None) -> str | None:
    """One line on what is wrong with a seed's graph, None if nothing is."""
    m = random_maker(seed)
    if not m.graph.nodes:
        return None
    setting = random_setting(seed)
    try:
        check(m.graph, m.feed(), exact=m.exact, setting=setting, cache_dir=cache_dir)
    except Exception as error:  # whatever goes wrong is the finding
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        return f"{type(error).__name__} {where} {' '.join(str(error).split())[:200]} {setting}"
    return None


def run_batch(first: int, last: int, cache_dir: Path) -> None:
    for seed in range(first, last):
        print(f"{seed} start", flush=True)
        found = try_seed(seed, cache_dir)
        if found is not None:
            print(f"{seed} FAIL {found}", flush=True)


def hunt(first: int, last: int) -> int:
    """Number of failing seeds; each is printed."""
    failures, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        start = first
        while start < last:
            stop = min(start + BATCH, last)
            command = [sys.executable, "-m", "tests.fuzz.hunt", str(start), str(stop), "--batch", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = done.stdout.splitlines()
            for line in lines:
                if " FAIL " in line:
                    failures += 1
                    print(line, flush=True)
            if done.returncode:
                crashed = int(lines[-1].split()[0]) if lines else start
                print(f"{crashed} CRASH {done.returncode} {done.stderr[-300:]}", flush=True)
                failures += 1
                stop = crashed + 1
            start = stop
    print(f"seeds {first} to {last}: {failures} failures, {time.monotonic() - began:.0f} s")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--batch", type=Path, default=None)
    options = parser.parse_args()
    if options.batch is not None:
        run_batch(options.first, options.last, options.batch)
        return 0
    return int(hunt(options.first, options.last) > 0)


if __name__ == "__main__":
    sys.exit(main())
