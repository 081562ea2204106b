"""The table of errors: a row for each accuracy of an instruction set; networks are folded."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("onnxruntime")
    return import_module("benchmarks.errors")


def row(network: str, engine: str, error: float | None, isa: str = "avx2") -> dict[str, Any]:
    isa = isa if engine.startswith("tilewright") else "host"
    return {"network": network, "engine": engine, "isa": isa, "error": error}


def test_a_row_for_each_accuracy_and_one_for_those_whose_errors_are_equal(script: ModuleType) -> None:
    found = [
        row("a", "onnxruntime float32", 1e-7),
        row("b", "onnxruntime float32", 2e-7),
        *(row(network, "tilewright default", 3e-7) for network in "ab"),
        *(
            row(network, f"tilewright {accuracy}", 1e-5)
            for network in "ab"
            for accuracy in ("relaxed", "fast")
        ),
        {"network": "b", "engine": "openvino float32", "isa": "host", "failure": "no such operator"},
    ]
    text = script.table(found)
    summary, networks, peers = text.split("<details")
    assert [line for line in summary.splitlines() if line.startswith("| avx2")] == [
        "| avx2 | default | 2 | 2.2, 3.0 (a) | 3.0e-07 (b) |",
        "| avx2 | relaxed, fast | 2 | 75.0, 100 (a) | 1.0e-05 (b) |",
    ]
    assert "code for avx2" in networks
    assert "| b | 2.0e-07 | - | 3.0e-07 (1.5 x) | 1.0e-05 (50.0 x) | 1.0e-05 (50.0 x) |" in networks
    assert "| b | 2.0e-07 | failed | - |" in peers
    assert text.endswith("</details>\n")


PAGE = """
tilewright at accuracy `default`, code for avx2; beside onnxruntime in float32, openvino in float32.

| network | threads | tilewright ms | faster peer / tilewright | goal |
|---|---|---|---|---|
| c * | 1 | 1.00 | 1.5 (1.4-1.6), faster | met |

| network | threads | tilewright ms | error | MB | onnxruntime ms | error | MB | openvino ms | error | MB |
|---|---|---|---|---|---|---|---|---|---|---|
| c * | 1 | 1.00 | 6.0e-07 | 222 | 1.5 | 2.0e-07 | 300 | 1.6 | - | 300 |
| c * | 2 | 0.60 | 9.0e-07 | 222 | 1.0 | 2.0e-07 | 300 | 1.1 | - | 300 |
| a | 1 | 1.00 | 9.0e-07 | 222 | 1.5 | 2.0e-07 | 300 | 1.6 | 3.0e-07 | 300 |

tilewright's code for avx2; every engine runs the same quantised file.

| network | threads | tilewright ms | error | MB | onnxruntime ms | error | MB |
|---|---|---|---|---|---|---|---|
| c | 1 | 1.00 | 8.0e-03 | 222 | 1.5 | 8.0e-03 | 300 |
"""


def test_what_was_not_measured_is_taken_from_the_pages_of_the_zoo(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE)
    measured = [row("a", "onnxruntime float32", 1e-7), row("a", "tilewright default", 1e-7)]
    found = script.with_pages(measured, [page])
    assert found[:2] == measured
    assert found[2:] == [
        {**row("c", "tilewright default", 6e-7), "base": 2e-7},
        row("c", "onnxruntime float32", 2e-7),
    ]
    assert "| avx2 | default | 2 | 2.0, 3.0 (c) | 6.0e-07 (c) |" in script.table(found)


def test_an_accuracy_that_ran_on_fewer_networks_joins_its_equal(script: ModuleType) -> None:
    found = [row(network, "tilewright relaxed", 1e-5) for network in "ab"]
    assert "| avx2 | relaxed, fast | 2 |" in script.table([*found, row("b", "tilewright fast", 1e-5)])
    assert "| avx2 | fast | 1 |" in script.table([*found, row("b", "tilewright fast", 2e-5)])
