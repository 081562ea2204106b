"""`tilewright bench`: speed beside other engines."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import INPUTS, CompileFlags, checked_threads
from tilewright.cli.output import hint, progress, show
from tilewright.errors import BudgetExceeded, UsageError
from tilewright.requests import FILES


def bench(
    flags: CompileFlags,
    models: list[Path] = typer.Argument(
        metavar="MODEL", help="ONNX models or artifacts; the first is compared with each of the others."
    ),
    versus: str = typer.Option(
        "", "--vs", help="Engines to compare with: onnxruntime,openvino.", rich_help_panel="How to measure"
    ),
    streams: int | None = typer.Option(
        None,
        "--streams",
        help="Number of runs at a time, which share --threads; shows queries per second and tail latencies. "
        "Default: 1, or one for each thread with --hint throughput.",
        rich_help_panel="How to measure",
    ),
    duration: float = typer.Option(
        10.0,
        "--duration",
        help="Seconds to measure, for all engines together.",
        rich_help_panel="How to measure",
    ),
    iters: int = typer.Option(
        1,
        "--iters",
        help="Least number of runs of each engine.",
        hidden=True,
        rich_help_panel="How to measure",
    ),
    warmup: float = typer.Option(
        0.3,
        "--warmup",
        help="Seconds to run each engine before measuring.",
        hidden=True,
        rich_help_panel="How to measure",
    ),
    percentile: str = typer.Option(
        "50,90,99", "--percentile", help="Percentiles of latency to show.", rich_help_panel="How to measure"
    ),
    inputs: Path | None = INPUTS,
    error: bool = typer.Option(True, help="Measure each engine's error against the reference in float64."),
    advice: bool = typer.Option(
        True, help="Measure the first model's kernels and this machine, and say what limits the model."
    ),
    report: Path | None = typer.Option(
        None,
        "--report",
        help="Also write an HTML page with the distribution of latencies and the latencies of each round.",
        rich_help_panel=FILES,
    ),
    fail_if_slower: bool = typer.Option(
        False, "--fail-if-slower", help="Exit code 5 if the first model is slower than any of the others."
    ),
) -> None:
    """Measure latency or throughput, in turns with other engines and models, and say which is faster.

    Example: `tilewright bench model.onnx --vs onnxruntime --threads 2`.
    """
    from tilewright.api.artifacts import require_asked_of_all
    from tilewright.api.benchmark import BenchOptions, bench
    from tilewright.api.pages import page_path
    from tilewright.benchmark import Verdict

    options = flags.options()
    if not options.target.is_cpu:
        raise UsageError(f"bench measures the cpu target; leave out --target {options.target}.")
    measure = BenchOptions(
        threads=checked_threads(options.threads),
        duration_s=duration,
        num_iterations=iters,
        warmup_s=warmup,
        percents=_percents(percentile),
        measures_error=error,
        gives_advice=advice,
        streams=streams,
    )
    require_asked_of_all(models, options, flags.asked)
    page = None if report is None else page_path(report)
    first = models[0]
    with progress(f"loading {first.name}") as update:
        found = bench(
            *models, *_peers(versus), feed=inputs, measure=measure, options=options, progress=update
        )
    if page is not None:
        found.save_page(page)
        hint(f"written to {page}")
    if show("bench", found, of=found):
        for line in found.advice:
            hint(line)
    failed = next((c.error for c in found.contestants if c.error), None)
    if failed is not None:
        raise UsageError(failed)
    slower = [c.label for c in found.contestants if c.ratio is not None and c.ratio.verdict is Verdict.SLOWER]
    if fail_if_slower and slower:
        raise BudgetExceeded(f"{first}: slower than {', '.join(slower)}; `tilewright explain` says why.")


def _percents(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"percentile {text!r}: give numbers from 0 to 100, such as 50,90,99.") from None


def _peers(text: str) -> tuple[str, ...]:
    from tilewright.benchmark.engines import PEERS

    peers = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in peers:
        if name not in PEERS:
            raise UsageError(f"--vs {name}: unknown engine; known are {', '.join(PEERS)}.")
    return peers
