"""`tilewright tune`: measure how to make each kernel of a model, and keep what is found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tilewright.cli.compile_verb import artifact_path, end_if_interrupted, tuning_text
from tilewright.cli.flags import MODEL, CompileFlags, add_verb
from tilewright.cli.output import (
    JSON_OPTION,
    format_ms,
    hint,
    print_model_document,
    print_table,
    progress,
    say,
)
from tilewright.errors import UnsupportedOp
from tilewright.results import Result

if TYPE_CHECKING:
    from tilewright.steps import KernelTuning


def register(app: typer.Typer, panel: str) -> None:
    """Add the verb."""
    add_verb(app, "tune", tune, panel)


@dataclass(frozen=True, slots=True)
class TunedArtifact(Result):
    """Where the artifact was written, if it was asked for."""

    artifact: Path | None


def tune(
    flags: CompileFlags,
    model: Path = MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", help="Also write the artifact here."),
    afresh: bool = typer.Option(
        False, "--afresh", help="Forget what was measured before, measure all again."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure other ways to make each kernel, in the running model, and keep what is faster.

    It goes on where the last search for this model ended, for `--budget` (60s), and never takes what is not
    faster in a whole run. Later compilations of the model use what it finds.

    Example: `tilewright tune resnet50.onnx --budget 2m`.
    """
    import tilewright as tw

    options = flags.options()
    path = artifact_path(model, output)
    with progress(f"tuning {model.name}") as update:
        loaded = tw.load(model, shapes=options.shapes)
        compiled = tw.tune(loaded, options=options, afresh=afresh, progress=update)
        if output is not None:
            compiled.save(path)
    tuning = compiled.tuning
    if tuning is None:
        raise UnsupportedOp(f"{model}: does not run on random inputs, so that nothing can be measured.")
    kernels = sorted(tuning.kernels, key=lambda k: -(k.before_ns or 0.0))
    if as_json:
        print_model_document("tune", compiled.model_sha256, compiled.target, tuning, TunedArtifact(output))
    else:
        print_table(
            ("kernel", "places", "by estimate", "before", "best other", "choice"),
            [
                (
                    _name(k),
                    len(k.nodes),
                    k.template,
                    _time(k.before_ns),
                    _time(k.after_ns),
                    k.choice or "as it was",
                )
                for k in kernels
            ],
            right=(1, 3, 4),
        )
        say(tuning_text(tuning))
        if output is not None:
            hint(f"written to {output}")
    end_if_interrupted(compiled)


def _name(kernel: KernelTuning) -> str:
    return kernel.nodes[0] if kernel.nodes else "-"


def _time(time_ns: float | None) -> str:
    return "not measured" if time_ns is None else format_ms(time_ns / 1e6)
