"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.reproduce.base import Effort, Exhibit, Update
from tilewright.reproduce.graphturbo.exhibits import (
    Row,
    figure_14,
    figure_15,
    figures_16_17,
    table_1,
    table_2,
    table_3,
    table_4,
)
from tilewright.reproduce.graphturbo.paper import NETWORKS, TABLE_1
from tilewright.reproduce.graphturbo.runs import RECIPES, Job, Outcome, each


@dataclass(frozen=True, slots=True)
class GraphTurbo:
    """The reproduction."""

    @property
    def title(self) -> str:
        """The paper, for people."""
        return "Effectively Scheduling Computational Graphs of Deep Neural Networks (GraphTurbo, OSDI 2023)"

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        step = max(1, round(1 / effort.share))
        chosen = NETWORKS[::step]
        name, batches = TABLE_1
        jobs: list[Job] = [(net.zoo_name, dict(net.size), net.tvm_batch, ("tvm",)) for net in chosen]
        jobs += [(net.zoo_name, dict(net.size), net.batch, RECIPES) for net in chosen]
        jobs += [(name, {"sequence": 128}, batch, ("tvm", "graphturbo")) for batch in batches]
        found: list[dict[str, Outcome]] = []
        for number, outcome in enumerate(each(jobs, effort.num_processes)):
            update(f"{jobs[number][0]} with {jobs[number][2]} samples", number, len(jobs))
            found.append(outcome)
        count = len(chosen)
        rows = [
            Row(net, tvm["tvm"], ours)
            for net, tvm, ours in zip(chosen, found[:count], found[count : 2 * count], strict=True)
        ]
        by_batch = dict(zip(batches, found[2 * count :], strict=True))
        return (
            table_1(by_batch), table_2(rows), figure_14(rows), figure_15(rows), table_3(rows),
            figures_16_17(rows), table_4(rows),
        )  # fmt: skip
