"""What is partitioned: a network as it comes and as the passes leave it, by several partitioners."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright import zoo
from tilewright.compiler import optimise
from tilewright.families import PARTITIONERS, PASSES
from tilewright.frontend.onnx import load_onnx
from tilewright.ir.graph import Graph
from tilewright.options import Options
from tilewright.partition import check_partition
from tilewright.partition.ago.weights import WeightRule
from tilewright.partition.base import Partition
from tilewright.reproduce.ago.paper import TRIVIAL
from tilewright.targets import find_target

PLAIN, RECOGNISED = "as the paper's", "after all passes"
"""A graph without the passes that recognise several operators as one, which the paper's framework has not,
and the one that is compiled."""
VARIANTS: Mapping[str, str] = {
    "ago": "as chosen",
    "ago{accept=affix}": "the published rule for what may join",
    "ago{threshold=300}": "a lower threshold",
    "ago{threshold=1000}": "a higher threshold",
    "ago{threshold=cost}": "no threshold: as long as this processor's cost model says it pays",
    "layerwise": "Relay's rule",
}
"""Partitioners, and what each is."""

_RECOGNITION = tuple(name for name in PASSES.names() if name.startswith("recognise-"))


@dataclass(frozen=True, slots=True)
class Weighed:
    """The subgraphs of a partition: what each weighs, and how many complex operators it has."""

    weights: tuple[float, ...]
    num_complex: tuple[int, ...]

    @classmethod
    def of(cls, partition: Partition) -> Weighed:
        """By one table of weights for all partitioners."""
        weights = [WeightRule().of_all(subgraph.nodes) for subgraph in partition.subgraphs]
        return cls(tuple(w.total for w in weights), tuple(w.num_complex for w in weights))

    @property
    def mean(self) -> float:
        """The average weight."""
        return statistics.mean(self.weights)

    @property
    def median(self) -> float:
        """The median weight."""
        return statistics.median(self.weights)

    @property
    def jain(self) -> float:
        """Jain's index of fairness: 1 if all weigh the same."""
        return sum(self.weights) ** 2 / len(self.weights) / sum(w * w for w in self.weights)

    @property
    def num_trivial(self) -> int:
        """Subgraphs that weigh next to nothing."""
        return sum(weight < TRIVIAL for weight in self.weights)

    @property
    def num_complicated(self) -> int:
        """Subgraphs with two and more complex operators."""
        return sum(count >= 2 for count in self.num_complex)

    def bins(self, num_bins: int) -> tuple[int, ...]:
        """How many weigh from 2^i up to 2^(i+1), for each i; the first and the last take what is beyond."""
        found = Counter(min(max(int(w).bit_length() - 1, 0), num_bins - 1) for w in self.weights)
        return tuple(found[i] for i in range(num_bins))

    def complex_text(self) -> str:
        """How many have how many complex operators."""
        counts = sorted(Counter(self.num_complex).items())
        return ", ".join(f"{subgraphs} with {count}" for count, subgraphs in counts)


def partitioned(
    network: str, size: Mapping[str, int], names: Sequence[str]
) -> Iterator[tuple[str, str, int, Weighed]]:
    """Graph, partitioner, number of operators, weights: of both graphs and each of these partitioners."""
    graph = load_onnx(zoo.build(network, **size))
    for title, disabled in ((PLAIN, _RECOGNITION), (RECOGNISED, ())):
        options = Options(disabled_passes=disabled)
        optimised, _ = optimise(graph, options)
        for name in names:
            partition = partition_of(optimised, name, options)
            yield title, name, len(optimised.nodes), Weighed.of(partition)


def partition_of(graph: Graph, name: str, options: Options) -> Partition:
    """The partition of a graph as the partitioner says, checked; no target has refined it."""
    problem = find_target(options.target).backend(graph, options).partition_problem
    answer = PARTITIONERS.get(name).solve(problem, options.search_budget)
    return PARTITIONERS.verified(name, answer, Partition, lambda p: check_partition(problem, p))
