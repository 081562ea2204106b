"""Independent check of a partition's splits: all is recomputed instance by instance, from nodes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf

from tilewright.ir.derive import is_complex, macs
from tilewright.ir.graph import Node, Value
from tilewright.ir.graph_regions import RegionMaps
from tilewright.ir.nest import Opaque
from tilewright.ir.ops import describe
from tilewright.ir.region import Region, hull, volume
from tilewright.mapping.chains.chain import CannotFuse, chain_of
from tilewright.mapping.chains.check import tiling_fault
from tilewright.partition.base import Partition, Subgraph
from tilewright.partition.check_rows import chain_links, link_peaks
from tilewright.partition.split import Split, WeighedSplits
from tilewright.planning import Violation

_TOLERANCE = 1e-9

Layers = Sequence[Sequence[Node]]


def check_splits(
    partition: Partition, maps: RegionMaps | None = None, *, recompute_limit: float = inf
) -> tuple[Violation, ...]:
    """Everything wrong with the splits: nothing, if they are valid.

    Checked for every subgraph: layers hold its nodes once, in an order in which they can run, and nothing but
    a layer's end is read elsewhere; the split can be made; how much is computed twice. Where splits were
    weighed: one output, unless it is a single layer; the split is the best option; of every instance, that
    it fits and that the stated peak is right, rows included that are kept for later instances. `maps` are
    regions through the graph that are known.
    """
    maps = maps or RegionMaps()
    if len(partition.splits) != len(partition.subgraphs):
        return (
            Violation("splits", f"{len(partition.splits)} splits for {len(partition.subgraphs)} subgraphs"),
        )
    found: list[Violation] = []
    for subgraph, split in zip(partition.subgraphs, partition.splits, strict=True):
        layers = [layer.nodes for layer in partition.layers_of(subgraph)]
        found += _check_layers(subgraph, layers)
        found += tiling_violations(subgraph, split, layers)
        if partition.weighed is not None:
            found += _check_choice(subgraph, split, layers, partition.weighed)
        found += _check_instances(partition, subgraph, split, maps, recompute_limit)
    return tuple(found)


def _check_layers(subgraph: Subgraph, layers: Layers) -> Iterator[Violation]:
    nodes = [n for layer in layers for n in layer]
    if len(nodes) != len(subgraph.nodes) or {id(n) for n in nodes} != {id(n) for n in subgraph.nodes}:
        yield Violation("layers", f"{subgraph!r}: its layers do not hold its nodes once each")
    seen: set[int] = set()
    inside = {id(n) for n in nodes}
    for node in nodes:
        for value in node.operands():
            if id(value.producer) in inside and id(value.producer) not in seen:
                yield Violation("layers", f"{subgraph!r}: {node!r} comes before what it reads")
        seen.add(id(node))
    for layer in layers:
        members = {id(n) for n in layer}
        for node in layer[:-1]:
            if any(id(u) not in members for v in node.results() for u in v.users):
                yield Violation("layers", f"{subgraph!r}: {node!r} lies inside a layer but is read outside")


def tiling_violations(subgraph: Subgraph, split: Split, layers: Layers) -> Iterator[Violation]:
    """Layers that are tiled jointly are chains, each with one tiling of its own loops, and are not cut."""
    numbers = [number for number, _ in split.tilings]
    if len(set(numbers)) < len(numbers) or (numbers and split.cuts):
        yield Violation("tiling", f"{subgraph!r}: layers {numbers} are tiled jointly, {split}")
    for number, plan in split.tilings:
        if not 0 <= number < len(layers):
            yield Violation("tiling", f"{subgraph!r}: layer {number} of {len(layers)} is tiled jointly")
            continue
        nodes = layers[number]
        try:
            fault = tiling_fault(chain_of(nodes, frozenset(nodes[-1].results())), plan)
        except CannotFuse as error:
            fault = str(error)
        if fault:
            yield Violation("tiling", f"{subgraph!r}: layer {number} is not tiled so: {fault}")


def _check_choice(
    subgraph: Subgraph, split: Split, layers: Layers, weighed: WeighedSplits
) -> Iterator[Violation]:
    if len(subgraph.outputs) > 1 and len(layers) > 1:
        yield Violation("outputs", f"{subgraph!r}: {len(subgraph.outputs)} outputs")
    options = weighed.options[subgraph.id]
    if not options:
        if split.cuts or len(layers) != 1:
            yield Violation("choice", f"{subgraph!r} does not fit, yet is {split}")
        return
    best = max(options, key=lambda o: (o.num_ops, -o.split.num_instances, -(o.split.dim or 0)))
    if best.split != split or best.peak_bytes != weighed.peak_bytes[subgraph.id]:
        yield Violation("choice", f"{subgraph!r}: {split} is not the best of its options")


def _check_instances(
    partition: Partition, subgraph: Subgraph, split: Split, maps: RegionMaps, recompute_limit: float
) -> Iterator[Violation]:
    cuts = list(_cuts(split))
    outputs = subgraph.outputs or tuple(subgraph.nodes[-1].results())
    if len({dim for dim, _ in cuts}) < len(cuts) or any(
        not 0 <= dim < len(v.shape) or v.shape[dim] < factor for v in outputs for dim, factor in cuts
    ):
        yield Violation("split", f"{subgraph!r} cannot be split: {split}")
        return
    if partition.weighed is None and (not cuts or recompute_limit == inf):
        return  # nothing is stated of instances
    factors = [range(factor) for _, factor in cuts]
    least = most = 0
    work = 0.0
    for indices in product(*factors[: -1 if split.chain_length > 1 else None]):
        if split.chain_length > 1:
            low, high, made = _check_chain(partition, subgraph, outputs, cuts, indices)
        else:
            regions, read = _regions(subgraph, _boxes(outputs, cuts, indices), maps)
            low, high = _peaks(partition, subgraph, outputs, regions, read)
            made = [regions]
        least, most = max(least, low), max(most, high)
        if recompute_limit < inf:
            work += sum(n.remembered(macs) * _share(n, regions) for regions in made for n in subgraph.nodes)
    yield from _check_peak(partition, subgraph, least, most)
    whole = sum(n.remembered(macs) for n in subgraph.nodes) if recompute_limit < inf else 0
    if cuts and whole and work > whole * recompute_limit * (1 + _TOLERANCE):
        yield Violation("recompute", f"{subgraph!r} does {work / whole:.3g} times its work")


def _check_peak(partition: Partition, subgraph: Subgraph, least: int, most: int) -> Iterator[Violation]:
    weighed = partition.weighed
    if weighed is None:
        return
    peak_bytes = weighed.peak_bytes[subgraph.id]
    if not least <= peak_bytes <= most:
        yield Violation("peak", f"{subgraph!r}: stated {peak_bytes}, it is from {least} to {most}")
    if weighed.is_feasible(subgraph.id) and least > weighed.capacity_bytes:
        yield Violation("capacity", f"{subgraph!r} holds {least} of {weighed.capacity_bytes} bytes")


def _share(node: Node, regions: Mapping[Value, Region]) -> float:
    made = [(volume(regions[v]), v.num_elements) for v in node.results() if v in regions]
    total = sum(whole for _, whole in made)
    return sum(part for part, _ in made) / total if total else 0.0


def _cuts(split: Split) -> Iterator[tuple[int, int]]:
    rest: Split | None = split
    while rest is not None:
        if rest.factor > 1:
            yield -1 if rest.dim is None else rest.dim, rest.factor
        rest = rest.inner


def _check_chain(
    partition: Partition,
    subgraph: Subgraph,
    outputs: tuple[Value, ...],
    cuts: Sequence[tuple[int, int]],
    outer: tuple[int, ...],
) -> tuple[int, int, Sequence[Mapping[Value, Region]]]:
    """Bounds of the peak, and what is made, of instances that keep rows for each other in outer slices."""
    layers = [layer.nodes for layer in partition.layers_of(subgraph)]
    slices = [_boxes(outputs, cuts, (*outer, i)) for i in range(cuts[-1][1])]
    links = chain_links(layers, slices)
    peaks = [
        link_peaks(
            links,
            place,
            layers,
            slices[place],
            partition.bytes_of,
            lambda layer, value: partition.in_place and _may_be_overwritten(layer, value),
        )
        for place in range(len(links))
    ]
    return max(low for low, _ in peaks), max(high for _, high in peaks), [link.made for link in links]


def _boxes(
    outputs: tuple[Value, ...], cuts: Sequence[tuple[int, int]], indices: Sequence[int]
) -> dict[Value, Region]:
    """What one instance makes of each output."""
    regions: dict[Value, Region] = {}
    for output in outputs:
        box = [(0, extent) for extent in output.shape]
        for (dim, factor), index in zip(cuts, indices, strict=True):
            box[dim] = (output.shape[dim] * index // factor, output.shape[dim] * (index + 1) // factor)
        regions[output] = tuple(box)
    return regions


def _regions(
    subgraph: Subgraph, made: Mapping[Value, Region], maps: RegionMaps
) -> tuple[dict[Value, Region], dict[Node, set[Value]]]:
    """Regions of all values that one instance touches, node by node, and what each node reads to make its
    part of the results: a slice of a concatenation not all operands."""
    regions, read = dict(made), {}
    for node in reversed(subgraph.nodes):
        own: set[Value] = set()
        for number, value in enumerate(node.outputs):
            if value is None or value not in regions:
                continue
            needs = maps.inputs_of(node, number, regions[value])
            for operand, need in zip(node.inputs, needs, strict=True):
                if operand is not None and need is not None and not operand.is_constant:
                    regions[operand] = hull(regions[operand], need) if operand in regions else need
                    own.add(operand)
            for captured in node.captures:
                regions[captured] = tuple((0, extent) for extent in captured.shape)
                own.add(captured)
        read[node] = own
    return regions, read


def _peaks(
    partition: Partition,
    subgraph: Subgraph,
    outputs: tuple[Value, ...],
    regions: Mapping[Value, Region],
    read_by: Mapping[Node, set[Value]],
) -> tuple[int, int]:
    """The peak if every result that could be made in place of an operand is, and if none is."""
    layers = [layer.nodes for layer in partition.layers_of(subgraph)]
    needed = [[n for n in layer if any(v in regions for v in n.results())] for layer in layers]
    reads = [{v for n in layer for v in read_by.get(n, ())} for layer in needed]
    makes = [
        {
            v
            for n in layer
            for v in n.results()
            if v in regions and (v in outputs or any(u not in layer for u in v.users))
        }
        for layer in needed
    ]

    bytes_of = {v: partition.bytes_of(v, region) for v, region in regions.items()}

    def size(values: set[Value]) -> int:
        return sum(bytes_of[v] for v in values)

    last_read = {v: step for step, read in enumerate(reads) for v in read}
    last_read |= dict.fromkeys(outputs, len(needed))  # behind all steps

    def is_read_after(step: int, value: Value) -> bool:
        return last_read.get(value, -1) > step

    live = {v for v in subgraph.inputs if v in regions}
    least = most = size(live)
    for step, layer in enumerate(needed):
        if not layer:
            continue
        new = size(makes[step])
        is_reused = partition.in_place and any(
            bytes_of[v] >= new and _may_be_overwritten(layer, v)
            for v in live & reads[step]
            if not is_read_after(step, v)
        )
        reused = new if is_reused else 0
        least, most = max(least, size(live) + new - reused), max(most, size(live) + new)
        live = {v for v in live | makes[step] if is_read_after(step, v)}
    return least, most


def _may_be_overwritten(layer: Sequence[Node], value: Value) -> bool:
    """Whether no contraction of a layer reads a value, or what the layer makes of it on the way."""
    reached = {value}
    for node in layer:
        if any(v in reached for v in node.operands()):
            if node.remembered(is_complex) and _sums_last(node):
                return False
            reached.update(node.results())
    return True


def _sums_last(node: Node) -> bool:
    """Whether the nest that writes a node's result sums: sums of earlier nests have read all by then."""
    nests = describe(node)
    return isinstance(nests, Opaque) or nests[-1].combine is not None
