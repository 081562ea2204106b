"""Trees as the tables that their kernel walks.

Features and thresholds become *keys*: integers in the order of the floats that they stand for, so that a
comparison needs no float unit, and every number has its place. A feature that is no number has the largest
key and goes right, or in a column of its own the smallest and goes left. A threshold that is none has the
smallest, which no other key is at most.

| table | what it holds |
|---|---|
| columns | for each key of a row: its feature |
| missing | the key of what is no number in a column |
| records | of each node: key, column, left, right; offsets in bytes |
| trees | of each tree: offset of its root, inner nodes of its longest path, offset of its first total |
| weights | rows that leaves add |

A leaf leads to itself, whatever it is compared with, so that a walk may go on for as many steps as the
longest. In place of a key it has its weight, or the offset of its row of weights.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilewright.arrays import Array, distinct, grouped
from tilewright.ir.ops.trees import START, Ensemble
from tilewright.records import dataclass

TREES_AT_ONCE = 8
_MOST_LANES = 16
# Rows of which fewer features than this share are compared get keys of these alone.
_MIN_SHARE_USED = 0.5


_LEAST: Final = {np.dtype(np.int32): -(2**31), np.dtype(np.int64): -(2**63)}


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """See the module. Padded to a multiple of `TREES_AT_ONCE` by trees that add nothing.

    `lanes` divide the weights of a leaf, and `stride` are the totals of a row, of which there are a few more
    than it has columns. With `is_plain` there is a key for each feature.
    """

    columns: Array
    missing: Array
    records: Array
    trees: Array
    weights: Array
    record_bytes: int
    depth: int
    lanes: int
    stride: int
    is_plain: bool

    @property
    def width(self) -> int:
        """Weights of a leaf; 1 where it has its weight itself."""
        return int(self.weights.shape[1])


def tables_of(ensemble: Ensemble, num_features: int, num_targets: int, combine: str) -> Tables:
    """The tables of an ensemble."""
    dtype = ensemble.weight.dtype
    key = _key_type(dtype)
    columns, missing, column, is_plain = _columns(ensemble, num_features)
    num_nodes, (num_leaves, width) = len(ensemble.feature), ensemble.weight.shape
    lanes = min(_MOST_LANES, 1 << (width - 1).bit_length())
    padded = -(-width // lanes) * lanes
    weights = np.full((num_leaves + 1, padded), START[combine], dtype)
    weights[:num_leaves, :width] = ensemble.weight

    record = np.dtype(
        [("key", key), ("column", np.int32), ("left", np.int32), ("right", np.int32)], align=True
    )
    records = np.zeros(num_nodes + num_leaves + 1, record)
    size_bytes = record.itemsize
    records["key"][:num_nodes] = keys_of(ensemble.threshold, _LEAST[key])
    records["column"][:num_nodes] = column * key.itemsize
    inner = records[:num_nodes]
    inner["left"], inner["right"] = (_place(ensemble.child[:, i], num_nodes) * size_bytes for i in (0, 1))
    leaves = records[num_nodes:]
    leaves["left"] = leaves["right"] = (num_nodes + np.arange(num_leaves + 1)) * size_bytes
    if width == 1:
        leaves["key"] = weights[:, 0].view(key)
    else:
        leaves["key"] = np.arange(num_leaves + 1) * padded * dtype.itemsize

    num_trees = -(-max(len(ensemble.root), 1) // TREES_AT_ONCE) * TREES_AT_ONCE
    trees = np.zeros((num_trees, 4), np.int32)
    trees[:, 0] = (num_nodes + num_leaves) * size_bytes
    present = trees[: len(ensemble.root)]
    present[:, 0] = _place(ensemble.root, num_nodes) * size_bytes
    present[:, 1] = ensemble.depths
    present[:, 2] = ensemble.target * dtype.itemsize
    stride = num_targets + padded - width
    return Tables(
        columns,
        np.where(missing, _LEAST[key], (-1 - _LEAST[key])).astype(key),
        records.view(np.int32).reshape(-1, size_bytes // 4),
        trees,
        weights if width > 1 else weights[:1],
        size_bytes,
        int(ensemble.depths.max(initial=0)),
        lanes,
        stride,
        is_plain,
    )


def keys_of(values: Array, missing: int) -> Array:
    """Integers in the order of floats, equal for both zeros; what is no number gets `missing`.

    >>> keys_of(np.float32([-1, -0.0, 0, 1e-45, np.nan]), 7).tolist()
    [-1065353217, 0, 0, 1, 7]
    """
    key = _key_type(values.dtype)
    bits = np.ascontiguousarray(values + values.dtype.type(0)).view(key)
    ordered = bits ^ ((bits >> (8 * key.itemsize - 1)) & (-1 - _LEAST[key]))
    keys: Array = np.where(np.isnan(values), key.type(missing), ordered)
    return keys


def _key_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.int32 if dtype == np.float32 else np.int64)


def _columns(ensemble: Ensemble, num_features: int) -> tuple[Array, Array, Array, bool]:
    """Of each column its feature, and whether what is no number goes left there; the column of each node."""
    used, _, column = grouped(ensemble.feature * 2 + (ensemble.missing != 0))
    columns, missing = (used // 2).astype(np.int32), used % 2 != 0
    if len(distinct(columns)) == len(columns) and len(columns) >= _MIN_SHARE_USED * num_features:
        every = np.zeros(num_features, np.bool_)
        every[columns] = missing
        return np.arange(num_features, dtype=np.int32), every, ensemble.feature.astype(np.int32), True
    if not len(columns):
        return np.zeros(1, np.int32), np.zeros(1, np.bool_), column.astype(np.int32), False
    return columns, missing, column.astype(np.int32), False


def _place(link: Array, num_nodes: int) -> Array:
    """The record of an inner node or of a leaf."""
    return np.where(link >= 0, link, num_nodes - 1 - link)
