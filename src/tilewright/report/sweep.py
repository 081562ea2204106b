"""Variants of a machine as a page: time against energy, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.report.figure import Point, html_table, note, page, scatter

if TYPE_CHECKING:
    from tilewright.mapping.sweep.results import MapSweep


def sweep_page(sweep: MapSweep) -> str:
    """One HTML page; variants onto which nothing could be mapped are left out."""
    figures = [(v, v.total) for v in sweep.variants if v.total is not None]
    points = [
        Point(
            total.cycles,
            total.energy_pj / 1e6,
            ", ".join(f"{axis} = {value}" for axis, value in zip(sweep.axes, variant.values, strict=True)),
            variant.is_best,
        )
        for variant, total in figures
    ]
    table = html_table(
        (*sweep.axes, "cycles", "energy in µJ", "unbeaten"),
        [
            (*v.values, f"{total.cycles:,}", f"{total.energy_pj / 1e6:,.2f}", "yes" if v.is_best else "")
            for v, total in figures
        ],
    )
    what = f"{', '.join(Path(text).name for text in sweep.work)} on variants of {sweep.machine}."
    said = f"{what} Marked: no other variant is better in both. Figures are estimates, "
    said += f"energies by {sweep.energy_source}."
    picture = [scatter("Time against energy", "cycles", "energy in µJ", points)] if points else []
    return page(f"Variants of {sweep.machine}", [*picture, note(said), table])
