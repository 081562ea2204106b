"""Attributes at their extremes, for every operator: run or refused by a typed error, in bounded time."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from tests.hostile.attributes import outcomes, schemas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes as Linux has them")


def assert_bounded(seeds: range, *, use_suite: bool) -> None:
    found = list(outcomes(seeds, use_suite=use_suite))
    problems = [f"{o.seed}: {o.outcome}: {o.message}" for o in found if o.is_finding]
    assert not problems, "\n".join(problems)
    counts = Counter(o.outcome for o in found)
    assert counts.total() == len(seeds)
    # Models that are all refused, or none, would show nothing.
    assert min(counts["ran"], counts["ModelRejected"]) >= len(seeds) // 20


def test_every_version_of_every_operator_has_models() -> None:
    names = {name for name, _ in schemas()}
    assert {"GatherND", "LayerNormalization", "Einsum", "Split", "Loop", "RoiAlign"} <= names
    assert len(names) > 180


@pytest.mark.sampled(0)
def test_some_extreme_models_are_run_or_refused() -> None:
    assert_bounded(range(100), use_suite=False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 4000))
def test_many_extreme_models_are_run_or_refused(first: int) -> None:
    assert_bounded(range(first, first + 4000), use_suite=True)
