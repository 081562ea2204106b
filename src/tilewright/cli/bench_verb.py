"""`tilewright bench`: how fast, beside whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.output import (
    JSON_OPTION,
    QUIET_OPTION,
    format_bytes,
    format_ms,
    note,
    print_json,
    print_table,
    progress,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.bench import Comparison


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("bench", rich_help_panel=panel)(bench)


def bench(
    model: Path = common.MODEL,
    versus: str = typer.Option("", "--vs", help="Engines to run beside: onnxruntime,openvino."),
    duration: float = typer.Option(10.0, "--duration", help="Seconds to measure, all engines together."),
    inputs: Path | None = typer.Option(None, "--input", "-i", help="Inputs: an .npz file; default random."),
    shapes: str | None = common.SHAPES,
    threads: int | None = common.THREADS,
    seed: int = common.SEED,
    accuracy: bool = typer.Option(True, help="Compare with the float64 reference."),
    fail_if_slower: bool = typer.Option(False, "--fail-if-slower", help="Exit 5 if a peer is faster."),
    as_json: bool = JSON_OPTION,
    quiet: bool = QUIET_OPTION,
) -> None:
    """Measure latency, in turns with other engines. Example: `tilewright bench m.onnx --vs onnxruntime`."""
    import tilewright as tw
    from tilewright.bench import Verdict, compare_engines
    from tilewright.errors import BudgetExceeded
    from tilewright.hardware.probe import num_threads_default
    from tilewright.options import parse_shapes

    if not 0 < duration <= 3600:
        raise UsageError(f"duration {duration:g}: give seconds between 0 and 3600.")
    peers = [name.strip() for name in versus.split(",") if name.strip()]
    fixed = parse_shapes(shapes) if shapes else {}
    num_threads = threads or num_threads_default()
    with progress(f"loading {model.name}", quiet=quiet) as update:
        if common.is_artifact(model):
            if peers:
                raise UsageError(f"{model}: peers need the ONNX model; give that file to compare.")
            opened = tw.open(model)
            specs, digest, graph = opened.get_inputs(), opened.model_sha256, None
        else:
            loaded = tw.load(model, shapes=fixed)
            specs, digest, graph = list(loaded.summary().inputs), loaded.sha256, loaded.graph
        feed = common.random_feed(specs, seed) if inputs is None else common.read_arrays(inputs)
        expected = None
        if accuracy and graph is not None:
            from tilewright.ir.dtype import DType
            from tilewright.ir.interpret import run_graph

            update("computing the float64 reference")
            expected = list(run_graph(graph, feed, dtype=DType.FLOAT64).values())
        comparison = compare_engines(
            model,
            ["tilewright", *peers],
            feed,
            num_threads=num_threads,
            shapes=fixed,
            duration_s=duration,
            expected=expected,
            progress=update,
        )
    advice = _advice(comparison)
    if as_json:
        document = {**comparison.to_json(), "model_sha256": digest, "advice": advice}
        print_json("bench", {**document, "host": common.host_facts()})
    else:
        _print(comparison, advice)
    failed = comparison.contestants[0].error
    if failed is not None:
        raise UsageError(failed)
    ratios = [r for p in peers if (r := comparison.ratio(p)) is not None]
    if fail_if_slower and any(r.verdict is Verdict.SLOWER for r in ratios):
        raise BudgetExceeded(f"{model}: slower than a peer.")


def _print(comparison: Comparison, advice: list[str]) -> None:
    rows: list[tuple[str, ...]] = []
    for contestant in comparison.contestants:
        name = f"{contestant.engine} {contestant.version}".strip()
        if contestant.timing is None:
            rows.append((name, "-", "-", "-", "-", "-", contestant.error or "failed"))
            continue
        timing, ratio = contestant.timing, comparison.ratio(contestant.engine)
        is_first = contestant is comparison.contestants[0]
        against = (
            "" if is_first or ratio is None else f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
        )
        verdict = "" if is_first or ratio is None else f"we are {ratio.verdict}"
        error = "" if contestant.max_error is None else f"{contestant.max_error:.1e}"
        memory = format_bytes(contestant.peak_bytes)
        times = (format_ms(timing.median_ms), format_ms(timing.percentile_ms(90)))
        rows.append((name, *times, error, memory, against, verdict))
    machine = comparison.machine
    print_table(
        ("engine", "median", "p90", "error", "memory", "their time / ours", "verdict"),
        rows,
        title=f"{comparison.model}, {comparison.num_threads} threads, {comparison.num_rounds} rounds",
        right=(1, 2, 3, 4),
    )
    load = "?" if machine.load_before is None else f"{machine.load_before:.1f}"
    latency = machine.core_latency_before_ns
    between = "" if latency is None else f", core to core {latency:.0f} ns"
    typer.echo(f"{machine.cpu_name}, {machine.num_cores} cores, load {load}{between}")
    for line in advice:
        note(line)


def _advice(comparison: Comparison) -> list[str]:
    """What to know before believing the figures."""
    machine, lines = comparison.machine, []
    if machine.load_before is not None and machine.load_before > 0.7 * machine.num_cores:
        lines.append(
            f"the machine was busy (load {machine.load_before:.1f}): close other programs and repeat."
        )
    latencies = [x for x in (machine.core_latency_before_ns, machine.core_latency_after_ns) if x]
    if len(latencies) == 2 and max(latencies) > 2 * min(latencies):
        lines.append("the distance between cores changed during the run: compare ratios, not times.")
    first = comparison.contestants[0].timing
    if first is not None and first.percentile_ms(90) > 1.3 * first.median_ms:
        lines.append("times scatter by more than 30 %: a longer --duration gives tighter intervals.")
    return lines
