"""`tilewright map --sweep`: the same work on variants of a machine, and which of them are worth building."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.map_work import Asked, solve_each, totals
from tilewright.cli.output import print_json, print_table, progress, say
from tilewright.errors import InfeasibleMapping, UsageError

if TYPE_CHECKING:
    from tilewright.cost.objective import Objective
    from tilewright.cost.options import CostOptions
    from tilewright.hardware.machine import Machine
    from tilewright.hardware.variants import Axis


def run_sweep(
    sweep: Sequence[str],
    work: Sequence[str],
    machine: Machine,
    mapper: str,
    objective: Objective,
    cost_options: CostOptions,
    budget: str | None,
    shapes: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Map everything onto every variant; print cycles and energy, and which variants no other one beats.

    Raises:
        UsageError: nothing to map, or an axis names no number of the machine.
        MachineError: a variant is no machine.
    """
    from tilewright.hardware.variants import parse_axis, variants

    if not work:
        raise UsageError("nothing to map; give layers or a model beside --sweep.")
    axes = [parse_axis(text, machine) for text in sweep]
    machines = variants(machine, axes)
    asked = Asked.of(work, shapes)
    rows: list[dict[str, Any]] = []
    with progress(f"mapping onto {len(machines)} machines") as update:
        for number, variant in enumerate(machines):
            update(", ".join(variant.values), number, len(machines))
            row: dict[str, Any] = {"values": list(variant.values), "total": None, "error": None}
            try:
                solutions = solve_each(
                    asked.problems, variant.machine, mapper, objective, cost_options, budget, _quiet
                )
                row["total"] = totals(asked, solutions, variant.machine)
            except InfeasibleMapping as error:
                row["error"] = str(error)
            rows.append(row)
    _mark_best(rows)
    if plot is not None:
        plot.write_text(_page(rows, axes, machine, work), "utf-8")
    if as_json:
        facts = {"machine": machine.name, "mapper": mapper, "objective": objective}
        print_json("map-sweep", {**facts, "axes": [axis.path for axis in axes], "variants": rows})
        return
    _print(rows, axes, machine, mapper)
    if plot is not None:
        say(f"drawn in {plot}")


def _quiet(*_: object) -> None:
    """One progress bar is enough."""


def _mark_best(rows: Sequence[dict[str, Any]]) -> None:
    """`is_best`: no other variant is as good in cycles and in energy and better in one (the Pareto front)."""
    figures = [(r["total"]["cycles"], r["total"]["energy_pJ"]) if r["total"] else None for r in rows]
    for row, own in zip(rows, figures, strict=True):
        row["is_best"] = own is not None and not any(
            other is not None and other != own and other[0] <= own[0] and other[1] <= own[1]
            for other in figures
        )


def _print(rows: Sequence[dict[str, Any]], axes: Sequence[Axis], machine: Machine, mapper: str) -> None:
    table = []
    for row in rows:
        total = row["total"]
        figures = (
            ("-", "-", "-", "-", row["error"])
            if total is None
            else (
                f"{total['cycles']:,}",
                f"{total['bound_cycles']:,}",
                f"{total['energy_pJ'] / 1e6:,.2f} µJ",
                f"{total['bound_energy_pJ'] / 1e6:,.2f} µJ",
                "yes" if row["is_best"] else "",
            )
        )
        table.append((*row["values"], *figures))
    heads = [axis.path.split(".", 1)[-1] for axis in axes]
    print_table(
        (*heads, "cycles", "at least", "energy", "at least", "unbeaten"),
        table,
        title=f"variants of {machine.name}, by {mapper}",
        right=tuple(range(len(axes) + 4)),
    )


def _page(rows: Sequence[dict[str, Any]], axes: Sequence[Axis], machine: Machine, work: Sequence[str]) -> str:
    from tilewright.report.figure import Point, html_table, note, page, scatter

    found = [row for row in rows if row["total"]]
    names = [", ".join(f"{a.path} = {v}" for a, v in zip(axes, row["values"], strict=True)) for row in found]
    points = [
        Point(row["total"]["cycles"], row["total"]["energy_pJ"] / 1e6, name, row["is_best"])
        for row, name in zip(found, names, strict=True)
    ]
    table = html_table(
        (*(axis.path for axis in axes), "cycles", "energy in µJ", "unbeaten"),
        [
            (
                *row["values"],
                f"{row['total']['cycles']:,}",
                f"{row['total']['energy_pJ'] / 1e6:,.2f}",
                "yes" if row["is_best"] else "",
            )
            for row in found
        ],
    )
    what = f"{', '.join(Path(text).name for text in work)} on variants of {machine.name}."
    said = f"{what} Marked: no other variant is better in both. Figures are estimates."
    picture = [scatter("Time against energy", "cycles", "energy in µJ", points)] if points else []
    return page(f"Variants of {machine.name}", [*picture, note(said), table])
