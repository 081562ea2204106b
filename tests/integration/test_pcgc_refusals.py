"""What PCGC cannot do with is one line on the command line, which names it and says what to change."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import onnx
import onnx.helper as h
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

from tilewright.cost.features import FEATURES
from tilewright.cost.learned.model import VERSION, Learned, LearnedModel
from tilewright.cost.learned.regressor import Linear, Regressor

WIDTH = len(FEATURES)
REGRESSOR = Regressor((0.0,) * WIDTH, (1.0,) * WIDTH, -1.0, 1.0, Linear((0.0,) * WIDTH, 0.0))
MODEL = LearnedModel("a310", {"time": Learned("linear", 10, 100, (REGRESSOR,))})
ENERGIES = re.compile(r"^ *(\w*_pj|pj_per_byte|static_power_w):.*\n|, *(\w*_pj|pj_per_byte): [\d.e-]+", re.M)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_net(), tmp_path / "small.onnx")
    value = h.make_tensor_value_info
    nodes = [h.make_node("Relu", ["x"], ["r"]), h.make_node("Det", ["r"], ["y"], name="volume")]
    graph = h.make_graph(nodes, "g", [value("x", 1, [3, 4, 4])], [value("y", 1, [3])])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)]), tmp_path / "det.onnx")
    (tmp_path / "costs.json").write_text(MODEL.text())
    (tmp_path / "cut.json").write_text(MODEL.text()[:300])
    (tmp_path / "later.json").write_text(replace(MODEL, version=VERSION + 1).text())
    (tmp_path / "other.json").write_text(replace(MODEL, machine="zcu102").text())
    (tmp_path / "rules.yaml").write_text("rules: {complex: {reductoin: stable}}\n")
    preset = files("tilewright.hardware").joinpath("presets/a310.yaml").read_text(encoding="utf-8")
    (tmp_path / "bare.yaml").write_text(ENERGIES.sub("", preset))
    return tmp_path


def planned(model: str, partition: str, *more: str) -> tuple[int, str]:
    command = ("plan", model, "--schedule", "sequential", "--partition", partition)
    result = tilewright(*command, *(more or ("-t", "a310")))
    return result.code, result.err


def test_what_the_refusals_are_about_is_planned_where_nothing_is_wrong(folder: Path) -> None:
    for model, partition in (("small.onnx", 'pcgc{cost="costs.json"}'), ("det.onnx", "pcgc")):
        assert planned(model, partition) == (0, "")
    assert planned("small.onnx", "pcgc", "-t", "bare.yaml") == (0, "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("small", ('pcgc{cost="cut.json"}',), r"learned model cut.json: is damaged: .*; train it again"),
        (
            "small",
            ('pcgc{cost="later.json"}',),
            rf"later.json: has version {VERSION + 1}, this program reads {VERSION}; train it again",
        ),
        ("small", ('pcgc{cost="other.json"}',), "is of machine 'zcu102', not of 'a310'; adapt it"),
        ("det", ('pcgc{cost="costs.json"}',), "Det 'volume': has no loop nests.*leave the learned model out"),
        (
            "small",
            ('pcgc{rules="rules.yaml"}',),
            "rules.yaml: rules.complex.reductoin: unknown class 'reductoin'; did you mean reduction",
        ),
        (
            "small",
            ('pcgc{limit="1ns"}', "--hint", "energy", "-t", "a310"),
            r"pcgc: time needs [\d.]+ ns but has 1. Try pcgc\{limit=[\d.]+us\} or pcgc without a limit",
        ),
        (
            "small",
            ('pcgc{limit="1pJ"}',),
            r"pcgc: energy needs [\d.e+]+ pJ but has 1. Try pcgc\{limit=[\d.]+uJ\}",
        ),
        (
            "small",
            ("pcgc", "--hint", "energy", "-t", "bare.yaml"),
            r"energy is unavailable: machine 'a310' gives no units\[\].mac_pj; add it to the machine's file",
        ),
        (
            "small",
            ('pcgc{limit="5%"}', "-t", "bare.yaml"),
            "limit bounds energy, but the cost model .* knows none; leave it out",
        ),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, model: str, arguments: tuple[str, ...], said: str) -> None:
    code, error = planned(f"{model}.onnx", *arguments)
    assert code in (2, 3)
    assert re.search(said, error), error
    assert error.count("\n") == 1
