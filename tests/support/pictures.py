"""Pictures of a page as they are described to the plotting library, and a page without the library."""

from __future__ import annotations

import json
import re
from typing import Any

from tilewright.report.charts import scripts

_DESCRIPTION = re.compile(
    r'<figure class="chart"[^>]*><script type="application/json">(.*?)</script>', re.DOTALL
)

Picture = dict[str, Any]


def pictures(html: str) -> list[Picture]:
    """What each picture of a page is, in order."""
    return [json.loads(text) for text in _DESCRIPTION.findall(html)]


def marks(picture: Picture, kind: str) -> list[dict[str, Any]]:
    """The options of marks of a kind, with how many there are as `num`."""
    return [{**options, "num": number} for name, number, options in picture["marks"] if name == kind]


def own_text(html: str) -> str:
    """A page without the scripts that draw it; what is left runs no script."""
    text = html.replace(scripts(html), "")
    assert text.count("<script") == text.count("</script") == text.count('<script type="application/json"')
    return text
