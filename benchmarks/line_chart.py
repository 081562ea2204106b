"""Lines on logarithmic axes as an SVG file for a page of the documentation, drawn as pages of reports are."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support.browser import running_browser

from tilewright.report.charts import chart, mark
from tilewright.report.figure import Line, colour, page

_WIDTH_PX, _HEIGHT_PX = 760, 420


def write_line_chart(path: Path, x_name: str, y_name: str, lines: Sequence[Line]) -> None:
    """Draw in a browser, and write what it drew: a straight line that rises as the dashed one does is
    proportional to x."""
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
    drawn = chart(
        "", marks, height_px=_HEIGHT_PX, **axes, inset=10, marginLeft=60, style={"fontSize": "12px"}
    )
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder) / "page.html"
        shown.write_text(page("", [f'<div style="width:{_WIDTH_PX}px">{drawn}</div>']))
        with running_browser(Path(folder) / "browser") as browser, browser.page(shown, 1280) as opened:
            opened.drawn()
            svg = opened.value("new XMLSerializer().serializeToString(document.querySelector('.chart svg'))")
    path.write_text(f"{svg}\n")
