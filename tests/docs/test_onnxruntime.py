"""The page on operators of com.microsoft names those that load, and those that are refused."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.frontend.onnx.microsoft.catalog import NAMES, NATIVE, REFUSED
from tilewright.ir.ops.registry import MICROSOFT_DOMAIN, operators

PAGE = (Path(__file__).parents[2] / "docs" / "onnxruntime.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, str]:
    """Name and text of each row of the table under a title."""
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|$", section, re.MULTILINE))


def test_the_table_has_the_operators_that_load() -> None:
    assert list(rows("Supported")) == NAMES


def test_the_table_has_the_operators_that_are_refused_with_what_to_do() -> None:
    assert rows("Refused, and why") == REFUSED


def test_operators_without_a_definition_are_in_the_registry() -> None:
    known = {operator.op_type for operator in operators() if operator.domain == MICROSOFT_DOMAIN}
    assert set(NATIVE) <= known <= set(NAMES)
    assert not REFUSED.keys() & set(NAMES)
