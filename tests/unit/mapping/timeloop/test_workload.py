"""Timeloop's problems read as ours."""

from __future__ import annotations

from pathlib import Path

from tests.support.timeloop import CONVOLUTION, PROCESSED, PRODUCT, written

from tilewright.hardware.machine import TensorKind
from tilewright.loops.problem import convolution
from tilewright.mapping.timeloop import load_problem


def test_a_shape_with_coefficients(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, CONVOLUTION, "layer.yaml"))
    assert problem.extents == {"C": 4, "M": 6, "R": 3, "S": 2, "N": 1, "P": 8, "Q": 9}
    words = {o.name: problem.num_words(o) for o in problem.operands}
    # Inputs: (8 - 1) * 2 + 3 rows of (9 - 1) * 3 + 2 for each of 4 channels.
    assert words == {"Weights": 4 * 6 * 3 * 2, "Inputs": 4 * 17 * 26, "Outputs": 6 * 8 * 9}
    assert [o.kind for o in problem.operands] == [TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.OUTPUT]


def test_a_layer_of_the_built_in_shape(tmp_path: Path) -> None:
    text = "problem: {shape: cnn-layer, R: 3, S: 3, P: 7, Q: 7, C: 8, K: 4, N: 1, Wstride: 2, Hstride: 2}"
    expected = convolution(
        {"R": 3, "S": 3, "P": 7, "Q": 7, "C": 8, "K": 4, "N": 1}, stride=(2, 2), name="one"
    )
    assert load_problem(written(tmp_path, text)) == expected


def test_tensors_without_telling_names(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PRODUCT))
    kinds = {o.name: o.kind for o in problem.operands}
    assert kinds == {"A": TensorKind.WEIGHT, "B": TensorKind.INPUT, "Z": TensorKind.OUTPUT}


def test_extents_may_stand_beside_the_shape(tmp_path: Path) -> None:
    text = PRODUCT.replace("  instance: {I: 4, J: 6, K: 8}", "  I: 4\n  J: 6\n  K: 8")
    assert load_problem(written(tmp_path, text)) == load_problem(written(tmp_path, PRODUCT))


def test_what_the_front_end_hands_on(tmp_path: Path) -> None:
    problem = load_problem(written(tmp_path, PROCESSED))
    words = {o.name: problem.num_words(o) for o in problem.operands}
    assert words == {"Weights": 3 * 32 * 3 * 3, "Inputs": 3 * 225 * 225, "Outputs": 32 * 112 * 112}
