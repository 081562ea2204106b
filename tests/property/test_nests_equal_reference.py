"""Every operator has one meaning: its nests, its reference and ONNX Runtime agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.strategies import Case, generators, onnxruntime_outputs, reference_outputs

from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe, operators

EXAMPLES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
KEYS = sorted(generators())


def assert_same(one: Case, got: Sequence[Any], want: Sequence[Any], exact: bool) -> None:
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a is None) == (b is None)
        if a is None:
            continue
        label = f"{one} output {position}"
        assert a.dtype == b.dtype, label
        assert a.shape == b.shape, label
        if exact or a.dtype.kind not in "f":
            np.testing.assert_array_equal(a, b, err_msg=label)
        else:
            np.testing.assert_allclose(a, b, rtol=one.rtol, atol=one.atol, err_msg=label)


@pytest.mark.parametrize("key", KEYS, ids="".join)
@EXAMPLES
@given(data=st.data())
def test_nests_compute_what_the_reference_computes(key: tuple[str, str], data: st.DataObject) -> None:
    one = data.draw(generators()[key])
    if not isinstance(describe(one.node), Opaque):
        assert_same(one, run_described(one.node, one.inputs), reference_outputs(one), one.exact)


@pytest.mark.parametrize("key", KEYS, ids="".join)
@EXAMPLES
@given(data=st.data())
def test_reference_computes_what_onnxruntime_computes(key: tuple[str, str], data: st.DataObject) -> None:
    one = data.draw(generators()[key])
    theirs = onnxruntime_outputs(one) if one.runtime else "not the standard"
    if not isinstance(theirs, str):
        assert_same(one, reference_outputs(one), theirs, one.exact)


def test_every_operator_with_nests_has_a_generator() -> None:
    missing = [
        op.op_type
        for op in operators()
        if op.reference is not None and (op.domain, op.op_type) not in generators()
    ]
    assert missing == []
