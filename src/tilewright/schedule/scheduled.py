"""Any schedule of any partition as instances in an order, for a machine whose buffers the schedule fills.

The way back from `Schedule`, in which all schedulers answer, to the instance graph, of which bindings, scopes
and steps are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Node
from tilewright.partition.base import Partition, Subgraph
from tilewright.partition.graphturbo import Split, SplitPartition, SubgraphSplit, instance_region
from tilewright.partition.graphturbo.footprint import Footprints, joined, single
from tilewright.partition.graphturbo.layers import cut_layers, layer_of
from tilewright.partition.graphturbo.planner import element_sizes, local_capacity_bytes
from tilewright.partition.graphturbo.regions import RegionMaps
from tilewright.schedule.base import Instance, Schedule
from tilewright.schedule.check_instances import check_order
from tilewright.schedule.instance_orders import slice_in
from tilewright.schedule.instances import WHOLE, InstanceGraph, Kind, instance_graph, outputs_of, splits_of
from tilewright.schedule.orders import Order


def instances_of(schedule: Schedule, machine: Machine) -> tuple[InstanceGraph, Order]:
    """The instances of a schedule on a machine, and the order in which they run.

    Groups of a stage follow each other as they are listed, and how many cores a group wants is not asked:
    what overlaps is for the machine's units to find. A concatenation runs just before its reader. Subgraphs
    of a partition that says nothing of layers are cut into operators with what is fused to them, as
    GraphTurbo's are.

    Raises:
        UsageError: slices of a subgraph are not equal parts, or an instance runs before what it reads.
    """
    splits = _splits_of(schedule)
    partition = schedule.partition
    if not isinstance(partition, SplitPartition):
        partition = _laid_out(partition, splits, machine)
    graph = instance_graph(partition, splits)
    places = {
        Instance(n.subgraph_id, slice_in(graph, n.id)): n.id for n in graph.nodes if n.kind is Kind.INSTANCE
    }
    order: list[int] = []
    for instance in schedule.instances():
        if instance not in places:
            raise UsageError(
                f"schedule: {instance} is none of equal parts of subgraph {instance.subgraph_id}."
            )
        place = places[instance]
        order += [p for p in graph.predecessors(place) if graph.nodes[p].kind is not Kind.INSTANCE]
        order.append(place)
    violation = next(iter(check_order(graph, order)), None)
    if violation is not None:
        raise UsageError(f"schedule: {violation}.")
    return graph, tuple(order)


def _splits_of(schedule: Schedule) -> tuple[Split, ...]:
    """How each subgraph is split: as the partition says, if it runs as often; else along the slices' axis."""
    slices: dict[int, list[Instance]] = {}
    for instance in schedule.instances():
        slices.setdefault(instance.subgraph_id, []).append(instance)
    found: list[Split] = []
    for subgraph, stated in zip(schedule.partition.subgraphs, splits_of(schedule.partition), strict=True):
        own = slices.get(subgraph.id, [])
        if len(own) == stated.factor:
            found.append(stated)
            continue
        cut = own[0].slice if own else None
        found.append(WHOLE if cut is None else Split(cut.axis, len(own)))
    return tuple(found)


def _laid_out(partition: Partition, splits: Sequence[Split], machine: Machine) -> SplitPartition:
    """A partition with layers, and sizes of elements as the machine keeps them."""
    sizes = element_sizes(partition.graph, machine)
    footprints = Footprints(RegionMaps(), lambda v: sizes[str(v.dtype)], in_place=True)
    home = {node: number for number, layer in enumerate(cut_layers(partition.graph)) for node in layer.nodes}
    found: list[SubgraphSplit] = []
    for subgraph, split in zip(partition.subgraphs, splits, strict=True):
        layers = _layers_of(subgraph, home)
        parts = [single(layer_of(nodes, partition.graph.outputs), i) for i, nodes in enumerate(layers)]
        outputs = outputs_of(subgraph)
        part = joined(parts, outputs)
        peaks = (
            footprints.of(part, tuple(instance_region(v.shape, split, i) for v in outputs)).peak_bytes
            for i in range(split.factor)
        )
        found.append(SubgraphSplit(split, layers, (), max(peaks)))
    return SplitPartition(
        partition.graph, partition.subgraphs, partition.decisions, partition.quality, partition.provenance,
        tuple(found), local_capacity_bytes(machine), sizes, in_place=True,
    )  # fmt: skip


def _layers_of(subgraph: Subgraph, home: Mapping[Node, int]) -> tuple[tuple[Node, ...], ...]:
    """What of each of the network's layers lies in a subgraph, each where its last node stands."""
    layers: dict[int, list[Node]] = {}
    for node in subgraph.nodes:
        layers.setdefault(home[node], []).append(node)
    place = {node: i for i, node in enumerate(subgraph.nodes)}
    return tuple(map(tuple, sorted(layers.values(), key=lambda nodes: place[nodes[-1]])))
