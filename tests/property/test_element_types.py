"""References compute in the type of their arrays; half types round once, where the nest or node ends."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import numpy as np
import pytest
from tests.property.checks import assert_same, for_all
from tests.property.strategies import Case, generators, reference_outputs

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Opaque, Stepwise
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe, find_operator

KEYS = sorted(generators())

# Operators whose output type is a constant of the model or the type of an operand that is not computed with.
TYPE_IS_GIVEN = frozenset({"BlockFloats", "CastLike", "EyeLike"})
# Operators that take no floating point, or give none: truths, places, integers and shapes.
WITHOUT_FLOATS = frozenset(
    {
        *("And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("IsInf", "IsNaN", "ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"),
        *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Constant", "ConstantOfShape"),
        *(
            "BlackmanWindow",
            "HammingWindow",
            "HannWindow",
            "ConvInteger",
            "MatMulInteger",
            "QLinearAdd",
            "QLinearConv",
            "QLinearMatMul",
            "QuantizeLinear",
        ),
    }
)
# Operators that ONNX's reference computes on the host.
ON_THE_HOST = frozenset({"DeformConv"})
# Operators whose nests are those of others, of which passes build them.
WITHOUT_NESTS = frozenset(
    {
        *("CoupledProbabilities", "DeformConv", "DynamicQuantizeLSTM", "GRU", "LSTM", "RNN", "TreeSums"),
        *("BlockFloats", "DFT", "MelWeightMatrix", "STFT"),
    }
)


def has(one: Case, dtype: DType) -> bool:
    values = [*one.node.inputs, *one.node.outputs]
    return any(v is not None and v.dtype is dtype for v in one.node.inputs) and any(
        v is not None and v.dtype is dtype for v in values[len(one.node.inputs) :]
    )


def in_half(one: Case) -> Case:
    """The same case with float16 in place of float32."""

    def narrow(array: np.ndarray | None) -> np.ndarray | None:
        return array.astype(np.float16) if array is not None and array.dtype == np.float32 else array

    def half(value: Value | None) -> Value | None:
        if value is None or value.dtype is not DType.FLOAT32:
            return value
        return Value(value.name, DType.FLOAT16, value.shape, narrow(value.data))

    node = one.node
    inputs, outputs = ([half(v) for v in values] for values in (node.inputs, node.outputs))
    changed = Node(node.op_type, inputs, outputs, node.attributes, opset=node.opset, domain=node.domain)
    # Two roundings to float16 of values of a few units: the nests of some operators store statistics.
    return Case(changed, tuple(narrow(a) for a in one.inputs), False, 4e-3, 4e-3, False)


def double_agrees(one: Case) -> bool:
    found = find_operator(one.node)
    if found is None or found.reference is None or not has(one, DType.FLOAT32):
        return False
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in one.inputs]
    with np.errstate(all="ignore"):
        results = found.reference(one.node, wide)
    narrow = run_node(one.node, one.inputs)
    for value, result, other in zip(one.node.outputs, results, narrow, strict=False):
        if value is not None and value.dtype is DType.FLOAT32:
            assert result.dtype == np.float64, one
            np.testing.assert_allclose(result, other, rtol=1e-3, atol=1e-3, err_msg=str(one))
    return True


def half_agrees(one: Case) -> bool:
    changed = in_half(one)
    description = describe(changed.node)
    has_nests = isinstance(description, Stepwise) or not isinstance(description, Opaque)
    if not has_nests or not has(changed, DType.FLOAT16):
        return False
    assert_same(changed, run_described(changed.node, changed.inputs), reference_outputs(changed))
    return True


@pytest.mark.sampled(20)
@pytest.mark.parametrize("key", [k for k in KEYS if k[1] not in TYPE_IS_GIVEN], ids="".join)
def test_a_reference_given_float64_computes_in_float64(key: tuple[str, str]) -> None:
    applied = for_all(key, double_agrees, examples=8)
    assert (applied > 0) == (key[1] not in WITHOUT_FLOATS | ON_THE_HOST)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_nests_of_half_types_compute_what_the_reference_computes(key: tuple[str, str]) -> None:
    applied = for_all(key, half_agrees, examples=8)
    assert (applied > 0) == (key[1] not in WITHOUT_FLOATS | WITHOUT_NESTS)
