"""`tilewright reproduce ago`: figure 14 beside the paper's numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.cli import tilewright
from tests.support.pictures import pictures
from tests.support.reproductions import made

from tilewright.benchmark import Timing
from tilewright.cli.schemas import violations
from tilewright.frontend.onnx import load_onnx
from tilewright.planning import Budget
from tilewright.reproduce.ago.ablation import STACKS, Stack
from tilewright.reproduce.ago.budgets import SUBGRAPHS, Subgraph, Tuned, figure_8, tuned
from tilewright.reproduce.ago.latency import Job, Raced, Variant, compiled, seconds
from tilewright.reproduce.ago.measured import ablation_exhibit, latency_exhibit
from tilewright.reproduce.ago.partitions import Weighed
from tilewright.reproduce.ago.redundancy import figure_9, figures_6_and_7
from tilewright.reproduce.base import Basis


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], str]:
    page = tmp_path_factory.mktemp("reproduce") / "ago.html"
    result = tilewright("reproduce", "ago", "--share", "0.01", "--output", str(page), "--json")
    assert result.code == 0, result.err
    return json.loads(result.out), page.read_text()


@pytest.mark.sampled(0)
def test_the_figure_is_there_with_both_graphs(reproduced: tuple[dict[str, object], str]) -> None:
    document, page = reproduced
    assert violations(document) == []
    exhibits = {exhibit["name"]: exhibit for exhibit in document["exhibits"]}  # type: ignore[attr-defined]
    assert made(document) == ["Choices", "Figures 6 and 7", "Figure 9", "Figure 14"]
    rows = exhibits["Figure 14"]["rows"]
    assert len({row[0] for row in rows}) == 2
    assert len({row[1] for row in rows}) == len(rows) / 2
    assert len(pictures(page)) == 2


def test_what_is_computed_again_is_as_the_paper_says() -> None:
    for exhibit in (figures_6_and_7(), figure_9()):
        compared = [figure for figure in exhibit.figures if figure.paper is not None]
        assert compared
        for figure in compared:
            assert figure.ours == pytest.approx(figure.paper), figure.what


@pytest.mark.sampled(0)
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
    ms = {"layerwise": 4.0, "flat": 3.0, "AGO": 2.0, "onnxruntime": 3.0}
    two = latency_exhibit("Figure 11", [raced("squeezenet1_1", {"image": 56}, 2, ms)])
    assert [(f.ours, f.paper) for f in two.figures] == [(1.5, 1.9), (1.5, 2.6)]
    assert "2 threads" in two.title
    assert len(pictures(two.picture)) == 1
    new = latency_exhibit("Figure 12", [raced("bert_tiny", {"sequence": 128}, n, ms) for n in (2, 1)])
    assert [row[:2] for row in new.rows] == [("bert_tiny 128", "2"), ("bert_tiny 128", "1")]


def test_the_ablation_says_what_each_part_brings() -> None:
    ms = {"AGO": 1.0, "AGO-NI": 1.2, "AGO-NR": 1.0, "untuned": 1.1}
    others = {**ms, "AGO-NI": 9.0}
    races = {stack: raced(stack.name, {}, 2, ms if stack.is_papers else others) for stack in STACKS}
    exhibit = ablation_exhibit(races)
    assert [round(figure.ours or 0.0, 6) for figure in exhibit.figures] == [0.2, 0.0]
    assert {row[0] for row in exhibit.rows} == {
        f"{name} B{batch}"
        for name in ("pw+dw", "dw+pw", "pw+pw", "dw+dw", "product+product", "pw+dw+pw")
        for batch in (1, 4)
    }
    assert sum(stack.is_papers for stack in STACKS) == 8


def test_a_budget_ends_with_the_round_that_finds_what_is_as_good_as_the_best() -> None:
    rounds = ((1.2, 0.9), (0.8,), (0.75, 0.7), (0.695, 0.8))
    assert Tuned(100.0, rounds).num_until_stable == 5
    assert Tuned(100.0, ((1.1,), (1.0,))).num_until_stable == 0
    assert Tuned(100.0, ()).num_measured == 0


def test_budgets_are_shown_by_size_and_structure_beside_weights() -> None:
    found = {
        subgraph: Tuned(50.0 * number + 50.0, ((1.0,) * (number + 1), (0.5,)))
        for number, subgraph in enumerate(SUBGRAPHS)
    }
    exhibit = figure_8(found)
    figures = {figure.what: figure for figure in exhibit.figures}
    assert figures["correlation of measurements and weight"].ours == pytest.approx(1.0)
    assert figures["most weight over the least"].ours == len(SUBGRAPHS)
    assert figures["most weight over the least"].basis is Basis.COUNTED
    assert len(pictures(exhibit.picture)) == 2
    assert [row[:2] for row in exhibit.rows][:2] == [("Conv", "I32O64HW14"), ("Conv + Add", "I32O64HW14")]


@pytest.mark.parametrize("subgraph", SUBGRAPHS[:4], ids=lambda subgraph: subgraph.structure)
def test_a_subgraph_is_its_operators_in_a_row(subgraph: Subgraph) -> None:
    graph = load_onnx(subgraph.model())
    assert tuple(node.op_type for node in graph.nodes) == subgraph.operators
    assert graph.outputs[0].shape == (1, 64, 14, 14)


@pytest.mark.sampled(0)
def test_a_subgraph_is_tuned_until_its_measurements_are_spent() -> None:
    found = tuned(Subgraph(("Conv", "Add"), (4, 8, 6)), Budget(6))
    assert 0 < found.num_measured <= 6
    assert found.num_until_stable <= found.num_measured
    assert found.weight > 0


def test_what_the_user_ends_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(tuning=SimpleNamespace(is_interrupted=True))
    monkeypatch.setattr("tilewright.reproduce.ago.budgets.compile_graph", lambda *_, **__: ended)
    monkeypatch.setattr("tilewright.reproduce.ago.latency.compile_graph", lambda *_, **__: ended)
    with pytest.raises(KeyboardInterrupt):
        tuned(SUBGRAPHS[0])
    graph = load_onnx(STACKS[0].model())
    with pytest.raises(KeyboardInterrupt):
        compiled(graph, Variant("ago", "reformer"), Job("", {}, 1, Budget(1)), Path("unused"))


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_stack_is_its_operators_in_a_row(stack: Stack) -> None:
    graph = load_onnx(stack.model())
    complex_ones = {"pw": "Conv", "dw": "Conv", "product": "MatMul"}
    operators = [node.op_type for node in graph.nodes if node.op_type in complex_ones.values()]
    assert operators == [complex_ones[name] for name in stack.operators]
    assert graph.inputs[0].shape[0] == graph.outputs[0].shape[0] == stack.batch


def reproduce(*arguments: str) -> dict[str, dict[str, object]]:
    result = tilewright("reproduce", "ago", "--only", "Figure 13", "--json", *arguments)
    assert result.code == 0, result.err
    return {exhibit["name"]: exhibit for exhibit in json.loads(result.out)["exhibits"]}


def test_a_figure_is_made_alone_in_a_given_time_and_goes_on_from_what_is_kept(tmp_path: Path) -> None:
    tuned: list[str] = []

    def made(stack: Stack, job: Job) -> Raced:
        tuned.append(stack.name)
        assert job.budget.deadline_s == 70.0
        ms = {"AGO": 1.0, "AGO-NI": 1.2, "AGO-NR": 1.0, "untuned": 1.1}
        return Raced(job, {name: Timing((m,) * 9, (m,) * 9) for name, m in ms.items()}, {}, None)

    arguments = (
        "--budget",
        "44m",
        "--resume",
        str(tmp_path / "kept.jsonl"),
        "-o",
        str(tmp_path / "ago.html"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.reproduce.ago.reproduction.ablated", made)
        first = reproduce(*arguments)
        assert len(tuned) == len(STACKS)
        assert reproduce(*arguments) == first
        assert len(tuned) == len(STACKS)
    assert list(first) == ["Figure 13"]


@pytest.mark.sampled(0)
def test_a_stack_is_tuned_and_raced_by_every_variant(tmp_path: Path) -> None:
    exhibit = reproduce("--share", "0.1", "--budget", "13s", "-o", str(tmp_path / "ago.html"))["Figure 13"]
    rows = exhibit["rows"]
    assert isinstance(rows, list)
    assert [row[0] for row in rows] == ["pw+dw B1"]
    assert all(float(ms) > 0 for ms in rows[0][1:5])


def test_what_is_not_there_is_refused_in_one_line() -> None:
    for arguments, error in (
        (("ago", "--only", "Figure 5"), "ago has no exhibit 'Figure 5'"),
        (("ago", "--budget", "5trials"), "expected a time"),
        (("cosa", "--only", "Figure 1"), "makes all its exhibits"),
    ):
        result = tilewright("reproduce", *arguments)
        assert result.code == 2
        assert error in result.err
