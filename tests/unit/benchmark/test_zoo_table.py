"""The table of the zoo: ratios, their mean, rows of a busy machine, a page rewritten between its markers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_benchmark", ROOT / "benchmarks" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(name: str, ratio: float, *, is_busy: bool = False, error: str | None = None) -> dict[str, Any]:
    ours = {"engine": "tilewright", "version": "1", "median_ms": 2.0, "max_error": 1e-7}
    theirs: dict[str, Any] = {"engine": "peer", "version": "2", "median_ms": 2.0 * ratio, "max_error": None}
    theirs["ratio"] = {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "verdict": "faster"}
    if error is not None:
        theirs |= {"median_ms": None, "ratio": None, "error": error}
    machine = {
        "cpu_name": "p",
        "num_cores": 2,
        "busy_share_before": 0.05,
        "core_latency_before_ns": 60.0,
    }
    return {
        "model": name,
        "num_threads": 1,
        "contestants": [ours, theirs],
        "machine": machine,
        "is_busy": is_busy,
        "commit": "abc",
    }


def test_the_mean_is_geometric_and_leaves_out_rows_of_a_busy_machine(script: ModuleType) -> None:
    text = script.table([row("a", 1.0), row("b", 4.0), row("c", 100.0, is_busy=True)], ["peer"])
    assert "1 thread, 2 networks: 2.00" in text
    assert "| c * | 1 |" in text
    assert "| b | 1 | 2.00 | 1.0e-07 | 8.00 | - | 4.00 (3.90-4.10) | faster |" in text
    assert "commits abc" in text


def test_a_peer_that_fails_is_a_cell_not_a_crash(script: ModuleType) -> None:
    text = script.table([row("a", 1.0, error="peer: no kernel")], ["peer"])
    assert "| a | 1 | 2.00 | 1.0e-07 | - | - | - | peer: no kernel |" in text
    assert "Geometric mean" not in text


def test_a_page_keeps_what_is_around_the_table(script: ModuleType) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    new = script.with_table(page, "| a |\n")
    assert "<!-- table -->\n| a |\n<!-- end -->\n" in new
    assert script.with_table(new, "| b |\n") == new.replace("| a |", "| b |")
    assert new.split("<!-- end -->")[1] == page.split("<!-- end -->")[1]


def test_an_interrupted_run_goes_on_where_it_stopped(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    is_interrupted = True

    def measure(name: str, peers: list[str], num_threads: int, duration_s: float) -> dict[str, Any]:
        if name == "b" and is_interrupted:
            raise KeyboardInterrupt
        measured.append(name)
        return row(name, 1.0)

    monkeypatch.setattr(script, "measure", measure)
    arguments = ["zoo.py", "--networks", "a,b", "--threads", "1", "--peers", "peer", "--wait", "0"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--output", str(tmp_path / "out")])
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert "| a |" in (tmp_path / "out.md").read_text()
    is_interrupted = False
    script.main()
    assert measured == ["a", "b"], "each is measured once"
    assert "2 networks" in capsys.readouterr().out


def test_every_network_named_is_in_the_zoo(script: ModuleType) -> None:
    from tilewright import zoo

    assert set(script.DEFAULT_NETWORKS) <= set(zoo.names())
