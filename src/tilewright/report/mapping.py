"""Mappings as a page: the loops of each level, what it holds, and what moves there beside the least."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.hardware.machine import TensorKind
from tilewright.mapping.component_costs import component_table
from tilewright.report.charts import chart, mark
from tilewright.report.figure import (
    Bars,
    bar_chart,
    colour,
    drawn,
    folded,
    html_table,
    key,
    note,
    page,
    preformatted,
)
from tilewright.text.formatting import counted
from tilewright.text.printable import html_text

if TYPE_CHECKING:
    from tilewright.mapping.drawing import DrawnLevel, DrawnMapping, DrawnTensor
    from tilewright.mapping.results import MapResult

_LINE_PX, _INDENT_PX, _DEEPEST_PX = 17, 8, 90
_NUMBERS_PX = 150
"""Room for numbers behind bars of moved words."""
_STYLE = (
    ".nest{font-size:12px;line-height:17px}.nest>div{display:grid;grid-template-columns:11em 1fr 8em 21em;"
    "gap:1em;padding:.3em .6em;margin:.5em 0;border:1px solid #8888;border-radius:4px;background:#8881}"
    ".nest>.heads{border-color:transparent;background:none;font-weight:bold}"
    "@media(max-width:52em){.nest>div{grid-template-columns:1fr}.nest>.heads{display:none}}"
)
_COLOUR_OF = {kind: number for number, kind in enumerate(TensorKind)}


def map_page(result: MapResult) -> str:
    """One HTML page: a picture and the loops of every layer, equal ones once."""
    drawings = result.drawn()
    total = result.total
    num_layers = len(result.layers)
    said = (
        f"{counted(num_layers, 'layer')}, {total.cycles:,} cycles "
        f"(at least {total.bound_cycles:,}). Figures are estimates; energies: {result.energy_source}."
    )
    parts = [note(said)]
    if len(drawings) > 1:
        rows = [
            (d.name, f"{d.cycles:,}", f"{d.bound_cycles:,}", f"{100 * d.utilization:.0f} %") for d in drawings
        ]
        parts.append(html_table(("layer", "cycles", "at least", "units in use"), rows))
    if components := result.components:
        table = component_table(components, result.description)
        bars = [Bars(cost.name, (cost.energy_pj / 1e6,)) for cost in components]
        parts += [
            drawn(bar_chart("Energy by component", "energy in µJ", ["all layers"], bars)),
            html_table(table.heads, table.rows),
        ]
    parts.append(note(EXPLAINED))
    parts += [folded(d.name, mapping_parts(d), is_open=len(drawings) == 1) for d in drawings]
    return page(f"Mappings onto {result.machine}, by {result.mapper}", parts)


EXPLAINED = (
    "Levels from the outermost inwards. Loops run from top to bottom; a spatial loop spreads over what one "
    "instance feeds. Bars of held words are shares of the capacity. Bars of moved words, of all instances, "
    "are on a logarithmic scale; the mark on each is the least that any mapping moves."
)


def mapping_parts(drawing: DrawnMapping) -> list[str]:
    """A mapping as HTML: figures, the picture, the loops as text."""
    said = (
        f"{drawing.cycles:,} cycles, at least {drawing.bound_cycles:,}; "
        f"{drawing.energy_pj / 1e6:,.2f} µJ, at least {drawing.bound_energy_pj / 1e6:,.2f} µJ; "
        f"{drawing.num_units_used:,} of {drawing.num_units:,} units, in use "
        f"{100 * drawing.utilization:.0f} % of the time"
    )
    table = drawing.table()
    return [
        note(said),
        mapping_figure(drawing),
        folded("loops and words", [preformatted(list(drawing.lines())), html_table(table.heads, table.rows)]),
    ]


def mapping_figure(drawing: DrawnMapping) -> str:
    """A row for each level: its loops, how full it is, words moved per tensor beside the least."""
    most = max((t.moved_words for x in drawing.levels for t in x.tensors), default=1)
    heads = "".join(f"<div>{head}</div>" for head in ("level", "loops", "held by each", "words moved"))
    rows, depth = [], 0
    for level in drawing.levels:
        used = f"{level.num_used:,} of {level.num_instances:,} in use"
        cells = (
            f"<b>{html_text(level.name)}</b><div>{used}</div>",
            _loops(level, depth),
            _held(level),
            _moved(level, most),
        )
        rows.append(f"<div>{''.join(f'<div>{cell}</div>' for cell in cells)}</div>")
        depth += len(level.temporal) + bool(level.spatial)
    colours = key([(colour(number), str(kind)) for kind, number in _COLOUR_OF.items()])
    return (
        f"<style>{_STYLE}</style>{colours}"
        f'<div class="nest" role="group" aria-label="{html_text(drawing.name)}">'
        f'<div class="heads">{heads}</div>{"".join(rows)}</div>'
    )


def _loops(level: DrawnLevel, depth: int) -> str:
    """The loops of a level, each further to the right than those around it; spatial ones, which are one loop,
    on one line."""
    lines = [f"for {loop.dim} in {loop.factor}" for loop in level.temporal]
    if level.spatial:
        loops = ", ".join(f"{loop.dim} in {loop.factor}" for loop in level.spatial)
        lines.append(f"spatial {loops} ({level.num_spread} of {level.fan_out})")
    places = [min(_INDENT_PX * (depth + number), _DEEPEST_PX) for number in range(len(lines))]
    return "".join(
        f'<div class="loop" style="padding-left:{place}px">{html_text(line)}</div>'
        for place, line in zip(places, lines, strict=True)
    )


def _held(level: DrawnLevel) -> str:
    """Shares of the capacity side by side; of an unlimited level only that it is."""
    if not level.capacity_words:
        return "not limited"
    ends = list(itertools.accumulate((t.tile_words for t in level.tensors), initial=0))
    bar = mark(
        "rect",
        len(level.tensors),
        x1=ends[:-1],
        x2=ends[1:],
        fill=_colours(level.tensors),
        title=[f"{t.name}: {t.tile_words:,} words" for t in level.tensors],
    )
    drawn = chart(
        f"held by {level.name}",
        [bar, mark("frame", strokeOpacity=0.5)],
        height_px=13,
        x={"domain": [0, level.capacity_words]},
        axis=None,
        margin=1,
    )
    share = level.share_held or 0.0
    return f"{drawn}{100 * share:.0f} % of {level.capacity_words:,}"


def _moved(level: DrawnLevel, most: int) -> str:
    """A bar for each tensor, with a mark where the least is."""
    tensors = level.tensors
    if not tensors:
        return "nothing"
    rows = list(range(len(tensors)))
    marks = [
        mark(
            "barX",
            len(tensors),
            y=rows,
            x1=1,
            x2=[max(t.moved_words, 1) for t in tensors],
            fill=_colours(tensors),
            title=[f"{t.name}: {t.moved_words:,} words, at least {t.least_words:,}" for t in tensors],
        ),
        mark(
            "tickX",
            len(tensors),
            y=rows,
            x=[max(t.least_words, 1) for t in tensors],
            strokeWidth=2,
            insetTop=-2,
            insetBottom=-2,
        ),
        mark(
            "text",
            len(tensors),
            y=rows,
            text=[_times(t) for t in tensors],
            frameAnchor="right",
            textAnchor="start",
            dx=8,
        ),
    ]
    return chart(
        f"words moved at {level.name}",
        marks,
        height_px=_LINE_PX * len(tensors),
        x={"type": "log", "domain": [1, max(most, 2)]},
        y={"domain": rows, "padding": 0.3},
        axis=None,
        margin=0,
        marginLeft=1,
        marginRight=_NUMBERS_PX,
    )


def _times(tensor: DrawnTensor) -> str:
    of_least = f" ({tensor.moved_words / tensor.least_words:,.1f} x)" if tensor.least_words else ""
    return f"{tensor.moved_words:,}{of_least}"


def _colours(tensors: Sequence[DrawnTensor]) -> list[str]:
    return [colour(_COLOUR_OF[tensor.kind]) for tensor in tensors]
