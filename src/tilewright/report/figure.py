"""Pictures as plain SVG, and pages that hold them: one HTML file each, without scripts or network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.printable import html_text

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 34, 52
_MAX_TICKS = 10
_COLOURS = ("#3366aa", "#cc6633", "#449955", "#aa3377", "#777777", "#c9a227", "#55aacc")
_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:62em;padding:0 1em;overflow-wrap:anywhere}"
    # Tables and pictures that are wider than the page scroll in their place, so that the page does not.
    "table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto;overflow-wrap:normal}"
    "td,th{padding:.25em .8em;text-align:right;vertical-align:top;border-bottom:1px solid #8886}"
    "td:first-child,th:first-child,.words td,.words th{text-align:left}"
    ".drawn{overflow-x:auto;margin:1em 0}.drawn svg{min-width:42em}"
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


def line_chart(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """Lines on logarithmic axes: a straight one that rises as the dashed one does is proportional to x."""
    xs = _Scale.of([x for line in lines for x, _ in line.points])
    ys = _Scale.of([y for line in lines for _, y in line.points])
    body = [_frame(title, x_name, y_name), *_x_ticks(xs), *_y_ticks(ys)]
    # From the lower left corner as far as it stays inside.
    ratio = min(xs.high / xs.low, ys.high / ys.low)
    body.append(
        f'<line x1="{_x(xs, xs.low):.1f}" y1="{_y(ys, ys.low):.1f}" x2="{_x(xs, xs.low * ratio):.1f}" '
        f'y2="{_y(ys, ys.low * ratio):.1f}" stroke="#999" stroke-dasharray="6 4"/>'
    )
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(f"{_x(xs, x):.1f}", f"{_y(ys, y):.1f}", x, y) for x, y in sorted(line.points)]
        path = " ".join(f"{x},{y}" for x, y, _, _ in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        body += [
            f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}">'
            f"<title>{html_text(f'{line.name}: {at:.4g}, {value:.3g}')}</title></circle>"
            for x, y, at, value in places
        ]
        body += _key(number, line.name, room=(WIDTH - _LEFT - _RIGHT) // max(1, len(lines)))
    return _svg(body)


def scatter(title: str, x_name: str, y_name: str, points: Sequence[Point], lines: Sequence[Line] = ()) -> str:
    """Dots on logarithmic axes; marked ones are large. `lines` are drawn behind them, with their names
    along them.

    Marked dots that no other marked one is below and left of are joined by a line from left to right.
    """
    ends = [end for line in lines for end in line.points]
    xs = _Scale.of([*(p.x for p in points), *(x for x, _ in ends)])
    ys = _Scale.of([*(p.y for p in points), *(y for _, y in ends)])
    body = [_frame(title, x_name, y_name), *_x_ticks(xs), *_y_ticks(ys)]
    for line in lines:
        body += _named_line(line.name, [(_x(xs, x), _y(ys, y)) for x, y in line.points])
    marked = sorted((p for p in points if p.is_marked), key=lambda p: (p.x, p.y))
    front = [p for n, p in enumerate(marked) if all(before.y > p.y for before in marked[:n])]
    if len(front) > 1:
        path = " ".join(f"{_x(xs, p.x):.1f},{_y(ys, p.y):.1f}" for p in front)
        body.append(f'<polyline points="{path}" fill="none" stroke="{_COLOURS[1]}"/>')
    for p in points:
        radius, fill = (6.0, _COLOURS[1]) if p.is_marked else (p.radius, colour(p.colour))
        dot = (
            f'<circle cx="{_x(xs, p.x):.1f}" cy="{_y(ys, p.y):.1f}" r="{radius:g}" fill="{fill}" '
            f'fill-opacity="0.8"><title>{html_text(p.label)}</title></circle>'
        )
        body.append(f'<a href="#{html_text(p.anchor)}">{dot}</a>' if p.anchor else dot)
    return _svg(body)


def bar_chart(
    title: str, y_name: str, groups: Sequence[str], bars: Sequence[Bars], *, is_logarithmic: bool = False
) -> str:
    """Bars side by side for each group, with the values on top where there is room."""
    values = [v for b in bars for v in b.values if v is not None]
    scale = _Scale.of(values) if is_logarithmic else _Scale(0.0, max([*values, 1e-12]) * 1.1, False)
    body = [_frame(title, "", y_name), *_y_ticks(scale)]
    room = (WIDTH - _LEFT - _RIGHT) / max(1, len(groups))
    width = 0.8 * room / max(1, len(bars))
    floor = HEIGHT - _BOTTOM
    for g, group in enumerate(groups):
        start = _LEFT + g * room + 0.1 * room
        for b, bar in enumerate(bars):
            value = bar.values[g]
            if value is None:
                continue
            top = _y(scale, value)
            colour = _COLOURS[b % len(_COLOURS)]
            label = html_text(f"{bar.name}, {group}: {value:.4g}")
            body.append(
                f'<rect x="{start + b * width:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" '
                f'height="{max(0.0, floor - top):.1f}" fill="{colour}"><title>{label}</title></rect>'
            )
            if width > 26:
                body.append(
                    f'<text x="{start + (b + 0.46) * width:.1f}" y="{top - 4:.1f}" text-anchor="middle">'
                    f"{value:.3g}</text>"
                )
        body.append(_group_name(group, start + 0.4 * room, floor, room))
    for b, bar in enumerate(bars):
        body += _key(b, bar.name)
    return _svg(body)


def curves(
    title: str, x_name: str, y_name: str, lines: Sequence[Line], *, is_logarithmic: bool = True
) -> str:
    """Lines from left to right over an axis that may be logarithmic, upwards from 0; x is positive there."""
    places = [place for line in lines for place in line.points]
    across = [x for x, _ in places]
    xs = _Scale.of(across) if is_logarithmic else _Scale(0.0, max([*across, 1e-12]), False)
    ys = _Scale(0.0, max([*(y for _, y in places), 1e-12]) * 1.05, False)
    body = [_frame(title, x_name, y_name), *_x_ticks(xs), *_y_ticks(ys)]
    for number, line in enumerate(lines):
        path = " ".join(f"{_x(xs, x):.1f},{_y(ys, y):.1f}" for x, y in line.points)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(number)}" stroke-width="1.8" '
            f'stroke-linejoin="round"><title>{html_text(line.name)}</title></polyline>'
        )
    return _svg(body)


def page(title: str, parts: Sequence[str], *, follows_system: bool = False) -> str:
    """An HTML page of parts that are HTML already.

    One that follows the reader's system is light or dark; its parts set no colour of text or background but
    half transparent ones, the system's, and both together.
    """
    inside = "\n".join(parts)
    scheme = f":root{{color-scheme:light{' dark' if follows_system else ''}}}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{scheme}{_STYLE}</style></head>"
        f"<body>\n<h1>{html_text(title)}</h1>\n{inside}\n</body></html>\n"
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


def drawn(svg: str) -> str:
    """A picture that keeps a size at which it can be read, and scrolls where the page is narrower."""
    return f'<div class="drawn">{svg}</div>'


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
    text = "\n".join(lines)
    return f"<pre>{html_text(text)}</pre>"


def colour(number: int) -> str:
    """One of the colours of pictures."""
    return _COLOURS[number % len(_COLOURS)]


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        """A logarithmic scale with room around the values, which are positive."""
        low, high = min(values), max(values)
        margin = max((high / low) ** 0.08, 1.02)
        return cls(low / margin, high * margin, True)

    def place(self, value: float) -> float:
        """Where a value lies between the ends: 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values between the ends, so few that their texts have room."""
        if not self.is_logarithmic:
            step = _round_down(self.high / 5)
            return [step * i for i in range(int(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        inside = self._inside(digit * 10.0**power for power in decades for digit in (1, 2, 5))
        if len(inside) < 4:  # less than about a decade
            step = _round_down((self.high - self.low) / 4)
            return [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        if len(inside) <= _MAX_TICKS:
            return inside
        powers = self._inside(10.0**power for power in decades)
        return powers[:: math.ceil(len(powers) / _MAX_TICKS)]

    def _inside(self, values: Iterable[float]) -> list[float]:
        return [value for value in values if self.low <= value <= self.high]


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(digit for digit in (1, 2, 5) if digit * power <= value) * power


def _x(scale: _Scale, value: float) -> float:
    return _LEFT + scale.place(value) * (WIDTH - _LEFT - _RIGHT)


def _y(scale: _Scale, value: float) -> float:
    return HEIGHT - _BOTTOM - scale.place(value) * (HEIGHT - _TOP - _BOTTOM)


def _tick(value: float, digits: int) -> str:
    return f"{value:,.{digits - 3}f}" if 1000 <= value < 1e10 else f"{value:.{digits}g}"


def _told_ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Ticks with their texts, with as many digits as tell them apart."""
    values = scale.ticks()
    texts: list[str] = []
    for digits in range(3, 16):
        texts = [_tick(value, digits) for value in values]
        if len(set(texts)) == len(texts):
            break
    return list(zip(values, texts, strict=True))


def _x_ticks(scale: _Scale) -> list[str]:
    floor = HEIGHT - _BOTTOM
    return [
        f'<line x1="{_x(scale, t):.1f}" x2="{_x(scale, t):.1f}" y1="{floor}" y2="{floor + 4}" stroke="#999"/>'
        f'<text x="{_x(scale, t):.1f}" y="{floor + 18}" text-anchor="middle">{text}</text>'
        for t, text in _told_ticks(scale)
    ]


def _y_ticks(scale: _Scale) -> list[str]:
    return [
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_y(scale, t):.1f}" y2="{_y(scale, t):.1f}" '
        f'stroke="#8884"/><text x="{_LEFT - 6}" y="{_y(scale, t) + 4:.1f}" text-anchor="end">'
        f"{text}</text>"
        for t, text in _told_ticks(scale)
    ]


def _named_line(name: str, places: Sequence[tuple[float, float]]) -> list[str]:
    """A dashed line with its name along it: at its end if it is level, else at its beginning."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    body = [
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-opacity="0.55" '
        f'stroke-width="1.5" stroke-dasharray="6 4"><title>{html_text(name)}</title></polyline>'
    ]
    (x1, y1), (x2, y2) = places[0], places[-1]
    if math.hypot(x2 - x1, y2 - y1) >= 6 * len(name):
        x, y, anchor = (x2, y2, "end") if y1 == y2 else (x1, y1, "start")
        turn = math.degrees(math.atan2(y2 - y1, x2 - x1))
        body.append(
            f'<text x="{x:.1f}" y="{y:.1f}" dx="{-4 if anchor == "end" else 4}" dy="-4" '
            f'text-anchor="{anchor}" transform="rotate({turn:.1f} {x:.1f} {y:.1f})">{html_text(name)}</text>'
        )
    return body


def _group_name(name: str, x: float, floor: float, room: float) -> str:
    text = html_text(name)
    if len(name) * 7 < room:
        return f'<text x="{x:.1f}" y="{floor + 18:.1f}" text-anchor="middle">{text}</text>'
    turn = f"rotate(-35 {x:.1f} {floor + 14:.1f})"
    return f'<text x="{x:.1f}" y="{floor + 14:.1f}" text-anchor="end" transform="{turn}">{text}</text>'


def _frame(title: str, x_name: str, y_name: str) -> str:
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    return (
        f'<path d="M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}" fill="none" stroke="#8888"/>'
        f'<text x="{_LEFT}" y="14" font-weight="bold">{html_text(title)}</text>'
        f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html_text(x_name)}</text>'
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"{html_text(y_name)}</text>"
    )


def _key(number: int, name: str, room: int = 150) -> list[str]:
    """The name of a colour, above the picture, in rows."""
    row, place = divmod(number, (WIDTH - _LEFT - _RIGHT) // room)
    x, y, colour = _LEFT + 10 + place * room, _TOP + 16 * row, _COLOURS[number % len(_COLOURS)]
    return [
        f'<rect x="{x}" y="{y - 12}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{x + 15}" y="{y - 3}">{html_text(name)}</text>',
    ]


def _svg(body: Sequence[str]) -> str:
    inside = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}">\n{inside}\n</svg>'
    )
