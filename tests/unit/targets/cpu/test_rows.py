"""Code for many rows runs fewer of them: as many as it is told."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import tilewright as tw
from tilewright.errors import UsageError
from tilewright.targets.cpu.runtime.executable import CpuExecutable
from tilewright.targets.runs import RunsRows

HEADER = '<ir_version: 8, opset_import: ["": 17]> '
MOST = 11
RNG = np.random.default_rng(0)

MODELS = {
    "product and softmax": (
        "g (float[N,40] x) => (float[N,50] y) { a = MatMul(x, w) b = Relu(a) y = Softmax(b) }",
        (40,),
        (40, 50),
    ),
    "rows of tiles": (
        "g (float[N,30,64] x) => (float[N,30,200] y) { a = MatMul(x, w) y = Erf(a) }",
        (30, 64),
        (64, 200),
    ),
    "convolution": (
        "g (float[N,3,20,20] x) => (float[N,6] y) { c = Conv(x, w) p = GlobalAveragePool(c) y = Flatten(p) }",
        (3, 20, 20),
        (6, 3, 3, 3),
    ),
    "product with itself": (
        """g (float[N,30,64] x) => (float[N,30,30] y) {
            t = Transpose<perm=[0,2,1]>(x) a = MatMul(x, t) y = Softmax(a)
        }""",
        (30, 64),
        (),
    ),
    "convolution of tiles": (
        "g (float[N,32,16,16] x) => (float[N,32,16,16] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        (32, 16, 16),
        (32, 32, 3, 3),
    ),
    "attention": (
        """g (float[N,2,24,16] x) => (float[N,2,24,16] y) {
            t = Transpose<perm=[0,1,3,2]>(x) a = MatMul(x, t) s = Softmax(a) y = MatMul(s, x)
        }""",
        (2, 24, 16),
        (),
    ),
    "convolution of tiles in groups": (
        "g (float[N,32,28,28] x) => (float[N,32,28,28] y) { y = Conv<pads=[1,1,1,1], group=2>(x, w) }",
        (32, 28, 28),
        (32, 16, 3, 3),
    ),
    "attention of one query": (
        """g (float[N,2,24,16] x) => (float[N,2,1,16] y) {
            q = ReduceMax<axes=[2]>(x) t = Transpose<perm=[0,1,3,2]>(x) a = MatMul(q, t) s = Softmax(a)
            y = MatMul(s, x)
        }""",
        (2, 24, 16),
        (),
    ),
    "element by element": ("g (float[N,700] x) => (float[N,700] y) { y = Exp(x) }", (700,), ()),
}


def executable(text: str, shape: tuple[int, ...], weights: tuple[int, ...]) -> CpuExecutable:
    """A model of `MOST` rows, which may have fewer."""
    proto = parse_model(HEADER + text)
    if weights:
        data = RNG.standard_normal(weights).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(data, "w"))
    return executable_of(proto, shape)


def executable_of(proto: ModelProto, shape: tuple[int, ...]) -> CpuExecutable:
    model = tw.load(proto).at({"x": (MOST, *shape)})
    model.graph.row_axes = {"x": 0}
    loaded = tw.compile(model, threads=1).load()
    assert isinstance(loaded, CpuExecutable)
    return loaded


BYTES = {
    "product of bytes": ("MatMulInteger(q, w)", (30, 64), (64, 48), "30,48"),
    "convolution of bytes": ("ConvInteger<pads=[1,1,1,1]>(q, w)", (8, 12, 12), (16, 8, 3, 3), "16,12,12"),
    "depthwise convolution of bytes": ("ConvInteger<group=16>(q, w)", (16, 9, 9), (16, 1, 3, 3), "16,7,7"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", MODELS)
def test_the_first_rows_are_those_of_the_whole_run(model: str) -> None:
    text, shape, weights = MODELS[model]
    check_rows(executable(text, shape, weights), shape)


@pytest.mark.parametrize("model", BYTES)
def test_products_of_bytes_end_with_the_rows(model: str) -> None:
    product, shape, weights, result = BYTES[model]
    dims = ",".join(map(str, shape))
    nodes = f"q = QuantizeLinear(x, s, z) p = {product} y = Cast<to=1>(p)"
    proto = parse_model(f"{HEADER} g (float[N,{dims}] x) => (float[N,{result}] y) {{ {nodes} }}")
    factor = RNG.integers(-128, 128, weights).astype(np.int8)
    arrays = {"s": np.float32(0.05), "z": np.uint8(120), "w": factor}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    code = executable_of(proto, shape)
    assert code.rows_share > 0.5
    check_rows(code, shape)


def check_rows(code: CpuExecutable, shape: tuple[int, ...]) -> None:
    assert isinstance(code, RunsRows)
    assert code.row_axes == {"x": 0}
    for num_rows in (1, 2, 5, MOST - 1, MOST):
        x = RNG.standard_normal((MOST, *shape)).astype(np.float32)
        found = code.run_rows({"x": x}, num_rows)["y"][:num_rows].copy()
        x[num_rows:] = np.nan  # what lies behind is not looked at
        again = code.run_rows({"x": x}, num_rows)["y"][:num_rows]
        np.testing.assert_array_equal(again, found)
        x[num_rows:] = 0
        np.testing.assert_array_equal(code.run({"x": x})["y"][:num_rows], found)


def test_rows_that_a_run_does_not_have_take_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    code = executable(*MODELS["rows of tiles"])
    x = RNG.standard_normal((MOST, 30, 64)).astype(np.float32)
    monkeypatch.setattr(code, "_new_results", lambda _: {"y": np.full((MOST, 30, 200), 7, np.float32)})
    found = code.run_rows({"x": x}, 4)["y"]
    assert np.all(np.abs(found[:4]) <= 1)
    assert np.all(found[5:] == 7)  # the last tile may reach into the next row


def test_a_run_has_between_one_and_all_rows() -> None:
    code = executable(*MODELS["element by element"])
    for num_rows in (0, MOST + 1):
        with pytest.raises(UsageError, match=f"a run of {num_rows} rows"):
            code.run_rows({"x": np.zeros((MOST, 700), np.float32)}, num_rows)


def test_a_graph_whose_rows_are_mixed_runs_all_of_them() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }"
    assert not executable(text, (4,), ()).row_axes
