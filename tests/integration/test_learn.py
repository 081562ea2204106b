"""`tilewright learn` makes a cost model that a partitioner prices by, and says in one line why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

from tilewright import zoo
from tilewright.cli.schemas import violations

LEARNS = ("-t", "a310", "-o", "costs.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(zoo.build("squeezenet1_1", image=32), tmp_path / "one.onnx")
    onnx.save(zoo.build("mobilenet_v2", image=32), tmp_path / "two.onnx")
    onnx.save(small_net(), tmp_path / "small.onnx")
    return tmp_path


@pytest.mark.slow
def test_a_learned_model_prices_the_parts_of_a_plan(folder: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    command = ("learn", "one.onnx", "two.onnx", *LEARNS, "--samples", "kernels.jsonl", "--json")
    document = json.loads(tilewright(*command).out)
    assert violations(document) == []
    assert document["machine"] == "a310"
    assert [quantity["quantity"] for quantity in document["quantities"]] == ["time", "energy"]
    assert all(quantity["held_out"]["num_operators"] > 20 for quantity in document["quantities"])
    written = (folder / "costs.json").read_bytes(), (folder / "kernels.jsonl").read_bytes()
    tilewright(*command)  # from the samples of the file
    assert ((folder / "costs.json").read_bytes(), (folder / "kernels.jsonl").read_bytes()) == written
    plan = ("plan", "small.onnx", "--schedule", "sequential", "--partition", 'pcgc{cost="costs.json"}')
    assert "pcgc" in tilewright(*plan, "-t", "a310").out
    refused = tilewright(*plan, "-t", "jetson-nano")
    assert refused.code == 2
    assert "is of machine 'a310', not of 'jetson-nano'; adapt it to that: tilewright learn" in refused.err
    assert refused.err.count("\n") == 1
    adapted = ("learn", "two.onnx", "-t", "jetson-nano", "-o", "adapted.json", "--start", "costs.json")
    assert "too few models" in tilewright(*adapted).out
    assert tilewright(*plan[:-1], 'pcgc{cost="adapted.json"}', "-t", "jetson-nano").code == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("small.onnx", *LEARNS), "too few to learn from"),
        (("one.onnx", "-t", "null", "-o", "c.json"), "nothing is measured or simulated there"),
        (("one.onnx", *LEARNS, "--share", "0"), "share 0 of operators to measure: give more than 0"),
        (("one.onnx", *LEARNS, "--method", "magic"), "method 'magic': expected one of coreg, trees"),
        (("one.onnx", *LEARNS, "--start", "one.onnx"), "learned model one.onnx: is damaged"),
        (("one.onnx", *LEARNS, "--samples", "one.onnx"), "samples one.onnx, line 1: is damaged"),
        (
            ("one.onnx", "-o", "nowhere/c.json"),
            "its folder does not exist; create it, or give another --output",
        ),
        (
            ("one.onnx", *LEARNS, "--samples", "nowhere/k.jsonl"),
            "its folder does not exist; create it, or give another --samples",
        ),
    ],
)
def test_what_cannot_be_learned_is_one_line(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    refused = tilewright("learn", *arguments)
    assert refused.code == 2
    assert said in refused.err
    assert refused.err.count("\n") == 1
