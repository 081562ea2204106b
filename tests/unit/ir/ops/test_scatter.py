"""Scatter as nests: one for indices that are known, a copy and a write for indices that are data."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler import compile_graph
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Indirect, Opaque
from tilewright.ir.ops import describe
from tilewright.ir.ops.scatter import MAX_TABLE
from tilewright.options import Options


def scatter(indices: list[int], *, known: bool, reduction: str = "none", rows: int = 6) -> Graph:
    graph = Graph("scatter")
    data = graph.add_input(Value("data", DType.FLOAT32, (rows, 20)))
    array = np.array(indices, np.int64)[:, None]
    if known:
        index = graph.constant(array, "index")
    else:
        index = graph.add_input(Value("index", DType.INT64, array.shape))
    updates = graph.add_input(Value("updates", DType.FLOAT32, (len(indices), 20)))
    source = graph.append(Node("Relu", [data], [graph.value("relu", DType.FLOAT32, data.shape)])).output
    out = graph.value("scattered", DType.FLOAT32, data.shape)
    graph.append(Node("ScatterND", [source, index, updates], [out], {"reduction": reduction}, opset=18))
    # What was scattered into is still read afterwards.
    total = graph.value("total", DType.FLOAT32, data.shape)
    graph.append(Node("Sub", [out, source], [total]))
    graph.outputs = [total]
    return graph


def feed(graph: Graph, indices: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    if "index" in made:
        made["index"] = np.array(indices, np.int64)[:, None]
    return made


@pytest.mark.parametrize("known", [True, False])
def test_what_is_scattered_into_stays_what_it_was(known: bool) -> None:
    graph = scatter([4, -6, 2], known=known)
    values = feed(graph, [4, -6, 2])
    code = compile_graph(graph, Options(no_cache=True, threads=1)).code
    assert code is not None
    assert not any(kernel.is_host for step in code.steps for kernel in step.kernels)
    (found,) = code.load(1).run(values).values()
    (expected,) = run_graph(graph, values).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_that_meet_in_one_place_are_combined_where_indices_are_known(reduction: str) -> None:
    graph = scatter([1, 3, 1, -5], known=True, reduction=reduction)
    nests = describe(next(n for n in graph.nodes if n.op_type == "ScatterND"))
    assert not isinstance(nests, Opaque)
    (nest,) = nests
    # The data, and for the first and second update of a place whether there is one, and it.
    assert len(nest.reads) == 1 + 3 * 2
    values = feed(graph, [1, 3, 1, -5])
    code = compile_graph(graph, Options(no_cache=True, threads=1)).code
    assert code is not None
    (found,) = code.load(1).run(values).values()
    (expected,) = run_graph(graph, values).values()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_last_of_several_updates_stays_without_a_reduction() -> None:
    graph = scatter([2, 2, 2], known=True)
    values = feed(graph, [])
    (found,) = run_graph(graph, values).values()
    relu = np.maximum(values["data"], 0)
    np.testing.assert_array_equal(found[2], values["updates"][2] - relu[2])
    nests = describe(next(n for n in graph.nodes if n.op_type == "ScatterND"))
    assert not isinstance(nests, Opaque)
    assert len(nests[0].reads) == 3


def test_indices_in_large_tensors_are_data_though_they_are_known() -> None:
    graph = scatter([2, 5], known=True, rows=MAX_TABLE + 1)
    nests = describe(next(n for n in graph.nodes if n.op_type == "ScatterND"))
    assert not isinstance(nests, Opaque)
    assert any(isinstance(i, Indirect) for i in nests[1].write.index)


def test_sums_where_data_says_run_on_the_host() -> None:
    graph = scatter([2, 5], known=False, reduction="add")
    described = describe(next(n for n in graph.nodes if n.op_type == "ScatterND"))
    assert described == Opaque("ScatterND accumulates where its data says")
