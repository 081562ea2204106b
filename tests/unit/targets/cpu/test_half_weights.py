"""Weights of float16 and bfloat16: packed as they are, computed with in float32, to the bits of wide ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.specialise.model import OpenCompiledModel
from tilewright.targets.cpu.plans import parse_plan
from tilewright.targets.cpu.product.contraction import decisions
from tilewright.targets.cpu.runtime.executable import CpuExecutable

Array = np.ndarray[Any, Any]
STEPS, COLUMNS = 640, 230


def product(dtype: type, rows: int | str) -> tuple[onnx.ModelProto, Array]:
    """A product by weights of a half type, and these."""
    weights: Array = np.random.default_rng(0).standard_normal((STEPS, COLUMNS)).astype(dtype)
    kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.BFLOAT16
    tensor = helper.make_tensor("w", kind, weights.shape, weights.tobytes(), raw=True)
    x, y = (helper.make_tensor_value_info(n, kind, [rows, e]) for n, e in (("x", STEPS), ("y", COLUMNS)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), weights


def rows_of(count: int, dtype: type) -> Array:
    return np.random.default_rng(count).standard_normal((count, STEPS)).astype(dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_one_packed_copy_in_half_the_bytes_serves_few_rows_and_many(
    dtype: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proto, weights = product(dtype, "rows")
    compiled = tw.compile(proto, threads=2, no_cache=True)
    assert isinstance(compiled, OpenCompiledModel)
    found = {n: compiled.run(None, {"x": rows_of(n, dtype)})[0] for n in (1, 5, 60)}
    parts = [compiled.at({"x": (n, STEPS)}) for n in found]
    for part in parts:
        (kernel,) = part.kernels
        assert "B of 16 bits" in kernel.notes
        assert kernel.plan is not None
        assert str(parse_plan(kernel.plan)) == kernel.plan
    executables = [part.load() for part in parts]
    assert all(isinstance(one, CpuExecutable) for one in executables)
    (_,) = {frozenset(map(id, one._weights.held)) for one in executables if isinstance(one, CpuExecutable)}
    assert parts[0].memory is not None
    assert parts[0].memory.constant_bytes < 1.2 * weights.nbytes
    with tw.open(compiled.save(tmp_path / "m.tw")) as opened:
        np.testing.assert_array_equal(opened.run(None, {"x": rows_of(60, dtype)})[0], found[60])
    monkeypatch.setattr(decisions, "_HALVES", ())
    wide = tw.compile(proto, threads=1, no_cache=True)
    assert isinstance(wide, OpenCompiledModel)
    for count, result in found.items():
        x = rows_of(count, dtype)
        np.testing.assert_array_equal(wide.run(None, {"x": x})[0], result)
        expected = np.maximum(x.astype(np.float64) @ weights.astype(np.float64), 0)
        error = np.abs(result.astype(np.float64) - expected).max() / expected.max()
        assert error <= 2.0 ** (-11 if dtype is np.float16 else -8)
    assert all("B packed" in wide.at({"x": (n, STEPS)}).kernels[0].notes for n in found)


@pytest.mark.parametrize(("rows", "note"), [(4, "B of 16 bits"), (32, "B packed"), (200, "B packed")])
def test_rows_of_several_tiles_alone_read_floats(rows: int, note: str) -> None:
    """No other code reads the weights then, and to widen them would take time in each run."""
    proto, _ = product(np.float16, rows)
    assert note in tw.compile(proto, threads=1, no_cache=True).kernels[0].notes
