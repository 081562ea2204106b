"""Any schedule of any partition as instances in an order, for a machine whose buffers the schedule fills.

The way back from `Schedule`, in which all schedulers answer, to the instance graph, of which bindings, scopes
and steps are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import UsageError
from tilewright.hardware.capacity import element_sizes, local_capacity_bytes
from tilewright.hardware.machine import Machine
from tilewright.ir.graph import Node
from tilewright.partition.base import Subgraph
from tilewright.partition.footprint import Footprints, joined, single
from tilewright.partition.graphturbo import SplitPartition, SubgraphSplit
from tilewright.partition.layers import LayerRegions, Outputs, cut_layers, layer_of
from tilewright.partition.split import WHOLE, Split
from tilewright.schedule.base import Instance, Schedule, Slice
from tilewright.schedule.check_instances import check_order
from tilewright.schedule.instance_orders import slice_in
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph, outputs_of, splits_of
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
    graph = instance_graph(schedule.partition)
    splits = _splits_of(schedule, graph)
    if splits != splits_of(schedule.partition):
        graph = instance_graph(schedule.partition, splits)
    if not isinstance(schedule.partition, SplitPartition):
        graph = replace(graph, partition=_laid_out(graph, splits, machine))
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


def _splits_of(schedule: Schedule, graph: InstanceGraph) -> tuple[Split, ...]:
    """How each subgraph is split: as in the graph of its partition, or else along the axis of its slices."""
    stated: dict[int, set[Slice | None]] = {}
    for node in graph.nodes:
        if node.kind is Kind.INSTANCE:
            stated.setdefault(node.subgraph_id, set()).add(slice_in(graph, node.id))
    slices: dict[int, list[Slice | None]] = {}
    for instance in schedule.instances():
        slices.setdefault(instance.subgraph_id, []).append(instance.slice)
    found: list[Split] = []
    for number, split in enumerate(splits_of(schedule.partition)):
        own = slices.get(number, [])
        if set(own) == stated[number]:
            found.append(split)
        else:
            cut = own[0] if own else None
            found.append(WHOLE if cut is None else Split(cut.axis, len(own)))
    return tuple(found)


def _laid_out(graph: InstanceGraph, splits: Sequence[Split], machine: Machine) -> SplitPartition:
    """The partition of a graph with layers, and sizes of elements as the machine keeps them."""
    partition = graph.partition
    sizes = element_sizes((v.dtype for v in partition.graph.values()), machine)
    footprints = Footprints(LayerRegions(graph.maps), lambda v: sizes[str(v.dtype)], in_place=True)
    home = {node: number for number, layer in enumerate(cut_layers(partition.graph)) for node in layer.nodes}
    made: dict[int, list[Outputs]] = {}
    for node in graph.nodes:
        if node.kind is Kind.INSTANCE:
            made.setdefault(node.subgraph_id, []).append(tuple(node.outputs.values()))
    found: list[SubgraphSplit] = []
    for subgraph, split in zip(partition.subgraphs, splits, strict=True):
        layers = _layers_of(subgraph, home)
        parts = [single(layer_of(nodes, graph.results), place) for place, nodes in enumerate(layers)]
        part = joined(parts, outputs_of(subgraph))
        peak = max(footprints.of(part, regions).peak_bytes for regions in made[subgraph.id])
        found.append(SubgraphSplit(split, layers, (), peak))
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
