"""Lanes over one axis of time, drawn without scripts: names at the left, bands, blocks, stacks over the time.

A lane's shapes are SVG that is stretched to the width of the page or, zoomed, to a multiple of it; texts are
HTML at the same places, so that they keep their form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.formatting import format_bytes
from tilewright.printable import html_text

SPAN = 100_000
"""The width of a lane in the units of its SVG: integers, as places of pixels when zoomed in."""
ZOOMS = (1, 4, 16)
_CELLS = 8_000  # of a lane's width: what is shorter is drawn together
_MAX_BLOCKS = 10_000  # of all lanes of blocks together, or else cells are doubled
_NAMES_PX = 196
_SHADES = 8
_TICK_PX = 14

STYLE = (
    "body{max-width:112em}"
    f".lanes{{display:flex;border:1px solid #8886}}.names{{flex:0 0 min({_NAMES_PX}px,40%);"
    "border-right:1px solid #8886;font-size:11px}.names>div{position:relative;padding:0 6px;"
    "box-sizing:border-box;overflow:hidden;text-align:right;white-space:nowrap}"
    ".names b{font-size:12px}.names i{position:absolute;right:6px;font-style:normal;"
    "transform:translateY(-50%);font-size:10px;background:Canvas;color:CanvasText;padding-left:3px}"
    ".names .top{position:absolute;left:6px;top:2px;text-align:left;line-height:1.35}"
    ".scroll{flex:1;overflow-x:auto;overflow-y:hidden}.wide{position:relative;width:100%;min-width:44em}"
    ".lane{position:relative;box-sizing:border-box;border-bottom:1px solid #8883;overflow:hidden}"
    ".names>div{border-bottom:1px solid #8883}"
    ".lane svg{position:absolute;left:0;top:0;width:100%;height:100%;max-width:none}"
    ".lane span{position:absolute;top:0;height:100%;overflow:hidden;white-space:nowrap;font-size:10px;"
    "box-sizing:border-box;padding:2px 0 0 3px;color:#222;border-left:1px solid #fff8}"
    ".axis span{border-left:1px solid #888;color:CanvasText;padding-top:3px}"
    ".grid{position:absolute;top:0;bottom:0;width:0;border-left:1px solid #8883;pointer-events:none}"
    + "".join(f".t{zoom}{{display:none}}" for zoom in ZOOMS[1:])
    + "".join(
        f"#z{zoom}:checked~.lanes .wide{{width:{100 * zoom}%}}"
        + "".join(
            f"#z{zoom}:checked~.lanes .t{finer}{{display:block}}" for finer in ZOOMS[1:] if finer <= zoom
        )
        for zoom in ZOOMS
    )
)
"""What the page of lanes needs beside the style of all pages."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with a name; `label` is shown when pointed at."""

    start: float
    end: float
    colour: str
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time in a row; `label` is shown when pointed at."""

    start: float
    end: float
    colour: str
    label: str


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A stretch of time and of a height: where a buffer lies."""

    start: float
    end: float
    low: float
    high: float
    colour: str
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the picture: what stands at its left, as HTML, and what is drawn, as HTML."""

    name: str
    body: str
    height_px: int
    style: str = "lane"


@dataclass(frozen=True, slots=True)
class Time:
    """The axis of all lanes, from 0 to `end_s`, with ticks in `unit`s, of which a second has `per_s`.

    Where no time is known, steps stand for seconds.
    """

    end_s: float
    unit: str = "ms"
    per_s: float = 1e3

    def place(self, at_s: float) -> int:
        """Where a moment lies, in units of the lane."""
        return round(SPAN * min(1.0, max(0.0, at_s / self.end_s))) if self.end_s else 0

    def percent(self, at_s: float) -> str:
        """The same for HTML."""
        return f"{self.place(at_s) * 100 / SPAN:.3f}%"

    def _ticks(self) -> list[tuple[float, int]]:
        """Round moments, and from which zoom on each is shown."""
        ticks: dict[float, int] = {}
        for zoom in ZOOMS:
            step = _round_up(self.end_s * self.per_s / (10 * zoom)) if self.end_s else 1.0
            for number in range(int(self.end_s * self.per_s / step) + 1):
                ticks.setdefault(float(f"{number * step:.9g}"), zoom)
        return sorted(ticks.items())

    def lane(self) -> Lane:
        """The ticks with their times."""
        body = "".join(
            f'<span class="t{zoom}" style="left:{self.percent(tick / self.per_s)};width:7em">{tick:g}</span>'
            for tick, zoom in self._ticks()
        )
        return Lane(f'<div class="top">{html_text(self.unit)}</div>', body, 18, "lane axis")

    def grid(self) -> str:
        """Lines through all lanes at the ticks."""
        return "".join(
            f'<div class="grid t{zoom}" style="left:{self.percent(tick / self.per_s)}"></div>'
            for tick, zoom in self._ticks()
        )


def band_lane(name: str, time: Time, spans: Iterable[Span]) -> Lane:
    """Stretches of time with their names, as far as there is width for them."""
    body = "".join(
        f'<span style="left:{time.percent(s.start)};width:{time.percent(s.end - s.start)};'
        f'background:{s.colour}" title="{_title(s.label)}">{html_text(s.text)}</span>'
        for s in spans
    )
    return Lane(f"<b>{html_text(name)}</b>", body, 18)


@dataclass(slots=True)
class _Cell:
    """Blocks that are too short to be drawn each."""

    label: str
    by_colour: dict[str, float] = field(default_factory=dict)
    num_blocks: int = 0

    def add(self, block: Block) -> None:
        taken = self.by_colour.get(block.colour, 0.0)
        self.by_colour[block.colour] = taken + block.end - block.start
        self.num_blocks += 1

    def drawn(self, start: int, width: int, seconds: float) -> str:
        """In the colour of most of the time, the paler the less of it is filled."""
        colour = max(self.by_colour, key=lambda c: self.by_colour[c])
        shade = math.ceil(_SHADES * min(1.0, sum(self.by_colour.values()) / seconds)) / _SHADES
        label = self.label + (f"\nand {self.num_blocks - 1} more" if self.num_blocks > 1 else "")
        return _rect(start, 1, width, 16, colour, label, f' fill-opacity="{shade:g}"')


def block_lanes(time: Time, rows: Sequence[tuple[str, Sequence[Block]]]) -> list[Lane]:
    """A lane for each row of blocks, of which no two overlap; `rows` are names, as HTML, and blocks."""
    num_cells = _CELLS
    while True:
        drawn = [(name, _blocks(time, blocks, num_cells)) for name, blocks in rows]
        if sum(len(shapes) for _, shapes in drawn) <= _MAX_BLOCKS or num_cells <= 500:
            return [Lane(name, _svg(shapes, 18), 18) for name, shapes in drawn]
        num_cells //= 2


def _blocks(time: Time, blocks: Sequence[Block], num_cells: int) -> list[str]:
    """Blocks that are longer than a cell each, others together with those in the same cell."""
    shapes: list[str] = []
    cells: dict[int, _Cell] = {}
    width = SPAN // num_cells
    for block in blocks:
        start, end = time.place(block.start), time.place(block.end)
        if end - start > width:
            shapes.append(_rect(start, 1, end - start, 16, block.colour, block.label))
        else:
            cells.setdefault((start + end) // 2 // width, _Cell(block.label)).add(block)
    seconds = time.end_s / num_cells
    return shapes + [cell.drawn(place * width, width, seconds) for place, cell in sorted(cells.items())]


def stack_lane(
    name: str,
    title: str,
    time: Time,
    colours: Sequence[str],
    points: Iterable[tuple[float, Sequence[int]]],
    limit_bytes: int | None,
) -> Lane:
    """Bytes of several kinds over time, on top of each other; the limit dashed.

    `points` say from when on how many bytes there are of each kind. Of what changes within less than can be
    seen, the moment with the most bytes is drawn.
    """
    height = 150
    steps = _fullest(time, points)
    highest = max((sum(values) for _, values in steps), default=0)
    has_line = limit_bytes is not None and limit_bytes <= 20 * max(highest, 1)
    top = max(highest, limit_bytes if has_line and limit_bytes else 0, 1) * 1.06

    def y(size_bytes: float) -> int:
        return round(height * (1 - size_bytes / top))

    ticks = _byte_ticks(top)
    shapes = [f'<path d="M0 {y(t)}H{SPAN}" stroke="#8886" {_FINE}/>' for t in ticks]
    for kind in range(len(colours) - 1, -1, -1):
        path = [f"M0 {height}"]
        level = height
        for at, values in steps:
            new = y(sum(values[: kind + 1]))
            if new != level:
                path.append(f"H{at}V{new}")
                level = new
        shapes.append(f'<path d="{"".join(path)}H{SPAN}V{height}Z" fill="{colours[kind]}"/>')
    names = [f'<div class="top"><b>{html_text(name)}</b> {html_text(title)}']
    if limit_bytes is not None:
        names.append(f"<br>of {html_text(format_bytes(limit_bytes))}")
    names.append(f"<br>at most {html_text(format_bytes(highest))}</div>")
    shown = [t for t in ticks if t and y(t) >= _TICK_PX / 2]  # a text is as high above its tick as below
    names += [f'<i style="top:{y(t)}px">{html_text(format_bytes(t))}</i>' for t in shown]
    if has_line and limit_bytes is not None:
        shapes.append(f'<path d="M0 {y(limit_bytes)}H{SPAN}" stroke="#c00" stroke-dasharray="6 4" {_FINE}/>')
    return Lane("".join(names), _svg(shapes, height), height)


def map_lane(title: str, time: Time, rectangles: Sequence[Rectangle], height: int) -> Lane:
    """Where something lies: time by place, from the bottom up."""
    top = max((r.high for r in rectangles), default=0.0) or 1.0
    shapes = []
    for r in rectangles:
        low, high = (round(height * 10 * (1 - x / top)) for x in (r.low, r.high))
        start, end = time.place(r.start), time.place(r.end)
        label = f"<title>{_title(r.label)}</title>"
        shapes.append(
            f'<rect x="{start}" y="{high}" width="{max(end - start, 1)}" height="{low - high}" '
            f'fill="{r.colour}">{label}</rect>'
        )
    body = (
        f'<svg viewBox="0 0 {SPAN} {height * 10}" preserveAspectRatio="none"><g stroke="#fff8" '
        f'stroke-width="0.6" vector-effect="non-scaling-stroke">{"".join(shapes)}</g></svg>'
    )
    name = "<br>".join(map(html_text, title.split("\n")))
    return Lane(f'<div class="top">{name}</div>', body, height)


def picture(time: Time, lanes: Sequence[Lane]) -> str:
    """Lanes with their names, and the choice of a zoom."""
    choices = "".join(
        f'<input type="radio" name="zoom" id="z{zoom}"{" checked" if zoom == 1 else ""}>'
        f'<label for="z{zoom}">{zoom}&times;</label> '
        for zoom in ZOOMS
    )
    names = "".join(f'<div style="height:{lane.height_px}px">{lane.name}</div>' for lane in lanes)
    bodies = "".join(
        f'<div class="{lane.style}" style="height:{lane.height_px}px">{lane.body}</div>' for lane in lanes
    )
    return (
        f'<div class="zoomed">{choices}<div class="lanes"><div class="names">{names}</div>'
        f'<div class="scroll"><div class="wide">{bodies}{time.grid()}</div></div></div></div>'
    )


_FINE = 'fill="none" vector-effect="non-scaling-stroke"'


def _fullest(time: Time, points: Iterable[tuple[float, Sequence[int]]]) -> list[tuple[int, Sequence[int]]]:
    """In each cell the moment with the most bytes, by place; what is there at its beginning counts too."""
    width = SPAN // (_CELLS // 2)
    steps: list[tuple[int, Sequence[int]]] = []
    now: Sequence[int] = ()
    cell = -1
    for at_s, values in points:
        place = time.place(at_s) // width
        if place != cell:
            if steps and now != steps[-1][1]:
                # The cell before ends with less than it was drawn with.
                steps.append(((cell + 1) * width, now))
            if place == cell + 1 and steps and steps[-1][0] == place * width and sum(now) >= sum(values):
                cell, now = place, values
                continue
            cell = place
            fuller = values if not now or sum(values) > sum(now) else now
            steps.append((place * width, fuller))
        elif sum(values) > sum(steps[-1][1]):
            steps[-1] = (place * width, values)
        now = values
    if steps and now != steps[-1][1]:
        steps.append((min(SPAN, (cell + 1) * width), now))
    return steps


def _rect(x: int, y: int, width: int, height: int, colour: str, label: str, more: str = "") -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{max(width, 1)}" height="{height}" fill="{colour}"{more}>'
        f"<title>{_title(label)}</title></rect>"
    )


def _svg(shapes: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {SPAN} {height}" preserveAspectRatio="none">{"".join(shapes)}</svg>'


def _title(label: str) -> str:
    """Lines that are shown when pointed at; names in them may hold anything."""
    return "&#10;".join(html_text(line) for line in label.split("\n"))


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(digit for digit in (1, 2, 5, 10) if digit * power >= value * (1 - 1e-9)) * power


def _byte_ticks(top: float) -> list[int]:
    """At most five sizes, multiples of a power of two."""
    step = 1 << max(0, math.ceil(math.log2(top / 5)))
    return list(range(0, int(top) + 1, step))
