"""Reports as pages: how they are named, and what the page of a model is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.benchmark.profile import KernelTime, Profile
from tilewright.errors import UsageError
from tilewright.report.limits import TimedKernel
from tilewright.report.model_page import RunTimes
from tilewright.text.formatting import counted, format_ms

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


_EXPLAINED = (
    "Roofs are what this machine did at best just before, with as many threads: operations of its units, and "
    "bytes from the places where weights and activations lie. Bytes of a kernel are those that it touches, "
    "each once."
)


def run_times(profile: Profile) -> RunTimes:
    """The measured times of a run."""
    limits = profile.limits
    flop_per_s = {"vectors": limits.fma_flop_per_s}
    if limits.tile_flop_per_s is not None:
        flop_per_s["bfloat16 tiles"] = limits.tile_flop_per_s
    return RunTimes(
        kernels=tuple(map(_timed, profile.kernels)),
        is_measured=True,
        said=_said(profile),
        flop_per_s=flop_per_s,
        bytes_per_s={
            "memory": limits.memory_bytes_per_s,
            "caches": limits.cache_bytes_per_s,
            "smallest caches": limits.small_bytes_per_s,
        },
        explained=_EXPLAINED,
        recorded=profile.recorded,
    )


def _timed(kernel: KernelTime) -> TimedKernel:
    return TimedKernel(
        id=kernel.id,
        name=f"{kernel.template} {', '.join(kernel.nodes)}".strip(),
        time_ns=kernel.median_ns,
        low_ns=kernel.low_ns,
        high_ns=kernel.high_ns,
        limit_ns=None if kernel.bound == "host" else kernel.limit_ns,
        bound=kernel.bound,
        flop=kernel.flop,
        size_bytes=kernel.constant_bytes + kernel.activation_bytes,
    )


def _said(profile: Profile) -> tuple[tuple[str, str], ...]:
    threads = profile.limits.num_threads
    return (
        ("a run, the median", f"{format_ms(profile.run_ns / 1e6)} of {counted(profile.num_runs, 'run')}"),
        ("threads", str(threads)),
        ("limits add up to", format_ms(profile.limit_ns / 1e6)),
        ("between kernels", format_ms(profile.between_ns / 1e6)),
        ("energy of a run", str(profile.energy)),
        ("what holds it back", profile.verdict),
    )
