"""`tilewright run`: one inference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli import common
from tilewright.cli.flags import INPUTS, MODEL, CompileFlags, add_verb
from tilewright.cli.output import JSON_OPTION, format_shape, hint, print_json, print_table, progress
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.cli.common import Array


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "run", run, panel)


def run(
    flags: CompileFlags,
    model: Path = MODEL,
    inputs: Path | None = INPUTS,
    outputs: Path | None = typer.Option(None, "--output", "-o", help="Outputs: an .npz file to write."),
    random: bool = typer.Option(False, "--random", help="Random inputs instead of a file."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Run a model or an artifact once, and show the shape and range of each output.

    Example: `tilewright run resnet50.tw -i x.npz -o y.npz`.
    """
    if (inputs is None) != random:
        raise UsageError("give the inputs with -i FILE.npz, or --random; one of the two.")
    options = flags.options()
    with progress(f"loading {model.name}") as update:
        compiled = common.open_or_compile(model, options, update)
        feed = common.inputs_or_random(inputs, compiled.get_inputs(), options.seed)
        with common.running_on(inputs):
            results = compiled.run(None, feed)
    named = dict(zip([o.name for o in compiled.get_outputs()], results, strict=True))
    if outputs is not None:
        common.write_arrays(outputs, named)
    if as_json:
        entries = [
            {"name": n, "dtype": str(a.dtype), "shape": list(a.shape), "range": _range(a)}
            for n, a in named.items()
        ]
        document = {**common.model_facts(compiled.model_sha256, compiled.target), "outputs": entries}
        print_json("run", {**document, "written": outputs})
        return
    print_table(
        ("output", "type", "shape", "range"),
        [(n, a.dtype, format_shape(a.shape), _span(_range(a))) for n, a in named.items()],
    )
    for remark in compiled.remarks:
        hint(remark)
    if outputs is not None:
        hint(f"written to {outputs}")


def _range(array: Array) -> list[Any] | None:
    """Least and largest finite value; None where there is none."""
    import numpy as np

    from tilewright.ir.dtype import DType

    dtype = DType.from_numpy(array.dtype)
    if not (dtype.is_float or dtype.is_integer):
        return None
    wide = array.astype(np.float64) if dtype.is_float else array
    finite = wide[np.isfinite(wide)]
    return [finite.min().item(), finite.max().item()] if finite.size else None


def _span(limits: list[Any] | None) -> str:
    return "" if limits is None else f"{limits[0]:.6g} .. {limits[1]:.6g}"
