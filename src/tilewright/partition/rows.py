"""Instances that keep rows for the next one instead of computing them again.

Consecutive slices along an axis with halos need some of the same rows of each value between them. In a chain
of such instances, one makes of such a value what the slices up to its own need and those before did not, and
keeps what later ones read. So no row is made twice. "Rows" are slices along any axis that windows move on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Value
from tilewright.ir.region import Region, hull, intersect
from tilewright.partition.layers import Layer, LayerNeeds, LayerRegions, Outputs
from tilewright.partition.split import Split, instance_region

Regions = Mapping[Value, Region]
BytesOf = Callable[[Value, Region], int]


@dataclass(frozen=True, slots=True, eq=False)
class LayerRun:
    """What one layer of an instance makes and needs; `number` is its place in the subgraph."""

    number: int
    layer: Layer
    outputs: Outputs
    needs: LayerNeeds

    @property
    def made(self) -> dict[Value, Region]:
        """The regions that it makes."""
        made = zip(self.layer.outputs, self.outputs, strict=True)
        return {v: r for v, r in made if r is not None}

    @property
    def read(self) -> dict[Value, Region]:
        """The regions that it reads."""
        read = zip(self.layer.inputs, self.needs.inputs, strict=True)
        return {v: r for v, r in read if r is not None}


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a value that an instance made and later ones read, the last of them at `until` in the chain.

    `is_all`: it made no others, so that its buffer itself is kept; otherwise they are copied out of it.
    """

    region: Region
    until: int
    is_all: bool


@dataclass(frozen=True, slots=True, eq=False)
class ChainInstance:
    """One instance of a chain. `inputs` are the regions that it reads of values from outside the subgraph."""

    position: int
    inputs: Regions
    runs: tuple[LayerRun, ...]
    kept: Mapping[Value, Kept]

    @property
    def macs(self) -> float:
        """Multiply-accumulates of all its layers."""
        return sum(run.needs.macs for run in self.runs)

    @property
    def elements(self) -> int:
        """Elements that its operators make."""
        return sum(run.needs.elements for run in self.runs)


def chain_slices(outputs: Sequence[Value], split: Split, number: int = 0) -> list[dict[Value, Region]]:
    """What the instances of the `number`-th chain of a split make of each output."""
    length = split.chain_length
    indices = range(number * length, (number + 1) * length)
    return [{v: instance_region(v.shape, split, index) for v in outputs} for index in indices]


class RowChain:
    """The instances of one chain: `slices` are what each makes of the outputs, in order."""

    def __init__(self, layers: Sequence[Layer], slices: Sequence[Regions], regions: LayerRegions) -> None:
        self._layers = tuple(layers)
        self._slices = tuple(slices)
        self._regions = regions
        made = {v for layer in layers for v in layer.outputs}
        self._inputs = dict.fromkeys(v for layer in layers for v in layer.inputs if v not in made)
        self._reached: dict[int, dict[Value, Region]] = {}

    def __len__(self) -> int:
        return len(self._slices)

    @functools.cached_property
    def instances(self) -> tuple[ChainInstance, ...]:
        """All instances with what they keep. O(instances * layers)."""
        every = range(len(self))
        shared = self._shared()
        runs = [self._run(position, shared) for position in every]
        kept = _kept(runs, shared)
        return tuple(ChainInstance(i, self._read_outside(runs[i]), runs[i], kept[i]) for i in every)

    def least_peak_bytes(self, position: int, bytes_of: BytesOf, *, in_place: bool) -> int:
        """What an instance holds at least: a quick look, which counts the kept rows that it reads itself."""
        known = self._reach(position - 1) if position else {}
        outputs = self._slices[position]
        shared = {
            v
            for v, region in self._reach(position).items()
            if v not in outputs and v not in self._inputs and (v not in known or _grows(known[v], region))
        }
        runs = self._run(position, shared)
        entering: dict[Value, list[tuple[int, int]]] = {}
        for value, region in _hulls(run.read for run in runs).items():
            there = intersect(region, known[value]) if value in known and value in shared else None
            if there is not None:
                entering[value] = [(bytes_of(value, there), position)]
        instance = ChainInstance(position, self._read_outside(runs), runs, {})
        return _peak_bytes(instance, outputs, entering, bytes_of, in_place=in_place)

    def peaks_bytes(
        self, instances: Sequence[ChainInstance], bytes_of: BytesOf, *, in_place: bool
    ) -> list[int]:
        """The most that each of its instances holds: inputs, what it makes, and all rows kept meanwhile."""
        peaks: list[int] = []
        there: dict[Value, list[tuple[int, int]]] = {}
        for instance in instances:
            outputs = self._slices[instance.position]
            peaks.append(_peak_bytes(instance, outputs, there, bytes_of, in_place=in_place))
            for value, kept in instance.kept.items():
                there.setdefault(value, []).append((bytes_of(value, kept.region), kept.until))
            there = {v: [k for k in rows if k[1] > instance.position] for v, rows in there.items()}
        return peaks

    def _reach(self, position: int) -> dict[Value, Region]:
        """Regions of everything that the slices up to one need together.

        What the first slice needs of a value begins where all do: a spread window may leave out a row at the
        border that the next slice reads.
        """
        found = self._reached.get(position)
        if found is None:
            last = len(self) - 1
            whole = self._reach(last) if position != last else {}
            least = self._reach(0) if position not in (0, last) else {}
            outputs = self._slices[0]
            found = {v: hull(outputs[v], region) for v, region in self._slices[position].items()}
            for layer in reversed(self._layers):
                for value in layer.outputs:
                    if value in found and value not in outputs:
                        if position == 0 and value in whole:
                            found[value] = _from_nearer_end(found[value], whole[value])
                        if value in least:
                            found[value] = hull(found[value], least[value])
                wanted = tuple(found.get(v) for v in layer.outputs)
                if any(r is not None for r in wanted):
                    _widen(found, layer.inputs, self._regions.needs_of(layer, wanted).inputs)
            self._reached[position] = found
        return found

    def _shared(self) -> set[Value]:
        """Values inside of which rows can be kept: from slice to slice, what is needed grows at an end."""
        outputs = self._slices[0]
        shared = {v for layer in self._layers for v in layer.outputs if v not in outputs}
        for position in range(1, len(self)):
            before, after = self._reach(position - 1), self._reach(position)
            shared = {v for v in shared if v not in before or _grows(before[v], after[v])}
        return shared

    def _run(self, position: int, shared: set[Value]) -> tuple[LayerRun, ...]:
        """What the layers of an instance do, in order."""
        before = self._reach(position - 1) if position else {}
        after = self._reach(position)
        wanted = dict(self._slices[position])
        runs: list[LayerRun] = []
        for number, layer in reversed(tuple(enumerate(self._layers))):
            outputs = tuple(
                _added(before.get(v), after.get(v)) if v in shared else wanted.get(v) for v in layer.outputs
            )
            if any(r is not None for r in outputs):
                needs = self._regions.needs_of(layer, outputs)
                _widen(wanted, layer.inputs, needs.inputs)
                runs.append(LayerRun(number, layer, outputs, needs))
        return tuple(reversed(runs))

    def _read_outside(self, runs: Sequence[LayerRun]) -> dict[Value, Region]:
        read = _hulls(run.read for run in runs)
        return {v: read[v] for v in self._inputs if v in read}


def _widen(regions: dict[Value, Region], values: Sequence[Value], needs: Outputs) -> None:
    for value, need in zip(values, needs, strict=True):
        if need is not None:
            regions[value] = hull(regions[value], need) if value in regions else need


def _hulls(several: Iterable[Regions]) -> dict[Value, Region]:
    """The hulls of regions of the same values."""
    found: dict[Value, Region] = {}
    for regions in several:
        _widen(found, tuple(regions), tuple(regions.values()))
    return found


def _from_nearer_end(part: Region, whole: Region) -> Region:
    """A region up to the nearer end of a larger one, along each axis."""
    return tuple(
        (low, stop) if start - low < high - stop else (start, max(stop, high))
        for (start, stop), (low, high) in zip(part, whole, strict=True)
    )


def _grows(before: Region, after: Region) -> bool:
    """Whether one region is another one and more at one end of one axis, or nothing more."""
    axes = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    return len(axes) <= 1 and all(
        (b[0] == a[0] and b[1] < a[1]) or (a[0] < b[0] and b[1] == a[1]) for b, a in axes
    )


def _added(before: Region | None, after: Region | None) -> Region | None:
    """What a region has more than the one that it grew from; None: nothing."""
    if before is None or after is None or before == after:
        return None if before == after else after
    return tuple(
        a if b == a else (b[1], a[1]) if b[0] == a[0] else (a[0], b[0])
        for b, a in zip(before, after, strict=True)
    )


def _kept(runs: Sequence[Sequence[LayerRun]], shared: set[Value]) -> list[dict[Value, Kept]]:
    """What each instance keeps for later ones."""
    made = [{v: r for run in own for v, r in run.made.items() if v in shared} for own in runs]
    # Of each layer on its own: layers may read more along different axes.
    read = [[(v, run.number, r) for run in own for v, r in run.read.items() if v in shared] for own in runs]
    later: dict[Value, dict[int, Region]] = {}
    wanted: list[dict[Value, Region]] = []  # of what each made, that is read later
    ahead: list[dict[Value, tuple[Region, ...]]] = []  # what layers of those behind each read
    for own, reads in zip(reversed(made), reversed(read), strict=True):
        ahead.append({v: tuple(of_layers.values()) for v, of_layers in later.items()})
        common = {v: _common(r, ahead[-1].get(v, ())) for v, r in own.items()}
        wanted.append({v: r for v, r in common.items() if r is not None})
        for value, layer, region in reads:
            of_layers = later.setdefault(value, {})
            of_layers[layer] = hull(of_layers[layer], region) if layer in of_layers else region
    wanted.reverse()
    ahead.reverse()
    until: dict[tuple[int, Value], int] = {}
    there: dict[Value, list[int]] = {}
    for number, reads in enumerate(read):
        for value, _, region in reads:
            for maker in there.get(value, ()):
                if intersect(wanted[maker][value], region) is not None:
                    until[maker, value] = number
        for value, makers in there.items():
            rest = ahead[number].get(value, ())
            there[value] = [m for m in makers if _common(wanted[m][value], rest) is not None]
        for value in wanted[number]:
            there.setdefault(value, []).append(number)
    return [
        {
            v: Kept(region, until[number, v], region == made[number][v])
            for v, region in rows.items()
            if (number, v) in until
        }
        for number, rows in enumerate(wanted)
    ]


def _common(made: Region, read: Sequence[Region]) -> Region | None:
    """What of a region is read; None: nothing."""
    parts = [part for region in read if (part := intersect(made, region)) is not None]
    return hull(*parts) if parts else None


def _peak_bytes(
    instance: ChainInstance,
    outputs: Regions,
    entering: Mapping[Value, Sequence[tuple[int, int]]],
    bytes_of: BytesOf,
    *,
    in_place: bool,
) -> int:
    """The most that an instance holds; `entering` are bytes of rows kept before with their last readers."""
    last_use: dict[Value, int] = {}
    for number, run in enumerate(instance.runs):
        last_use.update(dict.fromkeys(run.read, number))
    size = {v: bytes_of(v, r) for v, r in instance.inputs.items()}
    dies = dict(size)  # bytes that are free after the last layer that reads a value
    for value, rows in entering.items():
        dies[value] = sum(held for held, until in rows if until == instance.position)
    live = sum(size.values()) + sum(held for rows in entering.values() for held, _ in rows)
    peak = live
    for number, run in enumerate(instance.runs):
        new = 0
        for value, region in run.made.items():
            size[value] = bytes_of(value, region)
            new += size[value]
        fits = any(
            v in run.layer.overwrites
            and last_use[v] == number
            and not entering.get(v)
            and v not in outputs
            and not (v in instance.kept and instance.kept[v].is_all)
            and size.get(v, 0) >= new
            for v in run.read
        )
        peak = max(peak, live + new - (new if fits and in_place else 0))
        live += new - sum(dies.get(v, 0) for v in run.read if last_use[v] == number)
        for value in run.made:
            kept = instance.kept.get(value)
            if kept is not None and not kept.is_all:
                live += bytes_of(value, kept.region)
                peak = max(peak, live)
            if value in outputs or (kept is not None and kept.is_all):
                continue
            if value in last_use:
                dies[value] = dies.get(value, 0) + size[value]
            else:
                live -= size[value]
    return peak
