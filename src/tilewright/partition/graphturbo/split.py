"""SplitInfo: how a subgraph can be split so that an instance fits (Algorithm 1), and the best way (Eq. 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.ir.region import Region
from tilewright.partition.graphturbo.axes import IndependentAxes
from tilewright.partition.graphturbo.base import WHOLE, Split, SplitOption, instance_region
from tilewright.partition.graphturbo.footprint import Footprint, Footprints, Part

Dims = Literal["batch", "batch-first", "any"]

# The paper's factors: those that deal cores out evenly, then one per slice from a whole cluster's cores on.
_SMALL_FACTORS = (1, 2, 4)
_LARGE_FACTOR = 8


@dataclass(frozen=True, slots=True)
class SplitRules:
    """What may be split, and when an instance fits.

    `dims`: `batch` takes independent axes only; `batch-first` other axes where these do not suffice for a
    layer; `any` all axes alike. `recompute_limit` bounds the work of all instances over that of the whole.
    """

    capacity_bytes: int
    dims: Dims = "batch-first"
    recompute_limit: float = 1.25
    all_factors: bool = False


def factors(extent: int, rules: SplitRules) -> Iterator[int]:
    """The factors to try on an axis, ascending: divisors that deal cores out evenly.

    >>> list(factors(24, SplitRules(0))), list(factors(24, SplitRules(0, all_factors=True)))
    ([1, 2, 4, 8, 12, 24], [1, 2, 3, 4, 6, 8, 12, 24])
    """
    for factor in range(1, extent + 1):
        if extent % factor == 0 and (
            rules.all_factors or factor in _SMALL_FACTORS or factor >= _LARGE_FACTOR
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
        self, part: Part, *, limit: int | None = None, beyond_batch: bool = False
    ) -> tuple[SplitOption, ...]:
        """One option per axis that fits, the least factor each. None: it does not fit in any way.

        Factors above `limit` are not tried. `beyond_batch` allows axes that are not independent where those
        do not suffice.
        """
        self.num_evaluations += 1
        found: list[SplitOption] = []
        if self.rules.dims != "any":
            found = [o for d in self._independent(part) if (o := self._option(part, d, limit)) is not None]
        if self.rules.dims == "any" or (beyond_batch and not found):
            dims = range(min((len(v.shape) for v in part.outputs), default=0))
            found = [o for d in dims if (o := self._option(part, d, limit)) is not None]
        if not found:
            whole = self.footprints.whole(part)
            if whole.peak_bytes <= self.rules.capacity_bytes:
                found = [SplitOption(1, WHOLE, whole.peak_bytes, 1.0)]
        return tuple(found)

    def _independent(self, part: Part) -> list[int]:
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

    def _option(self, part: Part, dim: int, limit: int | None) -> SplitOption | None:
        """The least factor along an axis with which an instance fits."""
        extents = {v.shape[dim] for v in part.outputs}
        if len(extents) != 1:
            return None
        (extent,) = extents
        units = self.axes.units_of(part.outputs[0], dim)
        if units == 1 and extent > _LARGE_FACTOR and not self._fits(part, Split(dim, extent), units):
            return None
        for factor in factors(units if units > 1 else extent, self.rules):
            if limit is not None and factor > limit:
                return None
            split = Split(dim, factor) if factor > 1 else WHOLE
            if not self._fits(part, split, units):
                continue
            instances = self._instances(part, split, units)
            peak = max(i.peak_bytes for i in instances)
            if peak > self.rules.capacity_bytes:
                continue
            recompute = self._recompute(part, split, instances)
            if recompute > self.rules.recompute_limit:
                return None
            return SplitOption(self._num_divided(part, dim, factor, units), split, peak, recompute)
        return None

    def _fits(self, part: Part, split: Split, units: int) -> bool:
        """Whether the instances at both ends and in the middle fit: a quick look before all are."""
        last = split.factor - 1
        indices = (0,) if units > 1 else dict.fromkeys((last // 2, 0, last))
        return all(self._instance(part, split, i).peak_bytes <= self.rules.capacity_bytes for i in indices)

    def _instances(self, part: Part, split: Split, units: int) -> list[Footprint]:
        """Footprints of all instances, of an independent axis of one: the others are like it."""
        return [self._instance(part, split, i) for i in range(1 if units > 1 else split.factor)]

    def _instance(self, part: Part, split: Split, index: int) -> Footprint:
        return self.footprints.of(part, instance_regions(part, split, index))

    def _recompute(self, part: Part, split: Split, instances: Sequence[Footprint]) -> float:
        """The work of all instances over that of the whole: multiply-accumulates, or elements without any."""
        if split.factor == 1:
            return 1.0
        whole = self.footprints.whole(part)
        alike = split.factor / len(instances)
        if whole.macs:
            return alike * sum(i.macs for i in instances) / whole.macs
        return alike * sum(i.elements for i in instances) / whole.elements if whole.elements else 1.0

    def _num_divided(self, part: Part, dim: int, factor: int, units: int) -> int:
        """Operators that the axis divides; where the factor is 1, those that a larger one would."""
        if factor == 1:
            extent = units if units > 1 else part.outputs[0].shape[dim]
            factor = next((f for f in factors(extent, self.rules) if f > 1), 1)
        return max(1, self._instance(part, Split(dim, factor), 0).num_divided)


def instance_regions(part: Part, split: Split, index: int) -> tuple[Region, ...]:
    """What the `index`-th instance makes of each output."""
    return tuple(instance_region(v.shape, split, index) for v in part.outputs)


def best_of(options: tuple[SplitOption, ...]) -> SplitOption | None:
    """The lexicographic maximum of Eq. 1, None where nothing fits."""
    return max(options, key=lambda o: o.rank, default=None)
