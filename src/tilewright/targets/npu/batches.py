"""How many samples a cluster does at a time: which numbers are worth planning.

What an instance holds grows with its samples, so that each subgraph has a largest power of two that fits.
Beyond the largest of these nothing is gained: subgraphs only run as more instances.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.errors import InfeasibleMapping
from tilewright.families import PARTITIONERS
from tilewright.hardware.element_types import ElementTypes
from tilewright.hardware.machine import Machine
from tilewright.ir.derive import macs
from tilewright.ir.graph import Graph, Value
from tilewright.partition.analysis import Analysis
from tilewright.partition.axes import Axis, IndependentAxes
from tilewright.partition.base import Partition, PartitionProblem
from tilewright.planning import Budget, Infeasible
from tilewright.targets.npu.recipes import GRAPHTURBO

MAX_BATCH = 256
"""The largest batch that is considered: throughput of a network that always fits grows without a bound."""

_SHARE_OF_WORK = 0.05  # of the subgraphs that hold more samples, below which they decide nothing


def batches_of(
    graph: Graph, machine: Machine, types: ElementTypes, batched: Sequence[Value]
) -> tuple[int, ...]:
    """Batches worth planning of a network for `MAX_BATCH` samples, which the first axes of `batched` count.

    Raises:
        InfeasibleMapping: the network cannot be cut for the machine.
    """
    analysis = Analysis(graph)
    problem = PartitionProblem(graph, machine, known=analysis, types=types)
    partition = PARTITIONERS.get(GRAPHTURBO.partition).solve(problem, Budget())
    if isinstance(partition, Infeasible):
        raise InfeasibleMapping(str(partition))
    samples = [analysis.axes.class_of(value, 0) for value in batched]
    return candidates(partition, analysis.axes, samples, MAX_BATCH)


def samples_of_instances(
    partition: Partition, axes: IndependentAxes, batched: Collection[Axis], samples: int
) -> tuple[int | None, ...]:
    """How many of `samples` an instance of each subgraph makes; 1 where not even one fits.

    `batched` are the classes of axes that count samples, wherever these stand in a shape. None where no such
    axis is among a subgraph's outputs.
    """
    found: list[int | None] = []
    for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True):
        outputs = subgraph.outputs or tuple(subgraph.nodes[-1].results())
        axis = next((i for v in outputs for i in range(len(v.shape)) if axes.class_of(v, i) in batched), None)
        if axis is None:
            found.append(None)
        elif partition.weighed is None or partition.weighed.is_feasible(subgraph.id):
            found.append(-(-samples // dict(split.cuts).get(axis, 1)))
        else:
            found.append(1)
    return tuple(found)


def candidates(
    partition: Partition, axes: IndependentAxes, batched: Collection[Axis], most: int
) -> tuple[int, ...]:
    """Batches worth planning, ascending: powers of two up to what subgraphs with a share of the work hold.

    `partition` is one for `most` samples, a power of two: its factors say how many of them fit an instance.
    Subgraphs without the batch decide nothing; `axes` and `batched` as in `samples_of_instances`.
    """
    work: dict[int, int] = {}
    instances = samples_of_instances(partition, axes, batched, most)
    for held, subgraph in zip(instances, partition.subgraphs, strict=True):
        if held is not None:
            work[held] = work.get(held, 0) + sum(macs(node) for node in subgraph.nodes)
    total, largest, above = sum(work.values()), 1, 0
    for held in sorted(work, reverse=True):
        above += work[held]
        if above >= _SHARE_OF_WORK * total:
            largest = held
            break
    return tuple(1 << i for i in range(min(most, largest).bit_length()))
