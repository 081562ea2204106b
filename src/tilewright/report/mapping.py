"""Mappings as a page: the loops of each level, what it holds, and what moves there beside the least."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.hardware.machine import TensorKind
from tilewright.printable import html_text
from tilewright.report.figure import colour, drawn, folded, html_table, note, page, preformatted

if TYPE_CHECKING:
    from tilewright.mapping.drawing import DrawnLevel, DrawnMapping, DrawnTensor
    from tilewright.mapping.results import MapResult

_WIDTH = 860
_LINE, _GAP, _TOP = 17, 12, 46
_LOOPS, _HELD, _MOVED, _END = 150, 400, 520, 850
"""Where the columns of a picture begin: loops, what is held, words moved."""
_BAR = 11
_CHARACTER = 7.0
_JOINED = "\N{NO-BREAK SPACE}"
_COLOUR_OF = {kind: number for number, kind in enumerate(TensorKind)}


def map_page(result: MapResult) -> str:
    """One HTML page: a picture and the loops of every layer, equal ones once."""
    drawings = result.drawn()
    total = result.total
    num_layers = len(result.layers)
    said = (
        f"{num_layers} layer{'s' if num_layers > 1 else ''}, {total.cycles:,} cycles "
        f"(at least {total.bound_cycles:,}). Figures are estimates; energies: {result.energy_source}."
    )
    parts = [note(said)]
    if len(drawings) > 1:
        rows = [
            (d.name, f"{d.cycles:,}", f"{d.bound_cycles:,}", f"{100 * d.utilization:.0f} %") for d in drawings
        ]
        parts.append(html_table(("layer", "cycles", "at least", "units in use"), rows))
    parts.append(note(EXPLAINED))
    parts += [folded(d.name, mapping_parts(d), is_open=len(drawings) == 1) for d in drawings]
    return page(f"Mappings onto {result.machine}, by {result.mapper}", parts, follows_system=True)


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
        drawn(mapping_figure(drawing)),
        folded("loops and words", [preformatted(list(drawing.lines())), html_table(table.heads, table.rows)]),
    ]


def mapping_figure(drawing: DrawnMapping) -> str:
    """A row for each level: its loops, how full it is, words moved per tensor beside the least."""
    most = max((t.moved_words for x in drawing.levels for t in x.tensors), default=1)
    body = _heads()
    y, depth = _TOP, 0
    for level in drawing.levels:
        lines = _loop_lines(level, depth)
        height = _LINE * max(2, len(lines), len(level.tensors)) + 8
        body += _level(level, y, height, lines, most)
        depth += len(level.temporal) + bool(level.spatial)
        y += height + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        f'role="img" aria-label="{html_text(drawing.name)}">\n' + "\n".join(body) + "\n</svg>"
    )


def _loop_lines(level: DrawnLevel, depth: int) -> list[tuple[int, str]]:
    """The loops of a level, each further to the right than those around it, with where they begin; spatial
    ones, which are one loop, over as many lines as the column needs."""

    def begins(number: int) -> int:
        return _LOOPS + min(8 * (depth + number), 90)

    lines = [(begins(n), f"for {loop.dim} in {loop.factor}") for n, loop in enumerate(level.temporal)]
    if level.spatial:
        x = begins(len(level.temporal))
        loops = ", ".join(f"{loop.dim} in {loop.factor}".replace(" ", _JOINED) for loop in level.spatial)
        told = f"spatial {loops} " + f"({level.num_spread} of {level.fan_out})".replace(" ", _JOINED)
        width = int((_HELD - x) / _CHARACTER)
        lines += [(x, line.replace(_JOINED, " ")) for line in textwrap.wrap(told, width)]
    return lines


def _heads() -> list[str]:
    names = ((8, "level"), (_LOOPS, "loops"), (_HELD, "held by each"), (_MOVED, "words moved"))
    body = [_text(x, 14, name, "bold") for x, name in names]
    x = float(_HELD)
    for kind in TensorKind:
        body.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{colour(_COLOUR_OF[kind])}"/>')
        body.append(_text(x + 14, 33, str(kind)))
        x += 75
    return body


def _level(level: DrawnLevel, y: int, height: int, lines: Sequence[tuple[int, str]], most: int) -> list[str]:
    body = [
        f'<rect x="2" y="{y}" width="{_WIDTH - 4}" height="{height}" rx="4" fill="#8881" stroke="#8888"/>',
        _text(8, y + _LINE, level.name, "bold"),
        _text(8, y + 2 * _LINE, f"{level.num_used:,} of {level.num_instances:,} in use"),
    ]
    body += [_text(x, y + _LINE * number, line) for number, (x, line) in enumerate(lines, 1)]
    return [*body, *_held(level, y), *_moved(level.tensors, y, most)]


def _held(level: DrawnLevel, y: int) -> list[str]:
    """Shares of the capacity side by side; of an unlimited level only that it is."""
    width = _MOVED - _HELD - 20
    if not level.capacity_words:
        return [_text(_HELD, y + _LINE, "not limited")]
    body = [f'<rect x="{_HELD}" y="{y + 7}" width="{width}" height="{_BAR}" fill="none" stroke="#8888"/>']
    x = float(_HELD)
    for tensor in level.tensors:
        part = width * tensor.tile_words / level.capacity_words
        body.append(
            f'<rect x="{x:.1f}" y="{y + 7}" width="{part:.1f}" height="{_BAR}" '
            f'fill="{colour(_COLOUR_OF[tensor.kind])}"><title>'
            f"{html_text(f'{tensor.name}: {tensor.tile_words:,} words')}</title></rect>"
        )
        x += part
    share = level.share_held or 0.0
    return [*body, _text(_HELD, y + 2 * _LINE, f"{100 * share:.0f} % of {level.capacity_words:,}")]


def _moved(tensors: Sequence[DrawnTensor], y: int, most: int) -> list[str]:
    """A bar for each tensor, with a mark where the least is."""
    width = _END - _MOVED - 150
    scale = width / math.log(max(most, 2))
    body = []
    for number, tensor in enumerate(tensors):
        top = y + 7 + _LINE * number
        length = scale * math.log(max(tensor.moved_words, 1))
        least = _MOVED + scale * math.log(max(tensor.least_words, 1))
        times = f" ({tensor.moved_words / tensor.least_words:,.1f} x)" if tensor.least_words else ""
        title = f"{tensor.name}: {tensor.moved_words:,} words, at least {tensor.least_words:,}"
        body += [
            f'<rect x="{_MOVED}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" '
            f'fill="{colour(_COLOUR_OF[tensor.kind])}"><title>{html_text(title)}</title></rect>',
            f'<line x1="{least:.1f}" x2="{least:.1f}" y1="{top - 2}" y2="{top + _BAR + 2}" '
            'stroke="currentColor" stroke-width="2"/>',
            _text(_END - 140, top + _BAR - 1, f"{tensor.moved_words:,}{times}"),
        ]
    return body


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{html_text(text)}</text>'
