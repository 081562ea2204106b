"""GroupQueryAttention with open lengths: a cache that grows, and one whose places are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import tilewright as tw

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
