"""The partitioner: layers, their splits, the grouping, and what it says of every edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.errors import UsageError
from tilewright.hardware.capacity import local_capacity_bytes
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Node, Value
from tilewright.partition.base import Partition, PartitionProblem, Reason, build_partition
from tilewright.partition.graphturbo.merge import Grouping, Member, MergeRules
from tilewright.partition.graphturbo.split import Dims, Rows, SplitRules, Splitter
from tilewright.partition.split import WHOLE, WeighedSplits
from tilewright.planning import UNLIMITED, Budget, Provenance, option
from tilewright.text.formatting import counted


@dataclass(frozen=True, slots=True)
class GraphTurbo:
    """Subgraphs whose instances fit the local buffers of a cluster's cores together.

    The capacity is the problem's machine's. The switches of the algorithms are said in more words in
    `SplitRules` and `MergeRules`.
    """

    alpha: float = option(1.0, "Scales the local capacity that is planned with.")
    capacity_bytes: int | None = option(None, "Local capacity to plan with, in place of the machine's.")
    element_bytes: int | None = option(
        None, "Size of a floating-point element, in place of what the machine computes in."
    )
    dims: Dims = option("batch-first", "Axes to split: independent ones, these first, or all alike.")
    recompute_limit: float = option(1.25, "Most work of all instances, as a multiple of that of the whole.")
    all_factors: bool = option(
        False, "Try every divisor of an axis, not only those that fill the cores evenly."
    )
    rows: Rows = option(
        "recompute", "What slices of images share inside a subgraph: computed by each, or kept for the next."
    )
    max_instances_per_sample: int = option(16, "Where a sample would be cut finer, a layer is tiled instead.")
    in_place: bool = option(True, "Let a result take the place of an operand that dies.")
    fuse_joins: bool = option(False, "Let a sum of two layers join the one that is computed last.")
    ascending: bool = option(True, "A producer has no more instances than its consumer.")
    upsampling: bool = option(True, "The other way round where the consumer makes a larger image.")
    side_inputs: bool = option(False, "What is made of the inputs alone opens a second way into a diamond.")
    group: bool = option(True, "Group layers; otherwise each is alone, split as it needs.")
    name: ClassVar[str] = "graphturbo"

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise UsageError(
                f"graphturbo: alpha {self.alpha:g} is not a positive share of the local buffers."
            )
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise UsageError(f"graphturbo: a capacity of {self.capacity_bytes} bytes is negative.")
        if self.max_instances_per_sample < 1:
            raise UsageError(
                f"graphturbo: {self.max_instances_per_sample} instances of a sample are none; give 1 or more."
            )
        if self.element_bytes is not None and self.element_bytes < 1:
            raise UsageError(f"graphturbo: elements of {self.element_bytes} bytes hold nothing.")

    def solve(self, problem: PartitionProblem, budget: Budget) -> Partition:
        """Cut and group the graph; after the deadline, what is there stays as it is.

        Evaluations are not counted against the budget: their number is bounded by the graph.

        Raises:
            UsageError: the problem has no machine, and no capacity is given instead.
        """
        graph = problem.graph
        known = problem.analysis
        layers = known.layers(fuse_joins=self.fuse_joins)
        splitter = self.splitter(problem)
        meter = replace(budget, max_evaluations=UNLIMITED).start()
        merges = MergeRules(self.ascending, self.upsampling, self.side_inputs)
        grouping = Grouping(graph, layers, splitter, merges, meter.spend)
        members = grouping.run() if self.group else grouping.members()
        note = counted(len(layers), "layer")
        provenance = Provenance(self.name, num_evaluations=splitter.num_evaluations, note=note)
        partition = build_partition(
            problem, [nodes_of(m) for m in members], Reasons(members), provenance, cut_off=meter.cut_off
        )
        return with_splits(partition, members, splitter, self.element_sizes(problem))

    def splitter(self, problem: PartitionProblem) -> Splitter:
        """What says how parts of a graph are split under these options."""
        known, machine = problem.analysis, problem.machine
        footprints = known.footprints(self.element_sizes(problem), in_place=self.in_place)
        rules = SplitRules(
            self.capacity_for(machine),
            self.dims,
            self.recompute_limit,
            self.all_factors,
            self.rows,
            self.max_instances_per_sample,
        )
        return Splitter(footprints, known.axes, rules)

    def element_sizes(self, problem: PartitionProblem) -> Mapping[str, int] | None:
        """Bytes of an element of each type of the graph's values; None: as the types say."""
        types, float_bytes = problem.element_types, self.element_bytes
        if types is None and float_bytes is None:
            return None
        dtypes = dict.fromkeys(v.dtype for v in problem.graph.values())
        sizes = dict((types or ElementTypes()).sizes(dtypes))
        return sizes if float_bytes is None else sizes | {str(d): float_bytes for d in dtypes if d.is_float}

    def capacity_for(self, machine: Machine | None) -> int:
        """Bytes that an instance may hold: the data part of the local buffers of one cluster's cores."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        if machine is None:
            raise UsageError(
                "graphturbo: no machine says how much its local buffers hold; "
                "give one (--target stcp920), or capacity_bytes."
            )
        return int(self.alpha * local_capacity_bytes(machine))


def nodes_of(member: Member) -> list[Node]:
    """All nodes of a subgraph, in order."""
    return [n for layer in member.part.layers for n in layer.nodes]


def with_splits(
    partition: Partition, members: Sequence[Member], splitter: Splitter, sizes: Mapping[str, int] | None
) -> Partition:
    """A partition whose subgraphs are these members, split as they are."""
    home = {m.part.layers[0].nodes[0]: m for m in members}
    chosen = [next(home[n] for n in subgraph.nodes if n in home) for subgraph in partition.subgraphs]
    weighed = WeighedSplits(
        tuple(member.options for member in chosen),
        tuple(
            splitter.footprints.whole(m.part).peak_bytes if m.best is None else m.best.peak_bytes
            for m in chosen
        ),
        splitter.rules.capacity_bytes,
    )
    return replace(
        partition,
        splits=tuple(WHOLE if m.best is None else m.best.split for m in chosen),
        layers=tuple(m.part.layers for m in chosen),
        element_bytes=sizes,
        in_place=splitter.footprints.in_place,
        weighed=weighed,
    )


class Reasons:
    """Why an edge lies inside a subgraph or between two."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._home = {n: m for m in members for n in nodes_of(m)}

    def __call__(self, producer: Node, consumer: Node, value: Value, fused: bool) -> Reason:
        """The reason of one edge."""
        if fused:
            return Reason.CLUSTER
        ends = (self._home[producer], self._home[consumer])
        if any(m.part.is_opaque for m in ends):
            return Reason.OPAQUE
        if any(m.best is None for m in ends):
            return Reason.CAPACITY
        if len(value.users) > 1:
            return Reason.ESCAPES
        return Reason.CAPACITY
