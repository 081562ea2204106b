"""Choices of spatial loops: what spreads a tile over the instances that one instance of a level feeds."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Spatial:
    """The ways to spread a tile over the instances that one instance of a level feeds."""

    factors: Array  # int64 [choices, dims]
    exponents: Array  # int16 [choices, steps]
    products: Array  # int64 [choices], the largest first
    weights: Array  # int64 [choices]: what they take from a point's number
    packed: Array  # int64 [choices]: exponents of the steps, as `Lattice.packed`
    cycles: Array  # float64 [choices]: what mappings with a choice take at least

    def within(self, most_cycles: float) -> Spatial:
        """Those choices with which a mapping may take no longer."""
        fits = self.cycles <= most_cycles
        if fits.all():
            return self
        return Spatial(*(getattr(self, name)[fits] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Alike:
    """Choices of the innermost level in groups that cost the same, the largest products first.

    `together[group, operand]` units share an access; the choices of a group are those from
    `first_choices[group]` on.
    """

    spatial: Spatial
    products: Array
    together: Array
    first_choices: Array

    @classmethod
    def of(cls, spatial: Spatial, depends: Array, windows: Array) -> Alike:
        """Where every unit has a tile of one iteration."""
        factors = spatial.factors
        together = np.stack([factors[:, ~moved].prod(axis=1, dtype=np.float64) for moved in depends], axis=1)
        for t, a, step, b, other in windows:
            common = gcd(step, other)
            again = [np.maximum(0, factors[:, dim] - move // common) for dim, move in ((a, other), (b, step))]
            pairs = factors[:, a] * factors[:, b]
            both = (factors[:, a] > 1) & (factors[:, b] > 1)
            together[:, t] *= np.where(both, pairs / (pairs - again[0] * again[1]), 1.0)
        order = np.lexsort((*together.T, -spatial.products))
        keys = np.column_stack([spatial.products, together])[order]
        first = np.flatnonzero(np.r_[True, np.any(keys[1:] != keys[:-1], axis=1)][: len(keys)])
        ordered = Spatial(*(getattr(spatial, name)[order] for name in spatial.__slots__))
        return cls(
            ordered,
            ordered.products[first],
            np.ascontiguousarray(together[order][first]),
            np.append(first, len(keys)),
        )
