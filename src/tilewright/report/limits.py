"""Kernels beside what the machine allows: their times with their limits, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.report.charts import chart, mark
from tilewright.report.figure import Line, Point, colour, drawn, heading, key, note, scatter
from tilewright.text.formatting import counted, format_ms
from tilewright.text.printable import printable

_ROW_PX = 20
_NAMES_PX, _TEXTS_PX = 300, 150
"""Room for the names of kernels and for what stands behind their bars."""
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
    said = f"{counted(len(kernels), 'kernel')}, {_time(total_ns)} in all"
    if len(longest) < len(kernels):
        said += f"; the {len(longest)} longest, which take {100 * shown_ns / total_ns:.0f} % of it"
    if any(k.limit_ns is not None for k in longest):
        said += ". The mark on a bar is the limit: what this machine takes at least; the thin line is how "
        said += "far runs are spread, from the tenth to the ninetieth percentile"
    parts = [heading("Time of kernels"), note(f"{said}."), bound_key([k.bound for k in longest])]
    return [*parts, drawn(_bars(longest, total_ns))]


def _bars(kernels: Sequence[TimedKernel], total_ns: float) -> str:
    most_ns = max(max(k.high_ns, k.limit_ns or 0.0) for k in kernels) or 1.0
    unit, unit_ns = ("ms", 1e6) if most_ns >= 1e6 else ("µs", 1e3)
    rows = list(range(len(kernels)))
    limits = [(row, k.limit_ns / unit_ns) for row, k in enumerate(kernels) if k.limit_ns is not None]
    ends_ns = [max(k.time_ns, k.high_ns, k.limit_ns or 0.0) for k in kernels]
    labels = [k.told for k in kernels]
    marks = [
        mark(
            "text",
            len(rows),
            y=rows,
            text=[_shortened(f"{k.id} {k.name}") for k in kernels],
            title=labels,
            frameAnchor="left",
            dx=8 - _NAMES_PX,
        ),
        mark(
            "barX",
            len(rows),
            y=rows,
            x1=0,
            x2=[k.time_ns / unit_ns for k in kernels],
            fill=[bound_colour(k.bound) for k in kernels],
            fillOpacity=0.85,
            title=labels,
        ),
        mark(
            "ruleY",
            len(rows),
            y=rows,
            x1=[k.low_ns / unit_ns for k in kernels],
            x2=[k.high_ns / unit_ns for k in kernels],
        ),
        mark(
            "tickX",
            len(limits),
            y=[row for row, _ in limits],
            x=[limit for _, limit in limits],
            strokeWidth=3,
            insetTop=-2,
            insetBottom=-2,
        ),
        mark(
            "text",
            len(rows),
            y=rows,
            x=[end_ns / unit_ns for end_ns in ends_ns],
            text=[
                _share(k, total_ns, end_ns < 0.7 * most_ns)
                for k, end_ns in zip(kernels, ends_ns, strict=True)
            ],
            textAnchor="start",
            dx=6,
        ),
    ]
    return chart(
        "time of each kernel beside its limit",
        marks,
        height_px=len(rows) * _ROW_PX + 44,
        min_width_px=_NAMES_PX + _TEXTS_PX + 220,
        x={"domain": [0, most_ns / unit_ns], "label": f"time, {unit}", "axis": "top", "grid": True},
        y={"domain": rows, "axis": None, "padding": 0.25},
        marginLeft=_NAMES_PX,
        marginRight=_TEXTS_PX,
        marginTop=38,
        marginBottom=6,
    )


def _share(kernel: TimedKernel, total_ns: float, has_room: bool) -> str:
    share = f"{_time(kernel.time_ns)}, {100 * kernel.time_ns / total_ns:.0f} %"
    if kernel.limit_ns is None or not kernel.time_ns or not has_room:
        return share
    return f"{share}, {100 * kernel.limit_ns / kernel.time_ns:.0f} % of limit"


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


def _shortened(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
