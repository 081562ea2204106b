"""`tilewright reproduce ios`: exhibits on one network, and what they must show of the described machines."""

# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.cli import tilewright
from tests.support.pictures import pictures
from tests.support.reproductions import made

from tilewright.benchmark.statistics import Timing
from tilewright.cli.schemas import violations
from tilewright.reproduce.in_turns import measured
from tilewright.reproduce.ios.complexity import figure_5, figure_13
from tilewright.reproduce.ios.drawing import stages_drawn
from tilewright.reproduce.ios.example import Example, example, example_block, figure_2, figure_8, held
from tilewright.reproduce.ios.exhibits import figure_6_here
from tilewright.reproduce.ios.frameworks import by_node_ns, frameworks_here
from tilewright.reproduce.ios.paper import FIGURE_1
from tilewright.reproduce.ios.runs import (
    BOTH,
    GREEDY,
    MERGE,
    MOLDABLE,
    PARALLEL,
    SCHEDULES,
    SEQUENTIAL,
    IosJob,
    IosOutcome,
    PlannedStage,
    Transfer,
    outcome,
    problem_of_model,
    transferred,
)
from tilewright.reproduce.ios.trends import convolutions, figure_1
from tilewright.reproduce.ios.tuned import tuned_kernels
from tilewright.schedule.base import single


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = tmp_path_factory.mktemp("reproduce") / "ios.html"
    arguments = ("--share", "0.25", "--processes", "1", "--output", str(page), "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.reproduce.ios.reproduction._THREADS", ())
        result = tilewright("reproduce", "ios", *arguments)
    assert result.code == 0, result.err
    text = page.read_text()
    assert len(pictures(text)) + text.count('class="drawn stages"') >= 5
    found: dict[str, Any] = json.loads(result.out)
    return found


@pytest.mark.slow
def test_every_exhibit_is_there(document: dict[str, Any]) -> None:
    assert violations(document) == []
    numbers = (1, 2, 5), (6, 7, 8), (10, 11, 12, 13, 14, 15, 16)
    first, second, third = ([f"Figure {number}" for number in part] for part in numbers)
    assert made(document) == [
        *(*first, "Table 1", "Table 2"),
        *(second[0], "Figure 6 on k80", *second[1:], "Table 3", *third),
    ]


@pytest.mark.slow
def test_counts_are_the_papers(document: dict[str, Any]) -> None:
    exhibits = document["exhibits"]
    assert isinstance(exhibits, list)
    figures = {figure["what"]: figure for exhibit in exhibits for figure in exhibit["figures"]}
    for what in ("SqueezeNet, transitions", "SqueezeNet, operators"):
        assert figures[what]["ours"] == figures[what]["paper"]


@pytest.fixture(scope="module")
def squeezenet() -> IosOutcome:
    return outcome(IosJob("ios_squeezenet", "v100", 1))


@pytest.fixture(scope="module")
def inception() -> IosOutcome:
    return outcome(IosJob("ios_inception_v3", "v100", 1, (SEQUENTIAL, GREEDY, MERGE, PARALLEL, BOTH)))


@pytest.mark.sampled(0)
def test_schedules_are_in_the_papers_order(squeezenet: IosOutcome, inception: IosOutcome) -> None:
    """Figure 6: greedy gains on Inception, less than parallel stages; IOS-Both is the best of the paper's."""
    for found in (squeezenet, inception):
        times = {name: planned.time_ns for name, planned in found.schedules.items()}
        assert times[BOTH] <= min(times[MERGE], times[PARALLEL]) < times[SEQUENTIAL]
        assert found.gain() > 1.1
        assert found.schedules[BOTH].is_proven
    assert squeezenet.gain(GREEDY) < squeezenet.gain(MERGE)
    assert squeezenet.gain(MERGE) > 1
    assert squeezenet.schedules[MOLDABLE].time_ns <= squeezenet.schedules[BOTH].time_ns
    assert inception.gain(PARALLEL) > inception.gain(GREEDY) > inception.gain(MERGE) > 1.1


@pytest.mark.sampled(0)
def test_greedy_loses_on_squeezenet(squeezenet: IosOutcome) -> None:
    """Figure 6, the paper's reason for not starting all that is ready."""
    assert squeezenet.gain(GREEDY) < 1


@pytest.mark.slow
def test_the_gain_falls_with_the_batch_and_with_the_machine(inception: IosOutcome) -> None:
    few = (SEQUENTIAL, BOTH)
    more = outcome(IosJob("ios_inception_v3", "v100", 8, few))
    most = outcome(IosJob("ios_inception_v3", "v100", 32, few))
    assert inception.gain() > more.gain() > most.gain() >= 1
    smaller = outcome(IosJob("ios_inception_v3", "k80", 1, few))
    assert 1 < smaller.gain() < inception.gain()


@pytest.mark.sampled(0)
def test_a_schedule_loses_where_it_was_not_made_for(squeezenet: IosOutcome) -> None:
    other = outcome(IosJob("ios_squeezenet", "k80", 1, (BOTH,)))
    for machine, own, foreign in (("v100", squeezenet, other), ("k80", other, squeezenet)):
        plans = {"own": own.schedules[BOTH], "foreign": foreign.schedules[BOTH]}
        times = {k: sum(t) for k, t in transferred(Transfer("ios_squeezenet", machine, 1, plans)).items()}
        assert times["own"] == pytest.approx(plans["own"].time_ns)
        assert times["foreign"] > times["own"]


@pytest.fixture(scope="module")
def block() -> Example:
    return example()


@pytest.mark.sampled(0)
def test_the_example_keeps_more_multiprocessors_at_work_by_ios_than_one_by_one(block: Example) -> None:
    """Figures 2 and 8: the order of the schedules in time, utilisation and multiprocessors is the paper's."""
    two = {figure.what: figure for figure in figure_2(block).figures}
    for unit, is_better in (("ms", float.__lt__), ("utilisation in %", float.__gt__)):
        values = [two[f"{name}, {unit}"].ours for name in (BOTH, GREEDY, SEQUENTIAL)]
        assert is_better(values[0], values[1])
        assert is_better(values[1], values[2])
    best = two[f"{BOTH}, ms"]
    assert best.ours == pytest.approx(best.paper, rel=0.1)
    eight = figure_8(block)
    gain = eight.figures[0]
    assert gain.ours is not None
    assert gain.ours > 1.3
    assert all(0 < float(row[3]) <= 80 for row in eight.rows)
    assert len(pictures(eight.picture)) == 1


def test_a_stage_that_merges_holds_what_its_one_kernel_does() -> None:
    problem = problem_of_model(example_block(32, 8), "v100")
    names = [subgraph.nodes[0].name for subgraph in problem.partition.subgraphs]
    members = tuple(i for i, name in enumerate(names) if name.split(".")[1] in "acd")
    alone = problem.stage(single(members[0])).time_ns
    stage = PlannedStage((members,), True, alone)
    assert 0 < held(problem, stage) <= 1.5


def test_the_search_is_as_large_as_the_paper_draws_and_proves() -> None:
    for exhibit in (figure_5(), figure_13()):
        for figure in exhibit.figures:
            assert figure.paper in (None, figure.ours), figure.what
    assert len(pictures(figure_13().picture)) == 1


def test_computation_of_convolutions_is_counted_from_their_nests() -> None:
    found = {network: convolutions("squeezenet1_1") for _, _, network, _ in FIGURE_1}
    (squeezenet,) = set(found.values())
    assert squeezenet.count == 26
    assert squeezenet.mflop_each == pytest.approx(2 * 349.15 / 26, rel=0.01)
    exhibit = figure_1(found)
    peaks = {figure.what: figure for figure in exhibit.figures if "peak" in figure.what}
    peak = peaks["v100, peak in float32, Tflop/s"]
    assert peak.ours == pytest.approx(peak.paper, rel=0.01)


def test_tuned_kernels_are_mapped_once_for_equal_layers() -> None:
    problem = problem_of_model(example_block(8, 8), "k80")
    found = tuned_kernels(problem)
    assert found.num_kernels == 2, "a and c are alike, and b and d"
    launches_ns = 4 * problem.machine.overheads.kernel_launch_ns
    assert found.time_ns > launches_ns


@pytest.mark.sampled(0)
def test_kernels_of_single_operators_take_longer_than_units() -> None:
    job = IosJob("ios_squeezenet", "v100", 1, (SEQUENTIAL,))
    assert by_node_ns(job) > outcome(job).schedules[SEQUENTIAL].time_ns


def test_engines_on_this_processor_are_beside_our_schedules() -> None:
    names = (*SCHEDULES, "onnxruntime")
    found = {name: Timing((n,), (0.9 * n, n, 1.1 * n)) for n, name in enumerate(names, 1)}
    here = SimpleNamespace(processor={(2, "SqueezeNet"): found}, peers=("onnxruntime",))
    exhibit = frameworks_here(here)  # type: ignore[arg-type]
    (figure,) = exhibit.figures
    assert figure.ours == found["onnxruntime"].median_ms / found[BOTH].median_ms
    assert exhibit.rows == (("SqueezeNet", "2", "1.00", "5.00", "7.00"),)
    (row,) = figure_6_here(here).rows  # type: ignore[arg-type]
    assert len(row) == 1 + len(SCHEDULES)


@pytest.mark.slow
def test_peers_run_in_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.reproduce.in_turns.SECONDS", 0.1)
    found = measured("squeezenet1_1", 1, {"ours": {}}, ("onnxruntime", "no such engine"))
    assert set(found) == {"ours", "onnxruntime"}
    assert all(timing.median_ms > 0 for timing in found.values())


def test_a_drawn_schedule_has_a_box_for_each_operator() -> None:
    stages = (PlannedStage(((0,), (1, 2)), False, 3e3), PlannedStage(((3,), (4,)), True, 2e3))
    drawn = stages_drawn("both < all", list("abcde"), stages)
    assert [drawn.count(f"<div>{name}</div>") for name in "abcde"] == [1] * 5
    assert "stage 2: 2.0 us, merged" in drawn
    assert "both &lt; all" in drawn
