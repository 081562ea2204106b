"""Kernels of a network that run on this processor, in turns with the parts into which they can be cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tilewright.compiler import optimise
from tilewright.cost.features import WorkFacts
from tilewright.ir.graph import Graph, Node
from tilewright.learning.kernel_times import KernelBench, KernelTimes
from tilewright.learning.samples import Choice, Sample, SampleGroup, Samples, split_once
from tilewright.options import Options
from tilewright.partition.base import Partition, Reason, build_partition
from tilewright.planner import Planner
from tilewright.planning import Provenance
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import PhaseClock
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.target import CpuBackend


@dataclass(frozen=True, slots=True, eq=False)
class NetworkBench:
    """Measures a network's kernels on so many threads, one partition and its cut at a time."""

    name: str
    family: str
    graph: Graph
    num_threads: int
    bench: KernelBench

    @classmethod
    def of(cls, name: str, family: str, graph: Graph, num_threads: int, bench: KernelBench) -> NetworkBench:
        """A graph as it was imported."""
        return cls(name, family, optimise(graph, Options())[0], num_threads, bench)

    def measured(self, partition_name: str) -> Samples:
        """Kernels of a partition, and of its subgraphs cut in two somewhere.

        Raises:
            UsageError: it cannot be measured.
        """
        options = Options(threads=self.num_threads)
        backend = self.bench.target.backend(self.graph, options)
        planner = Planner(self.graph, self.bench.target, backend, options, PhaseClock(None, None))
        whole = planner.partition(partition_name)
        cut = _cut(whole, backend)
        together, apart = self.bench.paired(
            *(planner.ordered(partition, PLAIN_RECIPE) for partition in (whole, cut))
        )
        samples, numbers = self._samples(backend.costs, {**apart, **together})
        choices = [
            Choice(numbers[nodes], tuple(numbers[p] for p in parts), *_quartiles(together[nodes], parts_ns))
            for nodes, parts, parts_ns in _choices(together, apart)
        ]
        return Samples(samples, choices)

    def _samples(
        self, costs: CpuCosts, times: KernelTimes
    ) -> tuple[list[Sample], dict[tuple[Node, ...], int]]:
        wanted = frozenset(self.graph.outputs)
        samples: list[Sample] = []
        numbers: dict[tuple[Node, ...], int] = {}
        for nodes, times_ns in times.items():
            work = SampleGroup.of(nodes, wanted)
            estimate_ns = costs.fused(work).time_ns
            time_ns = median(times_ns)
            numbers[nodes] = len(samples)
            facts, plan = WorkFacts.of(work), costs.plan_facts(work)
            samples.append(
                Sample(self.name, self.family, facts, self.num_threads, estimate_ns, time_ns, plan=plan)
            )
        return samples, numbers


def _cut(partition: Partition, backend: CpuBackend) -> Partition:
    clusters = split_once(partition, random.Random(0))
    cut = build_partition(
        backend.partition_problem,
        clusters,
        lambda p, c, v, fused: Reason.CLUSTER if fused else Reason.COST,
        Provenance("split"),
    )
    return backend.refine(backend.partition_problem, cut)


def _choices(
    together: KernelTimes, apart: KernelTimes
) -> Iterator[tuple[tuple[Node, ...], tuple[tuple[Node, ...], ...], list[float]]]:
    """Subgraphs that were also cut in two: their nodes, those of their parts, what these take in a round."""
    for nodes in together:
        for i in range(1, len(nodes)):
            parts = nodes[:i], nodes[i:]
            if all(part in apart for part in parts):
                yield nodes, parts, [a + b for a, b in zip(*(apart[p] for p in parts), strict=True)]
                break


def _quartiles(whole_ns: Sequence[float], parts_ns: Sequence[float]) -> tuple[float, float]:
    """Of the time of the whole over that of its parts, round by round; (0, 0) where nothing takes time."""
    ratios = [a / b for a, b in zip(whole_ns, parts_ns, strict=True) if b]
    if len(ratios) < 2:
        return 0.0, 0.0
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return low, high
