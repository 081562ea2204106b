"""Kernels of a network on a described machine, each simulated alone; the estimate is its roofline."""

from __future__ import annotations

import random

from tilewright.compiler import optimise
from tilewright.cost.features import MachineFacts, WorkFacts
from tilewright.errors import InfeasibleMapping
from tilewright.ir.graph import Graph, Node
from tilewright.learning.samples import PARTITIONS, Choice, Sample, SampleGroup, Samples
from tilewright.options import Options
from tilewright.partition import PARTITIONERS
from tilewright.partition.base import Partition
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target


def simulated(network: str, family: str, graph: Graph, target: TargetRef) -> Samples:
    """What kernels of partitions take, and each of their subgraphs beside two parts of it."""
    options = Options(target=target)
    graph, _ = optimise(graph, options)
    chosen = find_target(target)
    backend = chosen.backend(graph, options)
    machine = MachineFacts.of(chosen.machine, backend.partition_problem.types)
    wanted = frozenset(graph.outputs)
    numbers: dict[tuple[Node, ...], int | None] = {}
    result = Samples()

    def number_of(nodes: tuple[Node, ...]) -> int | None:
        if nodes not in numbers:
            work = SampleGroup.of(nodes, wanted)
            facts = WorkFacts.of(work)
            estimate = machine.roofline(facts)
            try:
                cost = backend.costs.kernel(work)
            except InfeasibleMapping:
                numbers[nodes] = None
                return None
            numbers[nodes] = len(result.samples)
            times = estimate.time_ns, cost.time_ns, estimate.energy_pj, cost.energy_pj
            result.samples.append(Sample(network, family, facts, 1, *times))
        return numbers[nodes]

    for node in graph.nodes:
        number_of((node,))
    rng = random.Random(0)
    for name in PARTITIONS:
        partition = PARTITIONERS.get(name).solve(backend.partition_problem, options.search_budget)
        assert isinstance(partition, Partition)
        for subgraph in partition.subgraphs:
            if len(subgraph.nodes) < 2:
                continue
            cut = rng.randrange(1, len(subgraph.nodes))
            known = [number_of(n) for n in (subgraph.nodes, subgraph.nodes[:cut], subgraph.nodes[cut:])]
            whole, *parts = (n for n in known if n is not None)
            if len(parts) == 2:
                result.choices.append(Choice(whole, tuple(parts)))
    return result
