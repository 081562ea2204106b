"""`tw.map`: what may be asked, and what a result says."""

# mypy: disable-error-code="arg-type, attr-defined"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import tilewright
from tests.support.models import small_net

import tilewright as tw
from tilewright.api.mapping import MapRequest
from tilewright.hardware.presets import load_preset
from tilewright.loops.problem import layer
from tilewright.mapping import results
from tilewright.mapping.cases import load_cases

EXAMPLES = Path(__file__).parents[1] / "data" / "mapping" / "timeloop_examples.json"


def test_a_result_says_what_the_command_line_prints() -> None:
    result = tw.map("1_14_64_64_1", "simba-cosa-repo", mapper="cosa")
    (ours,) = result.to_json()["layers"]
    (printed,) = tilewright("map", "1_14_64_64_1", "--mapper", "cosa", "--json").document["layers"]
    assert {**ours, "seconds": 0} == {**printed, "seconds": 0}
    json.dumps(result.to_json())
    assert result.rows()[0][0] == "1_14_64_64_1"
    assert "1_14_64_64_1" in str(result)
    assert "<table>" in result._repr_html_()
    assert repr(result).startswith("MapResult('simba-cosa-repo', 1 layers, ")


def test_layers_machines_and_models_are_taken_as_objects_too() -> None:
    machine = load_preset("simba-cosa-repo")
    written = tw.map("1_14_64_64_1", mapper="cosa")
    assert tw.map(layer("1_14_64_64_1"), machine, mapper="cosa").total.cycles == written.total.cycles
    model = tw.load(small_net())
    result = tw.map([model, "1_14_64_64_1"], mapper="cosa")
    assert [item.operator for item in result.layers] == ["Conv", "Conv", "Gemm", None]
    assert result.total.streamed_cycles == sum(node.cycles for node in result.streamed) > 0


def test_a_seed_gives_the_same_mapping_again() -> None:
    def cycles(seed: int) -> int:
        return tw.map("1_14_64_64_1", mapper="random", seed=seed, budget="3trials").total.cycles

    assert cycles(5) == cycles(5)
    assert len({cycles(seed) for seed in range(4)}) > 1


def test_variants_and_given_mappings_are_results_of_their_kinds() -> None:
    sweep = tw.map("1_1_4_4_1", sweep=["levels.AccumulationBuffer.capacity_bytes=2,192"], mapper="cosa")
    assert [variant.total is None for variant in sweep.variants] == [True, False]
    assert [variant.is_best for variant in sweep.variants] == [False, True]
    cases = load_cases(EXAMPLES)[:2]
    given = tw.map(evaluate=cases)
    assert [case.id for case in given.cases] == [case.id for case in cases]
    assert tw.map(evaluate=EXAMPLES).cases[0].summary == given.cases[0].summary


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mappper": "cosa"}, "unknown setting 'mappper'"),
        ({"objective": "delay"}, "objective: expected one of latency, energy, edp, found 'delay'"),
        ({"budget": 3}, "budget: expected"),
        (
            {"sweep": ["levels.DRAM.read_pj=1"], "evaluate": EXAMPLES},
            "--sweep has no effect beside --evaluate",
        ),
        ({"budget": "3s", "evaluate": EXAMPLES}, "--budget has no effect beside --evaluate"),
        ({"constraints": ["weight-stationary"], "evaluate": EXAMPLES}, "--constrain has no effect beside"),
        ({"sweep": ["levels.DRAM.read_pj=1"], "noc": True}, "--noc has no effect beside --sweep"),
        (
            {"sweep": ["levels.DRAM.read_pj=1"], "export_timeloop": "x"},
            "--export-timeloop has no effect beside",
        ),
        ({"plot": "none/map.html"}, "none/map.html: cannot be written (No such file or directory)"),
        ({"machine": "k80", "noc": True, "mapper": "cosa"}, "noc: blocks of threads on k80"),
        ({"machine": "k80", "export_timeloop": "x"}, "export-timeloop: Timeloop's files cannot say"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(tw.UsageError) as caught:
        tw.map("3_56_64_64_1", **settings)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_request_is_a_value() -> None:
    assert MapRequest(work=("1_1_1_1_1",)) == MapRequest(work=["1_1_1_1_1"], machine="simba-cosa-repo")


def test_every_energy_says_where_it_comes_from() -> None:
    result = tw.map("1_1_4_4_1", mapper="cosa")
    assert result.lines()[-1] == f"energies, estimated: {result.energy_source}"
    assert result.energy_source.startswith("model:simba-cosa-repo (")
    assert results.energy_text(2e6, result.energy_source) == "2.00 µJ"
    assert results.energy_text(0.0, "unavailable: machine 'mine' gives no read energy") == "-"
