"""Operands, attributes or declared shapes that do not fit: refused in one line, or run and right."""

from __future__ import annotations

import pytest
from tests.hostile.operand_mutations import run_in_processes, seeds

from tilewright.ir.ops import operators

# Operators of which the node suite has no case that is one node on dense tensors.
WITHOUT_SEED = frozenset({"GlobalLpPool"})
RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal"),
        *("RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)


def test_there_are_valid_models_of_every_operator() -> None:
    found = {seed.model.graph.node[0].op_type for seed in seeds()}
    missing = {op.op_type for op in operators() if not op.domain} - found
    assert missing == WITHOUT_SEED | RANDOM


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(5, 8))
def test_what_does_not_fit_is_refused_or_runs_right(seed: int) -> None:
    counts, findings = run_in_processes(seed, count=40)
    assert findings == []
    assert sum(counts.values()) == 40
    # Neither refuses everything nor takes everything.
    assert counts["ModelRejected"] > 8
    assert counts["ran"] > 8


@pytest.mark.slow
def test_many_that_do_not_fit_are_refused_or_run_right() -> None:
    _, findings = run_in_processes(seed=31, count=2000)
    assert findings == []
