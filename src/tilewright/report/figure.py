"""Parts of pages, one HTML file each that needs no network, and kinds of pictures that several pages have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.report.charts import Drawn, chart, mark, scripts
from tilewright.text.printable import html_text, printable

_HEIGHT_PX = 400
_INSIDE_PX = (640, 320)
"""Between the axes of a picture on a page of the usual width: what decides which names have room."""
_CHARACTER_PX = 7
_WIDE_PX = 640
"""The least width of pictures with texts of which each needs its room."""
_LONGEST_NAME = 24
_COLOURS = ("#3366aa", "#cc6633", "#449955", "#aa3377", "#777777", "#c9a227", "#55aacc")
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font-family:sans-serif;margin:2em auto;max-width:62em;padding:0 1em;overflow-wrap:anywhere}"
    # Tables and pictures that are wider than the page scroll in their place, so that the page does not.
    "table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto;overflow-wrap:normal}"
    "td,th{padding:.25em .8em;text-align:right;vertical-align:top;border-bottom:1px solid #8886}"
    "td:first-child,th:first-child,.words td,.words th{text-align:left}"
    ".drawn{overflow-x:auto;margin:1em 0}"
    ".chart{position:relative;margin:0}.chart svg{display:block;--plot-background:Canvas}"
    ".facts{display:flex;flex-wrap:wrap;gap:.5em 2.4em;margin:1em 0}.facts div{font-size:13px}"
    ".facts b{display:block;font-weight:normal;opacity:.7;font-size:11px}"
    ".key{font-size:12px;margin:.4em 0;line-height:1.7}.key span{display:inline-block;margin-right:1.1em}"
    ".key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}"
    "svg{max-width:100%;height:auto}svg text{font-family:sans-serif;font-size:12px;fill:currentColor}"
    "svg a text{text-decoration:underline}p.note{opacity:.75;max-width:46em}"
    "summary{cursor:pointer;margin:.4em 0}pre{overflow-x:auto;line-height:1.35}"
)


@dataclass(frozen=True, slots=True)
class Point:
    """A dot of a scatter plot; `label` is shown when pointed at. `anchor` is what it leads to on its page.

    `colour` is the number of one; those that are marked are large, in a colour of their own.
    """

    x: float
    y: float
    label: str
    is_marked: bool = False
    anchor: str = ""
    colour: int = 0
    radius: float = 4.0


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one colour, one for each group; None leaves a gap."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Measured points of one colour, joined from left to right: (x, y), both positive."""

    name: str
    points: tuple[tuple[float, float], ...]


def scatter(title: str, x_name: str, y_name: str, points: Sequence[Point], lines: Sequence[Line] = ()) -> str:
    """Dots on axes that are logarithmic where values differ by a decade; marked ones are large.

    `lines` are drawn behind them, with their names along them.

    Marked dots that no other marked one is below and left of are joined by a line from left to right.
    """
    ends = [end for line in lines for end in line.points]
    xs = _Scale.of([*(p.x for p in points), *(x for x, _ in ends)])
    ys = _Scale.of([*(p.y for p in points), *(y for _, y in ends)])
    marks = [part for line in lines for part in _named_line(line, xs, ys)]
    marked = sorted((p for p in points if p.is_marked), key=lambda p: (p.x, p.y))
    front = [p for n, p in enumerate(marked) if all(before.y > p.y for before in marked[:n])]
    if len(front) > 1:
        marks.append(mark("line", len(front), **_places([(p.x, p.y) for p in front]), stroke=_COLOURS[1]))
    # The library draws large dots first, so that small ones are seen on them.
    marks.append(
        mark(
            "dot",
            len(points),
            **_places([(p.x, p.y) for p in points]),
            r={"value": [6.0 if p.is_marked else p.radius for p in points], "scale": None},
            fill=[_COLOURS[1] if p.is_marked else colour(p.colour) for p in points],
            fillOpacity=0.8,
            title=[p.label for p in points],
            href=[f"#{p.anchor}" if p.anchor else None for p in points],
        )
    )
    return _plotted(title, marks, xs.axis(x_name), ys.axis(y_name))


def bar_chart(
    title: str, y_name: str, groups: Sequence[str], bars: Sequence[Bars], *, is_logarithmic: bool = False
) -> str:
    """Bars side by side for each group, with the values on top where there is room, on an axis that may be
    logarithmic."""
    shown = [(g, b, v) for b, bar in enumerate(bars) for g, v in enumerate(bar.values) if v is not None]
    values = [value for _, _, value in shown]
    scale = _Scale.of(values) if is_logarithmic else None
    if scale is None or not scale.is_logarithmic:
        scale = _Scale(0.0, max([*values, 1e-12]) * 1.1, False)
    places = {"fx": [g for g, _, _ in shown], "x": [b for _, b, _ in shown]}
    marks = [
        mark(
            "barY",
            len(shown),
            **places,
            y1=scale.low,
            y2=values,
            fill=[colour(b) for _, b, _ in shown],
            title=[f"{bars[b].name}, {groups[g]}: {value:.4g}" for g, b, value in shown],
        )
    ]
    room = _INSIDE_PX[0] / max(1, len(groups))
    if 0.8 * room / max(1, len(bars)) > 26:
        marks.append(
            mark(
                "text",
                len(shown),
                **places,
                y=values,
                text=[f"{v:.3g}" for v in values],
                lineAnchor="bottom",
                dy=-2,
            )
        )
    names = [printable(name) for name in groups]
    is_turned = max(map(len, names), default=0) * _CHARACTER_PX > room
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..." for name in names]
    turned = {"rotate": -60, "textAnchor": "end"} if is_turned else {}
    below_px = 6 * max(map(len, names), default=0) if is_turned else 0
    everywhere = {"fx": list(range(len(groups))), "frameAnchor": "bottom", "lineAnchor": "top", "dy": 8}
    marks.append(mark("text", len(groups), **everywhere, **turned, text=names, title=list(groups)))
    axes = {
        "fx": {"axis": None, "domain": list(range(len(groups))), "padding": 0.15},
        "x": {"axis": None, "domain": list(range(len(bars))), "padding": 0.04},
        "y": scale.axis(y_name),
        "marginLeft": _MARGIN_PX,
        "marginBottom": 30 + below_px,
    }
    colours = key([(colour(b), bar.name) for b, bar in enumerate(bars)])
    return chart(
        title,
        marks,
        height_px=_HEIGHT_PX + below_px,
        min_width_px=_WIDE_PX,
        heads=(_title(title), colours),
        **axes,
    )


def curves(
    title: str, x_name: str, y_name: str, lines: Sequence[Line], *, is_logarithmic: bool = True
) -> str:
    """Lines from left to right over an axis that may be logarithmic, upwards from 0; x is positive there."""
    places = [place for line in lines for place in line.points]
    across = [x for x, _ in places]
    xs = _Scale.of(across) if is_logarithmic else _Scale(0.0, max([*across, 1e-12]), False)
    ys = _Scale(0.0, max([*(y for _, y in places), 1e-12]) * 1.05, False)
    marks = [
        mark("line", len(line.points), **_places(line.points), stroke=colour(n), strokeWidth=1.8)
        for n, line in enumerate(lines)
    ]
    names = key([(colour(n), line.name) for n, line in enumerate(lines)]) if len(lines) > 1 else ""
    return _plotted(title, marks, xs.axis(x_name), ys.axis(y_name), names)


def page(title: str, parts: Sequence[str]) -> str:
    """An HTML page of parts that are HTML already, light or dark as the reader's system is.

    Parts set no colour of text or background but half transparent ones, the system's, and both together.
    """
    inside = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body>\n<h1>{html_text(title)}</h1>\n{inside}\n{scripts(inside)}</body></html>\n"
    )


def heading(text: str) -> str:
    """A heading of a page's section."""
    return f"<h2>{html_text(text)}</h2>"


def note(text: str) -> str:
    """A paragraph of a page."""
    return f'<p class="note">{html_text(text)}</p>'


def html_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, is_words: bool = False) -> str:
    """A table of a page; cells are shown as their text."""
    kind = ' class="words"' if is_words else ""
    lines = [f"<table{kind}><tr>" + "".join(f"<th>{html_text(h)}</th>" for h in heads) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html_text(str(c))}</td>" for c in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def drawn(picture: str) -> str:
    """A picture that scrolls in its place where it needs more than the width of the page."""
    return f'<div class="drawn">{picture}</div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names with what they are, side by side."""
    told = "".join(f"<div><b>{html_text(name)}</b>{html_text(value)}</div>" for name, value in rows)
    return f'<div class="facts">{told}</div>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """What colours mean: pairs of colour and name."""
    told = (f'<span><i style="background:{c}"></i>{html_text(name)}</span>' for c, name in entries)
    return f'<p class="key">{"".join(told)}</p>'


def folded(title: str, parts: Sequence[str], *, anchor: str = "", is_open: bool = False) -> str:
    """A section of a page that its title, or a link to its anchor, opens; parts are HTML already."""
    inside = "\n".join(parts)
    place = f' id="{html_text(anchor)}"' if anchor else ""
    shown = " open" if is_open else ""
    return f"<details{shown}><summary>{html_text(title)}</summary>\n<div{place}>{inside}</div>\n</details>"


def preformatted(lines: Sequence[str]) -> str:
    """Lines of a page as they are."""
    text = "\n".join(map(html_text, lines))
    return f"<pre>{text}</pre>"


def colour(number: int) -> str:
    """One of the colours of pictures."""
    return _COLOURS[number % len(_COLOURS)]


_MARGIN_PX, _BOTTOM_PX = 70, 46  # for the numbers of an axis; for those and its name


def _plotted(
    title: str, marks: Sequence[Drawn], x: dict[str, Any], y: dict[str, Any], colours: str = ""
) -> str:
    margins = {"marginLeft": _MARGIN_PX, "marginRight": 24, "marginTop": 26, "marginBottom": _BOTTOM_PX}
    x = {**x, "labelOffset": _BOTTOM_PX - 8}
    heads = [_title(title), colours]
    return chart(title, marks, height_px=_HEIGHT_PX, heads=heads, x=x, y=y, **margins)


def _title(title: str) -> str:
    return f"<b>{html_text(title)}</b>" if title else ""


def _places(points: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    return {"x": [x for x, _ in points], "y": [y for _, y in points]}


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        """A scale with room around the values, which are positive: logarithmic from a decade on, which has
        numbers enough for its axis."""
        low, high = min(values), max(values)
        margin = max((high / low) ** 0.08, 1.02)
        return cls(low / margin, high * margin, high >= 10 * low)

    def axis(self, name: str) -> dict[str, Any]:
        """The axis of a plot, with numbers in full as far as they are short."""
        is_short = 1e-4 <= self.high < 1e7
        kind = "log" if self.is_logarithmic else "linear"
        return {
            "type": kind,
            "domain": [self.low, self.high],
            "label": name or None,
            "tickFormat": ",.12~r" if is_short else ".6~g",
            "grid": True,
        }

    def place_px(self, value: float, length_px: float) -> float:
        """How far from its beginning a value lies on an axis of a length."""
        if self.is_logarithmic:
            return length_px * math.log(value / self.low) / math.log(self.high / self.low)
        return length_px * (value - self.low) / (self.high - self.low)


def _named_line(line: Line, xs: _Scale, ys: _Scale) -> list[Drawn]:
    """A dashed line with its name along it: at its end if it is level, else at its beginning."""
    (x1, y1), (x2, y2) = line.points[0], line.points[-1]
    style = {"stroke": "currentColor", "strokeOpacity": 0.55, "strokeWidth": 1.5, "strokeDasharray": "6 4"}
    marks = [mark("line", len(line.points), **_places(line.points), **style)]
    across, up = _INSIDE_PX
    length_px = math.hypot(
        xs.place_px(x2, across) - xs.place_px(x1, across), ys.place_px(y2, up) - ys.place_px(y1, up)
    )
    if length_px < (_CHARACTER_PX - 1) * len(line.name):
        return marks
    above = {"lineAnchor": "bottom", "dy": -6}
    if y1 == y2:
        place = {"x": [x2], "y": [y2], "textAnchor": "end", "dx": -4}
        return [*marks, mark("text", 1, **place, text=[line.name], **above)]
    ends = {"x": [x1], "y": [y1], "x2": [x2], "y2": [y2], "textAnchor": "start"}
    return [*marks, mark("textAlong", 1, **ends, text=[line.name], **above)]
