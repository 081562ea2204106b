"""`tilewright profile`: where the time of a run goes, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from tilewright.cli.flags import INPUTS, MODEL, CompileFlags, checked_threads
from tilewright.cli.output import hint, print_model_document, print_tables, progress, say, wants_json
from tilewright.errors import UsageError
from tilewright.results import Result


@dataclass(frozen=True, slots=True)
class WrittenTrace(Result):
    """Where the trace and the report were written, if they were asked for."""

    trace: Path | None
    report: Path | None


def profile(
    flags: CompileFlags,
    model: Path = MODEL,
    duration: float = typer.Option(2.0, "--duration", help="Seconds to run."),
    inputs: Path | None = INPUTS,
    every: bool = typer.Option(False, "--all", help="Every kernel, in the order they run."),
    trace: Path | None = typer.Option(
        None, "--trace", help="Also write a trace for Perfetto, with a track of each thread, as .json."
    ),
    report: Path | None = typer.Option(
        None,
        "--report",
        help="Also write an HTML page with the graph, kernels beside their limits, threads and memory over "
        "time.",
    ),
) -> None:
    """Time every kernel in the running model, and compare it with what this machine could do.

    Example: `tilewright profile resnet50.onnx --threads 1 --trace resnet50.json`.
    """
    from tilewright.api.artifacts import require_asked_of_all
    from tilewright.api.profiling import profile_model
    from tilewright.benchmark.machine_state import BUSY_SHARE
    from tilewright.files import write_output

    options = flags.options()
    if not options.target.is_cpu:
        raise UsageError(f"profile measures the cpu target; leave out --target {options.target}.")
    if trace is not None and trace.suffix != ".json":
        raise UsageError(f"{trace}: give a name that ends in .json.")
    require_asked_of_all([model], options, flags.asked)
    with progress(f"loading {model.name}") as update:
        found = profile_model(
            model,
            feed=inputs,
            duration_s=duration,
            threads=checked_threads(options.threads),
            options=options,
            report=report,
            progress=update,
        )
    if trace is not None:
        write_output(trace, found.chrome_trace(model.name).encode())
    if wants_json():
        print_model_document("profile", (found.model_sha256, "cpu"), found, WrittenTrace(trace, report))
        return
    print_tables(found.tables(every=every))
    for line in found.lines():
        say(line)
    if found.busy_share is not None and found.busy_share > BUSY_SHARE:
        others = f"{100 * found.busy_share:.0f} %"
        hint(f"others used {others} of the cores: times, limits and the verdict may be off")
    if trace is not None:
        hint(f"written to {trace}; open it at ui.perfetto.dev")
    if report is not None:
        hint(f"written to {report}")
