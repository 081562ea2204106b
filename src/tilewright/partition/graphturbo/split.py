"""SplitInfo: how a subgraph can be split so that an instance fits (Algorithm 1), and the best way (Eq. 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from tilewright.ir.region import Region
from tilewright.partition.axes import IndependentAxes
from tilewright.partition.footprint import Footprint, Footprints, SubgraphPart
from tilewright.partition.rows import RowChain
from tilewright.partition.split import WHOLE, Split, SplitOption, instance_region, split_of
from tilewright.progress import checkpoint

Dims = Literal["batch", "batch-first", "any"]
Rows = Literal["recompute", "keep"]
Cuts = tuple[tuple[int, int], ...]
"""Axes with their factors, the outer first."""

# The paper's factors: those that deal cores out evenly, then one per slice from a whole cluster's cores on.
_SMALL_FACTORS = (1, 2, 4)
_LARGE_FACTOR = 8


@dataclass(frozen=True, slots=True)
class SplitRules:
    """What may be split, and when an instance fits.

    `dims`: `batch` takes independent axes only; `batch-first` other axes too where a single slice of these is
    still too large; `any` all axes alike. `recompute_limit` bounds the work of all instances over that of the
    whole. `rows`: what neighbouring slices share inside a subgraph is computed by each, or kept by one for
    the next where an instance then fits.
    What is still too large in `max_instances_per_sample` runs whole, its layers tiled: finer instances
    would cost more to plan, and in halos, than they save.
    """

    capacity_bytes: int
    dims: Dims = "batch-first"
    recompute_limit: float = 1.25
    all_factors: bool = False
    rows: Rows = "recompute"
    max_instances_per_sample: int = 16


def factors(extent: int, rules: SplitRules) -> Iterator[int]:
    """The factors to try on an axis, ascending: divisors that deal cores out evenly, and one slice for each.

    >>> list(factors(24, SplitRules(0))), list(factors(24, SplitRules(0, all_factors=True)))
    ([1, 2, 4, 8, 12, 24], [1, 2, 3, 4, 6, 8, 12, 24])
    >>> list(factors(6, SplitRules(0)))
    [1, 2, 6]
    """
    for factor in range(1, extent + 1):
        if extent % factor == 0 and (
            rules.all_factors or factor in _SMALL_FACTORS or factor >= min(_LARGE_FACTOR, extent)
        ):
            yield factor


class Splitter:
    """SplitInfo of parts of one graph."""

    def __init__(self, footprints: Footprints, axes: IndependentAxes, rules: SplitRules) -> None:
        self.footprints = footprints
        self.axes = axes
        self.rules = rules
        self.num_evaluations = 0

    def options(
        self, part: SubgraphPart, *, limit: int | None = None, beyond_batch: bool = False
    ) -> tuple[SplitOption, ...]:
        """One option per axis that fits, the least factor each. None: it does not fit in any way.

        Factors above `limit` are not tried. `beyond_batch` allows axes that are not independent where those
        do not suffice.
        """
        self.num_evaluations += 1
        found: list[SplitOption] = []
        if self.rules.dims != "any":
            found = [o for d in self._independent(part) if (o := self._option(part, d, limit)) is not None]
        if self.rules.dims == "any":
            found = self._along_each(part, limit, ())
        elif beyond_batch and not found:
            found = self._beyond_batch(part, limit)
        if not found:
            whole = self.footprints.whole(part)
            if whole.peak_bytes <= self.rules.capacity_bytes:
                found = [SplitOption(1, WHOLE, whole.peak_bytes, 1.0)]
        return tuple(found)

    def _independent(self, part: SubgraphPart) -> list[int]:
        """Axes of the outputs that can be sliced without a word about anything else."""
        if not part.outputs:
            return []
        first, *others = part.outputs
        return [
            dim
            for dim, extent in enumerate(first.shape)
            if extent > 1
            and self.axes.units_of(first, dim) > 1
            and all(
                dim < len(v.shape)
                and v.shape[dim] == extent
                and self.axes.class_of(v, dim) == self.axes.class_of(first, dim)
                for v in others
            )
        ]

    def _beyond_batch(self, part: SubgraphPart, limit: int | None) -> list[SplitOption]:
        """Cuts of a single sample, where that is still too large; along two axes where one is not enough."""
        first = self._independent(part)[:1]
        sample = tuple((dim, self.axes.units_of(part.outputs[0], dim)) for dim in first)
        found = self._along_each(part, limit, sample)
        if found:
            return found
        for dim in self._shared_dims(part):
            extent = part.outputs[0].shape[dim]
            if extent > 1 and all(dim != other for other, _ in sample):
                found = self._along_each(part, limit, (*sample, (dim, extent)))
                if found:
                    break
        return found

    def _along_each(self, part: SubgraphPart, limit: int | None, outer: Cuts) -> list[SplitOption]:
        cut = {dim for dim, _ in outer}
        dims = [dim for dim in self._shared_dims(part) if dim not in cut]
        return [o for dim in dims if (o := self._option(part, dim, limit, outer)) is not None]

    @staticmethod
    def _shared_dims(part: SubgraphPart) -> range:
        """Axes that all outputs have."""
        return range(min((len(v.shape) for v in part.outputs), default=0))

    def _option(
        self, part: SubgraphPart, dim: int, limit: int | None, outer: Cuts = ()
    ) -> SplitOption | None:
        """The least factor along an axis, within slices of `outer` cuts, with which an instance fits."""
        checkpoint()
        extents = {v.shape[dim] for v in part.outputs}
        if len(extents) != 1:
            return None
        (extent,) = extents
        units = self.axes.units_of(part.outputs[0], dim)
        finest = split_of((*outer, (dim, extent)))
        if (
            units == 1
            and extent > _LARGE_FACTOR
            and not (self._fits(part, finest) or self._fits_keeping(part, finest))
        ):
            return None
        own = units if units > 1 else extent
        for factor in factors(own, self.rules):
            split = split_of((*outer, (dim, factor)))
            if limit is not None and split.num_instances > limit:
                return None
            if self._num_distinct(part, split) > self.rules.max_instances_per_sample:
                return None
            option = self.option_of(part, split)
            if option is None:
                continue
            if option.recompute > self.rules.recompute_limit:
                return None
            if factor == 1:
                # Where nothing is cut, what a larger factor would divide counts.
                finer = split_of((*outer, (dim, next((f for f in factors(own, self.rules) if f > 1), 1))))
                option = replace(option, num_ops=self._num_divided(part, finer))
            return option
        return None

    def option_of(self, part: SubgraphPart, split: Split) -> SplitOption | None:
        """What a split comes to, with rows kept where that is wanted and fits; None where nothing fits."""
        kept = self._keeping(part, split)
        if kept is not None:
            return kept
        split = split_of(split.cuts)
        if not self._fits(part, split):
            return None
        instances = [self._instance(part, split, i) for i in range(self._num_distinct(part, split))]
        peak = max(i.peak_bytes for i in instances)
        if peak > self.rules.capacity_bytes:
            return None
        recompute = self._recompute(part, split, instances)
        return SplitOption(self._num_divided(part, split), split, peak, recompute)

    def _keeping(self, part: SubgraphPart, split: Split) -> SplitOption | None:
        """A split with rows kept; None where an instance does not fit then, or there is nothing to keep."""
        if not self._fits_keeping(part, split):
            return None
        split = self._with_rows(part, split)
        macs, elements, peak = 0.0, 0, 0
        for number in range(self._num_distinct(part, split) // split.chain_length):
            chain = self._chain(part, split, number)
            instances = chain.instances
            if not any(instance.kept for instance in instances):
                return None
            sizes = self.footprints
            peak = max(peak, *chain.peaks_bytes(instances, sizes.bytes_of, in_place=sizes.in_place))
            macs += sum(instance.macs for instance in instances)
            elements += sum(instance.elements for instance in instances)
        if peak > self.rules.capacity_bytes:
            return None
        recompute = self._share_of_whole(part, split, macs, elements)
        return SplitOption(self._num_divided(part, split), split, peak, recompute)

    def _fits_keeping(self, part: SubgraphPart, split: Split) -> bool:
        """Whether rows are to be kept, and a few instances fit on a quick look."""
        if self.rules.rows != "keep" or part.layer is not None or not split.cuts:
            return False
        if all(self._is_independent(part, dim) for dim, _ in split.cuts):
            return False
        split = self._with_rows(part, split)
        chain = self._chain(part, split, 0)
        last = len(chain) - 1
        sizes, capacity = self.footprints, self.rules.capacity_bytes
        return all(
            chain.least_peak_bytes(i, sizes.bytes_of, in_place=sizes.in_place) <= capacity
            for i in dict.fromkeys((last // 2, 0, last))
        )

    def _with_rows(self, part: SubgraphPart, split: Split) -> Split:
        """The cuts of a split with rows kept along the outermost axis inside a sample, which becomes the
        innermost: of an image cut both ways, columns of slices run from top to bottom."""
        outer = [cut for cut in split.cuts if self._is_independent(part, cut[0])]
        inside = [cut for cut in split.cuts if not self._is_independent(part, cut[0])]
        if split.chain_length == 1:
            inside = [*inside[1:], inside[0]]
        return split_of((*outer, *inside), keeps_rows=True)

    def _is_independent(self, part: SubgraphPart, dim: int) -> bool:
        return self.axes.units_of(part.outputs[0], dim) > 1

    def _chain(self, part: SubgraphPart, split: Split, number: int) -> RowChain:
        return self.footprints.chain(part, split, number)

    def _num_divided(self, part: SubgraphPart, split: Split) -> int:
        return max(1, self._instance(part, split, 0).num_divided)

    def _fits(self, part: SubgraphPart, split: Split) -> bool:
        """Whether the instances at both ends and in the middle fit: a quick look before all are."""
        last = self._num_distinct(part, split) - 1
        indices = dict.fromkeys((last // 2, 0, last))
        return all(self._instance(part, split, i).peak_bytes <= self.rules.capacity_bytes for i in indices)

    def _num_distinct(self, part: SubgraphPart, split: Split) -> int:
        """Instances of which all others are copies: along an independent axis, which is cut first, all are
        alike."""
        cuts = split.cuts
        return prod(f for dim, f in cuts if self.axes.units_of(part.outputs[0], dim) == 1)

    def _instance(self, part: SubgraphPart, split: Split, index: int) -> Footprint:
        return self.footprints.of(part, instance_regions(part, split, index))

    def _recompute(self, part: SubgraphPart, split: Split, instances: Sequence[Footprint]) -> float:
        """The work of all instances over that of the whole: multiply-accumulates, or elements without any."""
        if split.num_instances == 1:
            return 1.0
        macs, elements = sum(i.macs for i in instances), sum(i.elements for i in instances)
        return self._share_of_whole(part, split, macs, elements)

    def _share_of_whole(self, part: SubgraphPart, split: Split, macs: float, elements: int) -> float:
        """The work of the instances that differ, as often as they are there, over that of the whole."""
        whole = self.footprints.whole(part)
        alike = split.num_instances / self._num_distinct(part, split)
        if whole.macs:
            return alike * macs / whole.macs
        return alike * elements / whole.elements if whole.elements else 1.0


def instance_regions(part: SubgraphPart, split: Split, index: int) -> tuple[Region, ...]:
    """What the `index`-th instance makes of each output."""
    return tuple(instance_region(v.shape, split, index) for v in part.outputs)


def best_of(options: tuple[SplitOption, ...]) -> SplitOption | None:
    """The lexicographic maximum of Eq. 1, None where nothing fits."""
    return max(options, key=lambda o: o.rank, default=None)
