"""Checks over generated cases, shared by the property tests of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from tests.property.strategies import Case, generators

EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def for_all(key: tuple[str, str], check: Callable[[Case], bool], examples: int = 25) -> int:
    """Check generated cases of an operator; how many of them the check applied to."""
    applied: list[bool] = []

    @settings(EXAMPLES, max_examples=examples)
    @given(one=generators()[key])
    def every(one: Case) -> None:
        applied.append(check(one))

    every()
    return sum(applied)


def assert_same(one: Case, got: Sequence[Any], want: Sequence[Any]) -> None:
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a is None) == (b is None)
        if a is None:
            continue
        label = f"{one} output {position}"
        assert a.dtype == b.dtype, label
        assert a.shape == b.shape, label
        if one.exact or a.dtype.kind not in "f":
            np.testing.assert_array_equal(a, b, err_msg=label)
        else:
            np.testing.assert_allclose(a, b, rtol=one.rtol, atol=one.atol, err_msg=label)
