"""No module imports itself through another, neither in a function nor for a type."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.imports import circle, import_graph


def test_no_module_imports_itself_through_another() -> None:
    graph = import_graph()
    assert {"tilewright", "tilewright.ir.graph", "tilewright.cli.main"} <= graph.keys()
    assert "tilewright.ir.nest" in graph["tilewright.ir.derive"]
    assert circle(graph) == []


@pytest.mark.parametrize(
    "line",
    [
        "import package.a",
        "from package import a",
        "from package.a import name",
        "from . import a",
        "from .a import name",
        "def f(): from package.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.a import name",
    ],
)
def test_a_circle_is_found_however_it_is_written(line: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name, text in (("__init__", ""), ("a", "from package import b"), ("b", line)):
        (tmp_path / "package" / f"{name}.py").write_text(text)
    assert set(circle(import_graph(tmp_path))) == {"package.a", "package.b"}
