"""Partitions of a graph into subgraphs: the problem, the solution, and why each edge was cut or kept.

Every node is in exactly one subgraph and the quotient graph has no cycle, so the subgraphs can run one
after another.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tilewright.cost.base import UNITS, CostModel, Estimate, Objective
from tilewright.cost.roofline import NOMINAL
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.region import Region, volume
from tilewright.partition.analysis import Analysis
from tilewright.partition.form import Form, KernelForm
from tilewright.partition.fusion_records import FusionRecord
from tilewright.partition.layers import Layer, layers_within
from tilewright.partition.split import WHOLE, Split, WeighedSplits
from tilewright.planning import NO_LIMITS, Bound, Budget, Infeasible, Limits, Provenance, Quality, Space
from tilewright.progress import checkpoint
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.hardware.element_types import ElementTypes
    from tilewright.hardware.machine import Machine


class Reason(StrEnum):
    """Why a data edge was fused, or why it was not. The value is the code that reports print."""

    # Fused
    EPILOGUE = "epilogue"
    CHAIN = "chain"
    FEEDER = "feeder"
    CLUSTER = "cluster"
    BLOCKWISE = "blockwise"
    SEPARATE = "separate"
    MERGED = "merged"
    STABLE = "stable"
    EVALUATED = "evaluated"
    # Refused
    OPAQUE = "opaque"
    COMPLEX = "complex"
    REDUCTION = "reduction"
    INJECTIVE = "injective"
    SHAPE = "shape"
    ESCAPES = "escapes"
    MULTIPLE_RESULTS = "multiple-results"
    OTHER_KERNEL = "other-kernel"
    LIMIT = "limit"
    CYCLE = "cycle"
    STAGE = "stage"
    CAPACITY = "capacity"
    WEIGHT = "weight"
    COST = "cost"
    PROHIBITED = "prohibited"
    NO_FUSION = "no-fusion"
    CHANCE = "chance"

    @property
    def is_fused(self) -> bool:
        """Whether the edge lies inside one subgraph."""
        return self in _FUSED

    @property
    def text(self) -> str:
        """The reason as a sentence without its full stop."""
        return _REASON_TEXTS[self]


PARTITIONS = Space("partitions")
"""All partitions of the graph, by the sum of their kernels."""

_FUSED = frozenset(
    {
        Reason.EPILOGUE,
        Reason.CHAIN,
        Reason.FEEDER,
        Reason.CLUSTER,
        Reason.BLOCKWISE,
        Reason.SEPARATE,
        Reason.MERGED,
        Reason.STABLE,
        Reason.EVALUATED,
    }
)
_REASON_TEXTS: Mapping[Reason, str] = {
    Reason.EPILOGUE: "applied to each element as the producer finishes it",
    Reason.CHAIN: "both move or compute one element at a time",
    Reason.FEEDER: "computed where its only reader needs it",
    Reason.CLUSTER: "the partitioner put both into one subgraph",
    Reason.BLOCKWISE: "computed block by block in one kernel, what lies between stays in the cache",
    Reason.SEPARATE: "in one subgraph, whose kernels run one after another",
    Reason.MERGED: "operators of one input run as one kernel, whose result is all of theirs side by side",
    Reason.STABLE: "the rules fuse it on any machine",
    Reason.EVALUATED: "the rules allow it, and the cost model does not say that apart is cheaper",
    Reason.OPAQUE: "an operator without loop nests runs on its own",
    Reason.COMPLEX: "the reader is a complex operator and starts its own kernel",
    Reason.REDUCTION: "the reader reduces or normalises and starts its own kernel",
    Reason.INJECTIVE: "the reader moves elements, which an epilogue cannot",
    Reason.SHAPE: "the reader's result has another shape than the kernel's",
    Reason.ESCAPES: "the value is also needed elsewhere",
    Reason.MULTIPLE_RESULTS: "a kernel with several results ends there",
    Reason.OTHER_KERNEL: "the reader was fused into another of its producers",
    Reason.LIMIT: "the kernel would have more operators than allowed",
    Reason.CYCLE: "fusing would make two kernels wait for each other",
    Reason.STAGE: "only neighbouring stages of the longest path are joined",
    Reason.CAPACITY: "the fused working set does not fit on chip",
    Reason.WEIGHT: "the subgraph would be too heavy to tune",
    Reason.PROHIBITED: "the rules never fuse operators of these classes",
    Reason.COST: "the parts together cost less than the whole",
    Reason.CHANCE: "a random partitioner left it out",
    Reason.NO_FUSION: "the partitioner never fuses",
}


@dataclass(frozen=True, slots=True)
class EdgeDecision:
    """What happened to one data edge: `value`, made by `producer`, read by `consumer`."""

    producer: Node
    consumer: Node
    value: Value
    reason: Reason

    def __str__(self) -> str:
        verb = "fused" if self.reason.is_fused else "cut"
        edge = f"{self.producer.name} -> {self.consumer.name}"
        return f"{edge}: {verb} ({self.reason}: {self.reason.text})"


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """Nodes compiled together.

    `nodes` are in topological order. `inputs` are the values read from outside, `constants` the
    initializers read, `outputs` the results needed outside or by the user; each once, in order of first use.
    `form` is its cut into kernels; None leaves it to the target, which compiles the nodes together.
    """

    id: int
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    outputs: tuple[Value, ...]
    form: Form | None = None

    @property
    def name(self) -> str:
        """A readable name: the operators, and the last node's own name."""
        shown = [n.op_type for n in self.nodes[:4]]
        more = f"+{len(self.nodes) - 4}" if len(self.nodes) > 4 else ""
        return f"{'_'.join(shown)}{more}:{self.nodes[-1].name}"

    @property
    def kernels(self) -> tuple[KernelForm, ...]:
        """The cut into kernels: without a form one for all nodes."""
        return (self.form or Form.whole(len(self.nodes))).kernels

    @property
    def external_bytes(self) -> int:
        """Bytes read from and written to memory outside: inputs, constants and outputs."""
        return sum(v.size_bytes for v in (*self.inputs, *self.constants, *self.outputs))

    def __repr__(self) -> str:
        return f"Subgraph({self.id}, {self.name})"


@dataclass(slots=True, eq=False)
class Price:
    """A partition's cost beside lower bounds, worked out when it is first asked for."""

    work_out: Callable[[], Quality]
    known: Quality | None = None

    def __call__(self) -> Quality:
        """The cost, which is known from now on."""
        if self.known is None:
            self.known = self.work_out()
        return self.known


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Subgraphs in a topological order of the quotient graph; `subgraphs[i].id == i`.

    `price` is what it costs as kernels one after another.
    `splits[i]` is into which instances `subgraphs[i]` may run, whole unless a partitioner says so;
    `weighed` how that was chosen. `layers[i]` are its layers in the order in which an instance runs them,
    None: derived where they are asked for. `element_bytes` is how large the machine keeps an element, by the
    name of its type, None: as the type says; `border_bytes` the same in the network's inputs and results as
    they lie in main memory, None: as all else. `border` are these inputs and results where not all of the
    graph's are the network's, as of a part of it. `in_place`: layers may write in place of an operand that
    dies.
    `fusions` is what became of each edge that rules allowed to fuse, where a partitioner goes by rules.
    """

    graph: Graph
    subgraphs: tuple[Subgraph, ...]
    decisions: tuple[EdgeDecision, ...]
    price: Price
    provenance: Provenance
    splits: tuple[Split, ...] = ()
    layers: tuple[tuple[Layer, ...], ...] | None = None
    element_bytes: Mapping[str, int] | None = None
    in_place: bool = True
    weighed: WeighedSplits | None = None
    border_bytes: Mapping[str, int] | None = None
    border: frozenset[Value] | None = None
    fusions: tuple[FusionRecord, ...] = ()
    _home: dict[Node, Subgraph] = field(init=False, repr=False)
    _border: frozenset[Value] = field(init=False, repr=False)
    _derived: list[tuple[Layer, ...]] = field(init=False, repr=False)
    _records: dict[tuple[Node, Node, Value], FusionRecord] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_home", {n: s for s in self.subgraphs for n in s.nodes})
        border = (*self.graph.inputs, *self.graph.outputs) if self.border is None else self.border
        object.__setattr__(self, "_border", frozenset(border))
        object.__setattr__(self, "_derived", [])
        records = {(r.producer, r.consumer, r.value): r for r in self.fusions}
        object.__setattr__(self, "_records", records)
        if not self.splits:
            object.__setattr__(self, "splits", (WHOLE,) * len(self.subgraphs))

    @property
    def quality(self) -> Quality:
        """Its cost beside lower bounds."""
        return self.price()

    @property
    def is_priced(self) -> bool:
        """Whether its cost was stated, or asked for."""
        return self.price.known is not None

    @property
    def is_split(self) -> bool:
        """Whether some subgraph may run as several instances."""
        return any(not split.is_whole for split in self.splits)

    def kernel_of(self, node: Node) -> KernelForm:
        """The kernel of a node, as the form of its subgraph cuts that."""
        subgraph = self._home[node]
        position = subgraph.nodes.index(node)
        return next(kernel for kernel in subgraph.kernels if position in kernel.nodes)

    def layers_of(self, subgraph: Subgraph) -> tuple[Layer, ...]:
        """The layers of a subgraph in the order in which its instances run them."""
        if self.layers is not None:
            return self.layers[subgraph.id]
        if not self._derived:
            self._derived.extend(layers_within(self.graph, [s.nodes for s in self.subgraphs]))
        return self._derived[subgraph.id]

    def bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a region of a value as the machine keeps it."""
        sizes = self.element_bytes
        return volume(region) * (value.dtype.size_bytes if sizes is None else sizes[str(value.dtype)])

    def main_bytes_of(self, value: Value, region: Region) -> int:
        """Bytes of a region of a value as it lies in main memory."""
        if not self.converts(value):
            return self.bytes_of(value, region)
        assert self.border_bytes is not None
        return volume(region) * self.border_bytes[str(value.dtype)]

    def converts(self, value: Value) -> bool:
        """Whether a value lies in main memory as the network's inputs and results do, not as all else."""
        return self.border_bytes is not None and value in self._border

    def subgraph_of(self, node: Node) -> Subgraph:
        """The subgraph that holds a node. O(1)."""
        return self._home[node]

    def producer_of(self, value: Value) -> Subgraph | None:
        """The subgraph that makes a value; None for graph inputs, those of a part included, and constants."""
        return None if value.producer is None else self._home.get(value.producer)

    def fusion_of(self, decision: EdgeDecision) -> FusionRecord | None:
        """What rules said of an edge; None where there are no rules, or these forbid it."""
        return self._records.get((decision.producer, decision.consumer, decision.value))

    def predecessors(self, subgraph: Subgraph) -> tuple[Subgraph, ...]:
        """Subgraphs whose results this one reads, by id."""
        ids = {p.id for v in subgraph.inputs if (p := self.producer_of(v)) is not None}
        return tuple(self.subgraphs[i] for i in sorted(ids))

    def successors(self, subgraph: Subgraph) -> tuple[Subgraph, ...]:
        """Subgraphs that read this one's results, by id."""
        users = (user for value in subgraph.outputs for user in value.users if user in self._home)
        ids = {self._home[user].id for user in users} - {subgraph.id}
        return tuple(self.subgraphs[i] for i in sorted(ids))


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """A graph to cut, for a machine on which work costs what a model says.

    The cost of a partition is the sum over its subgraphs as kernels one after another, under an objective.
    `known` is what earlier partitions of the same graph found out about it. `types` is as what the machine
    keeps elements, None: as it does where nothing is said.
    """

    graph: Graph
    machine: Machine | None = None
    cost: CostModel = NOMINAL
    objective: Objective = "latency"
    limits: Limits = NO_LIMITS
    seed: int = 0
    known: Analysis | None = None
    types: ElementTypes | None = None
    _known: list[Analysis] = field(init=False, repr=False, compare=False, default_factory=list)

    @property
    def analysis(self) -> Analysis:
        """What is known of the graph: what the problem came with, else what was found out since."""
        if self.known is not None:
            return self.known
        if not self._known:
            self._known.append(Analysis(self.graph))
        return self._known[0]

    @property
    def element_types(self) -> ElementTypes | None:
        """As what the machine keeps elements; None without a machine."""
        if self.types is not None or self.machine is None:
            return self.types
        from tilewright.hardware.element_types import element_types

        return element_types(self.machine)

    def quality_of(self, subgraphs: Iterable[Subgraph], *, cut_off: bool = False) -> Quality:
        """Cost of a partition into these subgraphs, beside a lower bound on that of all partitions."""
        whole = make_subgraph(0, self.graph.nodes, self.graph)
        cost = self.cost_of(subgraphs)
        least = self.cost.least([whole] if whole.nodes else ()).bound(self.objective)
        bound = Bound(least, PARTITIONS, "work of one kernel", self.cost.proves_bounds)
        return Quality.of(cost, bound, unit=UNITS[self.objective], cut_off=cut_off)

    def cost_of(self, subgraphs: Iterable[Subgraph]) -> float:
        """Cost of a partition into these subgraphs."""
        estimates = [self.cost.kernel(subgraph) for subgraph in subgraphs]
        total = functools.reduce(Estimate.then, estimates) if estimates else self.cost.least(())
        return total.cost(self.objective)


@runtime_checkable
class Partitioner(Protocol):
    """One way to cut a graph. Implementations are frozen dataclasses; their fields are their options."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition | Infeasible:
        """Cut the graph, or say which capacity forbids it."""
        ...


def data_edges(graph: Graph) -> Iterator[tuple[Node, Node, Value]]:
    """Every (producer, consumer, value), each once, in order of consumers and their operands."""
    inside = set(graph.nodes)
    for node in graph.nodes:
        for value in dict.fromkeys(node.operands()):
            if value.producer is not None and value.producer in inside:
                yield value.producer, node, value


def make_subgraph(number: int, nodes: Sequence[Node], graph: Graph) -> Subgraph:
    """A subgraph of these nodes (in topological order) with its externals worked out."""
    inside = set(nodes)
    wanted = set(graph.outputs)
    operands = dict.fromkeys(v for n in nodes for v in n.operands())
    outside = [v for v in operands if v.producer not in inside]
    outputs = (v for n in nodes for v in n.results() if v in wanted or any(u not in inside for u in v.users))
    return Subgraph(
        number,
        tuple(nodes),
        tuple(v for v in outside if not v.is_constant),
        tuple(v for v in outside if v.is_constant),
        tuple(outputs),
    )


def build_partition(
    problem: PartitionProblem,
    clusters: Iterable[Iterable[Node]],
    reason: Callable[[Node, Node, Value, bool], Reason],
    provenance: Provenance,
    *,
    cut_off: bool = False,
    quality: Quality | None = None,
) -> Partition:
    """The partition with these clusters, numbered in the topological order nearest to the graph's own.

    `reason(producer, consumer, value, fused)` explains each edge. `quality` is what is known of its cost;
    without it every subgraph is priced when that is asked for.

    Raises:
        ValueError: the clusters do not partition the nodes, or their quotient has a cycle.
    """
    graph = problem.graph
    position = {node: i for i, node in enumerate(graph.nodes)}
    sorted_clusters = [sorted(cluster, key=position.__getitem__) for cluster in clusters]
    home = {node: i for i, cluster in enumerate(sorted_clusters) for node in cluster}
    if len(home) != len(position) or sum(map(len, sorted_clusters)) != len(position):
        raise ValueError("the clusters do not hold every node exactly once")
    order = _topological(sorted_clusters, home, position)
    subgraphs = tuple(make_subgraph(i, sorted_clusters[c], graph) for i, c in enumerate(order))
    decisions = tuple(
        EdgeDecision(
            producer, consumer, value, reason(producer, consumer, value, home[producer] == home[consumer])
        )
        for producer, consumer, value in data_edges(graph)
    )
    price = Price(lambda: problem.quality_of(subgraphs, cut_off=cut_off), quality)
    partition = Partition(graph, subgraphs, decisions, price, provenance)
    types = problem.element_types
    return partition if types is None else kept_as(partition, types)


def priced_at(quality: Quality) -> Price:
    """The price of a partition whose cost is known."""
    return Price(lambda: quality, quality)


def kept_as(partition: Partition, types: ElementTypes) -> Partition:
    """The partition with its elements as a machine keeps them, where it does not say how large they are."""
    if partition.element_bytes is not None and partition.border_bytes is not None:
        return partition
    dtypes = dict.fromkeys(v.dtype for v in partition.graph.values())
    border_bytes = types.border_sizes(dtypes)
    if partition.element_bytes is not None:
        return partition if border_bytes is None else replace(partition, border_bytes=border_bytes)
    # Peaks that were weighed without a machine count other bytes.
    return replace(partition, element_bytes=types.sizes(dtypes), border_bytes=border_bytes, weighed=None)


def _topological(
    clusters: Sequence[Sequence[Node]], home: Mapping[Node, int], position: Mapping[Node, int]
) -> list[int]:
    """Cluster numbers in a topological order, the earliest first node first among those ready."""
    successors: list[dict[int, None]] = [{} for _ in clusters]
    waiting = [0] * len(clusters)
    for target, cluster in enumerate(clusters):
        makers = (v.producer for n in cluster for v in n.operands() if v.producer is not None)
        sources = {home[maker] for maker in makers if maker in home} - {target}
        waiting[target] = len(sources)
        for source in sorted(sources):
            successors[source][target] = None
    ready = [(position[c[0]], i) for i, c in enumerate(clusters) if waiting[i] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        checkpoint()
        _, cluster_id = heapq.heappop(ready)
        order.append(cluster_id)
        for target in successors[cluster_id]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, (position[clusters[target][0]], target))
    if len(order) != len(clusters):
        raise ValueError("the clusters wait for each other: their quotient has a cycle")
    return order
