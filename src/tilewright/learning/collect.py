"""Samples of several networks on a target: measured where it runs here, simulated where it is described."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median, quantiles

from tilewright.compiler import optimise
from tilewright.cost.features import MachineFacts, WorkFacts
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.families import TARGETS
from tilewright.hardware.machine import Machine
from tilewright.hardware.probe import resolve_threads
from tilewright.ir.graph import Graph, Node
from tilewright.learning.kernel_times import KernelBench, KernelTimes
from tilewright.learning.samples import (
    PARTITIONS,
    Choice,
    Sample,
    SampleFile,
    SampleGroup,
    Samples,
    split_once,
)
from tilewright.options import Options
from tilewright.partition import PARTITIONERS
from tilewright.partition.base import Partition, Reason, build_partition
from tilewright.planner import Planner
from tilewright.planning import Provenance
from tilewright.planning.portfolio import PLAIN_RECIPE
from tilewright.progress import PhaseClock, Progress
from tilewright.target_ref import TargetRef
from tilewright.targets import find_target
from tilewright.targets.cpu.costs.model import CpuCosts
from tilewright.targets.cpu.target import CpuBackend, CpuTarget


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


@dataclass(frozen=True, slots=True)
class SampledNetwork:
    """A graph as it was imported, the digest of its file, and the family with which it is held out."""

    name: str
    family: str
    digest: str
    graph: Graph


@dataclass(slots=True)
class Collection:
    """The samples of networks on a target, which a file keeps from one time to the next, if there is one.

    `most_s` is after how long nothing more is measured; what is missing then are `unmeasured` parts. Skipped
    are those that cannot be measured, with the reason.
    """

    target: TargetRef
    num_threads: int | None = None
    file: SampleFile | None = None
    most_s: float | None = None
    samples: Samples = field(init=False, default_factory=Samples)
    num_unmeasured: int = field(init=False, default=0)
    skipped: list[str] = field(init=False, default_factory=list)

    def collect(self, networks: Sequence[SampledNetwork], progress: Progress | None = None) -> None:
        """All of them, one part after another.

        Raises:
            UsageError: a target where nothing is measured or simulated, or a file that does not fit.
        """
        machine_of(self.target)
        known = {} if self.file is None else self.file.known()
        is_measured = find_target(self.target).is_measurable
        parts = PARTITIONS if is_measured else ("simulated",)
        threads = resolve_threads(self.num_threads) if is_measured else 1
        started_s = time.monotonic()
        # Round by round, so that a deadline leaves some of each network.
        jobs = [(network, part) for part in parts for network in networks]
        with ExitStack() as stack:
            bench = stack.enter_context(KernelBench(CpuTarget())) if is_measured else None
            for number, (network, part) in enumerate(jobs):
                key = f"{network.digest}/{part}/{threads}"
                samples = known.get(key)
                if samples is None:
                    if self.most_s is not None and time.monotonic() - started_s > self.most_s:
                        self.num_unmeasured += 1
                        continue
                    if progress is not None:
                        progress(f"{network.name}: {part}", number, len(jobs))
                    samples = self._made(network, part, threads, bench)
                    if samples is None:
                        continue
                    if self.file is not None:
                        self.file.append(key, samples)
                self.samples.extend(samples)

    def _made(
        self, network: SampledNetwork, part: str, threads: int, bench: KernelBench | None
    ) -> Samples | None:
        try:
            if bench is None:
                return simulated(network.name, network.family, network.graph, self.target)
            here = NetworkBench.of(network.name, network.family, network.graph, threads, bench)
            return here.measured(part)
        except UsageError as error:
            self.skipped.append(str(error))
            return None


def machine_of(target: TargetRef) -> tuple[Machine, MachineFacts]:
    """The machine of a target, and what features say of it.

    Raises:
        UsageError: a target whose work is neither measured nor simulated.
    """
    found = find_target(target)
    if found.is_measurable:
        return found.machine, MachineFacts.of(found.machine)
    if found.name in TARGETS.names():
        raise UsageError(
            f"target {target}: nothing is measured or simulated there that costs could be learned from; "
            "give cpu, or a machine of `tilewright targets`."
        )
    problem = found.backend(Graph(), Options(target=target)).partition_problem
    return found.machine, MachineFacts.of(found.machine, problem.types)


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
