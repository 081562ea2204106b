"""`tw.simulate`: what may be asked, and what a result says."""

# mypy: disable-error-code="attr-defined, operator"

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw
from tilewright.api.simulation import SimulationRequest
from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset

pytestmark = pytest.mark.sampled(8)


def test_a_result_says_what_the_command_line_prints(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(small_net(), path)
    result = tw.simulate(path, recipe="graphturbo", compare=True, check=True)
    printed = tilewright(
        "simulate", path, "--recipe", "graphturbo", "--compare", "--check", "--json"
    ).document
    head = {"kind", "schema_version", "tilewright_version"}
    assert json.loads(json.dumps(result.to_json())) == {k: v for k, v in printed.items() if k not in head}
    assert result.rows()[0][0] == "0"
    assert "variant-4" in str(result)
    assert "<table>" in result._repr_html_()
    assert repr(result).startswith("SimulationResult('stcp920', ")


def test_figures_add_up_and_keep_to_the_bound() -> None:
    result = tw.simulate(small_net(), recipe="graphturbo")
    clusters = load_preset("stcp920").num_clusters
    assert result.time_s >= result.lower_bound_s > 0
    assert result.energy_j == pytest.approx(sum(result.energy_by_j.values()))
    assert result.throughput_per_s == pytest.approx(clusters / result.time_s)
    assert result.bytes["main_read"] > 0
    assert {name for s in result.subgraphs for name in s.nodes} >= {"conv1", "conv2", "classify"}


def test_timelines_and_pages_are_files(tmp_path: Path) -> None:
    result = tw.simulate(small_net(), recipe="graphturbo")
    events = json.loads(result.save_trace(tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == set(result.utilization)
    assert result.save_page(tmp_path / "p.html").read_text().count("0.0</span>") == 1


def test_models_are_taken_loaded_as_protos_and_with_an_open_batch() -> None:
    loaded = tw.simulate(tw.load(small_net()), recipe="graphturbo")
    assert loaded.time_s == tw.simulate(small_net(), recipe="graphturbo").time_s
    proto = small_net()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    four = tw.simulate(proto, batch=4, recipe="graphturbo")
    assert (four.samples_per_cluster, four.batches) == (4, ())
    assert [run.samples for run in tw.simulate(proto, batch=[3, 5], recipe="graphturbo").runs] == [3, 5]


def test_a_named_plan_keeps_the_machines_other_options() -> None:
    serial = tw.simulate(small_net(), "stcp920{overlap=none}", recipe="graphturbo").time_s
    assert serial > tw.simulate(small_net(), recipe="graphturbo").time_s
    assert tw.simulate(small_net(), "stcp920{overlap=none}", recipe="variant-3").time_s == serial


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recepi": "tvm"}, "unknown setting 'recepi'"),
        ({"recipe": "tvn"}, "expected best, search, grid, joint, graphturbo, tvm"),
        ({"recipe": "tvm", "memory": "largest-size"}, "says how to cut, order and spill"),
        ({"budget": "3trials", "recipe": "tvm"}, "with --recipe tvm there is one"),
        ({"max_latency_ms": 1.0}, "chooses among several batches"),
        ({"effort": "much"}, "expected quick, normal, best"),
        ({"effort": "best", "recipe": "tvm"}, "says how to plan; leave it out, or --recipe"),
        ({"batch": -1}, "batch -1: expected auto"),
        ({"compare": 1}, "compare: expected True or False"),
        ({"target": "cpu"}, "takes a machine"),
    ],
)
def test_a_mistake_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.UsageError) as caught:
        tw.simulate(small_net(), **settings)  # type: ignore[arg-type]  # on purpose
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_quick_plan_is_the_papers_and_more_effort_never_costs_time() -> None:
    paper = tw.simulate(small_net(), recipe="graphturbo")
    quick = tw.simulate(small_net(), effort="quick")
    assert quick.num_simulated == 1
    assert quick.num_untried > 0
    assert quick.time_s == paper.time_s
    assert tw.simulate(small_net(), effort="normal").time_s <= quick.time_s
    asked = SimulationRequest(model=small_net(), effort="best")
    assert asked.recipe == "joint"
    assert asked.budget is not None


def test_every_flag_of_the_verb_is_a_field_of_the_request() -> None:
    text = tilewright("simulate", "--help-all").out
    names = {f.name for f in dataclasses.fields(SimulationRequest)} - {"model"}
    assert all(f"--{name.removesuffix('_ms').replace('_', '-')}" in text for name in names)


def test_the_objective_is_what_the_best_plan_has_least_of() -> None:
    found = {goal: tw.simulate(small_net(), objective=goal) for goal in ("latency", "energy", "edp")}
    units = {goal: result.objective_unit for goal, result in found.items()}
    assert units == {"latency": "ns", "energy": "pJ", "edp": "pJ ns"}
    for result in found.values():
        costs = [tried.cost for tried in result.tried if tried.cost is not None]
        own = {
            "latency": result.time_s * 1e9,
            "energy": result.energy_j * 1e12 / result.num_clusters,
            "edp": result.energy_j * 1e12 / result.num_clusters * result.time_s * 1e9,
        }[result.objective]
        assert own == pytest.approx(min(costs))
    assert found["energy"].energy_j <= found["latency"].energy_j * (1 + 1e-12)
    with pytest.raises(UsageError, match="objective: expected one of latency, energy, edp"):
        tw.simulate(small_net(), objective="power")  # type: ignore[arg-type]  # on purpose
