"""Which sums of products are cut into parts that run side by side: where few cores have work otherwise.

Each layer is priced as a kernel of its own, with its sums whole and in the parts that fill most cores: what
adding the parts takes counts. Within larger kernels, which launch no more for it, parts gain the same.
"""

from __future__ import annotations

from collections.abc import Hashable

from tilewright.ir.graph import Node
from tilewright.ir.graph_regions import kernel_structure
from tilewright.ir.split_sums import split_sums, summed_channels
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.merging import cost_as_kernel
from tilewright.joint.launched.pricer import Machine
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.partition.base import Partition, Subgraph
from tilewright.planning import Meter
from tilewright.progress import checkpoint
from tilewright.schedule.space import SAME_SUMS

_MOST_PARTS = 32
_AS_FULL = 0.9
"""The fewest parts that fill nearly as many cores as any number does."""
_CLEARLY = 0.98


def parts_of_sums(partition: Partition, machine: Machine, meter: Meter) -> dict[Node, int]:
    """In how many parts nodes of a partition into layers sum, of those for which that is cheaper."""
    if machine.limits.num_cores == 1 or not machine.pads_kernels:
        return {}
    found: dict[Node, int] = {}
    known: dict[Hashable, int] = {}
    numbered = Numbered(partition.graph)
    for subgraph in partition.subgraphs:
        for node in subgraph.nodes:
            if summed_channels(node) == 1:
                continue
            structure = subgraph.nodes.index(node), kernel_structure(subgraph.nodes, subgraph.outputs)
            if structure not in known:
                checkpoint()
                if meter.is_over:
                    return found
                known[structure] = _parts(numbered, subgraph, node, machine)
            if known[structure] > 1:
                found[node] = known[structure]
    return found


def _parts(numbered: Numbered, subgraph: Subgraph, node: Node, machine: Machine) -> int:
    """The number of parts of a node's sums that is cheapest for its layer; 1: they stay whole."""
    content = Content((Kernel((tuple(numbered.numbers[n] for n in subgraph.nodes),)),), ())
    part = numbered.part(content).partition
    twin = part.graph.nodes[subgraph.nodes.index(node)]
    filled = {1: machine.cores_worth(twin)}
    count, enough = 2, _AS_FULL * machine.limits.num_cores  # no number of parts fills clearly more
    while count <= _MOST_PARTS and summed_channels(node) % count == 0 and filled[count // 2] < enough:
        sums = split_sums(part.graph, {twin: count}, is_priced_only=True).sums[twin]
        filled[count] = machine.cores_worth(sums)
        count *= 2
    most = max(filled.values())
    best = min(count for count, cores in filled.items() if cores >= _AS_FULL * most)
    if best == 1:
        return 1
    whole = machine.cost.kernel(subgraph).cost(machine.objective)
    in_parts = split_sums(part.graph, {twin: best}, is_priced_only=True).graph
    return best if cost_as_kernel(in_parts, part.quality, machine) < _CLEARLY * whole else 1


def with_split_sums(partition: Partition, machine: Machine, meter: Meter) -> Rewritten | None:
    """The graph of a partition into layers with its sums in parts where that is cheaper; None: nowhere."""
    parts = parts_of_sums(partition, machine, meter)
    if not parts:
        return None
    remarks = tuple(f"{node.name} sums in {count} parts side by side." for node, count in parts.items())
    return Rewritten(split_sums(partition.graph, parts).graph, remarks, (SAME_SUMS,))
