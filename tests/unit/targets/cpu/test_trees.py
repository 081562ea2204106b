"""Kernels of ensembles of trees: the sums of the reference, to the bit."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.property.cases.trees import grown

from tilewright.compiler import compile_graph
from tilewright.errors import ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Walks
from tilewright.ir.ops import describe
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.ir.ops.trees import MAX_DEPTH, ensemble_of
from tilewright.options import Options
from tilewright.target_ref import TargetRef
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.cpu.trees.pack import keys_of, tables_of

Array = np.ndarray[Any, Any]


def forest(
    num_rows: int,
    *,
    features: int = 6,
    width: int = 1,
    targets: int = 1,
    num_trees: int = 21,
    depth: int = 5,
    dtype: Any = np.float32,
    aggregate: str = "SUM",
) -> tuple[Graph, Array]:
    """A graph of one ensemble, and rows for it."""
    rng = np.random.default_rng(num_rows)
    made = grown(rng, num_trees, depth, features)
    tables = [
        np.array(made["feature"], np.int32),
        np.array(made["threshold"], dtype),
        np.array(made["missing"], np.bool_),
        np.array(made["child"], np.int32).reshape(-1, 2),
        np.array(made["root"], np.int32),
        rng.integers(0, targets - width + 1, num_trees).astype(np.int32),
        rng.standard_normal((len(made["leaves"]), width)).astype(dtype),
    ]
    kind = DType.from_numpy(np.dtype(dtype))
    graph = Graph()
    x = graph.add_input(Value("x", kind, (num_rows, features)))
    constants = [Value(f"t{i}", DType.from_numpy(t.dtype), t.shape, t) for i, t in enumerate(tables)]
    y = Value("y", kind, (num_rows, targets))
    attributes = {"aggregate": aggregate, "num_targets": targets}
    graph.append(Node("TreeSums", [x, *constants], [y], attributes, domain=INTERNAL_DOMAIN))
    graph.outputs = [y]
    rows = rng.standard_normal((num_rows, features)).astype(dtype)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    return graph, rows


CASES: list[dict[str, Any]] = [
    {"num_rows": 1},
    {"num_rows": 7, "width": 3, "targets": 3},
    {"num_rows": 8, "width": 3, "targets": 5, "dtype": np.float64},
    {"num_rows": 77, "width": 20, "targets": 20, "aggregate": "MIN"},
    {"num_rows": 130, "width": 2, "targets": 4, "aggregate": "MAX", "dtype": np.float64},
    {"num_rows": 20, "features": 300},
    {"num_rows": 3, "depth": 0},
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_kernels_sum_as_the_reference_does(case: dict[str, Any], isa: str) -> None:
    if not isa_by_name(isa).runs_on_host:
        pytest.skip(f"{isa} code does not run here")
    graph, rows = forest(**case)
    expected = run_graph(graph, {"x": rows})["y"]
    code = compile_graph(graph, Options(target=TargetRef.parse("cpu"), isa=isa)).code
    for num_threads in (1, 2):
        found = code.load(num_threads).run({"x": rows})["y"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_rows", [2, 9, 130])
def test_a_run_of_fewer_rows_ends_with_them(num_rows: int) -> None:
    graph, rows = forest(num_rows, width=2, targets=3)
    graph.row_axes = {"x": 0}
    code = compile_graph(graph, Options(target=TargetRef.parse("cpu"))).code.load(2)
    assert isinstance(code, CpuExecutable)
    assert code.row_axes == {"x": 0}
    expected = run_graph(graph, {"x": rows})["y"]
    for asked in {1, 2, num_rows // 2, num_rows}:
        found = code.run_rows({"x": rows}, asked)["y"]
        np.testing.assert_array_equal(found[:asked], expected[:asked])


def test_no_tree_runs_on_the_host() -> None:
    graph, _ = forest(9)
    steps = compile_graph(graph, Options(target=TargetRef.parse("cpu"))).steps
    assert [kernel.template for step in steps for kernel in step.kernels] == ["trees"]


def test_keys_are_in_the_order_of_numbers() -> None:
    numbers = np.array([-np.inf, -1.5, -1e-45, 0.0, 1e-45, 2.0, np.inf], np.float32)
    keys = keys_of(numbers, -(2**31))
    assert (np.diff(keys) > 0).all()
    assert keys_of(np.array([np.nan, -0.0], np.float32), -(2**31)).tolist() == [-(2**31), 0]
    doubles = keys_of(numbers.astype(np.float64), -(2**63))
    assert (np.diff(doubles.astype(object)) > 0).all()


def test_a_leaf_leads_to_itself() -> None:
    graph, _ = forest(9)
    ensemble = ensemble_of(graph.nodes[0])
    tables = tables_of(ensemble, 6, 1, "SUM")
    leaves = tables.records[len(ensemble.feature) :]
    places = (len(ensemble.feature) + np.arange(len(leaves))) * tables.record_bytes
    np.testing.assert_array_equal(leaves[:, 2], places)
    np.testing.assert_array_equal(leaves[:, 3], places)


def chain(length: int, last: int) -> Node:
    """A path of so many nodes, the last of which leads on to a node or a leaf."""
    number = np.arange(1, length + 1)
    number[-1] = last
    child = np.stack([np.full(length, -1), number], axis=1).astype(np.int32)
    tables = [np.zeros(length, np.int32), np.zeros(length, np.float32), np.zeros(length, np.bool_), child]
    tables += [np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones((1, 1), np.float32)]
    constants = [Value(f"t{i}", DType.from_numpy(t.dtype), t.shape, t) for i, t in enumerate(tables)]
    x, y = Value("x", DType.FLOAT32, (2, 1)), Value("y", DType.FLOAT32, (2, 1))
    return Node("TreeSums", [x, *constants], [y], {"num_targets": 1}, domain=INTERNAL_DOMAIN)


def test_paths_that_come_back_or_are_too_long_are_refused() -> None:
    description = describe(chain(100, -1))
    assert isinstance(description, Walks)
    assert description.num_steps == 200
    with pytest.raises(ModelRejected, match="leads back"):
        describe(chain(100, 50))
    with pytest.raises(ModelRejected, match="leads back"):
        describe(chain(2, 0))
    with pytest.raises(ModelRejected, match=f"more than {MAX_DEPTH} nodes"):
        describe(chain(MAX_DEPTH + 2, -1))
    with pytest.raises(ModelRejected, match="names the child -2"):
        describe(chain(3, -2))
