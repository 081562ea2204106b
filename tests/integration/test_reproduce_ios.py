"""`tilewright reproduce ios`: exhibits on one network, and what they must show of the described machines."""

from __future__ import annotations

import json

import pytest
from tests.support.cli import tilewright
from tests.support.pictures import pictures
from tests.support.reproductions import made

from tilewright.cli.schemas import violations
from tilewright.reproduce.ios.drawing import stages_drawn
from tilewright.reproduce.ios.runs import (
    BOTH,
    GREEDY,
    MERGE,
    MOLDABLE,
    PARALLEL,
    SEQUENTIAL,
    Job,
    Outcome,
    PlannedStage,
    Transfer,
    outcome,
    transferred,
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    page = tmp_path_factory.mktemp("reproduce") / "ios.html"
    arguments = ("--share", "0.25", "--processes", "1", "--output", str(page), "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.reproduce.ios.reproduction._THREADS", ())
        result = tilewright("reproduce", "ios", *arguments)
    assert result.code == 0, result.err
    text = page.read_text()
    assert len(pictures(text)) + text.count('class="drawn stages"') >= 5
    found: dict[str, object] = json.loads(result.out)
    return found


@pytest.mark.slow
def test_every_exhibit_is_there(document: dict[str, object]) -> None:
    assert violations(document) == []
    assert made(document) == [
        *("Table 1", "Table 2", "Figure 6", "Figure 6 on k80", "Figure 6 here"),
        *("Figure 9", "Table 3", "Figure 10", "Figure 11", "Figure 14", "Figure 16"),
    ]


@pytest.mark.slow
def test_counts_are_the_papers(document: dict[str, object]) -> None:
    exhibits = document["exhibits"]
    assert isinstance(exhibits, list)
    figures = {figure["what"]: figure for exhibit in exhibits for figure in exhibit["figures"]}
    for what in ("SqueezeNet, transitions", "SqueezeNet, operators"):
        assert figures[what]["ours"] == figures[what]["paper"]


@pytest.fixture(scope="module")
def squeezenet() -> Outcome:
    return outcome(Job("ios_squeezenet", "v100", 1))


@pytest.fixture(scope="module")
def inception() -> Outcome:
    return outcome(Job("ios_inception_v3", "v100", 1, (SEQUENTIAL, GREEDY, MERGE, PARALLEL, BOTH)))


@pytest.mark.sampled(0)
def test_schedules_are_in_the_papers_order(squeezenet: Outcome, inception: Outcome) -> None:
    """Figure 6: greedy loses on SqueezeNet and gains on Inception, IOS-Both is the best of the paper's."""
    for found in (squeezenet, inception):
        times = {name: planned.time_ns for name, planned in found.schedules.items()}
        assert times[BOTH] <= min(times[MERGE], times[PARALLEL]) < times[SEQUENTIAL]
        assert found.gain() > 1.1
        assert found.schedules[BOTH].is_proven
    assert squeezenet.gain(GREEDY) < 1 < squeezenet.gain(MERGE)
    assert squeezenet.schedules[MOLDABLE].time_ns <= squeezenet.schedules[BOTH].time_ns
    assert inception.gain(PARALLEL) > inception.gain(GREEDY) > inception.gain(MERGE) > 1.1


@pytest.mark.slow
def test_the_gain_falls_with_the_batch_and_with_the_machine(inception: Outcome) -> None:
    few = (SEQUENTIAL, BOTH)
    more = outcome(Job("ios_inception_v3", "v100", 8, few))
    most = outcome(Job("ios_inception_v3", "v100", 32, few))
    assert inception.gain() > more.gain() > most.gain() >= 1
    smaller = outcome(Job("ios_inception_v3", "k80", 1, few))
    assert 1 < smaller.gain() < inception.gain()


def test_a_schedule_loses_where_it_was_not_made_for(squeezenet: Outcome) -> None:
    other = outcome(Job("ios_squeezenet", "k80", 1, (BOTH,)))
    for machine, own, foreign in (("v100", squeezenet, other), ("k80", other, squeezenet)):
        plans = {"own": own.schedules[BOTH], "foreign": foreign.schedules[BOTH]}
        times = {k: sum(t) for k, t in transferred(Transfer("ios_squeezenet", machine, 1, plans)).items()}
        assert times["own"] == pytest.approx(plans["own"].time_ns)
        assert times["foreign"] > times["own"]


def test_a_drawn_schedule_has_a_box_for_each_operator() -> None:
    stages = (PlannedStage(((0,), (1, 2)), False, 3e3), PlannedStage(((3,), (4,)), True, 2e3))
    drawn = stages_drawn("both < all", list("abcde"), stages)
    assert [drawn.count(f"<div>{name}</div>") for name in "abcde"] == [1] * 5
    assert "stage 2: 2.0 us, merged" in drawn
    assert "both &lt; all" in drawn
