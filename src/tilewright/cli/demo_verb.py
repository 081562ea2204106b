"""`tilewright demo`: the whole way on one network, in a few seconds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.flags import SEED, THREADS, add_verb, checked_threads
from tilewright.cli.output import JSON_OPTION, format_bytes, format_ms, print_json, print_table, progress, say
from tilewright.errors import InternalError, NumericMismatch

if TYPE_CHECKING:
    from tilewright.benchmark import Comparison

DEMO_NETWORK = "mobilenet_v2"
ALLOWED_ERROR = 1e-4


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "demo", demo, panel)


def demo(
    network: str = typer.Argument(DEMO_NETWORK, help="A network of `tilewright zoo list`."),
    duration: float = typer.Option(4.0, "--duration", help="Seconds to measure."),
    image: int | None = typer.Option(None, help="Image size in pixels, for networks that take images."),
    threads: int | None = THREADS,
    seed: int = SEED,
    as_json: bool = JSON_OPTION,
) -> None:
    """Build a network, compile it for this processor, check it, time it. Needs no file and no internet.

    Example: `tilewright demo`.
    """
    import tilewright as tw
    from tilewright import zoo
    from tilewright.accuracy import relative_error
    from tilewright.benchmark import Entrant, Plan, compare_engines
    from tilewright.benchmark.api import expected_outputs
    from tilewright.benchmark.engines import is_installed

    started = time.perf_counter()
    plan = Plan(checked_threads(threads), duration)
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder, progress("") as update:
        update(f"building {network}")
        model = zoo.build(network, image=image, seed=seed)
        feed = zoo.example_inputs(model, seed)
        path = Path(folder) / f"{network}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        loaded = tw.load(path)
        began = time.perf_counter()
        compiled = tw.compile(loaded, threads=plan.num_threads, progress=update)
        compile_s = time.perf_counter() - began
        got = compiled.run(None, feed)
        update("checking against the reference in float64")
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
    if as_json:
        document = {
            **common.model_facts(loaded.sha256, "cpu"),
            "network": network,
            "compile_s": compile_s,
            "num_kernels": len(compiled.kernels),
            "median_ms": median_ms,
            "max_error": error,
            "comparison": comparison.to_json(),
        }
        print_json("demo", document)
    else:
        work = 2 * summary.macs
        rows = [
            ("network", f"{network}: {summary.num_nodes} operators, {work / 1e9:.2f} GFLOP"),
            ("compiled in", f"{compile_s:.1f} s, to {len(compiled.kernels)} kernels"),
            ("artifact", format_bytes(artifact_bytes)),
            ("largest error", f"{error:.1e} of the output's largest value, against float64"),
        ]
        if compiled.memory is not None:
            rows.append(("activations", f"{format_bytes(compiled.memory.peak_bytes)}, planned ahead"))
        rows.append(("one run", f"{format_ms(median_ms)} on {_threads(plan.num_threads)}"))
        rows.append(("speed", f"{work / median_ms / 1e6:.0f} GFLOP/s"))
        rows += _beside(comparison)
        print_table(("tilewright demo", f"done in {time.perf_counter() - started:.0f} s"), rows)
        say(str(comparison.machine))
        say(_NEXT)
    if error > ALLOWED_ERROR:
        raise NumericMismatch(
            f"{network}: the result is off by {error:.1e} of its largest value (allowed "
            f"{ALLOWED_ERROR:.0e}). Report it with what `tilewright doctor --json` prints."
        )


_NEXT = """
Try next, with a model of yours or one from `tilewright zoo build resnet50`:
  tilewright compile resnet50.onnx                     an artifact that runs on this processor
  tilewright run resnet50.tw --random                  one inference
  tilewright bench resnet50.onnx --vs onnxruntime      how fast, side by side
  tilewright explain resnet50.tw                       which operators became which kernel, and why
  tilewright doctor                                    what this machine is"""


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _beside(comparison: Comparison) -> list[tuple[str, str]]:
    rows = []
    for contestant in comparison.contestants[1:]:
        ratio = comparison.ratio(contestant.label)
        if contestant.timing is None or ratio is None:
            rows.append((contestant.label, contestant.error or "failed"))
            continue
        span = f"{ratio.median:.2f} x our time, between {ratio.low:.2f} and {ratio.high:.2f}"
        words = {"faster": "tilewright is faster", "slower": "tilewright is slower"}
        verdict = words.get(str(ratio.verdict), str(ratio.verdict))
        rows.append((contestant.label, f"{format_ms(contestant.timing.median_ms)}, {span}: {verdict}"))
    return rows
