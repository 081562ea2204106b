"""Kernels beside what the machine allows: their times with their limits, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.formatting import format_ms
from tilewright.printable import html_text
from tilewright.report.figure import Line, Point, colour, drawn, heading, key, note, scatter

_WIDTH, _ROW, _TOP = 860, 20, 26
_NAME, _BAR, _END = 8, 300, 720
"""Where names, bars, and the text behind the longest bar begin."""
_MAX_ROWS = 60
_MAX_DOTS = 2_000
_CHARACTERS = 42
_BOUNDS = {
    "compute": (0, "bound by arithmetic"),
    "memory": (1, "bound by memory"),
    "overhead": (3, "held back by overheads"),
    "host": (4, "on the host"),
    "estimate": (6, "by estimate"),
}


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel with its time; `limit_ns` is the least that the machine could take, where that is known.

    `low_ns` and `high_ns` say how far its time is spread. `bound` is what holds it back.
    """

    id: str
    name: str
    time_ns: float
    low_ns: float
    high_ns: float
    limit_ns: float | None
    bound: str
    flop: int = 0
    size_bytes: int = 0

    @property
    def told(self) -> str:
        """All of it, as what is shown when pointed at."""
        limit = "" if self.limit_ns is None else f", at least {_time(self.limit_ns)}"
        work = f"; {self.flop:,} operations, {self.size_bytes:,} bytes" if self.flop else ""
        return f"{self.id} {self.name}: {_time(self.time_ns)}{limit}{work}; {bound_name(self.bound)}"


def bound_name(bound: str) -> str:
    """What holds a kernel back, in words."""
    return _BOUNDS[bound][1] if bound in _BOUNDS else bound


def bound_colour(bound: str) -> str:
    """The colour of such kernels in all pictures."""
    return colour(_BOUNDS[bound][0] if bound in _BOUNDS else 5)


def bound_key(bounds: Sequence[str]) -> str:
    """What the colours mean, of those that there are."""
    return key([(bound_colour(bound), bound_name(bound)) for bound in _BOUNDS if bound in bounds])


def times_section(kernels: Sequence[TimedKernel]) -> list[str]:
    """The longest kernels: a bar each for its time, with a mark at its limit."""
    longest = sorted(kernels, key=lambda k: -k.time_ns)[:_MAX_ROWS]
    total_ns = sum(k.time_ns for k in kernels)
    if not longest or not total_ns:
        return []
    shown_ns = sum(k.time_ns for k in longest)
    said = f"{len(kernels)} kernels, {_time(total_ns)} in all"
    if len(longest) < len(kernels):
        said += f"; the {len(longest)} longest, which take {100 * shown_ns / total_ns:.0f} % of it"
    if any(k.limit_ns is not None for k in longest):
        said += ". The mark on a bar is the limit: what this machine takes at least; the thin line is how "
        said += "far runs are spread, from the tenth to the ninetieth percentile"
    parts = [heading("Time of kernels"), note(f"{said}."), bound_key([k.bound for k in longest])]
    return [*parts, drawn(_bars(longest, total_ns))]


def _bars(kernels: Sequence[TimedKernel], total_ns: float) -> str:
    most_ns = max(max(k.high_ns, k.limit_ns or 0.0) for k in kernels) or 1.0
    scale = (_END - _BAR) / most_ns
    body = [_text(_NAME, 14, "kernel", "bold"), _text(_BAR, 14, "time", "bold")]
    for row, kernel in enumerate(kernels):
        top = _TOP + row * _ROW
        body.append(f"<g><title>{html_text(kernel.told)}</title>")
        body.append(_text(_NAME, top + 13, _shortened(f"{kernel.id} {kernel.name}")))
        body.append(
            f'<rect x="{_BAR}" y="{top + 3}" width="{max(kernel.time_ns * scale, 1):.1f}" '
            f'height="{_ROW - 6}" fill="{bound_colour(kernel.bound)}" fill-opacity="0.85"/>'
        )
        low, high = (_BAR + ns * scale for ns in (kernel.low_ns, kernel.high_ns))
        middle = top + _ROW / 2
        body.append(_stroke(low, middle, high, middle, 1))
        of_limit = ""
        if kernel.limit_ns is not None:
            at = _BAR + kernel.limit_ns * scale
            body.append(_stroke(at, top + 1, at, top + _ROW - 1, 3))
            of_limit = f", {100 * kernel.limit_ns / kernel.time_ns:.0f} % of limit" if kernel.time_ns else ""
        share = f"{_time(kernel.time_ns)}, {100 * kernel.time_ns / total_ns:.0f} %"
        place = max(kernel.time_ns, kernel.high_ns, kernel.limit_ns or 0.0) * scale + _BAR + 6
        body.append(_text(min(place, _END + 6), top + 13, share if place > _END - 90 else share + of_limit))
        body.append("</g>")
    return _picture(body, _TOP + len(kernels) * _ROW + 6, "time of each kernel beside its limit")


def roofline_section(
    kernels: Sequence[TimedKernel],
    flop_per_s: Mapping[str, float],
    bytes_per_s: Mapping[str, float],
    explained: str,
) -> list[str]:
    """Operations per byte and per second of kernels, under the roofs of units and of places of data."""
    counted = [k for k in kernels if k.flop and k.size_bytes and k.time_ns]
    counted = sorted(counted, key=lambda k: -k.time_ns)[:_MAX_DOTS]
    if not counted:
        return []
    total_ns = sum(k.time_ns for k in counted)
    dots = [
        Point(
            k.flop / k.size_bytes,
            k.flop / k.time_ns,
            k.told,
            colour=_BOUNDS[k.bound][0] if k.bound in _BOUNDS else 5,
            radius=round(3 + 12 * (k.time_ns / total_ns) ** 0.5, 1),
        )
        for k in counted
    ]
    roofs = _roofs(dots, flop_per_s, bytes_per_s)
    return [
        heading("Roofline"),
        note(f"{explained} The larger a dot, the longer its kernel."),
        bound_key([k.bound for k in counted]),
        drawn(scatter("kernels under the machine's roofs", "operations per byte", "GFLOP/s", dots, roofs)),
    ]


def _roofs(
    dots: Sequence[Point], flop_per_s: Mapping[str, float], bytes_per_s: Mapping[str, float]
) -> list[Line]:
    """Flat ones of units, from where the fastest place of data feeds them; rising ones up to the highest."""
    low, high = min(d.x for d in dots) / 2, max(d.x for d in dots) * 2
    peak = max(flop_per_s.values()) / 1e9
    fastest = max(bytes_per_s.values()) / 1e9
    high = max(high, 2 * peak / min(r / 1e9 for r in bytes_per_s.values()))
    lines = []
    for name, rate in flop_per_s.items():
        roof = rate / 1e9
        start = min(max(low, roof / fastest), high)
        lines.append(Line(f"{name}, {roof:,.0f} GFLOP/s", ((start, roof), (high, roof))))
    for name, rate in bytes_per_s.items():
        speed = rate / 1e9
        # Of a place that feeds every unit from the first dot on nothing is seen.
        end = max(min(high, peak / speed), low)
        lines.append(Line(f"{name}, {speed:,.0f} GB/s", ((low, low * speed), (end, end * speed))))
    return lines


def _time(time_ns: float) -> str:
    return format_ms(time_ns / 1e6)


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{html_text(text)}</text>'


def _stroke(x1: float, y1: float, x2: float, y2: float, width: int) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-width="{width}"/>'
    )


def _picture(body: Sequence[str], height: int, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{html_text(label)}">\n' + "\n".join(body) + "\n</svg>"
    )
