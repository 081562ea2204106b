"""Every target computes what the interpreter computes: for every operator alone, and for random graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.property.checks import assert_same
from tests.property.mixed_graphs import mixed_graphs
from tests.property.strategies import Case, Draw, generators, reference_outputs

from tilewright.compiler import compile_graph
from tilewright.errors import UnsupportedOp
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.text import print_graph
from tilewright.options import Options
from tilewright.passes import PIPELINE
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.isa import ISA_NAMES, isa_by_name

OPTIONS = Options(no_cache=True, threads=2)
COMMON = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
KEYS = sorted(generators())
NUM_EXAMPLES = {"cpu": 5, "stcp920": 2}
# Types that generated code does not handle, and operators of them alone.
DECLINED_ALWAYS: frozenset[str] = frozenset()


def run_compiled(
    graph: Graph, feed: dict[str, np.ndarray[Any, Any]], options: Options = OPTIONS
) -> dict[str, np.ndarray[Any, Any]]:
    code = compile_graph(graph, options).code
    assert code is not None
    executable = code.load(2)
    try:
        return executable.run(feed)
    finally:
        executable.close()


def graph_of(one: Case) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    """The graph of one node; what is not an initializer is an input, each value once."""
    graph = Graph(one.node.op_type)
    feed: dict[str, np.ndarray[Any, Any]] = {}
    inputs: list[Value | None] = []
    for value, array in zip(one.node.inputs, one.inputs, strict=True):
        if value is None or array is None:
            inputs.append(None)
            continue
        copy = Value(value.name, value.dtype, value.shape, value.data)
        if value.data is None:
            graph.add_input(copy)
            feed[value.name] = array
        inputs.append(copy)
    outputs = [None if v is None else Value(v.name, v.dtype, v.shape) for v in one.node.outputs]
    node = Node(
        one.node.op_type, inputs, outputs, one.node.attributes, domain=one.node.domain, opset=one.node.opset
    )
    graph.append(node)
    graph.outputs = list(node.results())
    return graph, feed


def agrees_alone(one: Case, chosen: Options) -> bool:
    graph, feed = graph_of(one)
    try:
        found = run_compiled(graph, feed, chosen)
    except UnsupportedOp:
        return False
    got = [None if v is None else found[v.name] for v in one.node.outputs]
    assert_same(one, got, reference_outputs(one))
    return True


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", NUM_EXAMPLES)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_each_operator_alone(key: tuple[str, str], target: str) -> None:
    applied: list[bool] = []

    @settings(COMMON, max_examples=NUM_EXAMPLES[target])
    @given(one=generators()[key])
    def every(one: Case) -> None:
        applied.append(agrees_alone(one, replace(OPTIONS, target=TargetRef.parse(target))))

    every()
    assert any(applied) == (key[1] not in DECLINED_ALWAYS)


PLANS = (("auto", "auto"), ("none", "greedy"), ("random", "random"), ("layerwise", "greedy"))
SETS = tuple(name for name in ISA_NAMES if isa_by_name(name).runs_on_host)


ACCELERATOR_PLANS = (
    ("graphturbo", "depth-first", "longest-liveness"),
    ("graphturbo{dims=any}", "min-delta", "largest-size"),
    ("random", "random", "arena"),
    ("none", "greedy", "greedy-by-size"),
)


@st.composite
def accelerator_options(draw: Draw) -> Options:
    """Machines of either sort, with a shared buffer and without, and planners that go together by chance."""
    partition, schedule, memory = draw(st.sampled_from(ACCELERATOR_PLANS))
    return Options(
        target=TargetRef.parse(draw(st.sampled_from(("stcp920", "ipu-mk1", "stcp920{overlap=none}")))),
        partition=partition,
        schedule=schedule,
        memory=memory,
        disabled_passes=draw(st.sampled_from(((), PIPELINE))),
    )


@st.composite
def options(draw: Draw) -> Options:
    """Any way to cut and order, any instruction set of this machine, with passes and without."""
    partition, schedule = draw(st.sampled_from(PLANS))
    return Options(
        no_cache=True,
        threads=2,
        partition=partition,
        schedule=schedule,
        isa=draw(st.sampled_from(SETS)),
        disabled_passes=draw(st.sampled_from(((), PIPELINE))),
    )


def check_graph(graph: Graph, seed: int, chosen: Options) -> None:
    rng = np.random.default_rng(seed)
    feed = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    want = run_graph(graph, feed, dtype=DType.FLOAT64)
    plain = run_graph(graph, feed)
    got = run_compiled(graph, feed, chosen)
    assert list(got) == list(plain)
    for name, expected in want.items():
        assert got[name].dtype == plain[name].dtype, name
        assert got[name].shape == plain[name].shape, name
        scale = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
        error = float(np.abs(got[name] - expected).max(initial=0.0))
        theirs = float(np.abs(plain[name] - expected).max(initial=0.0))
        assert error <= 4 * theirs + 2e-5 * scale, (
            f"{name}: {error} against {theirs} at scale {scale} with {chosen}\n{print_graph(graph)}"
        )


def graphs_agree(max_nodes: int, chosen: st.SearchStrategy[Options]) -> Callable[..., None]:
    @given(graph=mixed_graphs(max_nodes=max_nodes), seed=st.integers(0, 2**31), chosen=chosen)
    def every(graph: Graph, seed: int, chosen: Options) -> None:
        check_graph(graph, seed, chosen)

    return every


def test_random_graphs() -> None:
    settings(COMMON, max_examples=30)(graphs_agree(10, options()))()


def test_random_graphs_on_accelerators() -> None:
    settings(COMMON, max_examples=15)(graphs_agree(8, accelerator_options()))()


@pytest.mark.slow
def test_many_random_graphs() -> None:
    settings(COMMON, max_examples=1500, phases=[Phase.generate])(graphs_agree(16, options()))()


@pytest.mark.slow
def test_many_random_graphs_on_accelerators() -> None:
    settings(COMMON, max_examples=500, phases=[Phase.generate])(graphs_agree(12, accelerator_options()))()
