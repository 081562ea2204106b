"""Lanes over one axis of time: names at the left, bands, blocks, stacks over the time.

All lanes are as wide as the page or, zoomed, as a multiple of it, and scroll together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.report.charts import Drawn, chart, mark
from tilewright.text.formatting import format_bytes
from tilewright.text.printable import html_text

SPAN = 100_000
"""The width of a lane in its own units: integers, as places of pixels when zoomed in."""
ZOOMS = (1, 4, 16)
_CELLS = 8_000  # of a lane's width: what is shorter is drawn together
_MAX_BLOCKS = 10_000  # of all lanes of blocks together, or else cells are doubled
_NAMES_PX = 196
_SHADES = 8
_TICK_PX = 14
_AXIS_PX, _BLOCK_PX = 18, 18

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
    ".lane .chart,.grid{position:absolute;inset:0}.grid{pointer-events:none}"
    ".lane span{position:absolute;top:0;height:100%;overflow:hidden;white-space:nowrap;font-size:10px;"
    "box-sizing:border-box;padding:2px 0 0 3px;color:#222;border-left:1px solid #fff8}"
    + "".join(f"#z{zoom}:checked~.lanes .wide{{width:{100 * zoom}%}}" for zoom in ZOOMS)
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
class LaneBlock:
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


@dataclass(frozen=True, slots=True)
class Time:
    """The axis of all lanes, from 0 to `end_s`, with ticks in `unit`s, of which a second has `per_s`.

    Where no time is known, steps stand for seconds.
    """

    end_s: float
    unit: str
    per_s: float

    @classmethod
    def of(cls, end_s: float) -> Time:
        """An axis of time in a unit of which there are not few."""
        return cls(end_s, "ms", 1e3) if end_s >= 1e-3 else cls(end_s, "µs", 1e6)

    def place(self, at_s: float) -> int:
        """Where a moment lies, in units of the lane."""
        return round(SPAN * min(1.0, max(0.0, at_s / self.end_s))) if self.end_s else 0

    def percent(self, at_s: float) -> str:
        """The same for HTML."""
        return f"{self.place(at_s) * 100 / SPAN:.3f}%"

    def lane(self) -> Lane:
        """The axis with its numbers."""
        axis = mark("axisX", tickSize=4, tickPadding=1, textAnchor="start", dx=2, label=None)
        body = self._drawn([axis], _AXIS_PX, marginBottom=_AXIS_PX - 1)
        return Lane(f'<div class="top">{html_text(self.unit)}</div>', body, _AXIS_PX)

    def grid(self, height_px: int) -> str:
        """Lines through all lanes at the numbers of the axis."""
        return f'<div class="grid">{self._drawn([mark("gridX")], height_px)}</div>'

    def _drawn(self, marks: Sequence[Drawn], height_px: int, **margins: int) -> str:
        return _picture(marks, height_px, x={"domain": [0, self.end_s * self.per_s or 1.0]}, **margins)


def band_lane(name: str, time: Time, spans: Iterable[Span]) -> Lane:
    """Stretches of time with their names, as far as there is width for them."""
    body = "".join(
        f'<span style="left:{time.percent(s.start)};width:{time.percent(s.end - s.start)};'
        f'background:{s.colour}" title="{_title(s.label)}">{html_text(s.text)}</span>'
        for s in spans
    )
    return Lane(f"<b>{html_text(name)}</b>", body, 18)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is drawn in a row of blocks, in units of the lane."""

    start: int
    end: int
    colour: str
    label: str
    opacity: float = 1.0


@dataclass(slots=True)
class _Cell:
    """Blocks that are too short to be drawn each."""

    label: str
    by_colour: dict[str, float] = field(default_factory=dict)
    num_blocks: int = 0

    def add(self, block: LaneBlock) -> None:
        taken = self.by_colour.get(block.colour, 0.0)
        self.by_colour[block.colour] = taken + block.end - block.start
        self.num_blocks += 1

    def drawn(self, start: int, width: int, seconds: float) -> _Shape:
        """In the colour of most of the time, the paler the less of it is filled."""
        colour = max(self.by_colour, key=lambda c: self.by_colour[c])
        shade = math.ceil(_SHADES * min(1.0, sum(self.by_colour.values()) / seconds)) / _SHADES
        label = self.label + (f"\nand {self.num_blocks - 1} more" if self.num_blocks > 1 else "")
        return _Shape(start, start + width, colour, label, shade)


def block_lanes(time: Time, rows: Sequence[tuple[str, Sequence[LaneBlock]]]) -> list[Lane]:
    """A lane for each row of blocks, of which no two overlap; `rows` are names, as HTML, and blocks."""
    num_cells = _CELLS
    while True:
        drawn = [(name, _blocks(time, blocks, num_cells)) for name, blocks in rows]
        if sum(len(shapes) for _, shapes in drawn) <= _MAX_BLOCKS or num_cells <= 500:
            return [Lane(name, _row(shapes), _BLOCK_PX) for name, shapes in drawn]
        num_cells //= 2


def _row(shapes: Sequence[_Shape]) -> str:
    marks = mark(
        "rect",
        len(shapes),
        x1=[s.start for s in shapes],
        x2=[max(s.end, s.start + 1) for s in shapes],
        fill=[s.colour for s in shapes],
        fillOpacity=[s.opacity for s in shapes],
        title=[s.label for s in shapes],
        insetTop=1,
        insetBottom=1,
    )
    return _of_lane([marks], _BLOCK_PX)


def _blocks(time: Time, blocks: Sequence[LaneBlock], num_cells: int) -> list[_Shape]:
    """Blocks that are longer than a cell each, others together with those in the same cell."""
    shapes: list[_Shape] = []
    cells: dict[int, _Cell] = {}
    width = SPAN // num_cells
    for block in blocks:
        start, end = time.place(block.start), time.place(block.end)
        if end - start > width:
            shapes.append(_Shape(start, end, block.colour, block.label))
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

    ticks = _byte_ticks(top)
    marks = [mark("ruleY", len(ticks), y=ticks, strokeOpacity=0.3)]
    moments = [at for at, _ in steps] + [SPAN]
    sizes = [values for _, values in (*steps, steps[-1])] if steps else [(0,) * len(colours)]
    for kind, shade in enumerate(colours):
        low, high = ([sum(values[:number]) for values in sizes] for number in (kind, kind + 1))
        area = {"x": moments, "y1": low, "y2": high, "curve": "step-after", "fill": shade}
        marks.append(mark("areaY", len(moments), **area))
    names = [f'<div class="top"><b>{html_text(name)}</b> {html_text(title)}']
    if limit_bytes is not None:
        names.append(f"<br>of {html_text(format_bytes(limit_bytes))}")
    names.append(f"<br>at most {html_text(format_bytes(highest))}</div>")
    places = [(t, round(height * (1 - t / top))) for t in ticks if t]
    names += [
        f'<i style="top:{y}px">{html_text(format_bytes(t))}</i>'
        for t, y in places
        if y >= _TICK_PX / 2  # a text is as high above its tick as below
    ]
    if has_line and limit_bytes is not None:
        marks.append(mark("ruleY", 1, y=[limit_bytes], stroke="#c00", strokeDasharray="6 4"))
    return Lane("".join(names), _of_lane(marks, height, y={"domain": [0, top]}), height)


def map_lane(title: str, time: Time, rectangles: Sequence[Rectangle], height: int) -> Lane:
    """Where something lies: time by place, from the bottom up."""
    top = max((r.high for r in rectangles), default=0.0) or 1.0
    starts = [time.place(r.start) for r in rectangles]
    ends = [time.place(r.end) for r in rectangles]
    marks = mark(
        "rect",
        len(rectangles),
        x1=starts,
        x2=[max(end, start + 1) for start, end in zip(starts, ends, strict=True)],
        y1=[r.low for r in rectangles],
        y2=[r.high for r in rectangles],
        fill=[r.colour for r in rectangles],
        title=[r.label for r in rectangles],
        stroke="#fff8",
        strokeWidth=0.6,
    )
    body = _of_lane([marks], height, y={"domain": [0, top]})
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
        f'<div class="lane" style="height:{lane.height_px}px">{lane.body}</div>' for lane in lanes
    )
    grid = time.grid(sum(lane.height_px for lane in lanes))
    return (
        f'<div class="zoomed">zoom {choices}<div class="lanes"><div class="names">{names}</div>'
        f'<div class="scroll"><div class="wide">{bodies}{grid}</div></div></div></div>'
    )


def _of_lane(marks: Sequence[Drawn], height_px: int, **axes: Any) -> str:
    """A picture as wide as its lane, whose axis is that of all lanes."""
    return _picture(marks, height_px, x={"domain": [0, SPAN]}, **axes)


def _picture(marks: Sequence[Drawn], height_px: int, x: dict[str, Any], **options: Any) -> str:
    return chart("", marks, height_px=height_px, axis=None, margin=0, x=x, **options)


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


def _title(label: str) -> str:
    """Lines that are shown when pointed at; names in them may hold anything."""
    return "&#10;".join(html_text(line) for line in label.split("\n"))


def _byte_ticks(top: float) -> list[int]:
    """At most five sizes, multiples of a power of two."""
    step = 1 << max(0, math.ceil(math.log2(top / 5)))
    return list(range(0, int(top) + 1, step))
