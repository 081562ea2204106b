"""Variants of a machine as a page: latency, energy and area, the front, and the mapping behind each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.hardware.quantity import number_of
from tilewright.report.figure import (
    Bars,
    Point,
    bar_chart,
    drawn,
    folded,
    heading,
    html_table,
    note,
    page,
    preformatted,
    scatter,
)
from tilewright.report.mapping import EXPLAINED, mapping_parts

if TYPE_CHECKING:
    from tilewright.loops.mapping import LevelLoops
    from tilewright.mapping.sweep.results import MapSweep, SweptMachine


def sweep_page(sweep: MapSweep) -> str:
    """One HTML page; variants onto which nothing could be mapped are listed at its end."""
    mapped = [(number, v) for number, v in enumerate(sweep.variants) if v.figures is not None]
    refused = [(named(sweep, v), v.error) for v in sweep.variants if v.figures is None]
    what = f"{', '.join(Path(text).name for text in sweep.work)} on variants of {sweep.machine}, "
    what += f"by {sweep.mapper} for {sweep.objective}."
    parts = [note(what), note(_SAID.format(sweep.energy_source))]
    if mapped:
        parts += _pictures(sweep, mapped)
        parts += [heading("The front"), *_front(sweep), heading("All variants")]
        parts.append(_table(sweep, mapped))
        parts += [note(EXPLAINED), *(_variant(sweep, number, v) for number, v in mapped)]
    if refused:
        parts += [heading("Nothing could be mapped"), html_table(("variant", "why"), refused)]
    return page(f"Variants of {sweep.machine}", parts)


_SAID = (
    "Marked and joined: variants of the front, than which no other one is as good in latency, energy and "
    "area and better in one. A dot leads to the mapping behind it. Of several workloads figures are "
    "geometric means. Figures are estimates, energies by {}; areas are of buffers and multipliers, at 45 nm "
    "where the file gives no technology_nm, without wires, control and interfaces."
)


def named(sweep: MapSweep, variant: SweptMachine) -> str:
    """A variant by its values."""
    return ", ".join(
        f"{axis.split('.', 1)[-1]} = {value}" for axis, value in zip(sweep.axes, variant.values, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared by figures, with the name of each; `anchor` is where its dot leads to."""

    label: str
    is_best: bool
    anchor: str
    figures: Mapping[str, float | None]


def pareto_pictures(compared: Sequence[Compared], axes: Sequence[tuple[str, str]]) -> list[str]:
    """A scatter plot for each pair of figures, of what has both; none of a pair that nothing has."""
    pictures = []
    for x, y in axes:
        points = [
            Point(across, up, one.label, one.is_best, one.anchor)
            for one in compared
            if (across := one.figures[x] or 0.0) > 0 and (up := one.figures[y] or 0.0) > 0
        ]
        if points:
            title = f"{y.split(' in ')[0]} over {x.split(' in ')[0]}"
            pictures.append(drawn(scatter(title, x, y, points)))
    return pictures


def _pictures(sweep: MapSweep, mapped: list[tuple[int, SweptMachine]]) -> list[str]:
    has_clock = all(variant.clock_hz is not None for _, variant in mapped)
    latency = "latency in ms" if has_clock else "latency in cycles"
    swept = [axis.split(".", 1)[-1] for axis in sweep.axes]
    compared = []
    for number, variant in mapped:
        cycles, energy_pj = variant.mean_cycles, variant.mean_energy_pj
        assert energy_pj is not None, "what is mapped has figures"
        figures = {
            **dict(zip(swept, map(number_of, variant.values), strict=True)),
            latency: variant.mean_latency_ms if has_clock else cycles,
            _ENERGY: energy_pj / 1e6,
            _AREA: variant.area_mm2,
        }
        compared.append(Compared(named(sweep, variant), variant.is_best, f"variant{number}", figures))
    along = [(axis, figure) for axis in swept for figure in (latency, _ENERGY, _AREA)]
    return pareto_pictures(compared, ((latency, _ENERGY), (latency, _AREA), (_AREA, _ENERGY), *along))


_ENERGY, _AREA = "energy in µJ", "area in mm²"


def _front(sweep: MapSweep) -> list[str]:
    """What the parts of each of its variants take, and a table."""
    front = list(sweep.front)
    numbers = {id(v): number for number, v in enumerate(sweep.variants)}
    names = [component.name for component in front[0].components]
    groups = [f"variant {numbers[id(v)]}" for v in front]
    areas = [
        Bars(name, tuple(v.components[place].area_mm2 for v in front)) for place, name in enumerate(names)
    ]
    energies = [
        Bars(name, tuple(v.components[place].energy_pj / 1e6 for v in front))
        for place, name in enumerate(names)
    ]
    rows = [(f"variant {numbers[id(v)]}", *v.values, *_figures(v)) for v in front]
    table = html_table(("", *sweep.axes, *_HEADS), rows)
    if len(front) > _MOST_BARS:
        return [table]
    return [
        table,
        drawn(bar_chart("Area by part", _AREA, groups, [b for b in areas if any(b.values)])),
        drawn(bar_chart("Energy by part, of all layers", _ENERGY, groups, energies)),
    ]


_MOST_BARS = 12
_HEADS = ("cycles", "energy in µJ", "area in mm²")


def _figures(variant: SweptMachine) -> tuple[str, ...]:
    cycles, energy_pj = variant.mean_cycles or 0.0, variant.mean_energy_pj or 0.0
    return f"{cycles:,.0f}", f"{energy_pj / 1e6:,.2f}", f"{variant.area_mm2:,.3g}"


def _table(sweep: MapSweep, mapped: list[tuple[int, SweptMachine]]) -> str:
    rows = [(n, *v.values, *_figures(v), "yes" if v.is_best else "") for n, v in mapped]
    return html_table(("variant", *sweep.axes, *_HEADS, "unbeaten"), rows)


def _variant(sweep: MapSweep, number: int, variant: SweptMachine) -> str:
    """What is behind a point: parts, workloads, and of each layer the mapping, drawn for the front."""
    parts = [
        html_table(
            ("part", "instances", "area in mm²", "energy in µJ"),
            [
                (
                    part.name,
                    f"{part.num_instances:,}",
                    "-" if part.area_mm2 is None else f"{part.area_mm2:,.4g}",
                    f"{part.energy_pj / 1e6:,.2f}",
                )
                for part in variant.components
            ],
        ),
        html_table(
            ("workload", "cycles", "at least", "energy in µJ", "at least"),
            [
                (
                    w.name,
                    f"{w.cycles:,}",
                    f"{w.bound_cycles:,}",
                    f"{w.energy_pj / 1e6:,.2f}",
                    f"{w.bound_energy_pj / 1e6:,.2f}",
                )
                for w in variant.workloads
            ],
        ),
    ]
    for layer in variant.layers:
        times = f", {layer.num_times} times" if layer.num_times > 1 else ""
        title = f"{layer.name}{times}: {layer.cycles:,} cycles, {layer.energy_pj / 1e6:,.2f} µJ"
        assert variant.machine is not None
        if variant.is_best:
            inside = mapping_parts(layer.drawn(variant.machine, sweep.cost_options))
        else:
            inside = [preformatted([f"{laid.level}: {_loops(laid)}" for laid in layer.mapping])]
        parts.append(folded(title, inside))
    mark = "front: " if variant.is_best else ""
    return folded(f"variant {number}, {mark}{named(sweep, variant)}", parts, anchor=f"variant{number}")


def _loops(laid: LevelLoops) -> str:
    temporal = " ".join(f"{loop.dim}{loop.factor}" for loop in laid.temporal if loop.factor > 1)
    spatial = " ".join(f"{loop.dim}{loop.factor}" for loop in laid.spatial if loop.factor > 1)
    return f"{temporal or '-'}{f', spatial {spatial}' if spatial else ''}"
