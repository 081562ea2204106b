"""COREG (Zhou and Li 2005): two regressors by nearest neighbours give each other labels that they trust.

They differ in their Minkowski distance and in how many neighbours they ask. A label is taken where it lowers
the squared error on the measured neighbours of the point most. Neighbours are those of `regressor.py`, so
that what is trained is what predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.arrays import Array
from tilewright.cost.learned.regressor import distances, weighted_mean

MEMBERS = ((1.0, 3), (2.0, 5))
"""The power of the distance and the number of neighbours of each of the two."""
_CANDIDATES = 60
_MOST_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Taught:
    """For each of the two its points and labels, the power and the number of neighbours; how many labels were
    never measured."""

    members: tuple[tuple[Array, Array, float, int], ...]
    num_pseudo_labelled: int


def coreg(
    points: Array, values: Array, unlabelled: Array, *, seed: int = 0, num_rounds: int = _MOST_ROUNDS
) -> Taught:
    """Two regressors from measured points, and from unlabelled ones as far as they convince each other."""
    rng = np.random.default_rng(seed)
    known = [(points, values), (points, values)]
    between = [distances(points, points, power) for power, _ in MEMBERS]
    for apart in between:
        np.fill_diagonal(apart, np.inf)
    left = np.arange(len(unlabelled))
    count = 0
    for _ in range(num_rounds):
        if not len(left):
            break
        pool = rng.choice(left, size=min(_CANDIDATES, len(left)), replace=False)
        taught: list[tuple[int, int, float]] = []
        for member, (power, num_neighbours) in enumerate(MEMBERS):
            candidates = np.setdiff1d(np.sort(pool), [number for _, number, _ in taught], assume_unique=True)
            if len(candidates):
                number, label, gain = _most_convincing(
                    *known[member], between[member], unlabelled[candidates], power, num_neighbours
                )
                if gain > 0:
                    taught.append((1 - member, int(candidates[number]), label))
        if not taught:
            break
        for other, number, label in taught:
            others, labels = known[other]
            between[other] = _extended(
                between[other], distances(unlabelled[[number]], others, MEMBERS[other][0])
            )
            known[other] = np.vstack([others, unlabelled[number]]), np.append(labels, label)
        left = np.setdiff1d(left, [number for _, number, _ in taught], assume_unique=True)
        count += len(taught)
    members = tuple((*known[i], power, num_neighbours) for i, (power, num_neighbours) in enumerate(MEMBERS))
    return Taught(members, count)


def _extended(between: Array, row: Array) -> Array:
    """Distances among points, with those of one more; none is a neighbour of itself."""
    return np.block([[between, row.T], [row, np.full((1, 1), np.inf)]])


def _most_convincing(
    points: Array, values: Array, between: Array, candidates: Array, power: float, count: int
) -> tuple[int, float, float]:
    """The candidate whose own label lowers the squared error around it most: its number, label and gain.

    The error is of the nearest points, each predicted from the others.
    """
    apart = distances(candidates, points, power)
    labels = weighted_mean(apart, values, count)
    before = (values - weighted_mean(between, values, count)) ** 2
    gains = np.empty(len(candidates))
    for i in range(len(candidates)):
        near = np.argsort(apart[i], kind="stable")[:count]
        extended = np.column_stack([between[near], apart[i, near]])
        after = (values[near] - weighted_mean(extended, np.append(values, labels[i]), count)) ** 2
        gains[i] = (before[near] - after).sum()
    best = int(np.argmax(gains))
    return best, float(labels[best]), float(gains[best])
