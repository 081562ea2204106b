"""TreeSums: what the leaves that rows reach in an ensemble of decision trees add up to.

An operator of our own domain. The frontend makes it of the tree operators of ai.onnx.ml; what these do
before and after is other nodes.

| input | shape | what it is |
|---|---|---|
| x | `[N, F]` | rows of features |
| feature | `[M]` int32 | of each inner node: the feature that it compares |
| threshold | `[M]` as x | a row goes left where its feature is at most this; no number: never |
| missing | `[M]` bool | a feature that is no number goes left |
| child | `[M, 2]` int32 | left and right: an inner node, or `-1 - leaf` |
| root | `[R]` int32 | of each tree, likewise |
| target | `[R]` int32 | the first column of the result to which the tree's leaves belong |
| weight | `[L, W]` as x | of each leaf, for `W` columns from there on |

The result is `[N, num_targets]`: for each row and column the sum (`SUM`), the least (`MIN`) or the largest
(`MAX`) over the trees in their order, which starts from 0, infinity or its negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.arrays import Array, distinct
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Description, Dim, Nest, Opaque, Walks, affine
from tilewright.ir.ops.build import (
    choice_attr,
    input_operand,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.operands import present
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, operator
from tilewright.ir.work import HostWork
from tilewright.records import dataclass

TREE_SUMS: Final = "TreeSums"
START: Final = {"SUM": 0.0, "MIN": float("inf"), "MAX": float("-inf")}
# Nodes of a path, more than any library grows; the steps of a kernel are bounded by it.
MAX_DEPTH = 1 << 14
_HELD_AT_ONCE = 1 << 20
# Paths of a usual length that numpy walks in the time of a step that is interpreted.
_TREES_PER_STEP = 4


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The constants of a node, checked: every path ends in a leaf, every index is inside its table.

    `depths` are the inner nodes of the longest path of each tree.
    """

    feature: Array
    threshold: Array
    missing: Array
    child: Array
    root: Array
    target: Array
    weight: Array
    depths: Array


def ensemble_of(node: Node) -> Ensemble:
    """The trees of a node.

    Raises:
        ModelRejected: they are no trees, or not of this input and result.
    """
    num_features = require_rank(node, 0, 2, 2)[1]
    tables = [node.constant(position) for position in range(1, 8)]
    feature, threshold, missing, child, root, target, weight = (t for t in tables if t is not None)
    num_nodes, num_trees = len(feature), len(root)
    for position, shape in enumerate([(num_nodes,)] * 3 + [(num_nodes, 2)] + [(num_trees,)] * 2, 1):
        require_shape(node, position, shape)
    num_leaves, width = require_rank(node, 7, 2, 2)
    num_targets = node.int_attr("num_targets", 1)
    _require_within(node, feature, 0, num_features, "feature", f"its rows have {num_features}")
    for name, table in (("child", child), ("root", root)):
        _require_within(node, table, -num_leaves, num_nodes, name, f"there are {num_nodes} inner nodes")
    _require_within(node, target, 0, num_targets - width + 1, "target", f"there are {num_targets}")
    heights = _heights(node, child)
    depths = np.where(root >= 0, heights[np.maximum(root, 0)], 0) if num_nodes else np.zeros_like(root)
    return Ensemble(feature, threshold, missing, child, root, target, weight, depths.astype(np.int32))


def _require_within(node: Node, table: Array, low: int, high: int, name: str, there_are: str) -> None:
    outside = table[(table < low) | (table >= high)]
    if outside.size:
        require(node, False, f"it names the {name} {outside.flat[0]}, but {there_are}")


def _heights(node: Node, child: Array) -> Array:
    """Inner nodes of the longest path from each inner node on."""
    num_nodes = len(child)
    inner = child[child >= 0]
    num_parents = np.bincount(inner, minlength=num_nodes)
    layers: list[Array] = [np.flatnonzero(num_parents == 0)]
    num_seen = int(layers[0].size)
    while len(layers[-1]) and len(layers) <= MAX_DEPTH:
        below = child[layers[-1]].reshape(-1)
        below = below[below >= 0]
        np.subtract.at(num_parents, below, 1)
        following = distinct(below)
        layers.append(following[num_parents[following] == 0])
        num_seen += int(layers[-1].size)
    require(node, not len(layers[-1]), f"a path has more than {MAX_DEPTH} nodes")
    require(node, num_seen == num_nodes, "a path of its trees leads back to where it was")
    heights = np.zeros(num_nodes, np.int64)
    for layer in reversed(layers):
        below = np.where(child[layer] >= 0, heights[np.maximum(child[layer], 0)], 0)
        heights[layer] = 1 + below.max(axis=1, initial=0)
    return heights


def _reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, *tables = (present(inputs, position) for position in range(8))
    feature, threshold, missing, child, root, target, weight = tables
    combine = node.str_attr("aggregate", "SUM")
    num_targets, width = node.int_attr("num_targets", 1), weight.shape[1]
    result = np.full((len(x), num_targets), START[combine], weight.dtype)
    function: Any = {"SUM": np.add, "MIN": np.fmin, "MAX": np.fmax}[combine]
    block = max(_HELD_AT_ONCE // max(len(root), 1), 1)
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        at = np.repeat(root[None], len(rows), axis=0)
        for _ in range(MAX_DEPTH + 1):
            walking = at >= 0
            if not walking.any():
                break
            row, tree = np.nonzero(walking)
            here = at[row, tree]
            value = rows[row, feature[here]]
            left = np.where(np.isnan(value), missing[here].astype(bool), value <= threshold[here])
            at[row, tree] = np.where(left, child[here, 0], child[here, 1])
        else:
            raise ValueError("a path of its trees does not end")
        for number, first in enumerate(target):
            part = result[start : start + block, first : first + width]
            function(part, weight[-1 - at[:, number]], out=part)
    return [result]


def _shapes(node: Node) -> Sequence[tuple[int, ...]]:
    return [(require_rank(node, 0, 2, 2)[0], node.int_attr("num_targets", 1))]


def _work(node: Node, data: Sequence[Array | None]) -> HostWork:
    num_rows, num_trees = node.require(0).shape[0], node.require(5).shape[0]
    steps = num_rows * num_trees // _TREES_PER_STEP
    return HostWork(elements=min(num_rows * num_trees, 4 * _HELD_AT_ONCE), steps=steps)


@operator(TREE_SUMS, reference=_reference, domain=INTERNAL_DOMAIN, shapes=_shapes, host_work=_work)
def tree_sums(node: Node) -> Description:
    """Data steer the rows through the trees: no affine nest says where."""
    choice_attr(node, "aggregate", tuple(START), "SUM")
    if any(node.constant(position) is None for position in range(1, 8)):
        return Opaque("TreeSums: its trees are data")
    ensemble = ensemble_of(node)
    require_result(node, _shapes(node)[0])
    num_rows = node.require(0).shape[0]
    num_steps = num_rows * int(ensemble.depths.sum())
    return Walks("TreeSums: data steer rows through trees", num_steps, (_reach(node),))


def _reach(node: Node) -> Nest:
    """Each row of the result depends on the same row of x, and on all tables."""
    x, out = input_operand(node, 0), output_operand(node)
    dims = (Dim("n", x.shape[0]), Dim("t", out.shape[1]), Dim("f", x.shape[1], "reduce"))
    tables = [input_operand(node, position) for position in range(1, 8)]
    reads = [Access(x, (affine("n"), affine("f")))]
    reads += [Access(table, (affine(),) * len(table.shape), fill=0) for table in tables]
    return Nest(dims, tuple(reads), Access(out, (affine("n"), affine("t"))), read(0, reads[0]), "max")
