"""Learned cost models: what they predict, what their file may hold, how they choose what to measure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.cost.base import CostModel
from tilewright.cost.features import FEATURES, MachineFacts, WorkFacts
from tilewright.cost.learned.coreg import coreg
from tilewright.cost.learned.costs import LearnedCosts
from tilewright.cost.learned.model import MAX_FILE_BYTES, Learned, LearnedModel
from tilewright.cost.learned.regressor import Linear, Neighbours, Regressor, Tree, Trees
from tilewright.cost.learned.training import METHODS, Effort, Pool, fit, stratified, train
from tilewright.cost.roofline import Roofline
from tilewright.errors import UsageError
from tilewright.hardware.presets import load_preset
from tilewright.learning.table import fuses, kendall_tau, num_right
from tilewright.partition import PARTITIONERS
from tilewright.partition.base import PartitionProblem, make_subgraph
from tilewright.planning import Budget, Infeasible

WIDTH = len(FEATURES)


def regressor(**parts: Any) -> Regressor:
    return Regressor((0.0,) * WIDTH, (1.0,) * WIDTH, -10.0, 10.0, **parts)


def model(*regressors: Regressor) -> LearnedModel:
    return LearnedModel("zcu102", {"time": Learned("linear", 3, 30, regressors)})


DOUBLE = regressor(linear=Linear((0.0,) * WIDTH, 1.0))


# Regressors -------------------------------------------------------------------------------------------


def test_a_tree_goes_left_where_a_feature_is_at_most_its_threshold() -> None:
    tree = Tree((1, 0, 0), (0.5, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, 3.0, 7.0))
    points = np.zeros((3, WIDTH))
    points[:, 1] = 0.4, 0.5, 0.6
    assert tree.predict(points).tolist() == [3.0, 3.0, 7.0]
    assert Trees((tree, tree), 0.5, 1.0).predict(points).tolist() == [4.0, 4.0, 8.0]


def test_the_nearest_count_and_a_known_point_is_what_it_is() -> None:
    near = Neighbours(((0.0,), (1.0,), (9.0,)), (2.0, 4.0, 100.0), power=2.0, count=2)
    assert near.predict(np.array([[0.0], [0.5], [0.75]])) == pytest.approx([2.0, 3.0, 3.5], abs=1e-6)


def test_predictions_stay_in_their_range_and_regressors_add_up() -> None:
    far = regressor(linear=Linear((0.0,) * WIDTH, 50.0))
    points = np.zeros((1, WIDTH))
    assert far.predict(points).tolist() == [10.0]
    assert model(far, DOUBLE).quantities["time"].log_ratio(points).tolist() == [11.0]


# The file ----------------------------------------------------------------------------------------------


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = Neighbours(((1.0,) * WIDTH,), (2.0,), 1.0, 3)
    tree = Tree((0, 0, 0), (0.5, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, 3.0, 7.0))
    written = model(DOUBLE, regressor(neighbours=(known,)), regressor(trees=Trees((tree,), 1.0)))
    path = tmp_path / "model.json"
    written.write(path)
    assert LearnedModel.read(path) == written


def _edited(path: Sequence[str | int], value: Any) -> str:
    document = json.loads(model(DOUBLE).text())
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(document)


_TWO = [0.0, 0.0]
_LOOP = {"features": [0, 0], "thresholds": _TWO, "left": [1, 1], "right": [1, 1], "values": _TWO}
REGRESSOR = ("quantities", "time", "regressors", 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged: .*; train it again"),
        ("[]", "is damaged: expected an object"),
        (_edited(("format",), "another"), "is no learned cost model"),
        (_edited(("version",), 99), "has version 99, this program reads 1; train it again"),
        (_edited(("features_version",), 99), "its features have version 99"),
        (
            _edited(("features",), [*FEATURES[:-1], "colour"]),
            "has an unknown feature 'colour'; train it again",
        ),
        (_edited(("features",), list(FEATURES[:-1])), "has not this program's features"),
        (_edited((*REGRESSOR, "linear"), {"weights": [1.0], "bias": 0.0}), "linear.weights: expected"),
        (_edited((*REGRESSOR, "linear"), None), "expected one of linear, trees and neighbours"),
        (_edited((*REGRESSOR, "centre"), ["a"]), r"regressors\[0\].centre\[0\]: expected a finite number"),
        (
            _edited(
                (*REGRESSOR, "trees"),
                {"factor": 1.0, "trees": [_LOOP]},
            ),
            r"trees.trees\[0\].left\[1\]: expected nodes behind node 1",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_that_says_what_to_do(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        LearnedModel.read(path)
    assert str(refused.value).startswith(f"learned model {path}: ")
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        LearnedModel.read(tmp_path / "none.json")


def test_a_folder_and_a_file_of_another_size_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the file of a model"):
        LearnedModel.read(tmp_path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UsageError, match=f"has more than {MAX_FILE_BYTES} bytes"):
        LearnedModel.read(large)


# The cost model ----------------------------------------------------------------------------------------


def test_learned_costs_correct_what_a_target_estimates() -> None:
    b = GraphBuilder()
    b.finish(b.op("Relu", b.conv(b.input(1, 4, 8, 8), 8)))
    work = make_subgraph(0, b.graph.nodes, b.graph)
    base = Roofline(1.0, 1.0, 100.0, "by hand")
    costs = LearnedCosts.of(model(DOUBLE), base, load_preset("zcu102"))
    assert isinstance(costs, CostModel)
    assert costs.kernel(work).time_ns == pytest.approx(2 * base.kernel(work).time_ns)
    assert costs.fused(work).time_ns == costs.kernel(work).time_ns
    assert costs.stage([[work], [work]]).time_ns == pytest.approx(2 * base.stage([[work], [work]]).time_ns)
    assert costs.source == "learned (linear, 3 of 30 operators measured)"
    assert not costs.proves_bounds
    with pytest.raises(UsageError, match="is of machine 'zcu102', not of 'a310'"):
        LearnedCosts.of(model(DOUBLE), base, load_preset("a310"))
    with pytest.raises(UsageError, match="knows no time"):
        LearnedCosts.of(replace(model(), quantities={}), base, load_preset("zcu102"))


def test_a_partitioner_prices_parts_by_a_models_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(DOUBLE).write(path)
    b = GraphBuilder()
    b.finish(b.op("Relu", b.conv(b.conv(b.input(1, 4, 8, 8), 8), 8)))
    planner = PARTITIONERS.get(f'pcgc{{cost="{path}"}}')
    problem = PartitionProblem(b.graph, load_preset("zcu102"))
    assert not isinstance(planner.solve(problem, Budget(100)), Infeasible)
    with pytest.raises(UsageError, match="is of machine 'zcu102', not of 'a310'"):
        planner.solve(replace(problem, machine=load_preset("a310")), Budget(100))
    with pytest.raises(UsageError, match="this target describes no machine; leave the model out"):
        planner.solve(replace(problem, machine=None), Budget(100))


def test_a_model_of_rooflines_asks_no_target() -> None:
    b = GraphBuilder()
    b.finish(b.conv(b.input(1, 4, 8, 8), 8))
    work = make_subgraph(0, b.graph.nodes, b.graph)
    by_roofline = replace(model(DOUBLE), estimates="roofline")
    costs = LearnedCosts.of(by_roofline, Roofline(1e9, 1e9, 0.0, "not asked"), load_preset("zcu102"))
    roofline = MachineFacts.of(load_preset("zcu102")).roofline(WorkFacts.of(work))
    assert costs.kernel(work).time_ns == pytest.approx(2 * roofline.time_ns)
    assert costs.kernel(work).energy_pj == roofline.energy_pj
    assert costs.stage([[work], [work, work]]).time_ns == pytest.approx(4 * roofline.time_ns)


# Training ----------------------------------------------------------------------------------------------


def _points(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(seed).uniform(0, 10, (count, WIDTH))
    return features, np.sin(features[:, 0]) + (features[:, 1] > 5)


def _pool(count: int, asked: list[int]) -> Pool:
    features, values = _points(count)

    def measure(numbers: Sequence[int]) -> np.ndarray:
        asked.extend(numbers)
        return values[list(numbers)] + 4.0

    classes = ["rare" if i < 2 else "common" for i in range(count)]
    return Pool(features, np.full(count, 4.0), classes, np.ones(count), measure)


def test_no_more_is_measured_than_was_asked_for_and_nothing_twice() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    asked: list[int] = []
    trained = train(_pool(80, asked), Effort(share=0.25), ["coreg"])
    assert len(asked) == len(set(asked)) == len(trained.measured) == 20
    assert {0, 1} & set(asked), "each class is in the seed"
    assert trained.num_pseudo_labelled <= 60


def test_training_ends_where_the_error_is_small_enough() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    asked: list[int] = []
    effort = Effort(share=0.5, stop_error=0.1)
    trained = train(_pool(200, asked), effort, ["linear"], held_out_error=lambda predict: 0.05)
    assert len(trained.measured) == 50


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
def test_regressors_of_plain_numbers_predict_what_scikit_learns_do(method: Any) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, the extra [learn], is not installed")
    features, values = _points(120)
    found = fit(method, features, values)
    assert np.corrcoef(found.predict(features), values)[0, 1] > (0.5 if method == "linear" else 0.9)
    if method == "trees":
        from sklearn.ensemble import ExtraTreesRegressor

        scaled = (features - np.array(found.centre)) * np.array(found.scale)
        theirs = ExtraTreesRegressor(100, max_features=0.5, random_state=0).fit(scaled, values)
        assert found.predict(features) == pytest.approx(theirs.predict(scaled))


def test_two_regressors_teach_each_other_what_is_sure() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 1, (30, 1))
    unlabelled = rng.uniform(0, 1, (60, 1))
    taught = coreg(points, points[:, 0], unlabelled)
    assert 0 < taught.num_pseudo_labelled <= 60
    for known, labels, _, _ in taught.members:
        assert len(known) == len(labels) >= 30
        assert np.abs(labels - known[:, 0]).max() < 0.2
    assert coreg(points, points[:, 0], unlabelled[:0]).num_pseudo_labelled == 0


def test_every_class_has_its_share_of_what_is_measured_first() -> None:
    classes = ["a"] * 90 + ["b"] * 9 + ["c"]
    chosen = [classes[i] for i in stratified(classes, 20, np.random.default_rng(0))]
    assert len(chosen) == 20
    assert chosen.count("c") == 1
    assert 1 <= chosen.count("b") <= 3
    assert sorted(stratified(["a", "b"], 9, np.random.default_rng(0))) == [0, 1]


def test_measures_of_predictions() -> None:
    assert kendall_tau(np.array([1.0, 2.0]), np.array([2.0, 1.0])) == -1.0
    assert kendall_tau(np.ones(3), np.arange(3.0)) == 0.0
    choices = [(0, (1, 2), False), (3, (1, 2), True)]
    assert num_right(np.array([10.0, 4.0, 4.0, 7.9]), choices) == 2
    assert num_right(np.array([1.0, 4.0, 4.0, 1.0]), choices) == 1
    assert fuses(0.987, 0.987) is None, "1.3 % do not matter"
    assert fuses(1.25, 1.25) is False
