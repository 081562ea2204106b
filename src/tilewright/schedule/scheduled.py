"""Any schedule of any partition as instances in an order, for a machine whose buffers the schedule fills.

The way back from `Schedule`, in which all schedulers answer, to the instance graph, of which bindings, scopes
and steps are made.
"""

from __future__ import annotations

from tilewright.errors import UsageError
from tilewright.hardware.element_types import ElementTypes
from tilewright.ir.graph_regions import RegionMaps
from tilewright.partition.base import kept_as
from tilewright.schedule.base import Instance, Schedule
from tilewright.schedule.check_instances import check_order
from tilewright.schedule.instances import InstanceGraph, Kind, instance_graph
from tilewright.schedule.orders import Order


def instances_of(
    schedule: Schedule,
    types: ElementTypes,
    known: InstanceGraph | None = None,
    maps: RegionMaps | None = None,
) -> tuple[InstanceGraph, Order]:
    """The instances of a schedule on a machine, and the order in which one program runs them.

    Groups of a stage follow each other as they are listed. A concatenation runs just before its reader.
    Elements are kept as `types` say, where the partition was made without a machine. `known` are the
    instances of a schedule of equal layers and splits, `maps` regions through the graph that are known.

    Raises:
        UsageError: an instance does not exist, or runs before what it reads.
    """
    graph = known or instance_graph(kept_as(schedule.partition, types), schedule.splits, maps)
    places = {Instance(n.subgraph_id, n.index): n.id for n in graph.nodes if n.kind is Kind.INSTANCE}
    order: list[int] = []
    for instance in schedule.instances():
        if instance not in places:
            raise UsageError(f"schedule: {instance} is no instance of the subgraphs as they are split.")
        place = places[instance]
        order += [p for p in graph.predecessors(place) if graph.nodes[p].kind is not Kind.INSTANCE]
        order.append(place)
    violation = next(iter(check_order(graph, order)), None)
    if violation is not None:
        raise UsageError(f"schedule: {violation}.")
    return graph, tuple(order)
