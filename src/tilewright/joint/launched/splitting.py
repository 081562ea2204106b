"""Which sums of products are cut into parts that run side by side: where few cores have work otherwise.

Each layer is priced as a kernel of its own, with its sums whole and in the parts that fill most cores: what
adding the parts takes counts. Within larger kernels, which launch no more for it, parts gain the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable

from tilewright.ir.graph import Graph, Node
from tilewright.ir.graph_regions import kernel_structure
from tilewright.ir.split_sums import split_sums, summed_channels
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.merging import cost_as_kernel
from tilewright.joint.launched.pricer import Machine
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.partition.base import Partition, Subgraph
from tilewright.planning import Meter
from tilewright.progress import SearchEnded, checkpoint
from tilewright.records import dataclass
from tilewright.schedule.space import SAME_SUMS

_MOST_PARTS = 32
_AS_FULL = 0.9
"""The fewest parts that fill nearly as many cores as any number does."""
_CLEARLY = 0.98


def parts_of_sums(partition: Partition, machine: Machine, meter: Meter) -> tuple[dict[Node, int], float]:
    """In how many parts nodes of a partition into layers sum, of those for which that is cheaper, and how
    much cheaper all are: as far as the time goes, first where cores that are filled would save most."""
    found, saved = dict[Node, int](), 0.0
    if machine.limits.num_cores == 1 or not machine.pads_kernels:
        return found, saved
    with contextlib.suppress(SearchEnded):  # what was priced by then may be taken
        for sums in sorted(_candidates(partition, machine), key=lambda sums: -sums.saved):
            checkpoint()
            if meter.is_over:
                break
            cost = cost_as_kernel(sums.in_parts, sums.layer.quality, machine)
            if cost < _CLEARLY * sums.cost:
                found |= dict.fromkeys(sums.nodes, sums.num_parts)
                saved += len(sums.nodes) * (sums.cost - cost)
    return found, saved


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums of `nodes` in layers of equal structure, of which one is `layer`, which takes `cost` with whole
    sums; parts fill so many times as many cores."""

    layer: Partition
    in_parts: Graph
    num_parts: int
    cost: float
    times_filled: float
    nodes: list[Node]

    @property
    def saved(self) -> float:
        """What the network would save if all of a layer's cost were its products."""
        return len(self.nodes) * self.cost * (1 - 1 / self.times_filled)


def _candidates(partition: Partition, machine: Machine) -> list[_Sums]:
    """The sums of a network's layers of which parts fill more cores, each structure once."""
    found: dict[Hashable, _Sums | None] = {}
    numbered = Numbered(partition.graph)
    for subgraph in partition.subgraphs:
        for node in subgraph.nodes:
            if summed_channels(node) == 1:
                continue
            structure = subgraph.nodes.index(node), kernel_structure(subgraph.nodes, subgraph.outputs)
            if structure not in found:
                checkpoint()
                found[structure] = _filling(numbered, subgraph, node, machine)
            elif (sums := found[structure]) is not None:
                sums.nodes.append(node)
    return [sums for sums in found.values() if sums is not None]


def _filling(numbered: Numbered, subgraph: Subgraph, node: Node, machine: Machine) -> _Sums | None:
    """A node's sums in the fewest parts that fill nearly most cores; None: they do so whole."""
    content = Content((Kernel((tuple(numbered.numbers[n] for n in subgraph.nodes),)),), ())
    layer = numbered.part(content).partition
    twin = layer.graph.nodes[subgraph.nodes.index(node)]
    filled = {1: machine.cores_worth(twin)}
    count, enough = 2, _AS_FULL * machine.limits.num_cores  # no number of parts fills clearly more
    while count <= _MOST_PARTS and summed_channels(node) % count == 0 and filled[count // 2] < enough:
        sums = split_sums(layer.graph, {twin: count}, is_priced_only=True).sums[twin]
        filled[count] = machine.cores_worth(sums)
        count *= 2
    most = max(filled.values())
    best = min(count for count, cores in filled.items() if cores >= _AS_FULL * most)
    if best == 1:
        return None
    whole = machine.cost.kernel(subgraph).cost(machine.objective)
    in_parts = split_sums(layer.graph, {twin: best}, is_priced_only=True).graph
    return _Sums(layer, in_parts, best, whole, filled[best] / filled[1], [node])


def with_split_sums(partition: Partition, machine: Machine, meter: Meter) -> Rewritten | None:
    """The graph of a partition into layers with its sums in parts where that is cheaper; None: nowhere."""
    parts, saved = parts_of_sums(partition, machine, meter)
    if not parts:
        return None
    remarks = tuple(f"{node.name} sums in {count} parts side by side." for node, count in parts.items())
    return Rewritten(split_sums(partition.graph, parts).graph, remarks, (SAME_SUMS,), saved)
