"""`tilewright compare-schedules`: what do schedulers make of a model?"""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import INPUTS, CompileFlags
from tilewright.cli.output import progress, show
from tilewright.errors import UsageError
from tilewright.options import Options


def compare_schedules(
    flags: CompileFlags,
    model: Path = typer.Argument(metavar="MODEL", help="An ONNX file."),
    inputs: Path | None = INPUTS,
    duration: float = typer.Option(2.0, "--duration", help="Seconds to measure each; 0: only estimates."),
) -> None:
    """Compile a model with several schedulers, and show estimates beside measured times.

    `--schedule` takes several names separated by commas, or `all`; the default are those that suit most
    models. All are measured in turns. `plan` compares more combinations, by estimate alone. Example:
    `tilewright compare-schedules inception_v3.onnx --schedule sequential,greedy,ios`.
    """
    from tilewright.api.schedules import USUAL
    from tilewright.api.schedules import compare_schedules as compare

    schedules = flags.values["schedule"]
    others = {name: value for name, value in flags.values.items() if name != "schedule"}
    with progress(f"scheduling {model.name}") as update:
        found = compare(
            model,
            USUAL if schedules in (None, "auto") else schedules,
            duration_s=duration,
            feed=inputs,
            options=CompileFlags(Options, others).options(),
            progress=update,
        )
    show("compare-schedules", found, of=found)
    failure = next((s.failure for s in found.schedules if s.failure is not None), None)
    if failure is not None:
        raise UsageError(failure)
