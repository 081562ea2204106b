"""`tw.bisect` and `tw.reduce` against faults that are planted in the code generator."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.cli import tilewright
from tests.support.models import feed_for, small_net

import tilewright as tw
from tilewright.api.bisection import BisectResult, DifferingKernel
from tilewright.api.reduction import Excerpts, minimal
from tilewright.ir.interpret import run_graph
from tilewright.report import comparison
from tilewright.report.comparison import TensorDifference
from tilewright.targets.llvm import exprgen

DEPTH = 9
FAULTY = 5


def chain(depth: int = DEPTH, faulty: int = FAULTY) -> onnx.ModelProto:
    """Products with a function each, in a row; one of the functions is `Abs`."""
    rng = np.random.default_rng(5)
    nodes, weights = [], []
    for i in range(depth):
        weights.append(numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"], f"product{i}"))
        nodes.append(helper.make_node("Abs" if i == faulty else "Relu", [f"p{i}"], [f"x{i + 1}"], f"act{i}"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 16]) for n in ("x0", f"x{depth}")]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def wrong_abs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code generator whose `Abs` keeps the sign."""
    monkeypatch.setitem(exprgen._FLOAT_OPS, "abs", lambda e, t, v: v[0])


def bisected(model: onnx.ModelProto) -> BisectResult:
    return tw.bisect(model, threads=1, no_cache=True)


def test_a_right_model_has_no_kernel_that_differs() -> None:
    found = bisected(chain())
    assert found.ok
    assert (found.kernel, found.num_looks) == (None, 1)
    assert found.verdict.startswith("nothing differs, neither outputs nor the results of ")


@pytest.mark.usefixtures("wrong_abs")
def test_the_kernel_with_the_planted_fault_is_found_and_wrong_alone() -> None:
    found = bisected(chain())
    assert not found.ok
    assert found.kernel is not None
    assert f"act{FAULTY}" in found.kernel.nodes
    assert found.kernel.is_wrong_alone
    assert found.to_json()["kernel"]["is_wrong_alone"] is True
    assert f"act{FAULTY}" in found.lines()[0]


def test_where_handing_everything_out_hides_it_the_kernel_is_searched_for(
    wrong_abs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a result lies decides: a kernel that is wrong only if few results are handed out."""
    look = comparison.compare_layers

    def hidden(*arguments: Any, only: object = None) -> comparison.LayerComparison:
        found = look(*arguments, only=only)  # type: ignore[arg-type]
        return found if only is not None else comparison.LayerComparison((), found.num_kernels, ())

    monkeypatch.setattr("tilewright.api.bisection.compare_layers", hidden)
    found = bisected(chain())
    assert found.kernel is not None
    assert f"act{FAULTY}" in found.kernel.nodes
    assert 1 < found.num_looks <= 2 + DEPTH.bit_length()


def test_errors_that_add_up_are_told_from_a_wrong_kernel() -> None:
    large, small = (TensorDifference("x", (1,), difference, 1.0, 0.1) for difference in (0.5, 0.01))
    for alone, words in ((small, "errors of others add up"), (large, "alone, too")):
        kernel = DifferingKernel(("k3",), ("loop-nest",), ("n",), large, (alone,))
        found = BisectResult("m", 0.1, 0.0, (large,), 7, 1, kernel, False, "", "cpu")
        assert kernel.is_wrong_alone == (alone is large)
        assert found.verdict.endswith(words)


@pytest.mark.usefixtures("wrong_abs")
def test_the_command_line_names_the_kernel_and_ends_with_the_code_of_differences(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "chain.onnx")
    told = tilewright("bisect", tmp_path / "chain.onnx", "--no-cache", "--threads", "1")
    assert told.code == 4
    assert f"first to differ: k{FAULTY}" in told.out
    assert "next: tilewright reduce" in told.err
    reduced = tilewright("reduce", tmp_path / "chain.onnx", "-o", tmp_path / "small.onnx", "--no-cache")
    assert reduced.code == 0
    assert f"1 of {2 * DEPTH} nodes still fail" in reduced.out
    assert (tmp_path / "small.npz").exists()


def test_a_target_without_kernels_is_refused() -> None:
    with pytest.raises(tw.UsageError, match="no kernels"):
        tw.bisect(small_net(), target="interpreter")


@pytest.mark.usefixtures("wrong_abs")
def test_a_model_is_reduced_to_the_node_with_the_planted_fault(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    found = tw.reduce(chain(), path, threads=1, no_cache=True)
    assert (found.nodes, found.operators) == ((f"act{FAULTY}",), ("Abs",))
    assert (found.failure.kind, found.is_minimal) == ("differs", True)
    assert found.num_trials < 2 * DEPTH
    onnx.checker.check_model(onnx.load(path))
    again = bisected(onnx.load(path))
    assert again.kernel is not None
    with np.load(tmp_path / "small.npz") as arrays:
        np.testing.assert_array_equal(arrays[f"p{FAULTY}"], found.feed[f"p{FAULTY}"])
    assert tw.compare(path, feed=path.with_suffix(".npz"), options=tw.Options(no_cache=True)).differing


def test_what_fails_together_only_stays_together(tmp_path: Path) -> None:
    """A command that fails where two nodes are there, and on neither of them alone."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "sys.exit(3 if b'product2' in data and b'act7' in data else 0)\n"
    )
    found = tw.reduce(chain(), command=f"{sys.executable} -S -E {script} {{}}")
    assert found.nodes == ("product2", "act7")
    assert found.failure.kind == "exit code 3"


def test_a_model_that_cannot_be_loaded_is_reduced_to_the_node_that_is_refused() -> None:
    model = small_net()
    model.graph.node.append(helper.make_node("Foo", ["flat"], ["foo"], "foo", domain="odd"))
    model.opset_import.append(helper.make_opsetid("odd", 1))
    model.graph.output.append(helper.make_tensor_value_info("foo", TensorProto.FLOAT, [1, 24]))
    found = tw.reduce(model)
    assert found.nodes == ("foo",)
    assert found.failure.kind.startswith("UnsupportedOp")
    assert found.to_json()["num_nodes"] == len(model.graph.node)


def test_trials_that_run_out_are_told(wrong_abs: None) -> None:
    found = tw.reduce(chain(), trials=2, threads=1, no_cache=True)
    assert not found.is_minimal
    assert found.num_trials == 2
    assert "more --trials" in found.lines()[1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "does not fail"),
        ({"command": "true {}"}, "does not fail"),
        ({"command": "true"}, "write {} where"),
        ({"command": "no-such-program {}"}, "cannot be run"),
        ({"command": "'"}, "No closing quotation"),
    ],
)
def test_what_cannot_be_reduced_is_refused(asked: dict[str, str], words: str) -> None:
    with pytest.raises(tw.UsageError, match=words):
        tw.reduce(small_net(), threads=1, **asked)


@pytest.mark.parametrize("wanted", [{0}, {63}, {5, 40}, set(range(20, 30)), set(range(0, 64, 7))], ids=str)
def test_what_is_left_is_minimal(wanted: set[int]) -> None:
    assert set(minimal(range(64), lambda part: wanted <= set(part))) == wanted


def test_constants_and_shapes_of_a_part_are_those_of_the_whole_model() -> None:
    model = small_net()
    values = {value.name: value for value in tw.load(model).graph.values()}
    excerpts = Excerpts(model, values)
    part = excerpts.part([2, 3])
    assert [i.name for i in part.graph.input] == ["r1"]
    assert [t.name for t in part.graph.initializer] == ["w2"]
    assert [o.name for o in part.graph.output] == ["sum"]
    whole = run_graph(tw.load(model).graph, feed_for(model), taps=["r1", "sum"])
    got = tw.compile(part, threads=1).run(None, {"r1": whole["r1"]})
    np.testing.assert_allclose(got[0], whole["sum"], rtol=1e-4, atol=1e-5)
