"""Any schedule of any partition as instances in an order, for a machine whose buffers the schedule fills.

The way back from `Schedule`, in which all schedulers answer, to the instance graph, of which bindings, scopes
and steps are made.
"""

from __future__ import annotations

from tilewright.errors import UsageError
from tilewright.hardware.machine import Machine
from tilewright.partition.base import kept_by
from tilewright.partition.split import WHOLE, Split
from tilewright.schedule.base import Instance, Schedule, Slice
from tilewright.schedule.check_instances import check_order
from tilewright.schedule.instance_orders import slice_in
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import Order


def instances_of(schedule: Schedule, machine: Machine) -> tuple[InstanceGraph, Order]:
    """The instances of a schedule on a machine, and the order in which they run.

    Groups of a stage follow each other as they are listed, and how many cores a group wants is not asked:
    what overlaps is for the machine's units to find. A concatenation runs just before its reader. Elements
    are as large as the machine keeps them, where the partition was made without one.

    Raises:
        UsageError: slices of a subgraph are not equal parts, or an instance runs before what it reads.
    """
    partition = kept_by(schedule.partition, machine)
    graph = instance_graph(partition)
    splits = _splits_of(schedule, graph)
    if splits != partition.splits:
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
    for number, split in enumerate(schedule.partition.splits):
        own = slices.get(number, [])
        if set(own) == stated[number]:
            found.append(split)
        else:
            cut = own[0] if own else None
            found.append(WHOLE if cut is None else Split(cut.axis, len(own)))
    return tuple(found)
