"""`tilewright reproduce pcgc`: its tables in its units, its rules and examples, its claims recomputed."""

import json
import re

import pytest
from tests.support.cli import tilewright
from tests.support.pictures import pictures
from tests.support.reproductions import made

from tilewright.cli.schemas import violations
from tilewright.ir.derive import OperatorClass
from tilewright.reproduce.pcgc import exhibits
from tilewright.reproduce.pcgc.examples import Example, examples
from tilewright.reproduce.pcgc.paper import A310, BOARDS, NANO, ZCU102, mean
from tilewright.reproduce.pcgc.runs import (
    BEST,
    BEST_TIME,
    GRAPHTURBO,
    PCGC,
    RELAY,
    RELAY_SIDE_BY_SIDE,
    STATIC,
    WITHIN,
    PcgcJob,
    outcome,
    speeds,
)


@pytest.fixture(scope="module")
def drawn() -> list[Example]:
    return list(examples())


def of(found: list[Example], name: str, machine: str) -> Example:
    return next(e for e in found if e.name == name and e.machine == machine)


@pytest.mark.sampled(0)
def test_example_1_is_one_subgraph_on_every_machine(drawn: list[Example]) -> None:
    assert {len(e.subgraphs) for e in drawn if e.name == "1"} == {1}


@pytest.mark.sampled(0)
def test_example_2_ends_differently_on_two_machines(drawn: list[Example]) -> None:
    assert of(drawn, "2", "jetson-nano").subgraphs == ("CONV1", "CONV2")
    assert of(drawn, "2", "a310").subgraphs == ("CONV1-CONV2",)


@pytest.mark.sampled(0)
def test_example_3_fuses_branches_and_leaves_the_join_alone(drawn: list[Example]) -> None:
    assert set(of(drawn, "3 and 5", "a310").subgraphs) == {
        "CONV1a-RELU.CONV1a",
        "CONV1b-RELU.CONV1b-CONV3-RELU.CONV3",
        "CONV1c-RELU.CONV1c-CONV5-RELU.CONV5",
        "MaxPool3-CONV1d-RELU.CONV1d",
        "Concat",
    }


@pytest.mark.sampled(0)
def test_example_4_inside_an_operator_takes_the_sum_on_one_unit_and_the_longest_on_four(
    drawn: list[Example],
) -> None:
    inside = [re.findall(r"[\d.]+(?= us)", e.said) for e in drawn if e.name == "4, inside"]
    (on_one, total, _), (on_four, _, longest) = (map(float, numbers) for numbers in inside)
    assert on_one == pytest.approx(total, rel=0.01)
    assert on_four == pytest.approx(longest, rel=0.01)
    assert longest < 0.6 * total


def test_the_papers_claims_are_recomputed_from_its_own_tables() -> None:
    gains = {board.name: 100 * mean(board.power_gains()) for board in (NANO, A310, ZCU102)}
    assert gains == pytest.approx({"Jetson nano": 69.6, "Atlas 200DK (A310)": 79.6, "ZCU102": 55.5}, abs=0.05)
    assert all(abs(gains[board.name] - 100 * board.claimed) > 5 for board in BOARDS)
    for board in BOARDS:
        for row in board.rows:
            assert len(row.times_ms) == len(row.powers_w) == len(board.planners)


def test_the_rule_table_has_a_row_and_a_column_for_each_class() -> None:
    table = exhibits.rules()
    assert len(table.rows) == len(OperatorClass)
    assert {len(row) for row in table.rows} == {len(table.heads)}


def test_cut_again_a_network_takes_no_more_than_static_fusion_or_a_default() -> None:
    found = outcome(PcgcJob("a chain", "resnet18_tailor", "a310", (16, 8)))
    plans = found.plans
    for other in (STATIC, RELAY, GRAPHTURBO, PCGC):
        assert plans[BEST].energy_mj <= plans[other].energy_mj * 1.03
        assert plans[BEST_TIME].time_ms <= plans[other].time_ms * 1.03
    assert plans[PCGC].energy_mj <= plans[STATIC].energy_mj * 1.001
    assert plans[WITHIN].time_ms <= plans[BEST_TIME].time_ms * 1.08
    assert found.cuts["energy"]["static-fusion"].whole == plans[STATIC]
    assert found.cuts["energy"]["static-fusion"].greedy == plans[PCGC]
    for cut in found.cuts["energy"].values():
        assert cut.exact.energy_mj <= cut.greedy.energy_mj * 1.001 <= cut.whole.energy_mj * 1.002
    for cut in found.cuts["latency"].values():
        assert cut.exact.time_ms <= cut.greedy.time_ms * 1.001 <= cut.whole.time_ms * 1.002
    assert found.least_ms <= plans[BEST_TIME].time_ms
    assert found.checked.num_missed <= found.checked.num_exact <= found.checked.num_clusters
    assert [time for time, _ in found.frontier] == sorted(time for time, _ in found.frontier)
    assert [energy for _, energy in found.frontier] == sorted((e for _, e in found.frontier), reverse=True)


def test_figure_13_compares_plans_of_one_network() -> None:
    plans = speeds(PcgcJob("a chain", "resnet18_tailor", "v100{dtype=float32}", (16, 8)))
    (figure, *_) = exhibits.speedups({"a chain": plans}).figures
    assert figure.what == "a chain: Relay's rule, side by side over Relay's rule"
    assert figure.ours == pytest.approx(plans[RELAY].time_ms / plans[RELAY_SIDE_BY_SIDE].time_ms)
    assert plans[PCGC].time_ms <= plans[RELAY].time_ms


@pytest.mark.slow
def test_every_exhibit_is_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    page = tmp_path_factory.mktemp("reproduce") / "pcgc.html"
    result = tilewright("reproduce", "pcgc", "--share", "0.01", "--output", str(page), "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert violations(document) == []
    names = set(made(document))
    assert {*(f"Table {n}" for n in range(1, 7)), "Figure 4", "Figures 8 to 12", "Figure 13"} <= names
    assert {"Re-cutting for energy", "Sources of the gain in time", "This processor"} <= names
    assert len(pictures(page.read_text())) == 2
