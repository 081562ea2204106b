"""`tilewright run`: one inference."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli import common
from tilewright.cli.output import (
    JSON_OPTION,
    QUIET_OPTION,
    format_shape,
    note,
    print_json,
    print_table,
    progress,
)
from tilewright.errors import UsageError


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    app.command("run", rich_help_panel=panel)(run)


def run(
    model: Path = common.MODEL,
    inputs: Path | None = typer.Option(None, "--input", "-i", help="Inputs: an .npz file."),
    outputs: Path | None = typer.Option(None, "--output", "-o", help="Outputs: an .npz file to write."),
    random: bool = typer.Option(False, "--random", help="Random inputs instead of a file."),
    target: str = common.TARGET,
    shapes: str | None = common.SHAPES,
    threads: int | None = common.THREADS,
    isa: str | None = common.ISA,
    seed: int = common.SEED,
    cache: Path | None = common.CACHE,
    no_cache: bool = common.NO_CACHE,
    as_json: bool = JSON_OPTION,
    quiet: bool = QUIET_OPTION,
) -> None:
    """Run a model once. Example: `tilewright run resnet50.tw -i x.npz -o y.npz`."""
    import numpy as np

    if (inputs is None) == (not random):
        raise UsageError("give the inputs with -i FILE.npz, or --random.")
    options = common.make_options(
        target=target, shapes=shapes, threads=threads, isa=isa, seed=seed, cache=cache, no_cache=no_cache
    )
    with progress(f"loading {model.name}", quiet=quiet) as update:
        compiled = common.open_or_compile(model, options, update)
        specs = compiled.get_inputs()
        feed = common.random_feed(specs, seed) if inputs is None else common.read_arrays(inputs)
        results = compiled.run(None, feed)
    named = dict(zip([o.name for o in compiled.get_outputs()], results, strict=True))
    if outputs is not None:
        common.write_arrays(outputs, named)
    rows = []
    for name, array in named.items():
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        span = (
            f"{finite.min():.6g} .. {finite.max():.6g}" if finite.size and array.dtype.kind in "fiu" else ""
        )
        rows.append((name, str(array.dtype), format_shape(array.shape), span))
    if as_json:
        entries = [
            {"name": n, "dtype": d, "shape": list(named[n].shape), "range": r or None} for n, d, _, r in rows
        ]
        document = {"model_sha256": compiled.model_sha256, "outputs": entries, "host": common.host_facts()}
        print_json("run", {**document, "written": None if outputs is None else str(outputs)})
        return
    print_table(("output", "type", "shape", "range"), rows)
    for remark in compiled.remarks:
        note(remark)
    if outputs is not None:
        note(f"written to {outputs}")
