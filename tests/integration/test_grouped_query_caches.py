"""GroupQueryAttention with open lengths: a cache that grows, and one whose places are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.specialise.model import OpenCompiledModel

Array = np.ndarray[Any, Any]

DECODER = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> g (
        float[1,s,64] q, float[1,s,32] k, float[1,s,32] v, float[1,2,p,16] pk, float[1,2,p,16] pv,
        int64[1,t] mask
    ) => (float[1,s,64] y, float[1,2,n,16] nk, float[1,2,n,16] nv) <int64 one = {1}, int64[1] axis = {1}> {
        all = Shape(mask)  long = Gather(all, one)  total = Cast <to=6> (long)
        count = ReduceSum <keepdims=0> (mask, axis)  last = Sub(count, one)  lasts = Cast <to=6> (last)
        y, nk, nv = com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2, do_rotary=1>
            (q, k, v, pk, pv, lasts, total, cos, sin)
    }"""


WITH_WEIGHTS_OF_FOUR_BITS = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> g (
        float[1,1,64] x, float[1,4,p,16] pk, float[1,4,p,16] pv, int64[1,t] mask
    ) => (float[1,1,64] y, float[1,4,n,16] nk, float[1,4,n,16] nv)
    <int64[4] heads = {1, 1, 4, 16}, int64[3] flat = {1, 1, 64}, int64[2] axes = {1, 2},
     float far = {-1000.0}> {
        w = com.microsoft.MatMulNBits <K=64, N=64, bits=4, block_size=32> (x, codes, scales)
        r = Reshape(w, heads)  q = Transpose <perm=[0, 2, 1, 3]> (r)
        nk = Concat <axis=2> (pk, q)  nv = Concat <axis=2> (pv, q)
        kt = Transpose <perm=[0, 1, 3, 2]> (nk)  s = MatMul(q, kt)
        seen = Cast <to=9> (mask)  hidden = Not(seen)
        away = Cast <to=1> (hidden)  add = Mul(away, far)  shown = Unsqueeze(add, axes)
        m = Add(s, shown)  p0 = Softmax <axis=3> (m)  o = MatMul(p0, nv)
        back = Transpose <perm=[0, 2, 1, 3]> (o)  y = Reshape(back, flat)
    }"""


def test_one_code_serves_all_lengths_beside_operators_of_another_domain() -> None:
    """Weights of few bits do not follow the past, so it matters not of which domain their operator is."""
    model, rng = onnx.parser.parse_model(WITH_WEIGHTS_OF_FOUR_BITS), np.random.default_rng(0)
    codes = rng.integers(0, 256, (64, 2, 16), dtype=np.uint8)
    scales = rng.standard_normal(128).astype(np.float32) / 64
    model.graph.initializer.extend(
        [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")]
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tw.compile(model, threads=1)
    assert isinstance(compiled, OpenCompiledModel)
    caches = [rng.standard_normal((1, 4, 9, 16)).astype(np.float32) for _ in range(2)]
    for length in range(10, 15):
        feed: dict[str, Array] = {"x": rng.standard_normal((1, 1, 64)).astype(np.float32)}
        feed |= {"mask": np.ones((1, length), np.int64), "pk": caches[0], "pv": caches[1]}
        found, *caches = compiled.run(None, feed)
        np.testing.assert_allclose(found, session.run(None, feed)[0], rtol=0, atol=1e-5)
    assert compiled.specialisations.num_made == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("room", [0, 12])
def test_tokens_follow_each_other(room: int) -> None:
    model, rng = onnx.parser.parse_model(DECODER), np.random.default_rng(0)
    tables = [
        numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), n) for n in ("cos", "sin")
    ]
    model.graph.initializer.extend(tables)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    compiled = tw.compile(model, threads=1)
    ours: list[Array] = [np.zeros((1, 2, room, 16), np.float32)] * 2
    theirs, used = ours, 0
    for length in (5, 1, 1):
        used += length
        feed = {
            name: rng.standard_normal((1, length, columns)).astype(np.float32)
            for name, columns in (("q", 64), ("k", 32), ("v", 32))
        }
        feed["mask"] = np.ones((1, used), np.int64)
        found, *ours = compiled.run(None, {**feed, "pk": ours[0], "pv": ours[1]})
        wanted, *theirs = session.run(None, {**feed, "pk": theirs[0], "pv": theirs[1]})
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        assert ours[0].shape[2] == (room or used)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one[:, :, :used], other[:, :, :used], rtol=0, atol=1e-5)
