"""`tw.check` and its verb name every node that does not run, also behind one that cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from tests.support.cli import tilewright

import tilewright as tw

MODEL = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
g (float[2,3] x, string[2] t) => (float[2,3] y, float z, string[2] u) <float[2,3] b> {
    [first] a = Relu(x)
    [odd] b = com.example.Odd(a)
    [behind_known] c = Neg(b)
    [odd_again] d = com.example.Odd(c)
    [behind_unknown] e = Exp(d)
    [draws] f = RandomNormalLike(e)
    [last] y = Abs(c)
    [sum] z = ReduceSum <keepdims = 0>(e)
    [text] u = Identity(t)
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("check") / "odd.onnx"
    onnx.save(parse_model(MODEL), path)
    return path


def test_check_goes_on_behind_a_node_that_cannot_be_loaded(path: Path) -> None:
    report = tw.check(path)
    assert not report.ok
    verdicts = {name: operator.verdict for operator in report.operators for name in operator.nodes}
    assert verdicts == {
        "first": "native",
        "odd": "refused",
        "behind_known": "native",  # the model declares what `odd` gives
        "odd_again": "refused",
        "behind_unknown": "unknown",
        "draws": "refused",
        "last": "native",
        "sum": "unknown",
        "text": "unsupported",
    }
    assert [operator.verdict for operator in report.unsupported] == [
        *("refused",) * 3,
        "unsupported",
        *("unknown",) * 2,
    ]


def test_nodes_of_shapes_that_data_decide_run_and_are_told_apart() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
    g (float[2,3] x) => (int64[2,M] y, float z) {
        [first] a = Relu(x)
        [decides] b = NonZero(a)
        [behind] y = Neg(b)
        [odd] c = com.example.Odd(b)
        [behind_both] d = Div(c, b)
        [sum] z = ReduceSum <keepdims = 0>(a)
    }"""
    report = tw.check(parse_model(text))
    verdicts = {name: operator.verdict for operator in report.operators for name in operator.nodes}
    assert verdicts == {
        "first": "native",
        "decides": "host",
        "behind": "deferred",
        "odd": "refused",
        "behind_both": "unknown",
        "sum": "native",
    }
    runs = parse_model(text.replace("com.example.Odd(b)", "Abs(b)"))
    for model in (runs, tw.load(runs)):
        report = tw.check(model)
        assert report.ok
        assert [o.nodes for o in report.on_host] == [("decides",)]


def test_the_verb_lists_all_nodes_that_do_not_run_and_says_how_many(path: Path) -> None:
    result = tilewright("check", path)
    assert result.code == 3
    assert "nodes that do not run: 6" in result.out
    for name in ("odd", "odd_again", "draws", "text", "behind_unknown", "sum"):
        assert f" {name} " in result.out
    (line,) = result.err.splitlines()
    assert "Odd 'odd' is of domain 'com.example'" in line
    assert "and 5 more, which the table lists" in line
    document = tilewright("check", path, "--json").document
    listed = [n for o in document["operators"] if o["verdict"] not in ("native", "host") for n in o["nodes"]]
    assert sorted(listed) == sorted(("odd", "odd_again", "draws", "text", "behind_unknown", "sum"))


def test_a_model_that_loads_is_checked_as_it_was(path: Path) -> None:
    with pytest.raises(tw.UnsupportedOp):
        tw.load(path)
    model = tw.load(
        parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    )
    assert [(o.op_type, o.verdict) for o in tw.check(model).operators] == [("Relu", "native")]


OPEN = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
g (float[N,3,H,W] x, int64 rate) => (float[N,3,K,L] y) {
    [first] a = MaxPool <kernel_shape = [3, 3]>(x)
    [odd] b = com.example.Odd(a)
    [odd_again] c = com.example.Odd(b)
    [draws] y = RandomNormalLike(c)
}"""


def test_an_open_model_is_refused_at_once_for_all_that_is_not_known() -> None:
    proto = parse_model(OPEN)
    for call in (tw.compile, tw.load):
        with pytest.raises(tw.UnsupportedOp) as caught:
            call(proto)
        assert "com.example Odd ('odd', 'odd_again'); RandomNormalLike ('draws')" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_branches_that_no_run_takes_may_hold_anything() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
    g (float[N] x) => (float[M] y) <bool c = {1}> {
        y = If (c) <
            then_branch = yes () => (float[M] a) { a = Relu(x) },
            else_branch = no () => (float[M] b) { b = com.example.Odd(x) }
        >
    }"""
    (y,) = tw.compile(parse_model(text), target="interpreter").run(None, {"x": np.ones(3, np.float32)})
    assert y.tolist() == [1.0, 1.0, 1.0]


def test_check_of_an_open_model_tries_likely_shapes() -> None:
    report = tw.check(parse_model(OPEN))
    assert report.shapes == "x:1x3x64x64"
    verdicts = {name: operator.verdict for operator in report.operators for name in operator.nodes}
    assert verdicts == {"first": "native", "odd": "refused", "odd_again": "refused", "draws": "refused"}
    runs = parse_model(OPEN.replace("com.example.Odd", "Abs").replace("RandomNormalLike", "Neg"))
    for model in (runs, tw.load(runs)):
        report = tw.check(model)
        assert report.ok
        assert report.shapes == "x:1x3x64x64"
        assert tw.check(model, shapes={"x": (2, 3, 9, 9)}).shapes == ""


def test_shapes_are_tried_until_some_fit() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,L] x) => (float[N,7,M] y) <int64[3] s = {0, 7, -1}> { y = Reshape(x, s) }"""
    assert tw.check(parse_model(text)).shapes == "x:1x224"


def test_where_no_shapes_fit_operators_are_judged_alone() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
    g (float[N,L] x) => (float[N,M] y) <int64[3] s = {0, 997, -1}> {
        [odd] a = com.example.Odd(x)
        [shaped] b = Reshape(x, s)
        [last] y = Relu(b)
    }"""
    report = tw.check(parse_model(text))
    verdicts = {name: operator.verdict for operator in report.operators for name in operator.nodes}
    assert verdicts == {"odd": "refused", "shaped": "deferred", "last": "deferred"}
    assert "shaped" in report.misfit
    unranked = parse_model(text)
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    assert tw.check(unranked).misfit == "an input has no known rank"


def test_the_verb_checks_open_models_and_takes_scalars(tmp_path: Path) -> None:
    text = OPEN.replace("com.example.Odd", "Abs").replace("RandomNormalLike", "Neg")
    proto = parse_model(text)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    path = tmp_path / "open.onnx"
    onnx.save(proto, path)
    result = tilewright("check", path, "--shapes", "rate:scalar")
    assert result.code == 0
    assert "looked at x:1x3x64x64" in result.err
    assert tilewright("check", path, "--shapes", "x:1x3x9x9,rate:scalar").code == 0
    assert "expected INPUT:1x3x224x224" in tilewright("check", path, "--shapes", "rate:").err
