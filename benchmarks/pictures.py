"""Pictures as SVG files for pages of the documentation, drawn as pages of reports are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.browser import running_browser

from tilewright.report.charts import chart, mark
from tilewright.report.figure import Line, colour, page

_WIDTH_PX, _HEIGHT_PX, _LINE_PX = 760, 420, 17
_RATIOS = [0.75, 1, 1.25, 1.5, 2, 3]


def write_line_chart(path: Path, x_name: str, y_name: str, lines: Sequence[Line]) -> None:
    """Lines on logarithmic axes: a straight one that rises as the dashed one does is proportional to x."""
    places = [place for line in lines for place in line.points]
    left, bottom = min(x for x, _ in places), min(y for _, y in places)
    # From the lower left corner as far as it stays inside.
    ratio = min(max(x for x, _ in places) / left, max(y for _, y in places) / bottom)
    diagonal = {"x": [left, left * ratio], "y": [bottom, bottom * ratio]}
    marks = [mark("line", 2, **diagonal, stroke="#999", strokeDasharray="6 4")]
    for number, line in enumerate(lines):
        ordered = sorted(line.points)
        points = {"x": [x for x, _ in ordered], "y": [y for _, y in ordered]}
        shade = colour(number)
        labels = [f"{line.name}: {x:.4g}, {y:.3g}" for x, y in ordered]
        marks.append(mark("line", len(ordered), **points, stroke=shade))
        marks.append(mark("dot", len(ordered), **points, r=3, fill=shade, title=labels))
        name = {"frameAnchor": "top-left", "dx": 8, "dy": 8 + 15 * number, "fill": shade}
        marks.append(mark("text", 1, **name, text=[f"\N{EM DASH} {line.name}"]))
    axes = {
        name: {"type": "log", "label": label, "grid": True, "tickFormat": ",.12~r"}
        for name, label in (("x", x_name), ("y", y_name))
    }
    axes["x"]["labelOffset"] = 36
    margins = {"inset": 10, "marginLeft": 60, "marginBottom": 46}
    drawn = chart("", marks, height_px=_HEIGHT_PX, **axes, **margins, style={"fontSize": "12px"})
    _write(path, drawn)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times longer another takes, with the interval that it is in."""

    name: str
    low: float
    median: float
    high: float


def write_ratio_chart(path: Path, label: str, ratios: Sequence[Ratio]) -> None:
    """A line for each name, the largest ratio on top: a dot, the interval through it, and what is equal."""
    ordered = sorted(ratios, key=lambda ratio: -ratio.median)
    names = [ratio.name for ratio in ordered]
    ends = {"x1": [ratio.low for ratio in ordered], "x2": [ratio.high for ratio in ordered]}
    medians = {"x": [ratio.median for ratio in ordered], "y": names}
    labels = [f"{ratio.name}: {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" for ratio in ordered]
    marks = [
        mark("ruleX", 1, x=[1], stroke="#999", strokeDasharray="6 4"),
        mark("ruleY", len(names), **ends, y=names, stroke=colour(0), strokeOpacity=0.5),
        mark("dot", len(names), **medians, r=4, fill=colour(0), title=labels),
    ]
    drawn = chart(
        "",
        marks,
        height_px=_LINE_PX * len(names) + 70,
        x={"type": "log", "label": label, "grid": True, "ticks": _RATIOS, "tickFormat": "~r"},
        y={"domain": names, "label": None},
        marginLeft=170,
        marginBottom=50,
        style={"fontSize": "12px"},
    )
    _write(path, drawn)


def _write(path: Path, drawn: str) -> None:
    """Draw in a browser, and write what it drew."""
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder) / "page.html"
        shown.write_text(page("", [f'<div style="width:{_WIDTH_PX}px">{drawn}</div>']))
        with running_browser(Path(folder) / "browser") as browser, browser.page(shown, 1280) as opened:
            opened.drawn()
            svg = opened.value("new XMLSerializer().serializeToString(document.querySelector('.chart svg'))")
    # Pages may be dark, where the letters of the picture would not be seen.
    path.write_text(svg.replace("font-size: 12px;", "font-size: 12px; background: white;", 1) + "\n")
