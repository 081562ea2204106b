"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.reproduce.base import Effort, Exhibit, Reproduction, Update
from tilewright.reproduce.cosa import comparison, definitions, gpu, motivation
from tilewright.reproduce.cosa.bench import Bench
from tilewright.reproduce.cosa.paper import PRINTED

_EXHIBITS: Sequence[Callable[[Bench], Exhibit]] = (
    motivation.figure_1,
    motivation.figure_3,
    motivation.figure_4,
    definitions.table_4,
    definitions.figure_5,
    definitions.table_5,
    comparison.table_6,
    comparison.figure_6,
    comparison.figure_7,
    comparison.figure_8,
    comparison.figure_9,
    comparison.figure_10,
    gpu.figure_11,
)
"""In the paper's order."""


class Cosa(Reproduction):
    """The reproduction."""

    title = "CoSA: Scheduling by Constrained Optimization for Spatial Accelerators (ISCA 2021)"
    printed = PRINTED

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        made = []
        with Bench(effort, update) as bench:
            for number, make in enumerate(_EXHIBITS):
                update(make.__name__.replace("_", " "), number, len(_EXHIBITS))
                made.append(make(bench))
        return made
