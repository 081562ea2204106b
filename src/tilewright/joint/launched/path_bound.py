"""A bound of plans of whole layers for networks of any size: the longest path of layers on any unit.

Kernels run one after another, each of a part of any path; and one that runs layers whole, in lanes or not,
takes a launch and no less than what a unit does along its part, on the number of cores that suits each layer
best. So with a launch the whole path bounds a plan, however many ideals the network has.
"""

from __future__ import annotations

from tilewright.joint.base import bits
from tilewright.joint.launched.moves import Moves
from tilewright.joint.launched.pricer import LaunchedPricer
from tilewright.joint.launched.proof import WHOLE_LAYERS
from tilewright.planning import Bound


def path_bound(pricer: LaunchedPricer) -> Bound:
    """The bound of a network."""
    layers, nodes = Moves(pricer, 1).layers, pricer.numbered.nodes
    times = pricer.machine.layer_times([[nodes[i] for i in layer] for layer in layers])
    home = {node: place for place, layer in enumerate(layers) for node in layer}
    longest_ns: list[dict[str, float]] = []  # of each unit, of paths that end with a layer
    for place, layer in enumerate(layers):
        before = {home[source] for node in layer for source in bits(pricer.predecessors(node))} - {place}
        found: dict[str, float] = {}
        for i in before:
            for unit, ns in longest_ns[i].items():
                found[unit] = max(found.get(unit, 0.0), ns)
        for unit, ns in times[place].laned_ns.items():
            found[unit] = found.get(unit, 0.0) + ns
        longest_ns.append(found)
    path_ns = max((ns for of_units in longest_ns for ns in of_units.values()), default=0.0)
    return Bound(pricer.machine.launch_ns + path_ns, WHOLE_LAYERS, "longest path of layers on a unit")
