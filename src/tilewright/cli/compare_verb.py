"""`tilewright compare`: do two ways to run a model agree?"""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import ATOL, INPUTS, RTOL, CompileFlags
from tilewright.cli.output import hint, progress, show
from tilewright.errors import NumericMismatch
from tilewright.text.formatting import counted


def compare(
    flags: CompileFlags,
    a: str = typer.Argument(metavar="A", help="FILE, or FILE@ENGINE: an ONNX model or an artifact."),
    b: str = typer.Argument(
        "interpreter", metavar="B", help="The same, or only ENGINE: interpreter, cpu, onnxruntime, openvino."
    ),
    inputs: Path | None = INPUTS,
    layers: bool = typer.Option(
        False,
        "--layers",
        help="Compare every value that one kernel passes to another with the interpreter's.",
    ),
    rtol: float = RTOL,
    atol: float = ATOL,
) -> None:
    """Compare two engines, targets or artifacts, output by output; exit code 4 if they differ.

    Example: `tilewright compare model.onnx onnxruntime`, `tilewright compare model.tw --layers`.
    """
    from tilewright.api.artifacts import require_asked_of_all
    from tilewright.api.comparison import Side, compare_models

    options = flags.options()
    left = Side.parse(str(a), options.target).path
    files = (left, Side.parse(str(b), options.target, left).path)
    require_asked_of_all(files, options, flags.asked - {"target"})
    with progress("comparing") as update:
        found = compare_models(
            a, b, feed=inputs, layers=layers, rtol=rtol, atol=atol, options=options, progress=update
        )
    if show("compare", found, of=found) and found.changed_kernels:
        changed = found.changed_kernels
        hint(f"{counted(len(changed), 'kernel')} had to change for this: {changed[0]!r} ...")
    if found.differing:
        first = found.differing[0]
        raise NumericMismatch(
            f"{first.name!r}: {found.a} and {found.b} differ by {first.max_difference:.3g} (allowed "
            f"{first.allowed:.3g}); {len(found.differing)} of {len(found.tensors)} tensors differ. "
            + ("It is the first." if layers else "Try --layers to find where it begins.")
        )
