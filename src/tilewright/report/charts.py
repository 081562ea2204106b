"""Pictures as descriptions, which a script of their page draws with Observable Plot; both are in the page.

A description is what the library takes: a page, which may be opened years later and without a network, holds
the pinned files of `libraries/` as they are, and `charts.js`, which hands each description over whenever the
width of its place changes.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.text.printable import printable_lines

_FOLDER = Path(__file__).parent
_PLOTS = ("libraries/d3.min.js", "libraries/plot.umd.min.js", "charts.js")
_GRAPHS = ("libraries/d3.min.js", "libraries/dagre.min.js", "graph_view.js")
_NEEDED = {'<figure class="chart"': _PLOTS, '<div class="graph"': _GRAPHS}
"""Scripts by what they draw; no name can hold such a tag, because names are escaped."""

Drawn = tuple[str, int | None, Mapping[str, Any]]
"""A mark of a picture: its kind, how many there are, options."""


def mark(kind: str, number: int | None = None, **options: object) -> Drawn:
    """A mark of the library, such as "dot": options that are sequences have a value for each of them.

    One without a number, as an axis, has no data.
    """
    return kind, number, options


def chart(
    label: str,
    marks: Sequence[Drawn],
    *,
    height_px: int,
    min_width_px: int = 0,
    heads: Sequence[str] = (),
    **options: Any,
) -> str:
    """A picture as HTML, its marks from the back to the front; `heads` stand above it and are HTML already.

    It is as wide as its place, but not less than `min_width_px`. Options are those of a plot of the library.
    """
    data = script_json({"ariaLabel": label or None, "height": height_px, **options, "marks": marks})
    return (
        f'{"".join(heads)}<figure class="chart" style="height:{height_px}px;min-width:{min_width_px}px">'
        f'<script type="application/json">{data}</script>'
        "<noscript>A script of this page draws this picture.</noscript></figure>"
    )


def script_json(data: object) -> str:
    """Data as the content of a script element, which no name in them can end; names are safe to show."""
    text = json.dumps(_shown(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _shown(data: Any) -> Any:
    if isinstance(data, str):
        return printable_lines(data)
    if isinstance(data, Mapping):
        return {name: _shown(value) for name, value in data.items()}
    return [_shown(value) for value in data] if isinstance(data, (list, tuple)) else data


def scripts(html: str) -> str:
    """The scripts that draw what is in a page, each once."""
    files = dict.fromkeys(name for tag, names in _NEEDED.items() if tag in html for name in names)
    return "".join(f"<script>{_script(name)}</script>\n" for name in files)


@functools.cache
def _script(name: str) -> str:
    """A file without the address of its source, which would be looked for beside the page."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"\n//# sourceMappingURL=.*\s*$", "\n", text)
