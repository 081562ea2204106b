"""`tilewright reproduce ago`: figure 14 beside the paper's numbers."""

import json

import pytest
from tests.support.cli import tilewright

from tilewright.benchmark import Timing
from tilewright.cli.schemas import violations
from tilewright.frontend.onnx import load_onnx
from tilewright.reproduce.ago.ablation import PAIRS
from tilewright.reproduce.ago.latency import Job, Raced, seconds
from tilewright.reproduce.ago.measured import ablation_exhibit, latency_exhibits
from tilewright.reproduce.ago.partitions import Weighed


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], str]:
    page = tmp_path_factory.mktemp("reproduce") / "ago.html"
    result = tilewright("reproduce", "ago", "--share", "0.01", "--output", str(page), "--json")
    assert result.code == 0, result.err
    return json.loads(result.out), page.read_text()


def test_the_figure_is_there_with_both_graphs(reproduced: tuple[dict[str, object], str]) -> None:
    document, page = reproduced
    assert violations(document) == []
    exhibits = {exhibit["name"]: exhibit for exhibit in document["exhibits"]}  # type: ignore[attr-defined]
    assert list(exhibits) == ["Choices", "Figure 14"]
    rows = exhibits["Figure 14"]["rows"]
    assert len({row[0] for row in rows}) == 2
    assert len({row[1] for row in rows}) == len(rows) / 2
    assert page.count("<svg") == 1


def test_the_published_rule_comes_near_the_papers_numbers(
    reproduced: tuple[dict[str, object], str],
) -> None:
    exhibits = {exhibit["name"]: exhibit for exhibit in reproduced[0]["exhibits"]}  # type: ignore[attr-defined]
    figures = {figure["what"]: figure for figure in exhibits["Figure 14"]["figures"]}
    for what in ("subgraphs", "mean weight"):
        for who in ("AGO as published", "Relay's rule"):
            figure = figures[f"{who}: {what}"]
            assert figure["ours"] == pytest.approx(figure["paper"], rel=0.05)
    assert figures["AGO as published: Jain index"]["ours"] > 0.5
    assert figures["Relay's rule: Jain index"]["ours"] < 0.35
    assert figures["Relay's rule: two and more complex operators"]["ours"] == 0


def test_weights_are_counted_by_powers_of_two() -> None:
    weighed = Weighed((0.5, 1.0, 3.9, 4.0, 19.9, 5000.0), (0, 0, 1, 2, 2, 3))
    assert weighed.bins(5) == (2, 1, 1, 0, 2)
    assert weighed.num_trivial == 5
    assert weighed.num_complicated == 3
    assert weighed.complex_text() == "2 with 0, 1 with 1, 2 with 2, 1 with 3"
    assert Weighed((2.0, 2.0), (0, 0)).jain == 1.0


def raced(network: str, size: dict[str, int], num_threads: int, ms: dict[str, float]) -> Raced:
    """What a race would give in which everybody takes the same time in all rounds."""
    timings = {name: Timing((median,) * 9, (median,) * 9) for name, median in ms.items()}
    return Raced(Job(network, size, num_threads, seconds(60.0)), timings, {}, 1.0)


def test_races_become_figures_beside_the_papers() -> None:
    ms = {"layerwise": 4.0, "flat": 3.0, "reformer": 2.5, "AGO": 2.0, "onnxruntime": 3.0}
    races = [raced("squeezenet1_1", {"image": 56}, threads, ms) for threads in (1, 2)]
    races.append(raced("bert_tiny", {"sequence": 128}, 2, ms))
    found = {exhibit.name: exhibit for exhibit in latency_exhibits(races)}
    assert list(found) == ["Figure 10", "Figure 11", "Figure 12"]
    assert [(f.ours, f.paper) for f in found["Figure 11"].figures] == [(1.5, 1.9), (1.5, 2.6)]
    assert found["Figure 12"].rows[0][0] == "bert_tiny 128"
    assert "<svg" in found["Figure 10"].picture
    assert list(latency_exhibits([])) == []


def test_the_ablation_says_what_each_part_brings() -> None:
    ms = {"AGO": 1.0, "AGO-NI": 1.2, "AGO-NR": 1.0, "untuned": 1.1}
    exhibit = ablation_exhibit({pair: raced(pair.name, {}, 2, ms) for pair in PAIRS[:2]})
    assert [round(figure.ours or 0.0, 6) for figure in exhibit.figures] == [0.2, 0.0]
    assert [row[0] for row in exhibit.rows] == ["pw+dw B1", "dw+pw B1"]
    assert load_onnx(PAIRS[0].model()).nodes[0].op_type == "Conv"
