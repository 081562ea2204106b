"""Which sums of products are cut into parts that run side by side: where few cores have work otherwise.

Each layer is priced as a kernel of its own, with its sums whole and in parts: as many as fill most cores,
then fewer, as long as that is cheaper. More parts fill more cores, move more, and take longer to add.
Within larger kernels, which launch no more for it, parts gain the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from math import inf

from tilewright.ir.graph import Node
from tilewright.ir.graph_regions import kernel_structure
from tilewright.ir.split_sums import split_sums, summed_channels
from tilewright.joint.launched.content import Content, Kernel, Numbered
from tilewright.joint.launched.merging import cost_as_kernel
from tilewright.joint.launched.pricer import Machine
from tilewright.joint.launched.rewritten import Rewritten
from tilewright.mapping.factors import divisors
from tilewright.partition.base import Partition, Subgraph
from tilewright.planning import Meter
from tilewright.progress import SearchEnded, checkpoint
from tilewright.records import dataclass
from tilewright.schedule.space import SAME_SUMS

_MOST_PARTS = 32
_AS_FULL = 0.9
"""Of the cores that more parts fill: what fewer fill, too, is worth as much."""
_CLEARLY = 0.98
_SHARE_OF_PRICES = 0.8
"""Of the time for sums in parts, for their prices; in the rest their graph is made."""


def parts_of_sums(partition: Partition, machine: Machine, meter: Meter) -> tuple[dict[Node, int], float]:
    """In how many parts nodes of a partition into layers sum, of those for which that is cheaper, and how
    much cheaper all are: as far as the time goes, first where cores that are filled would save most."""
    found, saved = dict[Node, int](), dict[_Sums, float]()
    if machine.limits.num_cores == 1 or not machine.pads_kernels:
        return found, 0.0
    with contextlib.suppress(SearchEnded):  # what was priced by then may be taken
        for sums in sorted(_candidates(partition, machine), key=lambda sums: -sums.saved):
            checkpoint()
            if meter.is_over:
                break
            for count, cost in _cheaper(sums, machine):
                if cost < _CLEARLY * sums.cost:
                    found |= dict.fromkeys(sums.nodes, count)
                    saved[sums] = len(sums.nodes) * (sums.cost - cost)
    return found, sum(saved.values())


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums of `nodes` in layers of equal structure, of which one is `layer`, which takes `cost` with the sums
    of its node `twin` whole; parts fill so many times as many cores, by their number, the most first."""

    layer: Partition
    twin: Node
    cost: float
    times_filled: Mapping[int, float]
    nodes: list[Node]

    @property
    def saved(self) -> float:
        """What the network would save if all of a layer's cost were its products."""
        return len(self.nodes) * self.cost * (1 - 1 / max(self.times_filled.values()))


def _cheaper(sums: _Sums, machine: Machine) -> Iterator[tuple[int, float]]:
    """Numbers of parts and what the layer costs with them, as long as fewer are cheaper."""
    least = inf
    for count in sums.times_filled:
        in_parts = split_sums(sums.layer.graph, {sums.twin: count}, is_priced_only=True).graph
        cost = cost_as_kernel(in_parts, sums.layer.quality, machine)
        if cost >= least:
            return
        yield count, cost
        least = cost


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
    """The numbers of parts of a node's sums that are the fewest to fill nearly as many cores as any do, or as
    any fewer ones do; None: they fill them whole."""
    content = Content((Kernel((tuple(numbered.numbers[n] for n in subgraph.nodes),)),), ())
    layer = numbered.part(content).partition
    twin = layer.graph.nodes[subgraph.nodes.index(node)]
    filled = {1: machine.cores_worth(twin)}
    enough = _AS_FULL * machine.limits.num_cores  # no number of parts fills clearly more
    for count in divisors(summed_channels(node))[1:]:
        if count > _MOST_PARTS or max(filled.values()) >= enough:
            break
        sums = split_sums(layer.graph, {twin: count}, is_priced_only=True).sums[twin]
        filled[count] = machine.cores_worth(sums)
    times_filled: dict[int, float] = {}
    fewer = filled
    while (best := min(c for c in fewer if fewer[c] >= _AS_FULL * max(fewer.values()))) > 1:
        times_filled[best] = filled[best] / filled[1]
        fewer = {count: cores for count, cores in filled.items() if count < best}
    if not times_filled:
        return None
    cost = machine.cost.kernel(subgraph).cost(machine.objective)
    return _Sums(layer, twin, cost, times_filled, [node])


def with_split_sums(partition: Partition, machine: Machine, meter: Meter) -> Rewritten | None:
    """The graph of a partition into layers with its sums in parts where that is cheaper; None: nowhere."""
    with meter.share(_SHARE_OF_PRICES):
        parts, saved = parts_of_sums(partition, machine, meter)
    if not parts:
        return None
    remarks = tuple(f"{node.name} sums in {count} parts side by side." for node, count in parts.items())
    return Rewritten(split_sums(partition.graph, parts).graph, remarks, (SAME_SUMS,), saved)
