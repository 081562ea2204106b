"""What an operator without loop nests may ask of the host, known while compiling or when its operands are."""

# mypy: disable-error-code="arg-type, list-item"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.unit.frontend.onnx.test_limits import Inputs, body, long_scan, one

import tilewright as tw
from tilewright.errors import BudgetExceeded, InputError, ModelRejected, UnsupportedOp
from tilewright.frontend.onnx import load_onnx
from tilewright.ir import control_flow, regex, work
from tilewright.ir.nest import Opaque
from tilewright.ir.ops.registry import describe
from tilewright.passes.fold_constants import FoldConstants

F, I, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING  # noqa: E741  # the types' own letters
LARGE = 10**9
PLACES = {"s": np.array([1, 1, 10**4, 10**5])}
NGRAMS: dict[str, Any] = {
    **{"max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF"},
    **{"ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]},
}
MEL: dict[str, Any] = {
    "a": np.array(2**15),
    "b": np.array(2**15),
    "c": np.array(8000),
    "d": np.float32(0),
    "e": np.float32(9),
}


def sized_by(op_type: str, inputs: Inputs, large: Mapping[str, Any], **more: Any) -> tuple[Any, ...]:
    """Cases of one node whose size is a constant, and is fed to a result that is declared small."""
    shape = more.pop("shape")
    kinds = {k: F if np.asarray(a).dtype.kind == "f" else I for k, a in large.items()}
    fed = tuple((k, kinds[k], np.shape(a)) for k, a in large.items())
    declared = one(op_type, (*inputs, *fed), **more)
    declared.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, shape))
    return one(op_type, inputs, dict(large), **more), declared, large


def cases_of_size() -> Iterator[Any]:
    for op_type in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        yield op_type, *sized_by(op_type, (), {"n": np.array(LARGE)}, shape=(1,))
    yield (
        "DFT",
        *sized_by(
            "DFT",
            (("x", F, (1, 8, 1)),),
            {"n": np.array(LARGE)},
            shape=(
                1,
                1,
                1,
            ),
        ),
    )
    yield (
        "MelWeightMatrix",
        *sized_by(
            "MelWeightMatrix",
            (),
            MEL,
            shape=(
                1,
                1,
            ),
        ),
    )
    yield "AffineGrid", *sized_by("AffineGrid", (("t", F, (1, 2, 3)),), PLACES, shape=(1, 2, 2, 2), opset=20)
    image = {"i": np.array([20_000, 20_000]), "b": np.array([1, 1])}
    yield (
        "Col2Im",
        *sized_by(
            "Col2Im",
            (("x", F, (1, 1, 4)),),
            image,
            shape=(
                1,
                1,
                1,
                1,
            ),
            opset=18,
        ),
    )


SIZED = [pytest.param(*case[1:], id=case[0]) for case in cases_of_size()]


@pytest.mark.parametrize(("constant", "fed", "large"), SIZED)
def test_sizes_are_bounded_before_anything_is_allocated(
    constant: ModelProto, fed: ModelProto, large: Mapping[str, Any]
) -> None:
    with pytest.raises(ModelRejected, match="more than MAX_HOST_ELEMENTS = 268435456"):
        tw.compile(constant, target="interpreter")
    compiled = tw.compile(fed, target="interpreter")
    feed = {i.name: np.ones(i.shape, np.float32) for i in compiled.get_inputs()}
    with pytest.raises(InputError, match="more than MAX_HOST_ELEMENTS = 268435456"):
        compiled.run(None, {**feed, **large})


def test_a_range_that_is_data_is_bounded() -> None:
    ends = tuple((name, F, ()) for name in "abc")
    model = one("Range", ends)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, (5,)))
    compiled = tw.compile(model, target="interpreter")
    feed = {"a": np.float32(0), "b": np.float32(1), "c": np.float32(1e-12)}
    with pytest.raises(InputError, match="more than MAX_HOST_ELEMENTS"):
        compiled.run(None, feed)


@pytest.mark.parametrize("kind", [I, S])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"max_skip_count": LARGE}, "MAX_HOST_STEPS"),
        ({"ngram_indexes": [LARGE]}, "MAX_HOST_ELEMENTS"),
        ({"ngram_counts": [-LARGE]}, "ngram_counts does not rise"),
        ({"ngram_counts": [0, LARGE]}, "ngram_counts does not rise"),
    ],
)
def test_sequences_are_looked_up_in_bounded_time(change: dict[str, Any], problem: str, kind: int) -> None:
    pool: dict[str, Any] = {} if kind == I else {"pool_strings": ["a"]}
    attributes = {**NGRAMS, **pool, **change}
    if pool:
        del attributes["pool_int64s"]
    with pytest.raises(ModelRejected, match=problem):
        tw.compile(one("TfIdfVectorizer", (("x", kind, (4,)),), **attributes), target="interpreter")


def test_boxes_are_compared_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"k": np.array([LARGE]), "u": np.array([0.5], np.float32), "v": np.array([0.5], np.float32)}
    model = one("NonMaxSuppression", (("b", F, (1, 9, 4)), ("s", F, (1, 1, 9))), limits)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", I, (2, 3)))
    compiled = tw.compile(model, target="interpreter")
    corners = np.arange(9, dtype=np.float32)[:, None] + np.array([0, 0, 0.5, 0.5], np.float32)
    scores = np.zeros((1, 1, 9), np.float32)
    scores[..., :2] = 1
    monkeypatch.setattr(work, "MAX_HOST_STEPS", 2)
    feed = {"b": corners[None], "s": scores}
    assert compiled.run(None, feed)[0].shape == (2, 3)
    feed["s"] = np.ones((1, 1, 9), np.float32)
    with pytest.raises(InputError, match="takes 10 steps, more than MAX_HOST_STEPS = 2"):
        compiled.run(None, feed)


def test_constant_work_on_the_host_is_left_to_the_run() -> None:
    boxes = {"b": np.zeros((1, 9000, 4), np.float32), "s": np.ones((1, 1, 9000), np.float32)}
    limits = {"k": np.array([LARGE]), "u": np.array([0.5], np.float32), "v": np.array([0.5], np.float32)}
    model = one("NonMaxSuppression", (), {**boxes, **limits})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", I, (1, 3)))
    graph = load_onnx(model)
    (remark,) = FoldConstants().run(graph).remarks
    assert [node.op_type for node in graph.nodes] == ["NonMaxSuppression"]
    assert "more than" in remark.text


def test_loops_too_long_for_the_host_are_refused_while_compiling() -> None:
    with pytest.raises(ModelRejected, match=r"takes 100000000 steps, more than the \d+ \(MAX_COMPILED"):
        tw.compile(long_scan(10**8), target="interpreter")


@pytest.mark.parametrize("declared", [True, False])
def test_a_loop_ends_when_it_stacks_too_much(declared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    boolean = TensorProto.BOOL
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("ConstantOfShape", ["k"], ["o"]),
    ]
    inner = body(
        nodes,
        [("i", I, ()), ("c", boolean, ()), ("s", F, ())],
        [("d", boolean, ()), ("t", F, ()), ("o", F, (1000,))],
    )
    inner.initializer.append(numpy_helper.from_array(np.array([1000]), "k"))
    inputs = (("n", I, ()), ("q", boolean, ()), ("x", F, ()))
    model = one("Loop", inputs, body=inner, outputs=["z", "y" if declared else ""])
    del model.graph.output[1 + declared :]
    if declared:
        model.graph.output[1].CopyFrom(helper.make_tensor_value_info("y", F, (4, 1000)))
    monkeypatch.setattr(control_flow, "MAX_HOST_ELEMENTS", 4000)
    compiled = tw.compile(model, target="interpreter")
    feed = {"n": np.array(10**5), "q": np.array(True), "x": np.float32(1)}
    started_s = time.monotonic()
    with pytest.raises(InputError, match="stacks more than"):
        compiled.run(None, feed)
    assert time.monotonic() - started_s < 60  # all steps take minutes


def test_states_grow_to_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    boolean = TensorProto.BOOL
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Concat", ["s", "s"], ["t"], axis=0),
    ]
    inner = body(
        nodes,
        [("i", I, ()), ("c", boolean, ()), ("s", F, ("N",))],
        [("d", boolean, ()), ("t", F, ("M",))],
    )
    model = one("Loop", (("n", I, ()), ("q", boolean, ()), ("x", F, (1,))), body=inner)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, (8,)))
    monkeypatch.setattr(control_flow, "MAX_HOST_ELEMENTS", 1000)
    compiled = tw.compile(model, target="interpreter")
    feed = {"n": np.array(3), "q": np.array(True), "x": np.ones(1, np.float32)}
    assert compiled.run(None, feed)[0].tolist() == [1] * 8
    with pytest.raises(InputError, match="grows to 1024 elements, more than MAX_HOST_ELEMENTS"):
        compiled.run(None, {**feed, "n": np.array(60)})


def matched(pattern: str, texts: list[str]) -> Any:
    model = one("RegexFullMatch", (("x", S, (len(texts),)),), pattern=pattern, opset=20)
    compiled = tw.compile(model, target="interpreter")
    return compiled.run(None, {"x": np.array(texts, object)})[0]


def test_patterns_are_matched_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert matched(r"[a-zé]+@\w+", ["é@b", "é@", "x@y\n", ""]).tolist() == [True, False, False, False]
    monkeypatch.setattr(regex, "MAX_REGEX_S", 0.5)
    with pytest.raises(UnsupportedOp, match=r"longer than MAX_REGEX_S = 0.5 s"):
        matched("(a*)*b", ["a" * 60])
    model = one("RegexFullMatch", (), {"x": np.array(["a" * 60], object)}, pattern="(a*)*b", opset=20)
    monkeypatch.setattr(regex, "MAX_REGEX_S", 60.0)
    started_s = time.monotonic()
    with pytest.raises(BudgetExceeded):
        tw.compile(model, target="interpreter", timeout_s=1.0)
    assert time.monotonic() - started_s < 20
    with pytest.raises(UnsupportedOp, match="is not valid"):
        matched("(", ["a"])


def test_steps_of_a_node_are_minutes() -> None:
    large = one("AveragePool", (("x", F, (1, 1, 4000, 4000)),), kernel_shape=[3000, 3000])
    with pytest.raises(ModelRejected, match=r"takes 9018009000000 steps.*MAX_NODE_STEPS"):
        tw.compile(large, target="interpreter")


def valid() -> Iterator[tuple[str, Callable[[], ModelProto]]]:
    yield "window", lambda: one("HannWindow", (), {"n": np.array(16_000)})
    yield "spectrum", lambda: one("DFT", (("x", F, (8, 2**16, 1)),))
    steps = {"s": np.array(160), "n": np.array(400)}
    yield "speech", lambda: one("STFT", (("x", F, (1, 480_000, 1)),), steps, names=["x", "s", "", "n"])
    grid = {"s": np.array([1, 3, 1080, 1920])}
    yield "grid", lambda: one("AffineGrid", (("t", F, (1, 2, 3)),), grid, opset=20)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in valid()])
def test_what_models_ask_is_allowed(make: Callable[[], ModelProto]) -> None:
    (node,) = load_onnx(make()).nodes
    assert isinstance(describe(node), Opaque)
