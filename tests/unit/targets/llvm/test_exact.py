"""Strict models round where they say so: a product is a value before it is added to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.support.models import F32, model

import tilewright as tw
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Call, Read, call
from tilewright.ir.nest import Access, Dim, Nest, Operand, affine
from tilewright.options import Accuracy
from tilewright.targets.llvm.exact import round_products

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
X, Y, Z = (RNG.standard_normal(1000).astype(np.float32) for _ in range(3))


def elementwise(*nodes: tuple[str, list[str], str]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, F32, [1000]) for n in "xyz"]
    made = [helper.make_node(op, reads, [out], f"{op}_{out}") for op, reads, out in nodes]
    return model(made, inputs, [helper.make_tensor_value_info("out", F32, [1000])], [])


def outputs(proto: onnx.ModelProto, accuracy: Accuracy) -> Array:
    with tw.compile(proto, accuracy=accuracy, no_cache=True) as compiled:
        (result,) = compiled.run(None, {"x": X, "y": Y, "z": Z})
    return np.asarray(result)


TWICE = elementwise(("Mul", ["x", "y"], "a"), ("Mul", ["y", "x"], "b"), ("Sub", ["a", "b"], "out"))
SUM = elementwise(("Mul", ["x", "y"], "a"), ("Add", ["a", "z"], "out"))


def test_a_product_less_itself_is_zero() -> None:
    assert not outputs(TWICE, "strict").any()


def test_strict_rounds_each_operator_as_numpy_does() -> None:
    np.testing.assert_array_equal(outputs(SUM, "strict"), X * Y + Z)


def test_other_models_may_round_once() -> None:
    """So that the test above shows what strict does."""
    exact = (X.astype(np.float64) * Y + Z).astype(np.float32)
    np.testing.assert_array_equal(outputs(SUM, "default"), exact)
    assert (exact != X * Y + Z).any()


def test_shared_parts_stay_shared() -> None:
    product = call("mul", Read(0, DType.FLOAT32), Read(1, DType.FLOAT32))
    element = (affine("i"),)
    reads = tuple(Access(Operand("input", i, DType.FLOAT32, (4,)), element) for i in range(2))
    write = Access(Operand("output", 0, DType.FLOAT32, (4,)), element)
    rounded = round_products(Nest((Dim("i", 4),), reads, write, call("sub", product, product))).body
    assert isinstance(rounded, Call)
    assert rounded.args[0] is rounded.args[1]
    assert rounded.args[0] == Call("cast", (product,), DType.FLOAT32)


@pytest.mark.parametrize("divisor", [3.0, 4.0])
def test_strict_divides(divisor: float) -> None:
    proto = elementwise(("Div", ["x", "d"], "out"))
    proto.graph.initializer.append(helper.make_tensor("d", F32, [], [divisor]))
    np.testing.assert_array_equal(outputs(proto, "strict"), X / np.float32(divisor))
