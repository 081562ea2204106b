"""Random models of any opset and type agree with ONNX Runtime, ONNX's reference and the generated code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from tests.fuzz.explained import EXPLAINED, HEADING, PAGE, explanation, section
from tests.fuzz.hunt import BATCH_TIMEOUT_S, Tally, hunt
from tests.fuzz.opinions import CPU, REFERENCE, RUNTIME, compare, wrong_elements
from tests.fuzz.opsets import judge
from tests.fuzz.recipes import RECIPES
from tests.fuzz.sketch import NEWEST, OLDEST, Step
from tests.fuzz.special import NUMBERS, draw, special_numbers

from tilewright.ir.dtype import DType

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(700_000, 700_040, 10))
def test_random_models_have_no_unexplained_differences(first: int) -> None:
    """In a process of its own: ONNX Runtime crashes on some models."""
    command = [sys.executable, "-m", "tests.fuzz.hunt", str(first), str(first + 10), "--only", "models"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BATCH_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{first} to {first + 10}: 0 failures" in done.stdout
    counts = {
        name: int(number)
        for number, name in re.findall(r"^ *(\d+) (models on the CPU|nodes)$", done.stdout, re.M)
    }
    assert counts["models on the CPU"] > 5
    assert counts["nodes"] > 20


@pytest.mark.slow
def test_many_random_models_have_no_unexplained_differences() -> None:
    tally = hunt(710_000, 710_500, "models")
    assert tally.failures == 0
    assert tally.counts["models on the CPU"] > 400
    assert all(tally.counts[f"models of opset {n}"] for n in range(OLDEST, NEWEST + 1))


def test_the_page_lists_what_is_explained() -> None:
    page = PAGE.read_text()
    assert page[page.index(HEADING) :] == section(), "run python -m tests.fuzz.explained"


def test_rules_are_of_known_engines_and_say_why() -> None:
    for rule in EXPLAINED:
        assert rule.other in (RUNTIME, REFERENCE, CPU)
        assert rule.operators
        assert len(rule.reason.split()) >= 5
    assert len(RECIPES) > 40


# Infinities beside weights of zero in Resize and in a whole model; NaN as a bound of Clip; a remainder that
# jumps; an extreme, a Hardmax and a MaxPool of nothing; a product that overflows before a zero.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [799, 2809, 2932, 3046, 3085, 3100, 3467, 3587])
def test_seeds_that_once_differed_are_explained(seed: int) -> None:
    judged = judge(seed)
    assert judged.findings == []
    assert judged.counts["models on the CPU"] == 1


def test_only_bounds_that_are_nan_excuse_a_clip() -> None:
    x = np.array([1.0, -1.0], np.float32)
    nowhere = np.full(2, np.nan, np.float32)
    for low, is_explained in ((np.nan, True), (0.0, False)):
        arrays = {"x": x, "low": np.array(low, np.float32)}
        step = Step(helper.make_node("Clip", ["x", "low"], ["y"]), arrays, frozenset(), 17)
        found = compare(step, RUNTIME, [nowhere], [x], [np.zeros(2)])
        assert found is not None
        assert (explanation(found) is not None) == is_explained


@pytest.mark.parametrize("op_type", ["RNN", "LSTM"])
def test_zeros_of_onnxruntime_are_explained_for_sequences_without_steps_alone(op_type: str) -> None:
    state = np.ones((1, 1, 2), np.float32)
    for length, is_explained in ((0, True), (2, False)):
        arrays = {"x": np.ones((3, 1, 2), np.float32), "n": np.array([length], np.int32), "h": state}
        node = helper.make_node(op_type, ["x", "h", "h", "", "n", "h"], ["y", "y_h"], hidden_size=2)
        step = Step(node, arrays, frozenset(), 17)
        every = np.zeros((3, 1, 1, 2), np.float32)
        allowed = [np.zeros(every.shape), np.zeros(state.shape)]
        found = compare(step, RUNTIME, [every, state], [every, 0 * state], allowed)
        assert found is not None
        assert (explanation(found) is not None) == is_explained


def relu(x: np.ndarray) -> Step:  # type: ignore[type-arg]
    return Step(helper.make_node("Relu", ["x"], ["y"]), {"x": x}, frozenset(), 17)


@pytest.mark.parametrize("other", [RUNTIME, REFERENCE, CPU])
def test_a_wrong_number_is_not_explained(other: str) -> None:
    """On ordinary numbers no rule excuses an elementwise operator."""
    x = np.array([1, 2, 3], np.float32)
    difference = compare(relu(x), other, [x], [np.array([1, 2, 3.5], np.float32)], [np.full(3, 1e-5)])
    assert difference is not None
    assert "1 of 3" in difference.text
    assert explanation(difference) is None


def test_another_shape_or_type_is_a_difference() -> None:
    x = np.array([1, 2, 3], np.float32)
    for theirs in (x[:2], x.astype(np.float64)):
        assert compare(relu(x), RUNTIME, [x], [theirs], [np.zeros(3)]) is not None


def test_what_counts_as_equal() -> None:
    inf, nan = np.inf, np.nan
    ours = np.array([nan, inf, -inf, 0.0, 1.0, 1.0, inf], np.float32)
    theirs = np.array([nan, inf, inf, -0.0, 1.0 + 1e-6, 1.1, nan], np.float32)
    wrong = wrong_elements(ours, theirs, np.full(7, 1e-5))
    assert wrong.tolist() == [False, False, True, False, False, True, True]
    assert wrong_elements(np.array([1, 2], np.int64), np.array([1, 3], np.int64), np.zeros(2)).tolist() == [
        False,
        True,
    ]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_edges_of_every_type_come_up(dtype: DType) -> None:
    array = draw(np.random.default_rng(1), (400,), dtype, special=0.6)
    assert array.dtype == dtype.numpy
    found = {str(n) for n in array}
    assert len(found & {str(dtype.numpy.type(n)) for n in special_numbers(dtype)}) >= 4


def test_a_tally_takes_the_last_counts_of_a_batch() -> None:
    tally = Tally()
    tally.read(["seed 1", f"counts {json.dumps({'nodes': 2})}", f"counts {json.dumps({'nodes': 5})}"])
    tally.read([f"counts {json.dumps({'nodes': 1})}"])
    assert tally.counts == Counter(nodes=6)
