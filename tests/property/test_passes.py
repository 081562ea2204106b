"""Passes keep meaning: every graph computes after a pass, and after all of them, what it computed before."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.mixed_graphs import mixed_graphs
from tests.property.pattern_graphs import pattern_graph

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph
from tilewright.ir.interpret import run_graph
from tilewright.ir.verify import require_valid
from tilewright.passes import PASSES, PIPELINE, run_passes
from tilewright.passes.edit import Editor

# These remove, move or compute ahead, but round nothing that was not rounded before.
EXACT = (
    *("fold-constants", "common-subexpressions", "eliminate-identity", "merge-reshapes"),
    *("merge-transposes", "merge-slices", "dead-code"),
)
# The others regroup sums and products. A few dozen float64 operations on values up to the scale, each
# within 1.1e-16 of it, then normalised by a root of at least 1e-5 (the epsilon of the patterns).
REGROUPED = 1e-12

settings = hypothesis.settings(max_examples=25, deadline=None)


def in_float64(graph: Graph) -> Graph:
    """The same graph with every float32 a float64, constants included: folding rounds to that."""
    graph = graph.clone()
    for value in graph.values():
        if value.dtype is DType.FLOAT32:
            value.dtype = DType.FLOAT64
            value.data = None if value.data is None else value.data.astype(np.float64)
    return graph


def feed(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {v.name: rng.standard_normal(v.shape) for v in graph.inputs}


def signature(graph: Graph) -> list[tuple[str, DType, tuple[int, ...]]]:
    return [(v.name, v.dtype, v.shape) for v in (*graph.inputs, *graph.outputs)]


def assert_same_meaning(before: Graph, after: Graph, tolerance: float) -> None:
    require_valid(after, after="the pass")
    assert signature(after) == signature(before)
    values = feed(before)
    names = [v.name for node in before.nodes for v in node.results()]
    expected = run_graph(before, values, dtype=DType.FLOAT64, taps=names)
    found = run_graph(after, values, dtype=DType.FLOAT64)
    scale = max(
        (float(np.abs(a).max()) for a in expected.values() if a.dtype.kind == "f" and a.size), default=0
    )
    for name, array in found.items():
        allowed = tolerance * max(scale, 1)
        if tolerance == 0 or array.dtype.kind != "f":
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        elif not np.allclose(array, expected[name], rtol=0, atol=allowed, equal_nan=True):
            tie = at_ties(before, values, name, expected[name], allowed)
            assert tie.mean() < 0.5, name
            np.testing.assert_allclose(array[~tie], expected[name][~tie], rtol=0, atol=allowed, err_msg=name)


def at_ties(
    graph: Graph, values: dict[str, np.ndarray], name: str, expected: np.ndarray, allowed: float
) -> np.ndarray:
    """Elements of an output that the last bits of what is quantised decide: values between two steps."""
    tie = np.zeros(expected.shape, np.bool_)
    for nudge in (1 - 1e-12, 1 + 1e-12):
        nudged = graph.clone()
        editor = Editor(nudged)
        for node in [node for node in nudged.nodes if node.op_type == "QuantizeLinear"]:
            x = node.require(0)
            factor = editor.constant(np.asarray(nudge), DType.FLOAT64, "nudge")
            moved = editor.insert(node, "Mul", [x, factor], ("moved", x.dtype, x.shape), since=14)
            nudged.set_inputs(node, [moved, *node.inputs[1:]])
        found = run_graph(nudged, values, dtype=DType.FLOAT64)[name]
        tie |= np.abs(found - expected) > allowed
    return tie


def check(pass_name: str, graph: Graph) -> None:
    before = graph.clone()
    result = PASSES.get(pass_name).run(graph)
    assert_same_meaning(before, graph, 0 if pass_name in EXACT else REGROUPED)
    if result.num_changes == 0:
        assert [repr(node) for node in graph.nodes] == [repr(node) for node in before.nodes]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pass_name", PASSES.names())
@settings
@given(seed=st.integers(0, 2**31), num_steps=st.integers(1, 6))
def test_a_pass_keeps_the_meaning_of_patterns(pass_name: str, seed: int, num_steps: int) -> None:
    check(pass_name, pattern_graph(seed, num_steps))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pass_name", PASSES.names())
@hypothesis.settings(settings, max_examples=12, suppress_health_check=list(hypothesis.HealthCheck))
@given(graph=mixed_graphs())
def test_a_pass_keeps_the_meaning_of_mixed_graphs(pass_name: str, graph: Graph) -> None:
    check(pass_name, in_float64(graph))


@hypothesis.settings(settings, max_examples=100)
@given(seed=st.integers(0, 2**31), num_steps=st.integers(1, 8))
def test_all_passes_together_keep_the_meaning_of_patterns(seed: int, num_steps: int) -> None:
    graph = pattern_graph(seed, num_steps)
    before = graph.clone()
    run_passes(graph)
    assert_same_meaning(before, graph, REGROUPED)


@hypothesis.settings(settings, max_examples=60, suppress_health_check=list(hypothesis.HealthCheck))
@given(graph=mixed_graphs())
def test_all_passes_together_keep_the_meaning_of_mixed_graphs(graph: Graph) -> None:
    graph = in_float64(graph)
    before = graph.clone()
    run_passes(graph)
    assert_same_meaning(before, graph, REGROUPED)


@settings
@given(seed=st.integers(0, 2**31), num_steps=st.integers(1, 5))
def test_float32_constants_are_rounded_once_per_fold(seed: int, num_steps: int) -> None:
    graph = pattern_graph(seed, num_steps, DType.FLOAT32)
    before = graph.clone()
    report = run_passes(graph)
    folds = 1 + sum(result.num_changes for name, result in report.results if name.startswith("fold"))
    # A fold moves each weight by half a unit in the last place, 6e-8 of it; sums have up to 60 terms.
    assert_same_meaning(before, graph, 60 * 6e-8 * (folds + num_steps))


def test_every_pass_finds_something_in_patterns() -> None:
    found: set[str] = set()
    for seed in range(60):
        in_loops = run_passes(pattern_graph(seed, 6, DType.FLOAT32), runs_steps=True)
        for report in (run_passes(pattern_graph(seed, 6)), in_loops):
            found |= {name for name, result in report.results if result.num_changes}
    assert found == set(PIPELINE)


def test_passes_come_to_rest_in_few_rounds() -> None:
    for seed in range(20):
        graph = pattern_graph(seed, 8)
        for _ in range(3):
            run_passes(graph)
        assert run_passes(graph).num_changes == 0
