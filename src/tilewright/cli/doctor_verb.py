"""`tilewright doctor`: is everything in place, and what is this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from tilewright.cli.flags import CACHE
from tilewright.cli.output import progress, show


def doctor(
    measure: bool = typer.Option(False, "--measure", help="Also measure this machine (a second or two)."),
    calibrate: bool = typer.Option(
        False, "--calibrate", help="Measure rates of this machine for estimates, which use them from then on."
    ),
    cache: Path | None = CACHE,
) -> None:
    """Check the installation and describe the machine; exit code 1 if something is broken.

    Example: `tilewright doctor --measure`.
    """
    from tilewright.api.doctor import diagnose

    with progress("looking") as update:
        found = diagnose(measure=measure, calibrate=calibrate, cache=cache, progress=update)
    show("doctor", found)
    if not found.ok:
        raise typer.Exit(1)
