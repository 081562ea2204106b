"""The reproduction: what runs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.reproduce.ago import exhibits
from tilewright.reproduce.ago.paper import NETWORK, SIZE
from tilewright.reproduce.ago.partitions import VARIANTS, Weighed, partitioned
from tilewright.reproduce.base import Effort, Exhibit, Update


@dataclass(frozen=True, slots=True)
class Ago:
    """The reproduction. It is one network, so a share of the effort changes nothing."""

    @property
    def title(self) -> str:
        """The paper, for people."""
        return (
            "Boosting Mobile AI Inference by Removing Constraints on Graph Optimization (AGO, INFOCOM 2023)"
        )

    def run(self, effort: Effort, update: Update) -> Sequence[Exhibit]:
        """Every exhibit, in the paper's order."""
        found: dict[tuple[str, str], Weighed] = {}
        num_operators: dict[str, int] = {}
        total = 2 * len(VARIANTS)
        update(f"{NETWORK} partitioned", 0, total)
        for graph, name, count, weighed in partitioned(NETWORK, SIZE, tuple(VARIANTS)):
            found[graph, name] = weighed
            num_operators[graph] = count
            update(f"{NETWORK} by {name}", len(found), total)
        return exhibits.readings(), exhibits.figure_14(found, num_operators)
