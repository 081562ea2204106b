"""Ensembles of decision trees as one node that sums the leaves which rows reach (`ir.ops.trees`).

All comparisons become one, `feature <= threshold`: `<` takes the number before the threshold, `>` and `>=`
change sides, `==` is between two thresholds, and membership in a set is a search among several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.arrays import Array, distinct, grouped
from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.ml.parts import (
    MAX_TABLE_ELEMENTS,
    POST_TRANSFORMS,
    as_type,
    columns,
    listed,
    post_transform,
    probit,
    rows,
    side_by_side,
    transformed,
)
from tilewright.ir.dtype import DType
from tilewright.ir.ops.registry import INTERNAL_DOMAIN
from tilewright.ir.ops.trees import START, TREE_SUMS
from tilewright.records import dataclass

# Targets of an ensemble, more than any has: each is a column of the result.
_MOST_TARGETS = 1 << 20
# In the order in which TreeEnsemble numbers them; LEAF is of the older operators.
_MODES: Final = (
    b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ", b"BRANCH_NEQ", b"BRANCH_MEMBER",
    b"LEAF",
)  # fmt: skip
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(len(_MODES))
_AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """Inner nodes as a model has them; children and roots are numbers of these, or `-1 - leaf`.

    `sets` are those of the nodes that ask for membership, in their order.
    """

    feature: Array
    split: Array
    mode: Array
    missing: Array
    true: Array
    false: Array
    root: Array
    sets: Sequence[Array] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Leaves:
    """What leaves give: the weight of some leaf for some target.

    `tree` is that of each leaf; None where trees share them.
    """

    count: int
    tree: Array | None
    leaf: Array
    target: Array
    weight: Array


# One comparison for all ------------------------------------------------------------------------------


def _sums(d: Definition, x: str, nodes: _Nodes, leaves: _Leaves, num_targets: int, aggregate: str) -> str:
    """The sums of the leaves for each row and target, in the type of the rows."""
    dtype = d.value(0).dtype if d.value(0).dtype is DType.FLOAT64 else DType.FLOAT32
    x = as_type(d, x, d.value(0).dtype, dtype)
    num_trees = len(nodes.root)
    combine = "SUM" if aggregate == "AVERAGE" else aggregate
    tables = _compared(nodes, dtype.numpy)
    target, weight = _weights(d, leaves, num_trees, dtype.numpy, combine)
    operands = [d.constant(table) for table in (*tables, nodes.root.astype(np.int32), target, weight)]
    sums = d(TREE_SUMS, x, *operands, domain=INTERNAL_DOMAIN, aggregate=combine, num_targets=num_targets)
    if aggregate == "AVERAGE":
        return d("Div", sums, d.number(max(num_trees, 1), dtype))
    if combine == "SUM":
        return sums
    none = d.number(START[combine], dtype)
    return d("Where", d("Equal", sums, none), d.number(0.0, dtype), sums)


def _compared(nodes: _Nodes, dtype: np.dtype[Any]) -> tuple[Array, Array, Array, Array]:
    """Features, thresholds, where what is no number goes, and children, left first."""
    mode, split = nodes.mode, nodes.split.astype(dtype)
    missing, true, false = nodes.missing.astype(bool), nodes.true.copy(), nodes.false.copy()
    swapped = np.isin(mode, (_GTE, _GT)) & ~np.isnan(split)
    threshold = np.where(np.isin(mode, (_LT, _GTE)), _before(split), split)
    left, right = np.where(swapped, false, true), np.where(swapped, true, false)
    goes_left = missing ^ swapped
    feature = nodes.feature.copy()

    # A second comparison tells the number itself from those below.
    equal = np.flatnonzero(np.isin(mode, (_EQ, _NEQ)))
    inside = np.where(mode[equal] == _EQ, true[equal], false[equal])
    outside = np.where(mode[equal] == _EQ, false[equal], true[equal])
    left[equal], right[equal] = len(mode) + np.arange(len(equal)), outside
    goes_left[equal] = missing[equal] & (mode[equal] == _EQ)
    feature = np.concatenate([feature, feature[equal]])
    threshold = np.concatenate([threshold, _before(split[equal])])
    left, right = np.concatenate([left, outside]), np.concatenate([right, inside])
    goes_left = np.concatenate([goes_left, np.zeros(len(equal), bool)])

    more = _Search([], [], [], [])
    for number, values in zip(np.flatnonzero(mode == _MEMBER).tolist(), nodes.sets, strict=True):
        # Only what is no number may go left here; the others are looked for.
        begin = len(feature) + len(more.feature)
        threshold[number], left[number] = np.nan, true[number]
        right[number] = more.add(
            begin, int(feature[number]), values.astype(dtype), int(true[number]), int(false[number])
        )
        goes_left[number] = missing[number]
    feature = np.concatenate([feature, np.array(more.feature, feature.dtype)])
    threshold = np.concatenate([threshold, np.array(more.threshold, dtype)])
    left = np.concatenate([left, np.array(more.left, left.dtype)])
    right = np.concatenate([right, np.array(more.right, right.dtype)])
    goes_left = np.concatenate([goes_left, np.zeros(len(more.feature), bool)])
    child = np.stack([left, right], axis=1).astype(np.int32).reshape(-1, 2)
    return feature.astype(np.int32), threshold.astype(dtype), goes_left, child


@dataclass(slots=True)
class _Search:
    """Comparisons that find out whether a feature is in a set."""

    feature: list[int]
    threshold: list[Any]
    left: list[int]
    right: list[int]

    def add(self, begin: int, feature: int, values: Array, inside: int, outside: int) -> int:
        """The link to the first comparison of a search, whose own are numbered from `begin` on."""
        known = distinct(values[~np.isnan(values)])
        bounds = np.stack([_before(known), known], axis=1).reshape(-1)
        # Below the lowest infinity nothing is.
        bounds = bounds[1:] if np.isnan(bounds[:1]).any() else bounds
        links = [inside if (len(bounds) - n) % 2 else outside for n in range(len(bounds) + 1)]
        first = len(self.feature)

        def between(low: int, high: int) -> int:
            if low == high:
                return links[low]
            middle = (low + high) // 2
            number = len(self.feature)
            self.feature.append(feature)
            self.threshold.append(bounds[middle])
            self.left.append(0)
            self.right.append(0)
            self.left[number] = between(low, middle)
            self.right[number] = between(middle + 1, high)
            return begin + number - first

        return between(0, len(bounds))


def _before(values: Array) -> Array:
    """The number before each, none (NaN) before the lowest infinity."""
    lowest = np.array(-np.inf, values.dtype)
    return np.where(values == lowest, np.array(np.nan, values.dtype), np.nextafter(values, lowest))


def _weights(
    d: Definition, leaves: _Leaves, num_trees: int, dtype: np.dtype[Any], combine: str
) -> tuple[Array, Array]:
    """The first target of each tree, and the weights of each leaf from there on: for all as many."""
    low = np.full(num_trees, np.iinfo(np.int64).max)
    high = np.zeros(num_trees, np.int64)
    if leaves.tree is None:
        tree = np.zeros(len(leaves.leaf), np.int64)
        low[:], high[:] = leaves.target.min(), leaves.target.max() + 1
    else:
        tree = leaves.tree[leaves.leaf]
        np.minimum.at(low, tree, leaves.target)
        np.maximum.at(high, tree, leaves.target + 1)
    width = max(int((high - low).max(initial=1)), 1)
    low = np.maximum(np.minimum(low, high.max(initial=width) - width), 0)
    d.support(
        leaves.count * width <= MAX_TABLE_ELEMENTS,
        f"weights of {leaves.count} leaves for {width} targets each are too many",
    )
    weight = np.full((leaves.count, width), START[combine], dtype)
    at: Any = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}[combine].at
    at(weight, (leaves.leaf, leaves.target - low[tree]), leaves.weight.astype(dtype))
    return low.astype(np.int32), weight


# The older operators ---------------------------------------------------------------------------------


def _listed_nodes(d: Definition) -> tuple[_Nodes, _Places, Array]:
    """The nodes of attributes that list them with their trees, and those: the place of each pair of a tree
    and a node, in the order of the attributes; of each place the number of the leaf, or -1."""
    tree, node = d.numbers("nodes_treeids", DType.INT64), d.numbers("nodes_nodeids", DType.INT64)
    count = len(tree)
    d.require(count > 0, "it has no nodes")
    feature, true, false = (
        d.numbers(f"nodes_{name}", DType.INT64) for name in ("featureids", "truenodeids", "falsenodeids")
    )
    split = _reals(d, "nodes_values")
    missing = _flags(d, "nodes_missing_value_tracks_true", count)
    mode = _mode_numbers(d, d.texts("nodes_modes"))
    d.numbers("nodes_hitrates", DType.FLOAT32)
    d.tensor("nodes_hitrates_as_tensor")
    named = {"nodeids": node, "featureids": feature, "values": split, "modes": mode, "truenodeids": true}
    named |= {"falsenodeids": false, "missing_value_tracks_true": missing}
    for name, values in named.items():
        d.require(len(values) == count, f"nodes_{name} has {len(values)} values for {count} nodes")
    places = _Places(d, tree, node)
    is_leaf = mode == _LEAF
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
    inner = np.cumsum(~is_leaf) - 1
    link = np.where(is_leaf, -1 - leaf, inner)
    kept = ~is_leaf
    true, false = (link[places.of(tree[kept], ids[kept], "node")] for ids in (true, false))
    features = d.shape(0)[-1]
    _require_within(d, feature[kept], features, "feature", f"its rows have {features}")
    _, first, _ = grouped(tree)
    roots = link[np.sort(first)]
    nodes = _Nodes(feature[kept], split[kept], mode[kept], missing[kept] != 0, true, false, roots)
    return nodes, places, leaf


def _flags(d: Definition, name: str, count: int) -> Array:
    """A flag for each node; none is set where they are not given."""
    found = d.numbers(name, DType.INT64)
    return found if len(found) else np.zeros(count, np.int64)


def _mode_numbers(d: Definition, modes: Sequence[bytes]) -> Array:
    known = {name: number for number, name in enumerate(_MODES) if number != _MEMBER}
    unknown = set(modes) - known.keys()
    if unknown:
        shown = sorted(unknown)[0].decode("utf-8", "replace")
        d.require(False, f"nodes_modes names {shown!r}, not one of {', '.join(n.decode() for n in known)}")
    return np.array([known[mode] for mode in modes], np.int64)


def _reals(d: Definition, name: str) -> Array:
    """Numbers as floats, or as a tensor of any float type."""
    tensor, values = d.tensor(f"{name}_as_tensor"), d.numbers(name, DType.FLOAT64)
    d.require(tensor is None or not len(values), f"it has {name} as floats and as a tensor")
    return values if tensor is None else tensor.reshape(-1).astype(np.float64)


def _require_within(d: Definition, ids: Array, count: int, what: str, there_are: str) -> None:
    outside = ids[(ids < 0) | (ids >= count)]
    if len(outside):
        d.require(False, f"it names the {what} {outside[0]}, but {there_are}")


class _Places:
    """Where each node of each tree stands in the attributes."""

    def __init__(self, d: Definition, tree: Array, node: Array) -> None:
        self._d = d
        self._trees, self._nodes = distinct(tree), distinct(node)
        keys, exists = self._keys(tree, node)
        assert exists.all()
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(twice):
            place = self._order[twice[0]]
            d.require(False, f"the node {node[place]} of tree {tree[place]} is there twice")

    def of(self, tree: Array, node: Array, what: str) -> Array:
        """The places of pairs, which must be there."""
        keys, exists = self._keys(tree, node)
        found = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        exists &= self._sorted[found] == keys
        absent = np.flatnonzero(~exists)
        if len(absent):
            pair = f"{node[absent[0]]} of tree {tree[absent[0]]}"
            self._d.require(False, f"it names the {what} {pair}, which is not there")
        return self._order[found]

    def _keys(self, tree: Array, node: Array) -> tuple[Array, Array]:
        """A number for each pair, and whether both are known."""
        number, exists = np.zeros(len(tree), np.int64), np.ones(len(tree), bool)
        for known, ids in ((self._trees, tree), (self._nodes, node)):
            place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            exists &= known[place] == ids
            number = number * len(known) + place
        return number, exists


def _ensemble(d: Definition, prefix: str, num_targets: int, aggregate: str) -> tuple[str, Array, Array]:
    """The sums, and which targets have weights, and what these are."""
    x, _ = rows(d)
    nodes, places, leaf = _listed_nodes(d)
    tree, node, target = (d.numbers(f"{prefix}_{n}ids", DType.INT64) for n in ("tree", "node", ""))
    weight = _reals(d, f"{prefix}_weights")
    count = len(target)
    for name, values in (("treeids", tree), ("nodeids", node), ("weights", weight)):
        d.require(
            len(values) == count, f"{prefix}_{name} has {len(values)} values for {count} of {prefix}_ids"
        )
    _require_within(d, target, num_targets, prefix, f"there are {num_targets}")
    at = leaf[places.of(tree, node, "node")]
    kept = at >= 0
    num_leaves = int(leaf.max(initial=-1)) + 1
    tree_of_leaf = _tree_numbers(d.numbers("nodes_treeids", DType.INT64))[leaf >= 0]
    leaves = _Leaves(num_leaves, tree_of_leaf, at[kept], target[kept], weight[kept])
    sums = _sums(d, x, nodes, leaves, num_targets, aggregate)
    return sums, distinct(target), weight


def _tree_numbers(tree: Array) -> Array:
    """Trees numbered in the order in which they begin."""
    _, first, number = grouped(tree)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _rows_dtype(d: Definition) -> DType:
    return DType.FLOAT64 if d.value(0).dtype is DType.FLOAT64 else DType.FLOAT32


def _with_base(d: Definition, sums: str, num_targets: int) -> str:
    base = _reals(d, "base_values")
    d.require(len(base) in (0, num_targets), f"base_values has {len(base)} values for {num_targets} targets")
    return d("Add", sums, listed(d, base, _rows_dtype(d))) if base.any() else sums


def _regressor(d: Definition) -> Sequence[str]:
    num_targets = d.whole("n_targets", 1)
    d.require(0 < num_targets <= _MOST_TARGETS, f"n_targets is {num_targets}")
    aggregate, post = d.text("aggregate_function") or "SUM", post_transform(d)
    d.require(
        aggregate in _AGGREGATES, f"aggregate_function is {aggregate!r}, not one of {', '.join(_AGGREGATES)}"
    )
    sums, _, _ = _ensemble(d, "target", num_targets, aggregate)
    sums = _with_base(d, sums, num_targets)
    return [as_type(d, _of_regressor(d, sums, post, num_targets), _rows_dtype(d))]


def _of_regressor(d: Definition, sums: str, post: str, num_targets: int) -> str:
    """Of one target onnxruntime transforms nothing but PROBIT."""
    post = post if num_targets > 1 or post == "PROBIT" else "NONE"
    return transformed(d, sums, post, _rows_dtype(d))


def _classifier(d: Definition) -> Sequence[str]:
    """Labels and scores. Of two classes and one score there are as many rules as onnxruntime has."""
    labels = d.numbers("classlabels_int64s", DType.INT64)
    count, post, dtype = len(labels), post_transform(d), _rows_dtype(d)
    d.require(0 < count <= _MOST_TARGETS, f"it has {count} labels")
    sums, mentioned, weight = _ensemble(d, "class", count, "SUM")
    base = _reals(d, "base_values")
    d.require(
        len(base) in (0, count) or (count == 2 and len(base) == 1), f"base_values has {len(base)} values"
    )
    if count > 2:
        scores = d("Add", sums, listed(d, base, dtype)) if base.any() else sums
        ranked = scores
        if not len(base) and len(mentioned) < count:
            lowest = np.where(np.isin(np.arange(count), mentioned), np.inf, -np.inf)
            ranked = d("Min", scores, listed(d, lowest, dtype))
        place = d("ArgMax", ranked, axis=-1, keepdims=0)
        label = d("Gather", d.constant(labels), place, axis=0)
        return [label, as_type(d, transformed(d, scores, post, dtype), dtype)]
    return _of_two(d, sums, labels, mentioned.tolist(), weight, base, post)


def _of_two(
    d: Definition, sums: str, labels: Array, mentioned: list[int], weight: Array, base: Array, post: str
) -> Sequence[str]:
    """Of one class, or of two. The score that decides is that of the second class, or the only one."""
    dtype, is_single = _rows_dtype(d), mentioned == [0]
    zero = d.number(0.0, dtype)
    if len(labels) == 1:
        score = d("Add", sums, listed(d, base, dtype)) if base.any() else sums
        scores = transformed(d, score, post, dtype) if post == "PROBIT" else score
        return [_decided(d, score, 0.0, np.array([0, 1])), as_type(d, scores, dtype)]
    first, second = (columns(d, sums, n, n + 1) for n in (0, 1))
    threshold = 0.5 if len(mentioned) == 1 and (weight >= 0).all() else 0.0
    if is_single and len(base) < 2:
        score = d("Add", first, d.number(float(base[0]), dtype)) if base.any() else first
        if post == "LOGISTIC":
            parts = [transformed(d, s, post, dtype) for s in (d("Neg", score), score)]
        else:
            score_of_both = probit(d, score, dtype) if post == "PROBIT" else score
            other = (
                d("Neg", score_of_both) if not threshold else d("Sub", d.number(1.0, dtype), score_of_both)
            )
            parts = [other, score_of_both]
        scores = side_by_side(d, *parts)
        return [_decided(d, score, threshold, labels), as_type(d, scores, dtype)]
    if len(base) == 2 and is_single:
        score = d("Add", first, d.number(float(base[0]), dtype))
        both = side_by_side(d, score, d("Mul", second, zero))
    elif len(base) == 2 and mentioned == [0, 1]:
        score = d("Add", first, d.number(float(base[1]), dtype))
        both = side_by_side(d, d("Neg", score), score)
    else:
        score = d("Add", second, d.number(float(base[1]), dtype)) if len(base) == 2 else second
        first = (
            d("Add", first, d.number(float(base[0]), dtype)) if len(base) == 1 and 0 in mentioned else first
        )
        both = side_by_side(d, first, score)
    return [_decided(d, score, threshold, labels), as_type(d, transformed(d, both, post, dtype), dtype)]


def _decided(d: Definition, score: str, threshold: float, labels: Array) -> str:
    """The second label where the score of a row is above the threshold, else the first."""
    is_second = d("Greater", d("Squeeze", score, d.whole_numbers([-1])), d.number(threshold, _rows_dtype(d)))
    return d("Where", is_second, *(d.constant(np.array(n, np.int64)) for n in (labels[1], labels[0])))


# The newer operator ----------------------------------------------------------------------------------


def _tree_ensemble(d: Definition) -> Sequence[str]:
    num_targets = d.whole("n_targets", 1)
    d.require(0 < num_targets <= _MOST_TARGETS, f"n_targets is {num_targets}")
    aggregate, post = d.whole("aggregate_function", 1), d.whole("post_transform", 0)
    d.require(0 <= aggregate < len(_AGGREGATES), f"aggregate_function is {aggregate}")
    d.require(0 <= post < len(POST_TRANSFORMS), f"post_transform is {post}")
    x, features = rows(d)
    feature, true, false, root, target = (
        d.numbers(name, DType.INT64)
        for name in (
            "nodes_featureids",
            "nodes_truenodeids",
            "nodes_falsenodeids",
            "tree_roots",
            "leaf_targetids",
        )
    )
    count = len(feature)
    true_leaf, false_leaf, missing = (
        _flags(d, f"nodes_{n}", count) for n in ("trueleafs", "falseleafs", "missing_value_tracks_true")
    )
    split, mode, weight = (_tensor(d, name) for name in ("nodes_splits", "nodes_modes", "leaf_weights"))
    d.tensor("nodes_hitrates")
    named = {"truenodeids": true, "falsenodeids": false, "trueleafs": true_leaf, "falseleafs": false_leaf}
    named |= {"missing_value_tracks_true": missing, "splits": split, "modes": mode}
    for name, values in named.items():
        d.require(len(values) == count, f"nodes_{name} has {len(values)} values for {count} nodes")
    d.require(
        len(target) == len(weight) > 0, f"it has {len(target)} leaf_targetids and {len(weight)} weights"
    )
    mode = mode.astype(np.int64)
    _require_within(d, mode, _LEAF, "mode", f"there are {_LEAF}")
    _require_within(d, feature, features, "feature", f"its rows have {features}")
    _require_within(d, target, num_targets, "target", f"there are {num_targets}")
    d.require(len(root) > 0, "it has no tree_roots")
    _require_within(d, root, count, "root", f"there are {count} nodes")
    links = []
    for ids, is_leaf in ((true, true_leaf != 0), (false, false_leaf != 0)):
        _require_within(d, ids[is_leaf], len(target), "leaf", f"there are {len(target)}")
        _require_within(d, ids[~is_leaf], count, "node", f"there are {count}")
        links.append(np.where(is_leaf, -1 - ids, ids))
    nodes = _Nodes(feature, split, mode, missing != 0, links[0], links[1], root, _member_sets(d, mode))
    tree = _trees_of_leaves(nodes, len(target))
    leaves = _Leaves(len(target), tree, np.arange(len(target)), target, weight)
    sums = _sums(d, x, nodes, leaves, num_targets, _AGGREGATES[aggregate])
    return [_of_regressor(d, sums, POST_TRANSFORMS[post], num_targets)]


def _trees_of_leaves(nodes: _Nodes, num_leaves: int) -> Array | None:
    """The tree of each leaf; None where trees share nodes or leaves.

    What is no tree is found where the node is described: here only so many layers are looked at.
    """
    found = np.full(num_leaves, -1, np.int64)
    links, tree = nodes.root, np.arange(len(nodes.root))
    num_seen = 0
    while len(links):
        is_leaf = links < 0
        found[-1 - links[is_leaf]] = tree[is_leaf]
        links, tree = links[~is_leaf], tree[~is_leaf]
        num_seen += len(links)
        if num_seen > len(nodes.feature):
            return None
        links, tree = np.concatenate([nodes.true[links], nodes.false[links]]), np.tile(tree, 2)
    own = np.concatenate([nodes.true, nodes.false])
    return None if len(distinct(own[own < 0])) < (own < 0).sum() else found


def _tensor(d: Definition, name: str) -> Array:
    tensor = d.tensor(name)
    d.require(tensor is not None, f"it has no {name}")
    assert tensor is not None
    return tensor.reshape(-1)


def _member_sets(d: Definition, mode: Array) -> Sequence[Array]:
    """The sets of the nodes that ask for membership, in their order: NaN stands behind each."""
    tensor, count = d.tensor("membership_values"), int((mode == _MEMBER).sum())
    values = np.zeros(0) if tensor is None else tensor.reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    d.require(len(ends) >= count, f"membership_values has {len(ends)} sets for {count} nodes")
    return [part[~np.isnan(part)] for part in np.split(values, ends + 1)[:count]]


TREES: Mapping[str, Write] = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
