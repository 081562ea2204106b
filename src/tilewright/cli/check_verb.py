"""`tilewright check`: what a target will make of each operator, before any work."""

from __future__ import annotations

from pathlib import Path

from tilewright.cli.flags import MODEL, SHAPES, flag, parsed_shapes
from tilewright.cli.output import hint, show
from tilewright.errors import UnsupportedOp, UsageError
from tilewright.files import is_artifact


def check(model: Path = MODEL, target: str = flag("target"), shapes: str | None = SHAPES) -> None:
    """Say which operators a target runs, and how; exit code 3 if it does not run all of them.

    Example: `tilewright check model.onnx -t cpu`.
    """
    import tilewright as tw
    from tilewright.target_ref import TargetRef
    from tilewright.targets import find_target

    find_target(TargetRef.parse(target))
    if is_artifact(model):
        raise UsageError(f"{model}: is compiled already; give the ONNX file.")
    report = tw.check(model, target, shapes=parsed_shapes(shapes))
    show("check", report, of=(report.model_sha256, target))
    if report.misfit:
        hint(
            f"the shapes are open, and none that was tried fits ({report.misfit.rstrip('.')}); give --shapes."
        )
    elif report.shapes:
        hint(f"the shapes are open: looked at {report.shapes}; give others with --shapes.")
    if not report.ok:
        first = report.unsupported[0]
        others = sum(len(o.nodes) for o in report.unsupported) - 1
        more = f" (and {others} more, which the table lists)" if others else ""
        if first.verdict == "refused":
            raise UnsupportedOp(f"{model}: {first.reason.rstrip('.')}{more}.")
        what = f"{first.op_type} {first.nodes[0]!r}: {first.reason}"
        advice = "" if "--target interpreter" in first.reason else " Try --target interpreter."
        raise UnsupportedOp(f"{model}: {target} does not run {what}{more}.{advice}")
    if report.on_host:
        count = sum(len(o.nodes) for o in report.on_host)
        hint(f"{count} operator{'s run' if count > 1 else ' runs'} on the host: correct, but slow.")
