"""`tilewright demo`: the whole way on one network of the zoo, from building it to timing it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from tilewright import zoo
from tilewright.accuracy import relative_error
from tilewright.api.benchmark import expected_outputs
from tilewright.api.compilation import compile_model
from tilewright.api.models import load
from tilewright.arguments import checked
from tilewright.benchmark import BenchPlan, Comparison, Entrant, compare_engines
from tilewright.benchmark.engines import is_installed
from tilewright.errors import InternalError
from tilewright.hardware.probe import num_threads_default
from tilewright.progress import Progress
from tilewright.records import dataclass
from tilewright.results import Result, Table, about
from tilewright.text.formatting import counted, format_bytes, format_ms


@dataclass(frozen=True, slots=True)
class Demonstration(Result):
    """The figures of the demonstration."""

    network: str
    compile_s: float
    num_kernels: int
    median_ms: float
    max_error: float = field(
        metadata=about("Against float64, over the output's largest value.", nullable=True)
    )
    comparison: Comparison
    model_sha256: str = field(metadata=about(hidden=True))
    num_nodes: int = field(metadata=about(hidden=True))
    flop: int = field(metadata=about(hidden=True))
    artifact_bytes: int = field(metadata=about(hidden=True))
    planned_bytes: int | None = field(metadata=about(hidden=True))
    seconds: float = field(metadata=about(hidden=True))

    def tables(self) -> Sequence[Table]:
        """The figures in words."""
        rows = [
            (
                "network",
                f"{self.network}: {counted(self.num_nodes, 'operator')}, {self.flop / 1e9:.2f} GFLOP",
            ),
            ("compiled in", f"{self.compile_s:.1f} s, to {counted(self.num_kernels, 'kernel')}"),
            ("artifact", format_bytes(self.artifact_bytes)),
            ("largest error", f"{self.max_error:.1e} of the output's largest value, against float64"),
        ]
        if self.planned_bytes is not None:
            rows.append(("activations", f"{format_bytes(self.planned_bytes)}, planned ahead"))
        rows.append(("one run", f"{format_ms(self.median_ms)} on {_threads(self.comparison.num_threads)}"))
        rows.append(("speed", f"{self.flop / self.median_ms / 1e6:.0f} GFLOP/s"))
        rows += _beside(self.comparison)
        return (Table(("tilewright demo", f"done in {self.seconds:.0f} s"), tuple(rows)),)

    def lines(self) -> Sequence[str]:
        """The machine's state."""
        return (str(self.comparison.machine),)


@checked
def demonstrate(
    network: str,
    *,
    duration_s: float = 4.0,
    image: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Demonstration:
    """Build a network, compile it for this processor, check it, time it.

    Raises:
        UsageError: no such network.
    """
    started = time.perf_counter()
    plan = BenchPlan(threads or num_threads_default(), duration_s)
    update = progress or (lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
        update(f"building {network}", 0, 0)
        model = zoo.build(network, image=image, seed=seed)
        feed = zoo.example_inputs(model, seed)
        path = Path(folder) / f"{network}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        loaded = load(path)
        began = time.perf_counter()
        compiled = compile_model(loaded, threads=plan.num_threads, progress=update)
        compile_s = time.perf_counter() - began
        got = compiled.run(None, feed)
        update("checking against the reference in float64", 0, 0)
        expected = expected_outputs(loaded.graph, feed, [o.name for o in loaded.graph.outputs])
        error = max(relative_error(x, y) for x, y in zip(got, expected, strict=True))
        artifact = compiled.save(Path(folder) / f"{network}.tw")
        artifact_bytes = artifact.stat().st_size
        entrants = [Entrant("tilewright", "tilewright", artifact, compile_s)]
        if is_installed("onnxruntime"):
            entrants.append(Entrant("onnxruntime", "onnxruntime", path))
        comparison = compare_engines(entrants, feed, plan, model=network, expected=expected, progress=update)
    median_ms = comparison.median_ms
    if median_ms is None:
        raise InternalError(f"{network}: {comparison.contestants[0].error}")
    summary = loaded.summary()
    return Demonstration(
        network=network,
        compile_s=compile_s,
        num_kernels=len(compiled.kernels),
        median_ms=median_ms,
        max_error=error,
        comparison=comparison,
        model_sha256=loaded.sha256,
        num_nodes=summary.num_nodes,
        flop=2 * summary.macs,
        artifact_bytes=artifact_bytes,
        planned_bytes=None if compiled.memory is None else compiled.memory.peak_bytes,
        seconds=time.perf_counter() - started,
    )


def _threads(count: int) -> str:
    return counted(count, "thread")


def _beside(comparison: Comparison) -> list[tuple[str, str]]:
    rows = []
    for contestant in comparison.contestants[1:]:
        ratio = contestant.ratio
        if contestant.timing is None or ratio is None:
            rows.append((contestant.label, contestant.error or "failed"))
            continue
        span = f"{ratio.median:.2f} x our time, between {ratio.low:.2f} and {ratio.high:.2f}"
        words = {"faster": "tilewright is faster", "slower": "tilewright is slower"}
        verdict = words.get(str(ratio.verdict), str(ratio.verdict))
        rows.append((contestant.label, f"{format_ms(contestant.timing.median_ms)}, {span}: {verdict}"))
    return rows
