"""Operators and fused groups with what they take: measured in running programs, or simulated."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.cost.base import CostModel, KernelWork
from tilewright.cost.features import MachineFacts, WorkFacts, features_of

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.graph import Graph, Node, Value
    from tilewright.partition.base import Partition
    from tilewright.program import Program

PARTITIONS = ("none", "layerwise", "random{seed=1}")
_SPLIT = PARTITIONS[1:]
_SECONDS = 1.2
_LEAST_RUNS, _MOST_RUNS, _WARMUP_RUNS = 8, 400, 2
# Runs that other programs disturb take longer, never shorter.
_QUANTILE = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """One kernel: its facts, what the target's own model says, what it takes; energies where known."""

    network: str
    family: str
    facts: WorkFacts
    num_threads: int
    estimate_ns: float
    time_ns: float
    estimate_pj: float | None = None
    energy_pj: float | None = None

    def features(self, machine: MachineFacts) -> np.ndarray:
        """What a model sees of it."""
        return features_of(self.facts, machine, self.num_threads, self.estimate_ns)


@dataclass(frozen=True, slots=True)
class Choice:
    """To fuse or to cut: the numbers of the samples of the whole and of its parts."""

    whole: int
    parts: tuple[int, ...]


@dataclass(slots=True)
class Samples:
    """Of one machine, and the choices among them."""

    samples: list[Sample] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    def extend(self, others: Samples) -> None:
        """Append those of another network."""
        start = len(self.samples)
        self.samples += others.samples
        self.choices += [
            Choice(c.whole + start, tuple(part + start for part in c.parts)) for c in others.choices
        ]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one kernel, as `KernelWork`."""

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(cls, nodes: Sequence[Node], wanted: frozenset[Value]) -> Group:
        """Nodes in order; what others read or `wanted` has of their results leaves the group."""
        inside = set(nodes)
        made = [v for node in nodes for v in node.results()]
        outputs = tuple(v for v in made if v in wanted or any(u not in inside for u in v.users))
        return cls(tuple(nodes), outputs or tuple(nodes[-1].results()))


def split_once(partition: Partition, rng: random.Random) -> list[tuple[Node, ...]]:
    """The nodes of each subgraph, those of several cut in two somewhere."""
    clusters: list[tuple[Node, ...]] = []
    for subgraph in partition.subgraphs:
        nodes = subgraph.nodes
        if len(nodes) > 1:
            cut = rng.randrange(1, len(nodes))
            clusters += [nodes[:cut], nodes[cut:]]
        else:
            clusters.append(nodes)
    return clusters


# Simulated --------------------------------------------------------------------------------------------


def simulated(network: str, family: str, graph: Graph, target: str) -> Samples:
    """Kernels of a network on a described machine, each simulated alone; the estimate is its roofline."""
    from tilewright.compiler import optimise
    from tilewright.errors import InfeasibleMapping
    from tilewright.options import Options
    from tilewright.partition import PARTITIONERS
    from tilewright.partition.base import Partition
    from tilewright.targets import find_target

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
            work = Group.of(nodes, wanted)
            facts = WorkFacts.of(work)
            estimate = machine.roofline(facts)
            try:
                cost = backend.costs.kernel(work)
            except InfeasibleMapping:
                numbers[nodes] = None
                return None
            numbers[nodes] = len(result.samples)
            result.samples.append(
                Sample(
                    network,
                    family,
                    facts,
                    1,
                    estimate.time_ns,
                    cost.time_ns,
                    estimate.energy_pj,
                    cost.energy_pj,
                )
            )
        return numbers[nodes]

    for node in graph.nodes:
        number_of((node,))
    rng = random.Random(0)
    for name in (*_SPLIT, "random{seed=2}"):
        partition = PARTITIONERS.get(name).solve(backend.partition_problem, options.search_budget)
        assert isinstance(partition, Partition)
        for subgraph in partition.subgraphs:
            if len(subgraph.nodes) < 2:
                continue
            cut = rng.randrange(1, len(subgraph.nodes))
            found = [number_of(n) for n in (subgraph.nodes, subgraph.nodes[:cut], subgraph.nodes[cut:])]
            whole, *parts = (n for n in found if n is not None)
            if len(parts) == 2:
                result.choices.append(Choice(whole, tuple(parts)))
    return result


# Measured ---------------------------------------------------------------------------------------------


def measured(network: str, family: str, graph: Graph, num_threads: Sequence[int]) -> dict[int, Samples]:
    """Kernels of a network in programs that run here, on each of so many threads.

    A kernel's time is from its start to the next one's, so that what a step takes beside its kernel counts.
    """
    from tilewright.compiler import Planner, optimise
    from tilewright.options import Options
    from tilewright.partition.base import Reason, build_partition
    from tilewright.planning import Provenance
    from tilewright.planning.portfolio import PLAIN_RECIPE
    from tilewright.progress import PhaseClock
    from tilewright.targets.cpu.target import CpuTarget

    graph, _ = optimise(graph, Options())
    target, options, rng = CpuTarget(), Options(), random.Random(0)
    results = {n: Samples() for n in num_threads}
    numbers: dict[int, dict[tuple[Node, ...], int]] = {n: {} for n in num_threads}
    wanted = frozenset(graph.outputs)
    for name, is_split in [(p, False) for p in PARTITIONS] + [(p, True) for p in _SPLIT]:
        backend = target.backend(graph, options)
        planner = Planner(graph, target, backend, options, PhaseClock(None, None))
        partition = planner.partition(name)
        wholes = [s.nodes for s in partition.subgraphs if len(s.nodes) > 1]
        if is_split:
            clusters = split_once(partition, rng)
            partition = build_partition(
                backend.partition_problem,
                clusters,
                lambda p, c, v, fused: Reason.CLUSTER if fused else Reason.COST,
                Provenance("split"),
            )
            partition = backend.refine(backend.partition_problem, partition)
        for n, times in _times(planner.ordered(partition, PLAIN_RECIPE), num_threads).items():
            for nodes, time_ns in times.items():
                if nodes not in numbers[n]:
                    work = Group.of(nodes, wanted)
                    estimate_ns = _estimate_ns(backend.costs, work, n)
                    numbers[n][nodes] = len(results[n].samples)
                    sample = Sample(network, family, WorkFacts.of(work), n, estimate_ns, time_ns)
                    results[n].samples.append(sample)
        if is_split:
            for n in num_threads:
                known = numbers[n]
                for whole in wholes:
                    cut = next(
                        (i for i in range(1, len(whole)) if whole[:i] in known and whole[i:] in known), 0
                    )
                    if whole in known and cut:
                        parts = known[whole[:cut]], known[whole[cut:]]
                        results[n].choices.append(Choice(known[whole], parts))
    return results


def _estimate_ns(costs: CostModel, work: KernelWork, num_threads: int) -> float:
    """What the target says before it lowered anything, blocks that share the cache included."""
    whole_ns = costs.kernel(work).time_ns
    saved = costs.fused(work).time_ns / whole_ns if whole_ns else 1.0
    return costs.kernel(work, num_threads).time_ns * saved


def _times(program: Program, num_threads: Sequence[int]) -> dict[int, dict[tuple[Node, ...], float]]:
    """By the number of threads, ns of each subgraph of a program that has generated code of its own."""
    import numpy as np

    from tilewright.targets.cpu.lowered import HostOperator
    from tilewright.targets.cpu.target import CpuTarget
    from tilewright.targets.cpu.tune_base import random_feed

    code = CpuTarget().generate(program, profile=True)
    home = {node: s.nodes for s in code.program.partition.subgraphs for node in s.nodes}
    owners: list[tuple[Node, ...] | None] = []
    on_host: set[tuple[Node, ...]] = set()
    for step in code.lowered.steps:
        nodes = (step.node,) if isinstance(step, HostOperator) else step.launches[0].nodes
        owner = {home[node] for node in nodes if node in home}
        owners.append(owner.pop() if len(owner) == 1 else None)
        if isinstance(step, HostOperator):
            on_host.add(home[step.node])
    feed = random_feed(program)
    times: dict[int, dict[tuple[Node, ...], float]] = {}
    for n in num_threads:
        executable = code.load(n)
        runs: list[dict[tuple[Node, ...], float]] = []
        try:
            for _ in range(_WARMUP_RUNS):
                executable.run_profiled(feed)
            start = time.perf_counter()
            while len(runs) < _LEAST_RUNS or (
                len(runs) < _MOST_RUNS and time.perf_counter() - start < _SECONDS
            ):
                stamps = executable.run_profiled(feed)
                ends = [*(s.start_ns for s in stamps[1:]), stamps[-1].start_ns + stamps[-1].duration_ns]
                run: dict[tuple[Node, ...], float] = {}
                for stamp, end_ns in zip(stamps, ends, strict=True):
                    owned = owners[stamp.step_index]
                    if owned is not None and owned not in on_host:
                        run[owned] = run.get(owned, 0.0) + end_ns - stamp.start_ns
                runs.append(run)
        finally:
            executable.close()
        times[n] = {k: float(np.quantile([r[k] for r in runs], _QUANTILE, method="lower")) for k in runs[0]}
    return times
