"""All outcomes of a reproduction, by what they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from tilewright.reproduce.graphturbo.gpu import GpuTimes
from tilewright.reproduce.graphturbo.paper import PublishedNetwork
from tilewright.reproduce.graphturbo.runs import GraphTurboOutcome

SERIAL, OVERLAPPED = "", "-overlapped"
"""What the names of baselines end in: phases of a step in sequence, or tile by tile at the same time."""


@dataclass(frozen=True, slots=True)
class Row:
    """A network with TVM's outcomes at TVM's batch, and all others at GraphTurbo's."""

    network: PublishedNetwork
    tvm: Mapping[str, GraphTurboOutcome]
    ours: Mapping[str, GraphTurboOutcome]

    def outcome(self, recipe: str) -> GraphTurboOutcome:
        """Of TVM's recipes at TVM's batch."""
        return self.tvm[recipe] if recipe in self.tvm else self.ours[recipe]

    def ratio(self, recipe: str, other: str) -> float:
        """Throughput of one recipe over another's."""
        return self.outcome(recipe).per_s / self.outcome(other).per_s

    @property
    def title(self) -> str:
        """Letter and name, as in the paper's tables."""
        return f"{self.network.label} {self.network.name}"


@dataclass(frozen=True, slots=True)
class Measured:
    """`by_batch` is table 1's network by samples, `units` figure 16's networks by name and samples.

    `orders` are both orders and both rules of spilling on ResNet-50, `choices` readings of the algorithms on
    it; `allocated` is BERT-256 by the share of the cores' buffers that may be allocated, `gpu` the study on a
    GPU by images and way.
    """

    rows: Sequence[Row]
    by_batch: Mapping[int, Mapping[str, GraphTurboOutcome]]
    units: Mapping[str, Mapping[int, Mapping[str, GraphTurboOutcome]]]
    orders: Mapping[str, GraphTurboOutcome]
    choices: Mapping[str, GraphTurboOutcome]
    allocated: Mapping[float, GraphTurboOutcome]
    gpu: Mapping[int, Mapping[str, GpuTimes]]

    def row(self, label: str) -> Row | None:
        """A network by its letter, if it was run."""
        return next((row for row in self.rows if row.network.label == label), None)

    def mean(self, recipe: str, other: str, of: Callable[[Sequence[float]], float] = fmean) -> float:
        """Of the ratios of throughput on all networks."""
        return of([row.ratio(recipe, other) for row in self.rows])

    def geometric_mean(self, recipe: str, other: str) -> float:
        """The same, in the other sense of a mean."""
        return self.mean(recipe, other, geometric_mean)
