"""`tilewright plan`: what plans of a model cost, by target and planners."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CompileFlags
from tilewright.cli.interrupts import end_kept
from tilewright.cli.output import progress, show
from tilewright.options import Options

_LISTS = ("target", "partition", "schedule", "memory")


def plan(flags: CompileFlags, model: Path = typer.Argument(metavar="MODEL", help="An ONNX file.")) -> None:
    """Show what plans of a model cost, beside lower bounds, on any target; nothing is compiled or run.

    `--target`, `--partition`, `--schedule` and `--memory` take several names separated by commas, or `all`;
    every combination is a row. Example: `tilewright plan model.onnx -t stcp920,cpu --partition
    layerwise,graphturbo{alpha=1.25} --schedule all`.
    """
    from tilewright.api.plans import plan_model

    lists = {name: flags.values[name] for name in _LISTS}
    others = {name: value for name, value in flags.values.items() if name not in _LISTS}
    options = CompileFlags(Options, others).options()
    with progress(f"planning {model.name}") as update:
        compared = plan_model(model, **lists, options=options, progress=update)
    show("plan", compared, of=(compared.model_sha256, ",".join(map(str, compared.targets))))
    if compared.is_interrupted:
        end_kept("what was not reached is left out")
