"""Choices go through JSON unchanged, and nothing else becomes one."""

from __future__ import annotations

import json

import pytest

from tilewright.tuning import Choice


def test_a_choice_survives_json() -> None:
    choice = Choice.of("contraction", rows=8, vectors=3, row_parts=2)
    assert Choice.from_json(json.loads(json.dumps(choice.to_json()))) == choice
    assert choice.get("vectors") == 3
    assert choice.get("tile") is None


@pytest.mark.parametrize(
    "document",
    [None, [], "x", {}, {"template": 1}, {"template": "x", "rows": "8"}, {"template": "x", "n": True}],
)
def test_anything_else_is_none(document: object) -> None:
    assert Choice.from_json(document) is None
