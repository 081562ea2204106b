"""What instances that keep rows make, read and hold, worked out anew, one after another and node by node."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ir.graph import Node, Value
from tilewright.ir.region import Region, hull, input_regions, intersect

Layers = Sequence[Sequence[Node]]
Regions = dict[Value, Region]
BytesOf = Callable[[Value, Region], int]


@dataclass(slots=True, eq=False)
class Link:
    """One instance of a chain: regions that its operators make, and what each of its layers reads.

    `kept` are rows of what it made that later instances read, with the place of the last of these.
    """

    made: Regions
    read: list[Regions]
    kept: dict[Value, tuple[Region, int]] = field(default_factory=dict)


def chain_links(layers: Layers, slices: Sequence[Mapping[Value, Region]]) -> list[Link]:
    """The instances that make these slices of a subgraph's outputs, each with what it must still compute."""
    recomputed: set[Value] = set(slices[0])
    while True:
        links, ragged = _forwards(layers, slices, recomputed)
        if not ragged:
            break
        recomputed |= ragged
    inside = {v for layer in layers for v in leaving(layer, slices[0])}
    for maker, link in enumerate(links):
        for value in inside & set(link.made) - recomputed:
            parts: list[tuple[Region, int]] = []
            for later in range(maker + 1, len(links)):
                for read in links[later].read:
                    part = intersect(link.made[value], read[value]) if value in read else None
                    if part is not None:
                        parts.append((part, later))
            if parts:
                link.kept[value] = hull(*(p for p, _ in parts)), max(later for _, later in parts)
    return links


def leaving(layer: Sequence[Node], results: Container[Value]) -> list[Value]:
    """What a layer makes for others; of one that is never read, the results of its last operator."""
    made = [v for n in layer for v in n.results()]
    found = [v for v in made if v in results or any(u not in layer for u in v.users)]
    return found or list(layer[-1].results())


def _forwards(
    layers: Layers, slices: Sequence[Mapping[Value, Region]], recomputed: set[Value]
) -> tuple[list[Link], set[Value]]:
    """The instances, and values of which what is missing is no box though they were not to be recomputed."""
    everything = {v: hull(slices[0][v], region) for v, region in slices[-1].items()}
    whole = needs([n for layer in layers for n in layer], everything)
    there: Regions = {}
    ragged: set[Value] = set()
    links: list[Link] = []
    left = [leaving(layer, everything) for layer in layers]
    made = [{v for n in layer for v in n.results()} for layer in layers]
    for outputs in slices:
        link = Link({}, [{} for _ in layers])
        wanted: Regions = dict(outputs)
        for number in reversed(range(len(layers))):
            layer = layers[number]
            needed: Regions = {}
            for value in left[number]:
                if value not in wanted:
                    continue
                missing: Region | None = wanted[value]
                if not links and value not in recomputed:
                    missing = _begun(wanted[value], whole[value])
                if value not in recomputed and value in there:
                    together = hull(there[value], wanted[value])
                    missing = _rest(together, there[value])
                    ragged |= {value} if missing is None and together != there[value] else set()
                if missing is not None:
                    needed[value] = missing
            touched = needs(layer, needed)
            own = made[number]
            link.made.update({v: r for v, r in touched.items() if v in own})
            link.read[number] = {v: r for v, r in touched.items() if v not in own}
            for value, region in link.read[number].items():
                wanted[value] = hull(wanted[value], region) if value in wanted else region
        for value in (v for of_layer in left for v in of_layer):
            if value in link.made:
                known = there.get(value, link.made[value])
                there[value] = hull(known, link.made[value])
        links.append(link)
    return links, ragged


def _begun(part: Region, whole: Region) -> Region:
    """What the first instance makes of a value reaches to that end of what all need which is nearer."""
    box: list[tuple[int, int]] = []
    for (start, stop), (low, high) in zip(part, whole, strict=True):
        before, behind = start - low, high - stop
        box.append((start - before, stop) if before < behind else (start, stop + behind))
    return tuple(box)


def needs(operators: Sequence[Node], wanted: Mapping[Value, Region]) -> Regions:
    """Regions of all values, constants left out, that operators in order touch to make `wanted`."""
    regions = dict(wanted)
    for operator in reversed(operators):
        for position, value in enumerate(operator.outputs):
            if value is None or value not in regions:
                continue
            parts = input_regions(operator, regions[value], position)
            for operand, part in zip(operator.inputs, parts, strict=True):
                if operand is not None and part is not None and not operand.is_constant:
                    regions[operand] = hull(regions[operand], part) if operand in regions else part
            for captured in operator.captures:
                if not captured.is_constant:
                    regions[captured] = tuple((0, extent) for extent in captured.shape)
    return regions


def _rest(whole: Region, part: Region) -> Region | None:
    """What a box has beside one at its end; None: nothing, or no box."""
    axes = [axis for axis, (w, p) in enumerate(zip(whole, part, strict=True)) if w != p]
    if len(axes) != 1:
        return None
    (low, high), (start, stop) = whole[axes[0]], part[axes[0]]
    if low < start and stop < high:
        return None
    return tuple(
        ((stop, high) if low == start else (low, start)) if axis == axes[0] else interval
        for axis, interval in enumerate(whole)
    )


def link_peaks(
    links: Sequence[Link],
    place: int,
    layers: Layers,
    outputs: Mapping[Value, Region],
    bytes_of: BytesOf,
    can_reuse: Callable[[Sequence[Node], Value], bool],
) -> tuple[int, int]:
    """The peak of an instance if every result that can be made in place of an operand is, and if none is."""
    link = links[place]
    held: dict[tuple[int, Value], int] = {}  # by its maker, -1 outside
    ends: dict[tuple[int, Value], int] = {}  # after which of its layers it is given up
    last = {v: number for number, read in enumerate(link.read) for v in read}
    made_before = {v for n in layers for node in n for v in node.results()}
    for value in {v for read in link.read for v in read} - made_before:
        region = hull(*(read[value] for read in link.read if value in read))
        held[-1, value], ends[-1, value] = bytes_of(value, region), last[value]
    for maker, earlier in enumerate(links[:place]):
        for value, (region, until) in earlier.kept.items():
            if until >= place:
                held[maker, value] = bytes_of(value, region)
                ends[maker, value] = last[value] if until == place else len(layers)
    least = most = sum(held.values())
    for number, layer in enumerate(layers):
        made = [v for v in leaving(layer, outputs) if v in link.made]
        new = sum(bytes_of(v, link.made[v]) for v in made)
        fits = any(held[key] >= new and can_reuse(layer, key[1]) for key in held if ends[key] == number)
        live = sum(held.values())
        least, most = max(least, live + new - (new if fits else 0)), max(most, live + new)
        held = {key: size for key, size in held.items() if ends[key] != number}
        for value in made:
            kept = link.kept[value][0] if value in link.kept else None
            stays = value in outputs or kept == link.made[value]
            held[place, value] = bytes_of(value, link.made[value])
            ends[place, value] = len(layers) if stays else last[value]
            if kept is not None and kept != link.made[value]:
                held[len(links), value], ends[len(links), value] = bytes_of(value, kept), len(layers)
        least, most = max(least, sum(held.values())), max(most, sum(held.values()))
    return least, most
