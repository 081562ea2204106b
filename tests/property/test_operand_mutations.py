"""Operands, attributes or declared shapes that do not fit: refused in one line, or run and right."""

from __future__ import annotations

import pytest
from tests.hostile.operand_mutations import run_in_processes, seeds

from tilewright.ir.ops import operators

# What engines answer differently without ours being wrong: a part of the model's name, of the finding, and
# why.
EXPLAINED = (
    (
        "lppool",
        "theirs",
        "ONNX Runtime gives a window wider than its input one output where its stride is wider",
    ),
    (
        "maxpool",
        "theirs",
        "ONNX Runtime gives a window wider than its input one output where its stride is wider",
    ),
    ("attention", "scale ", "ONNX's reference takes the root of a scale, ours takes 0 for none given"),
    ("test_resize", "axes ", "ONNX Runtime does not count negative axes from the end"),
    (
        "qk_matmul_output_mode",
        "ONNX Runtime",
        "it shows scores before the bound, where the standard says after",
    ),
    ("averagepool", "ONNX's reference", "it pads an axis without elements"),
)

# Operators of which the node suite has no case that is one node on dense tensors.
WITHOUT_SEED = frozenset({"GlobalLpPool"})
RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal"),
        *("RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)


def unexplained(findings: list[str]) -> list[str]:
    return [f for f in findings if not any(model in f and part in f for model, part, _ in EXPLAINED)]


def test_there_are_valid_models_of_every_operator() -> None:
    found = {seed.model.graph.node[0].op_type for seed in seeds()}
    missing = {op.op_type for op in operators() if not op.domain} - found
    assert missing == WITHOUT_SEED | RANDOM


def test_what_does_not_fit_is_refused_or_runs_right() -> None:
    counts, findings = run_in_processes(seed=5, count=100)
    assert unexplained(findings) == []
    assert sum(counts.values()) == 100
    # Neither refuses everything nor takes everything.
    assert counts["ModelRejected"] > 20
    assert counts["ran"] > 20


@pytest.mark.slow
def test_many_that_do_not_fit_are_refused_or_run_right() -> None:
    _, findings = run_in_processes(seed=31, count=2000)
    assert unexplained(findings) == []
