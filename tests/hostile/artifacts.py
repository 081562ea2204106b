"""Damaged and forged artifacts, opened and run.

`python -m tests.hostile.artifacts COUNT [SEED [FOLDER]]` makes COUNT of them, opens and runs them in another
process (a crash is a finding, not the end), and prints as JSON how many were refused, how many ran with the
values that their program has, and what was found; FOLDER keeps those.
"""

# mypy: disable-error-code="arg-type, misc"

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile.artifact_forgeries import forgeries

import tilewright as tw
from tilewright.errors import InternalError, TilewrightError
from tilewright.ir.interpret import run_graph
from tilewright.specialise.opened import SavedShapes

SECONDS_PER_ARTIFACT = 60.0
MEMORY_BYTES = 12 << 30  # of address space; a bomb is then an error of memory, which must be a typed one


def use(path: Path, trust: bool) -> str:
    """Open, print and run an artifact. `refused: ...` or `ran`; raises for what nobody should see."""
    rng = np.random.default_rng(0)
    is_open = False
    try:
        compiled = tw.open(path, trust=trust)
        if isinstance(compiled, SavedShapes):
            compiled = compiled.at(compiled.sets[-1])
        for text in (json.dumps(compiled.to_json()), str(compiled.explain()), compiled.report().html()):
            text.encode()
        feed = {}
        for spec in compiled.get_inputs():
            if spec.size_bytes > 1 << 28:
                return "refused: an input of more than 256 MiB"
            values = (
                rng.standard_normal(spec.shape) if spec.dtype.is_float else rng.integers(0, 2, spec.shape)
            )
            feed[spec.name] = np.asarray(values).astype(spec.dtype.numpy)
        compiled.load()
        is_open = True
        results = compiled.run(None, feed)
    except InternalError:
        raise
    except TilewrightError as error:
        if len(str(error).splitlines()) != 1:
            raise ValueError(f"an error of several lines: {error!r}") from error
        if not is_open and str(path) not in str(error):
            raise ValueError(f"an error that does not name the file: {error}") from error
        return f"refused: {error}"
    expected = run_graph(compiled.program.graph, feed)
    weights = [v.data for v in compiled.program.graph.initializers if v.data is not None and v.dtype.is_float]
    has_odd_weights = not all(np.isfinite(np.asarray(data, np.float64)).all() for data in weights)
    for spec, got in zip(compiled.get_outputs(), results, strict=True):
        want = np.asarray(expected[spec.name])
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ValueError(f"{spec.name}: {got.dtype}{got.shape} for {want.dtype}{want.shape}")
        if got.dtype.kind == "f":
            if has_odd_weights:  # the reference multiplies them with padding, generated code does not
                got = np.where(np.isnan(want), want, got)
            scale = float(np.nanmax(np.abs(want[np.isfinite(want)]), initial=1.0))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * scale, err_msg=spec.name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=spec.name)
    return "ran"


def work() -> None:
    """The process that opens: a path and a flag a line in, an outcome a line out."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    np.seterr(all="ignore")
    for line in sys.stdin:
        name, trust = json.loads(line)
        start_s = time.monotonic()
        try:
            outcome = use(Path(name), trust)
        except Exception as error:  # what the hunt is for
            outcome = f"found {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps([outcome, time.monotonic() - start_s]), flush=True)


class _Worker:
    """A process that opens artifacts, made again when it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, path: Path, trust: bool) -> tuple[str, float]:
        """What became of an artifact, and how long it took."""
        if self.process is None:
            command = [sys.executable, "-m", "tests.hostile.artifacts", "--work"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps([str(path), trust])}\n".encode())
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_PER_ARTIFACT)
        line = process.stdout.readline() if ready else b""
        if line:
            outcome, seconds = json.loads(line)
            return outcome, seconds
        if not ready:
            process.kill()
        code = process.wait()
        self.close()
        return (f"found a crash ({code})" if ready else "found a hang"), SECONDS_PER_ARTIFACT

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process.wait()
            self.process = None


def hunt(count: int, seed: int = 0, keep: Path | None = None) -> dict[str, Any]:
    """Open `count` artifacts; what was found, with what was done to them. `keep`: a folder for those."""
    start_s, slowest_s = time.monotonic(), 0.0
    found: list[str] = []
    outcomes = {"refused": 0, "ran": 0}
    worker = _Worker()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            made = forgeries(Path(scratch), seed)
            for number in range(count):
                forged = next(made)
                path = Path(scratch) / "forged.tw"
                forged.write(path)
                outcome, seconds = worker.ask(path, forged.trust)
                slowest_s = max(slowest_s, seconds)
                kind = outcome.partition(":")[0]
                if kind in outcomes:
                    outcomes[kind] += 1
                    continue
                found.append(f"{number}: {forged.what}: {outcome}")
                if keep is not None:
                    os.replace(path, keep / f"{seed}_{number}.tw")
    finally:
        worker.close()
    seconds = time.monotonic() - start_s
    return {"artifacts": count, **outcomes, "found": found, "seconds": seconds, "slowest_s": slowest_s}


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work()
    else:
        numbers = [int(n) for n in sys.argv[1:3]]
        print(json.dumps(hunt(*numbers, keep=Path(sys.argv[3]) if len(sys.argv) > 3 else None), indent=1))
