"""`tilewright profile`: where the time of a run goes, kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli import common
from tilewright.cli.flags import INPUTS, MODEL, CompileFlags, add_verb, checked_threads
from tilewright.cli.output import (
    JSON_OPTION,
    format_bytes,
    format_ms,
    hint,
    print_json,
    print_table,
    progress,
    say,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.benchmark.profile import KernelTime, Profile

_ROWS = 20


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "profile", profile, panel)


def profile(
    flags: CompileFlags,
    model: Path = MODEL,
    duration: float = typer.Option(2.0, "--duration", help="Seconds to run."),
    inputs: Path | None = INPUTS,
    every: bool = typer.Option(False, "--all", help="Every kernel, in the order they run."),
    trace: Path | None = typer.Option(None, "--trace", help="Also write a trace for Perfetto, as .json."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Time every kernel in the running model, and compare it with what this machine could do.

    Example: `tilewright profile resnet50.onnx --threads 1 --trace resnet50.json`.
    """
    from tilewright.benchmark.machine_state import BUSY_SHARE, busy_share
    from tilewright.benchmark.profile import profile_program
    from tilewright.files import write_atomically

    options = flags.options()
    num_threads = checked_threads(options.threads)
    if not 0 < duration <= 3600:
        raise UsageError(f"duration {duration:g}: give seconds, more than 0 and at most 3600.")
    if options.target != "cpu":
        raise UsageError(f"profile measures the cpu target; leave out --target {options.target}.")
    if trace is not None and trace.suffix != ".json":
        raise UsageError(f"{trace}: give a name that ends in .json.")
    with progress(f"loading {model.name}") as update:
        compiled = common.open_or_compile(model, options, update)
        if compiled.target != "cpu":
            raise UsageError(f"{model}: is made for {compiled.target}; profile measures the cpu target.")
        feed = common.inputs_or_random(inputs, compiled.get_inputs(), options.seed)
        busy = busy_share()
        with common.running_on(inputs):
            found = profile_program(
                compiled.program, feed, num_threads=num_threads, duration_s=duration, progress=update
            )
    if trace is not None:
        write_atomically(trace, found.chrome_trace(model.name).encode())
    if as_json:
        facts = common.model_facts(compiled.model_sha256, compiled.target)
        print_json("profile", {**facts, **found.to_json(), "trace": trace})
        return
    _print(found, model, every=every)
    if busy is not None and busy > BUSY_SHARE:
        hint(f"others used {100 * busy:.0f} % of the cores: times, limits and the verdict may be off")
    if trace is not None:
        hint(f"written to {trace}; open it at ui.perfetto.dev")


def _print(found: Profile, model: Path, *, every: bool) -> None:
    kernels = list(found.kernels)
    if not every:
        kernels = sorted(kernels, key=lambda k: -k.median_ns)[:_ROWS]
    threads = f"{found.limits.num_threads} thread{'s' if found.limits.num_threads > 1 else ''}"
    print_table(
        ("kernel", "made by", "time", "spread", "share", "GFLOP/s", "moved", "of limit", "bound by", "nodes"),
        [_row(k) for k in kernels],
        title=f"{model.name}: {format_ms(found.run_ns / 1e6)} a run, {threads}, {found.num_runs} runs"
        + ("" if every else f"; the {len(kernels)} longest of {len(found.kernels)} kernels"),
        right=(2, 3, 4, 5, 6, 7),
    )
    print_table(
        ("operator", "share"),
        [(name, f"{100 * share:.1f} %") for name, share in found.operator_share.items()],
        right=(1,),
    )
    limits = found.limits
    tiles = (
        "" if limits.tile_flop_per_s is None else f", {limits.tile_flop_per_s / 1e9:.0f} on bfloat16 tiles"
    )
    say(
        f"this machine: {limits.fma_flop_per_s / 1e9:.0f} GFLOP/s in vectors{tiles}; "
        f"{limits.memory_bytes_per_s / 1e9:.0f} GB/s from memory, "
        f"{limits.cache_bytes_per_s / 1e9:.0f} from caches, "
        f"{limits.constant_bytes_per_s / 1e9:.0f} where this model's constants stay"
    )
    say(f"between kernels: {format_ms(found.between_ns / 1e6)}")
    say(found.verdict)


def _row(kernel: KernelTime) -> tuple[str, ...]:
    return (
        kernel.id,
        kernel.template,
        format_ms(kernel.median_ns / 1e6),
        f"{format_ms(kernel.low_ns / 1e6)} to {format_ms(kernel.high_ns / 1e6)}",
        f"{100 * kernel.share:.1f} %",
        f"{kernel.gflop_per_s:.0f}" if kernel.flop else "-",
        "-" if kernel.bound == "host" else format_bytes(kernel.constant_bytes + kernel.activation_bytes),
        "-" if kernel.bound == "host" else f"{100 * kernel.of_limit:.0f} %",
        kernel.bound,
        ", ".join(kernel.nodes) or "moves a tensor between layouts",
    )
