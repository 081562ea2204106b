"""TopK as nests: which form, and that NaN is larger than every number in all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler import compile_graph
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph, run_node
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.ir.ops.top_k import FEW, MAX_COMPARED, MAX_PASSES, MIN_PRESELECTED
from tilewright.options import Options


def top_k(extent: int, count: int, *, largest: int = 1, dtype: DType = DType.FLOAT32, rows: int = 2) -> Graph:
    graph = Graph("top_k")
    x = graph.add_input(Value("x", dtype, (rows, extent)))
    k = graph.constant(np.array([count], np.int64), "k")
    values = graph.value("values", dtype, (rows, count))
    indices = graph.value("indices", DType.INT64, (rows, count))
    graph.append(Node("TopK", [x, k], [values, indices], {"largest": largest}, opset=11))
    graph.outputs = [values, indices]
    return graph


def form(graph: Graph) -> str:
    nests = describe(graph.nodes[0])
    if isinstance(nests, Opaque):
        return nests.reason
    return "places" if nests[0].combine == "sum" else "extremes"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (top_k(1000, 5), "extremes"),
        (top_k(5, 5), "places"),
        (top_k(MAX_COMPARED, MAX_PASSES + 1), "places"),
        (top_k(100, 3, largest=0), "places"),
        (top_k(100, 3, largest=0, dtype=DType.INT32), "extremes"),
        (top_k(50_000, MAX_PASSES), "extremes"),
        (top_k(5000, 300), "TopK sorts 5000 elements for 300"),
        (top_k(5000, 3, largest=0), "TopK sorts 5000 elements for 3"),
    ],
)
def test_the_form_follows_from_how_many_of_how_many(graph: Graph, expected: str) -> None:
    assert form(graph) == expected


@pytest.mark.parametrize(("count", "largest"), [(4, 1), (30, 1), (33, 0)])
def test_nan_is_larger_than_every_number_and_zeros_are_equal(count: int, largest: int) -> None:
    graph = top_k(40, count, largest=largest)
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 40)).astype(np.float32)
    x[:, 3], x[:, 17], x[:, 5], x[:, 6], x[:, 9] = np.nan, np.nan, np.inf, -0.0, -np.inf
    expected = run_graph(graph, {"x": x})
    order = np.argsort(x if largest == 0 else -x, axis=1, kind="stable")  # NaN last
    if largest:
        order = np.stack([np.r_[[3, 17], row[~np.isin(row, [3, 17])]] for row in order])
    np.testing.assert_array_equal(expected["indices"], order[:, :count])
    code = compile_graph(graph, Options(no_cache=True, threads=1)).code
    assert code is not None
    found = code.load(1).run({"x": x})
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", ["equal", "float", "nan", "bytes"])
def test_few_of_many_are_those_that_come_first_when_all_are_sorted(kind: str, largest: int) -> None:
    """Of rows that are found without a sort of all, along any axis."""
    rng = np.random.default_rng(2)
    extent = MIN_PRESELECTED + 7
    x = rng.standard_normal((3, extent)).astype(np.float32)
    if kind == "equal":
        x = rng.integers(-2, 3, x.shape).astype(np.float32)
        x[x == 0] *= rng.choice([-1, 1], (x == 0).sum())
    if kind == "nan":
        x[rng.random(x.shape) < 0.1] = np.nan
        x[1] = np.nan
    if kind == "bytes":
        x = rng.integers(0, 256, x.shape).astype(np.uint8)
    ranked = np.where(np.isnan(x), np.inf, x.astype(np.float64))
    order = np.argsort(-ranked if largest else ranked, axis=1, kind="stable")
    dtype = DType.from_numpy(x.dtype)
    for count in (1, extent // FEW, extent // FEW + 1):
        found = run_graph(top_k(extent, count, largest=largest, dtype=dtype, rows=3), {"x": x})
        np.testing.assert_array_equal(found["indices"], order[:, :count])
        np.testing.assert_array_equal(found["values"], np.take_along_axis(x, order[:, :count], 1))
        node = Node(
            "TopK",
            [Value("x", dtype, x.T.shape), Value("k", DType.INT64, (1,))],
            [Value("y", dtype, (count, 3)), Value("i", DType.INT64, (count, 3))],
            {"largest": largest, "axis": 0},
        )
        _, indices = run_node(node, [x.T, np.array([count])])
        assert indices is not None
        np.testing.assert_array_equal(indices, order[:, :count].T)


def test_only_the_indices_may_be_wanted() -> None:
    graph = top_k(20, 2)
    graph.outputs = graph.outputs[1:]
    x = np.random.default_rng(1).standard_normal((2, 20)).astype(np.float32)
    code = compile_graph(graph, Options(no_cache=True, threads=1)).code
    assert code is not None
    (found,) = code.load(1).run({"x": x}).values()
    np.testing.assert_array_equal(found, np.argsort(-x, axis=1)[:, :2])
