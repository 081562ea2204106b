"""Independent check of instance graphs and their orders: regions and edges are worked out anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from tilewright.ir.graph import Value
from tilewright.ir.region import Region, hull, volume
from tilewright.partition.base import Subgraph
from tilewright.partition.check_rows import Link, chain_links, needs
from tilewright.planning import Violation
from tilewright.schedule.binding import Bindings, Scope
from tilewright.schedule.instances import InstanceGraph, InstanceNode, Kind


def check_instances(graph: InstanceGraph, chains: Chains | None = None) -> tuple[Violation, ...]:
    """Everything wrong with an instance graph: nothing, if it is valid; `chains` are its own, if known.

    Checked: the instances of a subgraph make every element of its outputs exactly once; each reads what its
    slice needs, less what follows from rows that earlier ones keep; of that, edges and the network's inputs
    bring every element, once; no edge brings nothing; slices of several producers pass through a
    concatenation.
    """
    chains = chains or Chains(graph)
    return (*_check_cover(graph), *_check_reads(graph), *_check_rows(graph, chains), *_check_edges(graph))


def check_order(graph: InstanceGraph, order: Sequence[int]) -> tuple[Violation, ...]:
    """Everything wrong with an order: every node once, each after those it reads from."""
    place = {node: i for i, node in enumerate(order)}
    if len(order) != len(graph.nodes) or set(place) != set(range(len(graph.nodes))):
        return (Violation("order", f"{len(order)} entries for {len(graph.nodes)} nodes, or not each once"),)
    return tuple(
        Violation("order", f"{graph.nodes[second]} runs before {graph.nodes[first]}")
        for first, second in (*((e.producer, e.consumer) for e in graph.edges), *graph.waits)
        if place[second] <= place[first]
    )


def check_bindings(graph: InstanceGraph, bindings: Bindings) -> tuple[Violation, ...]:
    """Everything wrong with bindings and scopes: nothing, if they are valid.

    Checked: one factor per axis, which divides the extent of a result that is made, or is no larger where the
    kernel or a reader says how cores share what it makes, and is what it says; all together no more than
    there are cores, or cores of the group that runs it; the same of what readers want; a slice that two
    readers want differently, or that another group of cores reads, is not local; results of the network and
    what separate kernels leave lie in main memory, and nothing else does.
    """
    return tuple(_binding_violations(graph, bindings))


def _binding_violations(graph: InstanceGraph, bindings: Bindings) -> Iterator[Violation]:
    for node in graph.nodes:
        binding, scope = bindings.bindings[node.id], bindings.scopes[node.id]
        most = _most_cores(bindings, node.id)
        # Of several results any may be the one whose readers say how it is distributed.
        users = (node, *(graph.nodes[e.consumer] for e in graph.readers(node.id)))
        is_even = not any(_asked(graph, user) for user in users)
        if not any(_deals(region, binding, most, is_even=is_even) for region in node.outputs.values()):
            yield Violation("binding", f"{node}: {binding} does not deal out {node.region}")
        asked = _asked(graph, node)
        is_own = node.kind is Kind.INSTANCE and not bindings.launches and prod(asked) <= most
        if is_own and len(asked) == len(node.region):
            lengths = [max(1, stop - start) for start, stop in node.region]
            expected = tuple(map(min, asked, lengths))
            if binding != expected:
                yield Violation("binding", f"{node}: {binding}, but its split says {expected}")
        leaves = bool(bindings.launches) or any(v in graph.results for v in node.outputs)
        if (scope is Scope.MAIN) != (node.kind is Kind.INSTANCE and leaves):
            yield Violation("scope", f"{node}: lies in {scope}")
        wanted = {bindings.wanted[e] for e in graph.readers(node.id) if e in bindings.wanted}
        if scope is Scope.LOCAL and bindings.cores is not None:
            groups = bindings.cores.of_nodes
            if any(groups[e.consumer] != groups[node.id] for e in graph.readers(node.id)):
                yield Violation("scope", f"{node}: another group of cores reads it, but it is local")
        if len(wanted) > 1 and scope is Scope.LOCAL:
            yield Violation("scope", f"{node}: its readers want {sorted(wanted)}, but it is local")
    for edge, binding in bindings.wanted.items():
        is_even = not _asked(graph, graph.nodes[edge.consumer])
        if not _deals(edge.region, binding, _most_cores(bindings, edge.consumer), is_even=is_even):
            yield Violation(
                "wanted", f"{graph.nodes[edge.consumer]}: {binding} does not deal out {edge.region}"
            )


def _most_cores(bindings: Bindings, place: int) -> int:
    """How many cores may run a node."""
    cores = bindings.cores
    return bindings.num_cores if cores is None else cores.groups[cores.of_nodes[place]].num_cores


def _asked(graph: InstanceGraph, node: InstanceNode) -> tuple[int, ...]:
    """How the split of the kernel that a node serves has cores share what it makes; none: it does not say."""
    return graph.splits[node.subgraph_id].cores


def _deals(region: Region, binding: Sequence[int], num_cores: int, *, is_even: bool) -> bool:
    if len(binding) != len(region) or prod(binding) > num_cores:
        return False
    sizes = [stop - start for start, stop in region]
    if is_even:
        return all(b >= 1 and size % b == 0 for b, size in zip(binding, sizes, strict=True))
    return all(1 <= b <= max(1, size) for b, size in zip(binding, sizes, strict=True))


def _check_cover(graph: InstanceGraph) -> Iterator[Violation]:
    slices: dict[Value, list[Region]] = {}
    for place, node in enumerate(graph.nodes):
        if node.id != place:
            yield Violation("number", f"node {node.id} stands at place {place}")
        if node.kind is Kind.INSTANCE:
            for value, region in node.outputs.items():
                slices.setdefault(value, []).append(region)
    for subgraph in graph.partition.subgraphs:
        for value in subgraph.outputs:
            own = slices.get(value, [])
            if not _tiles(own, tuple((0, extent) for extent in value.shape)):
                yield Violation("cover", f"{value.name}: its {len(own)} slices are not the whole, once")


def _tiles(slices: Sequence[Region], whole: Region) -> bool:
    """Whether disjoint boxes make up a box: none outside, their volumes add up, no two share an element."""
    inside = all(
        w[0] <= p[0] <= p[1] <= w[1]
        for slice_region in slices
        for p, w in zip(slice_region, whole, strict=True)
    )
    if not inside or sum(volume(p) for p in slices) != volume(whole):
        return False
    solid = sorted(p for p in slices if volume(p))
    axes = [axis for axis in range(len(whole)) if any(p[axis] != whole[axis] for p in solid)]
    if len(axes) == 1:
        cuts = sorted(p[axes[0]] for p in solid)
        return all(a[1] == b[0] for a, b in pairwise(cuts))
    return not any(_overlap(a, b) for i, a in enumerate(solid) for b in solid[i + 1 :])


def _overlap(a: Region, b: Region) -> bool:
    return all(max(p[0], q[0]) < min(p[1], q[1]) for p, q in zip(a, b, strict=True))


def _check_reads(graph: InstanceGraph) -> Iterator[Violation]:
    for node in graph.nodes:
        if node.rows is not None:
            continue
        subgraph = graph.partition.subgraphs[node.subgraph_id]
        touched = needs(subgraph.nodes, node.outputs)
        wanted = {v: r for v, r in touched.items() if v in subgraph.inputs and volume(r)}
        if {v: r for v, r in node.inputs.items() if volume(r)} != wanted:
            yield Violation("reads", f"{node}: reads {node.inputs}, needs {wanted}")


class Chains:
    """The instances of a graph that keep rows for each other, with what each makes, reads and keeps: worked
    out anew, once for all checks."""

    def __init__(self, graph: InstanceGraph) -> None:
        self._graph = graph
        self._links: dict[tuple[int, int], list[Link]] = {}
        self.nodes: dict[tuple[int, int], list[InstanceNode]] = {}  # by subgraph and number of the chain
        for node in graph.nodes:
            length = graph.splits[node.subgraph_id].chain_length
            if node.kind is Kind.INSTANCE and length > 1:
                self.nodes.setdefault((node.subgraph_id, node.index // length), []).append(node)

    def links_of(self, key: tuple[int, int]) -> list[Link]:
        """Those of the nodes of one chain."""
        if key not in self._links:
            partition = self._graph.partition
            layers = [layer.nodes for layer in partition.layers_of(partition.subgraphs[key[0]])]
            self._links[key] = chain_links(layers, [node.outputs for node in self.nodes[key]])
        return self._links[key]

    def link_of(self, node: InstanceNode) -> Link | None:
        """That of one instance; None if it is of no chain."""
        length = self._graph.splits[node.subgraph_id].chain_length
        if length == 1:
            return None
        return self.links_of((node.subgraph_id, node.index // length))[node.index % length]


def _check_rows(graph: InstanceGraph, chains: Chains) -> Iterator[Violation]:
    """Of instances that keep rows: what they make, read and keep, worked out in another way."""
    for key, chain in chains.nodes.items():
        subgraph, links = graph.partition.subgraphs[key[0]], chains.links_of(key)
        for position, node in enumerate(chain):
            yield from _check_link(subgraph, node, links[position])
            for maker, earlier in zip(chain[:position], links, strict=False):
                is_read = any(until >= position for _, until in earlier.kept.values())
                if is_read and maker.id not in graph.predecessors(node.id):
                    yield Violation("rows", f"{node} does not wait for {maker}, whose rows it reads")


def _check_link(subgraph: Subgraph, node: InstanceNode, link: Link) -> Iterator[Violation]:
    if node.rows is None:
        yield Violation("rows", f"{node} keeps none, though its split does")
        return
    for run in node.rows.runs:
        expected = {v: r for v, r in link.made.items() if v in run.layer.outputs}
        if run.made != expected or run.read != link.read[run.number]:
            yield Violation("rows", f"{node}: layer {run.number} makes {run.made} of {run.read}")
    if sum(bool(read) for read in link.read) > len(node.rows.runs):
        yield Violation("rows", f"{node}: {len(node.rows.runs)} layers run, it needs more")
    if {v: (k.region, k.until) for v, k in node.rows.kept.items()} != link.kept:
        yield Violation("rows", f"{node}: keeps {node.rows.kept} instead of {link.kept}")
    needed: dict[Value, Region] = {}
    for read in link.read:
        for value in read.keys() & set(subgraph.inputs):
            needed[value] = hull(needed[value], read[value]) if value in needed else read[value]
    if needed != dict(node.inputs):
        yield Violation("reads", f"{node}: reads {node.inputs}, needs {needed}")


def _check_edges(graph: InstanceGraph) -> Iterator[Violation]:
    outside = set(graph.partition.graph.inputs)
    for edge in graph.edges:
        made = graph.nodes[edge.producer].outputs.get(edge.value)
        if made is None or not volume(edge.region) or not _covers(made, edge.region):
            yield Violation(
                "edge", f"{graph.nodes[edge.producer]} does not make {edge.value.name} {edge.region}"
            )
    for node in graph.nodes:
        for value, region in node.inputs.items():
            brought = [e.region for e in graph.reads(node.id) if e.value is value]
            if value in outside and not brought:
                continue
            if not _tiles(brought, region):
                yield Violation("edge", f"{node} reads {value.name} {region}, edges bring {brought}")
            if node.kind is not Kind.CONCAT and len(brought) > 1:
                yield Violation("concat", f"{node} takes {len(brought)} slices of {value.name}")
        yield from _check_values(graph, node)


def _check_values(graph: InstanceGraph, node: InstanceNode) -> Iterator[Violation]:
    for edge in graph.reads(node.id):
        if edge.value not in node.inputs:
            yield Violation("edge", f"{node} is brought {edge.value.name}, which it does not read")
    if node.kind is Kind.CONCAT and len(graph.reads(node.id)) < 2:
        yield Violation("concat", f"{node} collects {len(graph.reads(node.id))} slices")


def _covers(outer: Region, inner: Region) -> bool:
    return all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))
