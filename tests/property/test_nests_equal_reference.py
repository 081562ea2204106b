"""Every operator has one meaning: its nests, its reference and ONNX Runtime agree."""

from __future__ import annotations

from typing import Any

import pytest
from tests.property.checks import assert_same, for_all
from tests.property.strategies import (
    Case,
    generators,
    onnx_reference_outputs,
    onnxruntime_outputs,
    reference_outputs,
)

from tilewright.ir.nest import Opaque, Stepwise
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe, operators
from tilewright.ir.ops.registry import INTERNAL_DOMAIN

KEYS = sorted(generators())
# Cells are operators of ours alone; the layers that become them are compared.
PUBLIC_KEYS = [key for key in KEYS if key[0] != INTERNAL_DOMAIN]


def nests_agree(one: Case) -> bool:
    description = describe(one.node)
    if isinstance(description, Opaque) and not isinstance(description, Stepwise):
        return False
    assert_same(one, run_described(one.node, one.inputs), reference_outputs(one))
    return True


def runtime_agrees(one: Case) -> bool:
    if one.node.op_type in NOT_IN_RUNTIME:
        theirs: list[Any] | str = onnx_reference_outputs(one)
    else:
        theirs = onnxruntime_outputs(one) if one.runtime else "not the standard"
    if isinstance(theirs, str):
        return False
    assert_same(one, reference_outputs(one), theirs)
    return True


# Operators that are opaque whatever their attributes: there are no nests to compare.
ALWAYS_OPAQUE: frozenset[str] = frozenset(
    {
        *("CoupledProbabilities", "DeformConv", "DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"),
        *("BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT"),
        *("NonMaxSuppression", "NonZero", "TreeSums"),
    }
)

# Operators newer than ONNX Runtime: they are compared with the reference of ONNX itself.
NOT_IN_RUNTIME: frozenset[str] = frozenset({"SwiGLU"})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_nests_compute_what_the_reference_computes(key: tuple[str, str]) -> None:
    assert (for_all(key, nests_agree) > 0) == (key[1] not in ALWAYS_OPAQUE)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", PUBLIC_KEYS, ids="".join)
def test_reference_computes_what_onnxruntime_computes(key: tuple[str, str]) -> None:
    assert for_all(key, runtime_agrees) > 0


def test_every_operator_with_a_reference_has_a_generator() -> None:
    missing = [
        op.op_type
        for op in operators()
        if op.reference is not None
        and not op.has_effect  # computes nothing
        and (op.domain, op.op_type) not in generators()
    ]
    assert missing == []
