"""The table of the zoo: ratios, their mean, rows of a busy machine, a page rewritten between its markers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.__main__ import main as run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("benchmarks.zoo")


def row(name: str, ratio: float, *, is_busy: bool = False, error: str | None = None) -> dict[str, Any]:
    ours = {"engine": "tilewright", "version": "1", "median_ms": 2.0, "max_error": 1e-7, "peak_bytes": 5e6}
    ours["accuracy"] = "default"
    theirs: dict[str, Any] = {"engine": "peer", "version": "2", "median_ms": 2.0 * ratio, "max_error": None}
    theirs["accuracy"] = "float32"
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
        "compile_s": 1.25,
        "roofline": {
            "share": 0.875,
            "bound_share": {},
            "lost": {"Conv by matrix-3": 0.1, "between kernels": 0.02},
        },
        "measured": {"commit": "abc"},
        "accuracy": "default",
        "isa": "avx512",
    }


def test_the_mean_is_geometric_and_leaves_out_rows_of_a_busy_machine(script: ModuleType) -> None:
    text = script.tables([row("a", 1.0), row("b", 4.0), row("c", 100.0, is_busy=True)], ["peer"])
    assert "1 thread, 2 networks: 2.00" in text
    assert "| c * | 1 |" in text
    assert (
        "| b | 1 | 2.00 | 1.0e-07 | 5 | 8.00 | - | - | 4.00 (3.90-4.10) | 4.00, faster | - | 1.2 | 88 %"
        in text
    )
    assert "| 88 % | Conv by matrix-3 10 %; between kernels 2 % |" in text
    assert "commits abc" in text
    assert text.startswith("tilewright at accuracy `default`, code for avx512; beside peer in float32.")


def test_a_peer_that_fails_is_a_cell_not_a_crash(script: ModuleType) -> None:
    text = script.tables([row("a", 1.0, error="peer: no kernel")], ["peer"])
    assert "| a | 1 | 2.00 | 1.0e-07 | 5 | - | - | - | peer: no kernel | - | - | 1.2 |" in text
    assert "Geometric mean" not in text


def test_a_set_names_its_goal_and_whether_each_network_meets_it(script: ModuleType) -> None:
    fast, slow = row("resnet18", 1.7), row("resnet34", 1.5)
    text = script.tables([fast, slow], ["peer"])
    assert "at least 1.60" in text
    assert "| resnet18 | 1 | 2.00 | 1.70 (1.60-1.80), faster | met |" in text
    assert text.index("| resnet34 | 1 |") < text.index('<details markdown="1">') < text.index("</details>")
    assert "| 1.70, faster | met |" in text
    assert "| 1.50, faster | missed |" in text


def test_the_faster_of_two_peers_counts(script: ModuleType) -> None:
    both = row("resnet18", 1.7)
    both["contestants"].append({**row("resnet18", 1.2)["contestants"][1], "engine": "other"})
    text = script.tables([both], ["peer", "other"])
    assert "| 1.20, faster | missed |" in text
    assert "faster peer / tilewright, 1 thread, 1 networks: 1.20" in text


def test_a_name_may_carry_a_size(script: ModuleType) -> None:
    assert script.built("squeezenet1_1@56").graph.input[0].type.tensor_type.shape.dim[3].dim_value == 56
    assert script.built("bert_tiny@24").graph.input[0].type.tensor_type.shape.dim[1].dim_value == 24


def test_a_page_keeps_what_is_around_the_table(script: ModuleType) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    new = script.with_table(page, "| a |\n")
    assert "<!-- table -->\n| a |\n<!-- end -->\n" in new
    assert script.with_table(new, "| b |\n") == new.replace("| a |", "| b |")
    assert new.split("<!-- end -->")[1] == page.split("<!-- end -->")[1]
    two = (ROOT / "docs" / "mapping.md").read_text()
    other = script.with_table(two, "| c |\n", "network")
    assert "<!-- network -->\n| c |\n<!-- end network -->\n" in other
    assert other.split("<!-- network -->")[0] == two.split("<!-- network -->")[0]
    with pytest.raises(ValueError, match=r"has no <!-- network --> \.\.\. <!-- end network -->"):
        script.with_table(page, "| a |\n", "network")


def test_an_interrupted_run_goes_on_where_it_stopped(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    is_interrupted = True

    def measure(name: str, *arguments: Any) -> list[dict[str, Any]]:
        if name == "b" and is_interrupted:
            raise KeyboardInterrupt
        measured.append(name)
        return [row(name, 1.0)]

    monkeypatch.setattr(script, "measure", measure)
    arguments = ["zoo", "--networks", "a,b", "--threads", "1", "--peers", "peer", "--wait", "0"]
    arguments += ["--isa", "avx512"]  # of the rows
    arguments += ["--output", str(tmp_path / "out")]
    with pytest.raises(KeyboardInterrupt):
        run(arguments)
    assert "| a |" in (tmp_path / "out.md").read_text()
    is_interrupted = False
    run(arguments)
    assert measured == ["a", "b"], "each is measured once"
    assert "2 networks" in capsys.readouterr().out


def test_every_network_named_is_in_the_zoo(script: ModuleType) -> None:
    from tilewright import zoo

    named = [name.partition("@")[0] for one in (*script.SETS, script.BATCHED) for name in one.networks]
    assert set(named) <= set(zoo.names())
