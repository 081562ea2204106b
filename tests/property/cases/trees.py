"""Cases of ensembles of trees, and of probabilities of pairs of classes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, generator, reals

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.registry import INTERNAL_DOMAIN


def grown(rng: np.random.Generator, num_trees: int, depth: int, num_features: int) -> dict[str, list[object]]:
    """Random trees of at most this depth: the tables of their inner nodes, their roots, and `leaves`."""
    made: dict[str, list[object]] = {
        name: [] for name in ("feature", "threshold", "missing", "child", "root")
    }
    num_leaves = 0

    def grow(levels: int) -> int:
        nonlocal num_leaves
        if levels == 0 or rng.random() < 0.2:
            num_leaves += 1
            return -num_leaves
        number = len(made["feature"])
        made["feature"].append(int(rng.integers(num_features)))
        made["threshold"].append(float(rng.choice([rng.standard_normal(), 0.0, np.inf, -np.inf, np.nan])))
        made["missing"].append(bool(rng.random() < 0.3))
        made["child"].append((0, 0))
        made["child"][number] = (grow(levels - 1), grow(levels - 1))
        return number

    made["root"] = [grow(depth) for _ in range(num_trees)]
    made["leaves"] = list(range(num_leaves))
    return made


@generator("TreeSums", domain=INTERNAL_DOMAIN)
def tree_sums(draw: Draw, op_type: str) -> Case:
    dtype = np.dtype(draw(st.sampled_from([np.float32, np.float64])))
    rows, features, width = (draw(st.integers(1, most)) for most in (20, 6, 5))
    num_trees, depth, spare = draw(st.integers(1, 20)), draw(st.integers(0, 6)), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    made = grown(rng, num_trees, depth, features)
    x = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0], (rows, features))
    x = np.where(rng.random(x.shape) < 0.6, rng.standard_normal(x.shape), x).astype(dtype)
    inputs: list[Array | None] = [
        x,
        np.array(made["feature"], np.int32),
        np.array(made["threshold"], dtype),
        np.array(made["missing"], np.bool_),
        np.array(made["child"], np.int32).reshape(-1, 2),
        np.array(made["root"], np.int32),
        rng.integers(0, spare + 1, num_trees).astype(np.int32),
        rng.standard_normal((len(made["leaves"]), width)).astype(dtype),
    ]
    attributes = {"aggregate": draw(st.sampled_from(["SUM", "MIN", "MAX"])), "num_targets": width + spare}
    values = [
        Value(f"x{i}", DType.from_numpy(a.dtype), a.shape, a if i else None)
        for i, a in enumerate(inputs)
        if a is not None
    ]
    result = Value("y0", DType.from_numpy(dtype), (rows, width + spare))
    node = Node(op_type, values, [result], attributes, domain=INTERNAL_DOMAIN)
    return Case(node, tuple(inputs), True, 0.0, 0.0, False)


@generator("CoupledProbabilities", domain=INTERNAL_DOMAIN)
def coupled(draw: Draw, op_type: str) -> Case:
    count, rows = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    pairs = 1 / (1 + np.exp(-reals(draw, (rows, count * (count - 1) // 2))))
    value = Value("x0", DType.FLOAT32, pairs.shape)
    result = Value("y0", DType.FLOAT32, (rows, count))
    node = Node(op_type, [value], [result], {"num_classes": count}, domain=INTERNAL_DOMAIN)
    return Case(node, (pairs.astype(np.float32),), False, 1e-4, 1e-4, False)
