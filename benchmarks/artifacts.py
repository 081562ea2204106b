"""How artifacts move: start on a machine that has nothing, size beside the model, warm compilations.

    python -m benchmarks artifacts [NETWORK...] [--repeats 5] [--limit-s 600] [--output rows.jsonl]

For each network of the zoo one line of JSON: bytes of the model and of the artifact; seconds of processor
time of a compilation from nothing and of the next ones, each in a process of its own; and seconds from the
start of a process to its first result where another user, who trusts the key, has neither a cache nor a home
that holds anything. The results are compared bit by bit with those of the process that compiled. Networks
that the output has already are left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

from benchmarks.command import Namespace, Parser
from benchmarks.results import append_row, rows_of
from tilewright import zoo

NETWORKS = ("mobilenet_v2", "resnet50")

COMPILE = """
import resource, sys, time
start = time.monotonic()
import hashlib, json
import numpy as np
import tilewright as tw
from tilewright.api.kept import compile_or_reuse
loaded = tw.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
compiled = compile_or_reuse(loaded, tw.Options())
compiled.load()
after = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = sum(a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime for a, b in zip(after, before))
rng = np.random.default_rng(0)
feed = {i.name: rng.standard_normal(i.shape).astype(i.dtype.numpy) for i in compiled.get_inputs()}
results = compiled.run(None, feed)
if len(sys.argv) > 2:
    compiled.save(sys.argv[2])
    np.savez(sys.argv[3], **feed)
digest = hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest()
print(json.dumps({"cpu_s": cpu_s, "is_reused": "reuse" in compiled.phase_s, "digest": digest}))
"""

START = """
import sys
import numpy as np
import tilewright as tw
opened = tw.open(sys.argv[1])
results = opened.run(None, dict(np.load(sys.argv[2])))
import hashlib, json, time
digest = hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest()
print(json.dumps({"end_s": time.time(), "cpu_s": time.process_time(), "digest": digest,
                  "remarks": opened.remarks}))
"""


def told(code: str, *arguments: str, **environment: str) -> tuple[float, dict[str, Any]]:
    """When a process was started, and what it says."""
    started_s = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    return started_s, json.loads(done.stdout)


def measured(name: str, repeats: int) -> dict[str, Any]:
    """One network."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, artifact, feed = folder / "model.onnx", folder / "model.tw", folder / "feed.npz"
        onnx.save(zoo.build(name), model)
        here = {"TILEWRIGHT_CACHE": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        _, cold = told(COMPILE, str(model), str(artifact), str(feed), **here)
        warm = [told(COMPILE, str(model), **here)[1] for _ in range(repeats)]
        key = subprocess.run(
            [sys.executable, "-m", "tilewright", "trust", "key"],
            env={**os.environ, **here},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout.strip()
        (folder / "nobody").mkdir()
        there = {
            "HOME": str(folder / "nobody"),
            "XDG_STATE_HOME": "",
            "XDG_CACHE_HOME": "",
            "TILEWRIGHT_CACHE": str(folder / "nowhere"),
            "TILEWRIGHT_TRUST": key,
        }
        told(START, str(artifact), str(feed), **there)  # bytecode, and the file in the system's cache
        starts = [told(START, str(artifact), str(feed), **there) for _ in range(repeats)]
        return {
            "network": name,
            "model_bytes": model.stat().st_size,
            "artifact_bytes": artifact.stat().st_size,
            "size_ratio": artifact.stat().st_size / model.stat().st_size,
            "cold_cpu_s": cold["cpu_s"],
            "warm_cpu_s": [w["cpu_s"] for w in warm],
            "warm_ratio": statistics.median(w["cpu_s"] for w in warm) / cold["cpu_s"],
            "all_reused": all(w["is_reused"] for w in warm),
            "start_s": [said["end_s"] - started_s for started_s, said in starts],
            "start_median_s": statistics.median(said["end_s"] - started_s for started_s, said in starts),
            "start_cpu_s": [said["cpu_s"] for _, said in starts],
            "equal_bits": {cold["digest"]} == {said["digest"] for _, said in starts},
            "generated_again": any(said["remarks"] for _, said in starts),
            "repeats": repeats,
            "load_average": os.getloadavg()[0],
        }


def options(parser: Parser) -> None:
    """What can be asked."""
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--output")


def main(arguments: Namespace) -> None:
    """Measure what the output lacks."""
    output: Path | None = arguments.output
    done = set()
    if output is not None and output.exists():
        done = {row["network"] for row in rows_of(output)}
    end_s = time.monotonic() + arguments.limit_s
    for name in arguments.networks:
        if name in done or time.monotonic() > end_s:
            continue
        row = measured(name, arguments.repeats)
        print(json.dumps(row), flush=True)
        if output is not None:
            append_row(output, row)
