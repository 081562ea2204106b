"""What rules said of the edges of a graph when operators were fused, and what the cost model added."""

from __future__ import annotations

from enum import StrEnum

from tilewright.ir.graph import Node, Value
from tilewright.records import dataclass


class Verdict(StrEnum):
    """What a rule says of fusing a producer and its reader."""

    STABLE = "stable"  # it pays on most machines: never cut again
    EVALUATE = "evaluate"  # fused at first; what it costs on the machine decides
    PROHIBITED = "prohibited"

    @property
    def rank(self) -> int:
        """The stricter, the larger."""
        return tuple(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class FusionRecord:
    """One data edge that was fused by a rule; whether both ends are still together, the partition says.

    `fused_cost` is what the subgraph costs whose fusion was in question, `apart_cost` its two parts with what
    passes between them written and read again, in `unit`; None where the cost was not asked.
    """

    producer: Node
    consumer: Node
    value: Value
    verdict: Verdict
    fused_cost: float | None = None
    apart_cost: float | None = None
    unit: str = ""

    def text(self, *, is_kept: bool) -> str:
        """The record as the end of a sentence about its edge, whose ends are still together or not."""
        state = "kept" if is_kept else "cut again"
        if self.fused_cost is None or self.apart_cost is None:
            return f"rule: {self.verdict}, {state}"
        costs = f"{self.fused_cost:.4g} {self.unit} together, {self.apart_cost:.4g} {self.unit} apart"
        return f"rule: {self.verdict}, {state}: {costs}"
