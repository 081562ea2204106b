"""Support vector machines: kernels of rows and vectors, votes of pairs of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from tilewright.arrays import Array
from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.ml.parts import (
    MAX_TABLE_ELEMENTS,
    float_rows,
    post_transform,
    side_by_side,
    transformed,
)
from tilewright.ir.dtype import DType
from tilewright.ir.ops.coupling import COUPLED_PROBABILITIES
from tilewright.ir.ops.registry import INTERNAL_DOMAIN

_FLOAT = DType.FLOAT32
# Probabilities of pairs are no nearer to 0 and 1.
_NEAR_ZERO = 1e-7


def _kernels(d: Definition, x: str, vectors: Array) -> str:
    """The kernel of each row with each vector."""
    kind = d.text("kernel_type") or "LINEAR"
    given = d.reals("kernel_params")
    d.require(len(given) in (0, 3), f"kernel_params has {len(given)} values, not gamma, coef0 and degree")
    gamma, offset, degree = given or (0.0, 0.0, 0.0)
    products = d("MatMul", x, d.constant(np.ascontiguousarray(vectors.T)))
    match kind:
        case "LINEAR":
            return products
        case "RBF":
            # |x - v|^2 as a sum of differences: where rows are near to vectors, nothing cancels.
            differences = d("Sub", d("Unsqueeze", x, d.whole_numbers([1])), d.constant(vectors))
            squares = d("ReduceSumSquare", differences, d.whole_numbers([-1]), keepdims=0)
            return d("Exp", d("Mul", squares, d.number(-gamma, _FLOAT)))
    d.require(kind in ("POLY", "SIGMOID"), f"kernel_type is {kind!r}, not LINEAR, POLY, RBF or SIGMOID")
    scaled = d("Add", d("Mul", products, d.number(gamma, _FLOAT)), d.number(offset, _FLOAT))
    return d("Tanh", scaled) if kind == "SIGMOID" else d("Pow", scaled, d.number(degree, _FLOAT))


def _linear(d: Definition, x: str, coefficients: Array) -> str:
    """Products with coefficients, where there are no vectors: of whichever kernel it is."""
    d.text("kernel_type")
    d.reals("kernel_params")
    d.reals("support_vectors")
    return d("MatMul", x, d.constant(np.ascontiguousarray(coefficients.T)))


def _vectors(d: Definition, count: int, features: int) -> Array:
    values = d.numbers("support_vectors", DType.FLOAT32)
    d.require(
        count > 0 and len(values) == count * features,
        f"it has {len(values)} numbers in support_vectors for {count} vectors of {features} features",
    )
    return values.reshape(count, features)


def _regressor(d: Definition) -> Sequence[str]:
    x, features = float_rows(d)
    coefficients, rho = d.numbers("coefficients", DType.FLOAT32), d.reals("rho")
    count, is_one_class = d.whole("n_supports", 0), d.whole("one_class", 0)
    post_transform(d)
    d.require(len(rho) >= 1, "it has no rho")
    if count > 0:
        vectors = _vectors(d, count, features)
        d.require(len(coefficients) == count, f"it has {len(coefficients)} coefficients for {count} vectors")
        sums = d("MatMul", _kernels(d, x, vectors), d.constant(coefficients.reshape(-1, 1)))
    else:
        d.require(
            len(coefficients) == features, f"it has {len(coefficients)} coefficients for {features} features"
        )
        sums = _linear(d, x, coefficients.reshape(1, -1))
    score = d("Add", sums, d.number(rho[0], _FLOAT))
    if is_one_class:
        return [
            d(
                "Where",
                d("Greater", score, d.number(0.0, _FLOAT)),
                *(d.number(n, _FLOAT) for n in (1.0, -1.0)),
            )
        ]
    return [score]  # onnxruntime transforms no score of these


def _classifier(d: Definition) -> Sequence[str]:
    x, features = float_rows(d)
    labels = d.numbers("classlabels_ints", DType.INT64)
    per_class = d.numbers("vectors_per_class", DType.INT64)
    coefficients, rho = d.numbers("coefficients", DType.FLOAT32), d.numbers("rho", DType.FLOAT32)
    post = post_transform(d)
    prob_a, prob_b = (d.numbers(f"prob_{n}", DType.FLOAT32) for n in "ab")
    count = len(labels)
    d.require(count > 1, f"it has {count} labels")
    d.require(len(rho) >= 1, "it has no rho")
    if not per_class.sum():
        d.require(
            len(coefficients) == count * features,
            f"it has {len(coefficients)} coefficients for {count} classes of {features} features",
        )
        products = _linear(d, x, coefficients.reshape(count, features))
        scores = d("Add", products, d.number(float(rho[0]), _FLOAT))
        label = _label(d, scores, labels)
        return [
            _of_two_linear(d, scores, label, labels, coefficients) if count == 2 else label,
            transformed(d, scores, post),
        ]
    d.require(
        len(per_class) == count and bool((per_class >= 0).all()), f"vectors_per_class is {per_class.tolist()}"
    )
    num_vectors, num_pairs = int(per_class.sum()), count * (count - 1) // 2
    vectors = _vectors(d, num_vectors, features)
    d.require(
        len(coefficients) == (count - 1) * num_vectors,
        f"it has {len(coefficients)} coefficients for {count} classes and {num_vectors} vectors",
    )
    d.require(len(rho) == num_pairs, f"it has {len(rho)} numbers in rho for {num_pairs} pairs of classes")
    d.support(
        num_pairs * max(num_vectors, count) <= MAX_TABLE_ELEMENTS,
        f"{num_pairs} pairs of classes are too many for {num_vectors} vectors",
    )
    pairs = list(combinations(range(count), 2))
    weights = _pair_weights(coefficients.reshape(count - 1, num_vectors), per_class, pairs)
    scores = d("Add", d("MatMul", _kernels(d, x, vectors), d.constant(weights)), d.constant(rho))
    label = _label(d, _votes(d, scores, count, pairs), labels)
    if len(prob_a):
        d.require(
            len(prob_a) == len(prob_b) == len(pairs), "prob_a and prob_b do not fit the pairs of classes"
        )
        return [label, transformed(d, _probabilities(d, scores, prob_a, prob_b, count), post)]
    if count == 2:
        return [label, _of_two(d, scores, post)]
    return [label, transformed(d, scores, post)]


def _pair_weights(coefficients: Array, per_class: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """What each vector adds to the score of each pair: those of its two classes alone do."""
    starts = np.concatenate([[0], np.cumsum(per_class)])
    weights = np.zeros((coefficients.shape[1], len(pairs)), np.float32)
    for number, (i, j) in enumerate(pairs):
        first, second = slice(*starts[i : i + 2]), slice(*starts[j : j + 2])
        weights[first, number] = coefficients[j - 1, first]
        weights[second, number] = coefficients[i, second]
    return weights


def _votes(d: Definition, scores: str, count: int, pairs: Sequence[tuple[int, int]]) -> str:
    """How many pairs each class wins: the first where the score is above zero."""
    first, second = (np.zeros((len(pairs), count), np.float32) for _ in range(2))
    for number, (i, j) in enumerate(pairs):
        first[number, i] = second[number, j] = 1
    is_first = d("Cast", d("Greater", scores, d.number(0.0, _FLOAT)), to=_FLOAT.value)
    won = d("MatMul", is_first, d.constant(first - second))
    return d("Add", won, d.constant(second.sum(axis=0)))


def _label(d: Definition, scores: str, labels: Array) -> str:
    """The label of the largest score, the first of equal ones."""
    return d("Gather", d.constant(labels), d("ArgMax", scores, axis=-1, keepdims=0), axis=0)


def _probabilities(d: Definition, scores: str, prob_a: Array, prob_b: Array, count: int) -> str:
    sums = d("Add", d("Mul", scores, d.constant(prob_a)), d.constant(prob_b))
    limits = (d.number(n, _FLOAT) for n in (_NEAR_ZERO, 1 - _NEAR_ZERO))
    pairs = d("Clip", d("Sigmoid", d("Neg", sums)), *limits)
    return d(COUPLED_PROBABILITIES, pairs, domain=INTERNAL_DOMAIN, num_classes=count)


def _of_two(d: Definition, score: str, post: str) -> str:
    """The scores of two classes by that of their pair, as onnxruntime gives them."""
    if post == "LOGISTIC":
        return side_by_side(d, d("Sigmoid", d("Neg", score)), d("Sigmoid", score))
    if post == "PROBIT":
        score = transformed(d, score, post)
    other = d("Neg", score) if post in ("NONE", "PROBIT") else d("Sub", d.number(1.0, _FLOAT), score)
    return side_by_side(d, other, score)


def _of_two_linear(d: Definition, scores: str, label: str, labels: Array, coefficients: Array) -> str:
    """Without vectors onnxruntime takes the second label wherever a score is large enough."""
    largest = d("ReduceMax", scores, d.whole_numbers([-1]), keepdims=0)
    if (coefficients >= 0).all():
        is_large = d("GreaterOrEqual", largest, d.number(0.5, _FLOAT))
    else:
        is_large = d("Greater", largest, d.number(0.0, _FLOAT))
    return d("Where", is_large, d.constant(np.array(labels[1], np.int64)), label)


SUPPORT_VECTORS: Mapping[str, Write] = {"SVMClassifier": _classifier, "SVMRegressor": _regressor}
