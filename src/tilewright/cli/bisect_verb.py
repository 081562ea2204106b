"""`tilewright bisect`: which kernel is the first that differs from the reference?"""

from __future__ import annotations

from pathlib import Path

from tilewright.cli.flags import ATOL, INPUTS, MODEL, RTOL, CompileFlags
from tilewright.cli.output import as_argument, hint, progress, show
from tilewright.errors import NumericMismatch


def bisect(
    flags: CompileFlags,
    model: Path = MODEL,
    inputs: Path | None = INPUTS,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> None:
    """Find the first kernel whose result differs from the reference; exit code 4 if one does.

    That kernel is then compiled and run alone on the reference's operands, which tells a wrong kernel from
    rounding errors that add up. Example: `tilewright bisect model.onnx -i inputs.npz`.
    """
    from tilewright.api.artifacts import open_or_compile
    from tilewright.api.bisection import bisect_model
    from tilewright.files import is_artifact

    options = flags.options()
    with progress(f"bisecting {model.name}") as update:
        subject = open_or_compile(model, options, update, flags.asked) if is_artifact(model) else model
        found = bisect_model(
            subject,
            feed=inputs,
            rtol=rtol,
            atol=atol,
            options=None if is_artifact(model) else options,
            progress=update,
        )
    if show("bisect", found, of=found) and not found.ok:
        typed = as_argument(model)
        hint(f"next: tilewright reduce {typed} -o small.onnx, for a model with these nodes alone")
    if not found.ok:
        raise NumericMismatch(f"{model}: {found.verdict}.")
