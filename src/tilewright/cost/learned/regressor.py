"""What was learned, as plain numbers, and its predictions in numpy: no pickle, nothing to install.

A regressor predicts by how much a target's own estimate is off, as a logarithm to base 2. Regressors add up:
one that was trained on other machines, and one that says what is different here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arrays import Array
from tilewright.fields import FieldError

_NEAREST = 1e-9
"""Distance below which a point is the same one."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weighted sum."""

    weights: tuple[float, ...]
    bias: float

    def predict(self, points: Array) -> Array:
        """Of scaled points, a row each."""
        return np.asarray(points @ np.array(self.weights) + self.bias)


@dataclass(frozen=True, slots=True)
class Tree:
    """Node by node: which feature is compared with what, where to go on; leaves have values and go to 0."""

    features: tuple[int, ...]
    thresholds: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    values: tuple[float, ...]

    def predict(self, points: Array) -> Array:
        """Of scaled points, a row each."""
        features, thresholds = np.array(self.features), np.array(self.thresholds)
        left, right = np.array(self.left), np.array(self.right)
        at = np.zeros(len(points), dtype=np.int64)
        rows = np.arange(len(points))
        for _ in self.features:
            inner = left[at] > 0
            if not inner.any():
                break
            is_left = points[rows, features[at]] <= thresholds[at]
            at = np.where(inner, np.where(is_left, left[at], right[at]), at)
        return np.asarray(np.array(self.values)[at])

    def require_valid(self, num_features: int) -> None:
        """Refuse one that leads nowhere.

        Raises:
            FieldError: it does.
        """
        size = len(self.features)
        if not size or {len(self.thresholds), len(self.left), len(self.right), len(self.values)} != {size}:
            raise FieldError("expected lists of one length, not empty", ".features")
        for i, feature in enumerate(self.features):
            if feature >= num_features:
                raise FieldError(
                    f"expected a feature below {num_features}, found {feature}", f".features[{i}]"
                )
            is_leaf = self.left[i] == self.right[i] == 0
            if not is_leaf and not (i < self.left[i] < size and i < self.right[i] < size):
                raise FieldError(f"expected nodes behind node {i}, of which there are {size}", f".left[{i}]")


@dataclass(frozen=True, slots=True)
class Trees:
    """The scaled sum of trees."""

    trees: tuple[Tree, ...]
    factor: float
    bias: float = 0.0

    def predict(self, points: Array) -> Array:
        """Of scaled points, a row each."""
        total = np.sum([tree.predict(points) for tree in self.trees], axis=0)
        return np.asarray(self.bias + self.factor * total)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The mean over the nearest known points by a Minkowski distance, near ones counting more."""

    points: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    power: float
    count: int

    def predict(self, points: Array) -> Array:
        """Of scaled points, a row each."""
        known, values = np.array(self.points), np.array(self.values)
        return weighted_mean(distances(points, known, self.power), values, self.count)


def distances(points: Array, known: Array, power: float) -> Array:
    """Minkowski distances of points, a row each, to known ones, a column each."""
    total = np.zeros((len(points), len(known)))
    for axis in range(points.shape[1]):
        total += np.abs(points[:, axis, None] - known[None, :, axis]) ** power
    return np.asarray(total ** (1 / power))


def weighted_mean(apart: Array, values: Array, count: int) -> Array:
    """Of the values of the nearest, weighted by the inverse of how far they are apart."""
    count = min(count, apart.shape[1])
    nearest = np.argpartition(apart, count - 1, axis=1)[:, :count]
    weights = 1 / np.maximum(np.take_along_axis(apart, nearest, axis=1), _NEAREST)
    return np.asarray((weights * values[nearest]).sum(axis=1) / weights.sum(axis=1))


@dataclass(frozen=True, slots=True)
class Regressor:
    """The mean of its members, on points that are centred and scaled first; predictions stay in a range."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    least: float
    most: float
    linear: Linear | None = None
    trees: Trees | None = None
    neighbours: tuple[Neighbours, ...] = ()

    def predict(self, features: Array) -> Array:
        """Of points as they are, a row each."""
        return np.asarray(np.clip(self.members(features).mean(axis=0), self.least, self.most))

    def members(self, features: Array) -> Array:
        """What each member says, a row each."""
        points = (features - np.array(self.centre)) * np.array(self.scale)
        predictions = [
            m.predict(points) for m in (self.linear, self.trees, *self.neighbours) if m is not None
        ]
        return np.array(predictions)

    def require_valid(self, num_features: int) -> None:
        """Refuse one whose parts do not fit each other.

        Raises:
            FieldError: naming the part.
        """
        _require_length("centre", self.centre, num_features)
        _require_length("scale", self.scale, num_features)
        if self.linear is None and self.trees is None and not self.neighbours:
            raise FieldError("expected one of linear, trees and neighbours")
        if self.linear is not None:
            _require_length("linear.weights", self.linear.weights, num_features)
        for i, tree in enumerate(self.trees.trees if self.trees else ()):
            try:
                tree.require_valid(num_features)
            except FieldError as error:
                raise error.within(i).within("trees").within("trees") from None
        for i, neighbours in enumerate(self.neighbours):
            where = f"neighbours[{i}]"
            if not neighbours.points or neighbours.count < 1 or neighbours.power < 1:
                raise FieldError("expected points, a count and a power from 1 on", f".{where}")
            _require_length(f"{where}.values", neighbours.values, len(neighbours.points))
            for j, point in enumerate(neighbours.points):
                _require_length(f"{where}.points[{j}]", point, num_features)


def _require_length(what: str, values: Sequence[float], length: int) -> None:
    if len(values) != length:
        raise FieldError(f"expected {length} numbers, found {len(values)}", f".{what}")
