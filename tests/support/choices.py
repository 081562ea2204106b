"""Programs whose products are made as a test says."""

from __future__ import annotations

from dataclasses import replace

from tilewright.partition.form import Form
from tilewright.program import Program
from tilewright.tuning import Choices


def with_choices(program: Program, choices: Choices) -> Program:
    """The program with these choices, by signature, wherever the products stand."""
    chosen = tuple(sorted(choices.items()))
    return program.with_forms(
        {
            s.id: Form(tuple(replace(kernel, choices=chosen) for kernel in s.kernels))
            for s in program.partition.subgraphs
        }
    )
