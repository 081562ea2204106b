"""Models with sequences between tensors."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tilewright as tw
from tilewright.frontend.onnx.sequences import group_sequences, holds_sequences


def model_of(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


CARRIED = """g (int64 n, float[3] x) => (float[?] z) {
  c = Constant<value = bool {1}>()
  s0 = SequenceEmpty()
  s = Loop (n, c, s0) <body = b (int64 i, bool ci, seq(float[?]) a) => (bool co, seq(float[?]) a1) {
    co = Identity(ci)
    f = Cast<to=1>(i)
    v = Add(x, f)
    a1 = SequenceInsert(a, v)
  }>
  y = ConcatFromSequence<axis=0>(s)
  z = Exp(y)
}"""


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_a_loop_hands_a_sequence_on(target: str) -> None:
    x = np.array([0, 1, 2], np.float32)
    compiled = tw.compile(model_of(CARRIED), target=target)
    for count in (1, 4):
        (z,) = compiled.run(None, {"n": np.array(count), "x": x})
        np.testing.assert_allclose(z, np.exp([v + i for i in range(count) for v in x]), rtol=1e-6)


SPLIT = """g (float[4,6] x) => (float[2,6] y, float[4] k) {
  n = Constant<value = int64 {2}>()
  i = Constant<value = int64 {1}>()
  e = Exp(x)
  s = SplitToSequence<axis=0>(e, n)
  a = SequenceAt(s, i)
  m = Tanh(a)
  y = Neg(m)
  k = ReduceSum<keepdims=0>(x, one)
  t = SequenceConstruct(y, m)
  l = ConcatFromSequence<axis=1>(t)
}"""
"""The second sequence is read by nothing."""


def test_sequences_that_have_nothing_in_common_are_apart() -> None:
    model = model_of(SPLIT)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    y, k = tw.compile(model).run(None, {"x": x})
    np.testing.assert_allclose(y, -np.tanh(np.exp(x))[2:], rtol=1e-5)
    np.testing.assert_allclose(k, x.sum(1), rtol=1e-4)
    group_sequences(model)
    assert [n.op_type for n in model.graph.node].count("If") == 1
    assert {"Exp", "Tanh", "Neg", "ReduceSum"} <= {n.op_type for n in model.graph.node}


def test_models_without_sequences_stay_as_they_are() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    before = model.SerializeToString()
    group_sequences(model)
    assert model.SerializeToString() == before
    assert not holds_sequences(model.graph)
