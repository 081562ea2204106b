"""`tilewright demo`: the whole way on one network, in a few seconds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import typer

from tilewright.cli.output import (
    JSON_OPTION,
    QUIET_OPTION,
    format_bytes,
    format_ms,
    print_json,
    print_table,
    progress,
)
from tilewright.errors import NumericMismatch

DEMO_NETWORK = "mobilenet_v2"
ALLOWED_ERROR = 1e-4


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("demo", rich_help_panel=panel)(demo)


def demo(
    network: str = typer.Argument(DEMO_NETWORK, help="A network of `tilewright zoo list`."),
    duration: float = typer.Option(4.0, "--duration", help="Seconds to measure."),
    as_json: bool = JSON_OPTION,
    quiet: bool = QUIET_OPTION,
) -> None:
    """Build a network, compile it for this processor, check it, time it. Example: `tilewright demo`."""
    import importlib.util

    import tilewright as tw
    from tilewright import zoo
    from tilewright.bench import compare_engines, relative_error
    from tilewright.hardware.probe import num_threads_default
    from tilewright.ir.dtype import DType
    from tilewright.ir.interpret import run_graph

    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder,
        progress("", quiet=quiet) as update,
    ):
        update(f"building {network}")
        model = zoo.build(network)
        feed = zoo.example_inputs(model, 0)
        path = Path(folder) / f"{network}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        loaded = tw.load(path)
        began = time.perf_counter()
        compiled = tw.compile(loaded, progress=update)
        compile_s = time.perf_counter() - began
        got = compiled.run(None, feed)
        update("checking against the float64 reference")
        expected = list(run_graph(loaded.graph, feed, dtype=DType.FLOAT64).values())
        error = max(relative_error(x, y) for x, y in zip(got, expected, strict=True))
        artifact = compiled.save(Path(folder) / f"{network}.tw")
        size_bytes = artifact.stat().st_size
        peer = ["onnxruntime"] if importlib.util.find_spec("onnxruntime") else []
        threads = num_threads_default()
        comparison = compare_engines(
            path,
            ["tilewright", *peer],
            feed,
            num_threads=threads,
            duration_s=duration,
            expected=expected,
            models={"tilewright": artifact},
            progress=update,
        )
    ours = comparison.contestants[0].timing
    if ours is None:
        raise NumericMismatch(comparison.contestants[0].error or "the measurement failed.")
    summary = loaded.summary()
    ratio = comparison.ratio(peer[0]) if peer else None
    if as_json:
        document = {
            "network": network,
            "compile_s": compile_s,
            "median_ms": ours.median_ms,
            "max_error": error,
        }
        print_json("demo", {**document, "comparison": comparison.to_json()})
    else:
        rows = [
            (
                "network",
                f"{network}: {summary.num_nodes} operators, {summary.macs / 1e9:.2f} G multiply-adds",
            ),
            (
                "compiled in",
                f"{compile_s:.1f} s to {len(compiled.kernels)} kernels, {format_bytes(size_bytes)}",
            ),
            ("one run takes", f"{format_ms(ours.median_ms)} on {threads} threads"),
            ("that is", f"{2 * summary.macs / ours.median_ms / 1e6:.0f} GFLOP/s"),
            ("largest error", f"{error:.1e} of the output, against float64"),
        ]
        if compiled.memory is not None:
            rows.append(("activations", f"{format_bytes(compiled.memory.peak_bytes)}, planned ahead"))
        if ratio is not None:
            other = comparison.contestants[1].timing
            assert other is not None
            rows.append(
                (
                    "onnxruntime",
                    f"{format_ms(other.median_ms)}: we are {ratio.verdict} ({ratio.median:.2f} x)",
                )
            )
        print_table(("tilewright demo", f"{time.perf_counter() - started:.0f} s"), rows)
        typer.echo("Try next:")
        typer.echo("  tilewright compile your_model.onnx        an artifact that runs on this processor")
        typer.echo("  tilewright explain your_model.tw          which operators became which kernel, and why")
        typer.echo("  tilewright bench your_model.onnx --vs onnxruntime")
        typer.echo("  tilewright zoo list                       more networks to try")
    if error > ALLOWED_ERROR:
        raise NumericMismatch(
            f"{network}: the result is off by {error:.1e} of the output; please report this."
        )
