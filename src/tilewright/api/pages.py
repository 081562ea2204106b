"""Reports as pages: how they are named, and what the page of a model is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.benchmark.profile import Profile
    from tilewright.compiled import CompiledModel
    from tilewright.specialise.model import OpenCompiledModel


def page_path(path: str | Path) -> Path:
    """Where a page is to be written, checked before the work that it shows.

    Raises:
        UsageError: the name is not that of a page.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise UsageError(f"{path}: give a name that ends in .html.")
    return path


def model_report(compiled: CompiledModel, name: str, profile: Profile | None = None) -> str:
    """The report of a compiled model as a page, with the times of a profile or else with estimates."""
    from tilewright.benchmark.profile_report import run_times
    from tilewright.report.model_page import RunTimes, model_page

    times = RunTimes.estimated(compiled.steps) if profile is None else run_times(profile)
    return model_page(
        f"{name} on {compiled.target}",
        compiled.program,
        compiled.report(),
        compiled.explain(),
        compiled.steps,
        compiled.memory,
        times,
    )


def shapes_report(compiled: OpenCompiledModel, name: str) -> str:
    """The report of a model whose shapes are open as a page: what it is at those that it was compiled for."""
    from tilewright.report.model_page import RunTimes, shapes_page

    made = compiled.specialisations
    sections = []
    for kept in made.kept:
        if kept.follows_data or kept.by_code_for:
            continue  # it is no model with code of its own
        whole = compiled.at(kept.shapes)
        sections.append((kept.shapes_text, whole.report(), RunTimes.estimated(whole.steps)))
    return shapes_page(f"{name} on {compiled.target}", str(made), made.tables()[0], sections)
