"""The table of exhibits on the page for researchers: what each paper prints, and what is not reproduced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.reproduce import REPRODUCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "quickstart" / "research.md"


def numbers(text: str) -> set[str]:
    """Names of a list such as `Figures 1 to 3, 5, Table I`."""
    found: set[str] = set()
    kind = ""
    for part in text.split(", "):
        match = re.fullmatch(r"(?:(Figure|Table)s? )?(\w+)(?: to (\d+))?", part.strip())
        assert match is not None, part
        kind = match[1] or kind
        last = match[3] or match[2]
        found |= (
            {f"{kind} {last}"}
            if match[3] is None
            else {f"{kind} {n}" for n in range(int(match[2]), int(last) + 1)}
        )
    return found


@pytest.mark.parametrize("paper", REPRODUCTIONS.names())
def test_the_page_lists_what_is_not_reproduced(paper: str) -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{paper}` |"))
    _, _, count, missing, _ = (cell.strip() for cell in row.split("|"))
    printed = REPRODUCTIONS.get(paper).printed
    assert int(count) == len(printed)
    assert numbers(missing) == {one.name for one in printed if one.why_not}
