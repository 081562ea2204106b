"""Linear models: a product, and what makes scores or labels of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.frontend.onnx.microsoft.definition import Definition, Write
from tilewright.frontend.onnx.ml.parts import float_rows, post_transform, probit, side_by_side, transformed
from tilewright.ir.dtype import DType


def _product(d: Definition, num_results: int) -> str:
    """The products of rows and coefficients, with intercepts, if they are given."""
    x, features = float_rows(d)
    coefficients, intercepts = d.reals("coefficients"), d.reals("intercepts")
    d.require(num_results > 0, "it has no coefficients")
    d.require(
        len(coefficients) == num_results * features,
        f"it has {len(coefficients)} coefficients for {num_results} results of {features} features",
    )
    d.require(
        len(intercepts) in (0, num_results), f"it has {len(intercepts)} intercepts for {num_results} results"
    )
    weights = d.constant(np.array(coefficients, np.float32).reshape(num_results, features))
    operands = [x, weights, *([d.constant(np.array(intercepts, np.float32))] if intercepts else [])]
    return d("Gemm", *operands, transB=1)


def _regressor(d: Definition) -> Sequence[str]:
    num_targets, post = d.whole("targets", 1), post_transform(d)
    scores = _product(d, num_targets)
    if num_targets == 1 and post != "PROBIT":
        return [scores]  # of one score onnxruntime transforms nothing else
    return [transformed(d, scores, post)]


def _classifier(d: Definition) -> Sequence[str]:
    labels = d.numbers("classlabels_ints", DType.INT64)
    post, intercepts = post_transform(d), d.reals("intercepts")
    d.whole("multi_class", 0)  # which says nothing that the transform does not
    _, features = float_rows(d)
    num_scores = len(intercepts) or (len(d.reals("coefficients")) // features if features else 0)
    scores = _product(d, num_scores)
    if num_scores == 1:
        return _of_two(d, scores, labels, post)
    d.require(len(labels) == num_scores, f"it has {len(labels)} labels for {num_scores} scores")
    label = d("Gather", d.constant(labels), d("ArgMax", scores, axis=-1, keepdims=0), axis=0)
    return [label, transformed(d, scores, post)]


def _of_two(d: Definition, score: str, labels: Array, post: str) -> Sequence[str]:
    """One score: of the second label, where there are two."""
    names = labels if len(labels) == 2 else np.array([0, 1])
    is_second = d("Greater", d("Squeeze", score, d.whole_numbers([-1])), d.number(0.0, DType.FLOAT32))
    label = d("Where", is_second, *(d.constant(np.array(n, np.int64)) for n in (names[1], names[0])))
    if post == "PROBIT":
        score = probit(d, score, DType.FLOAT32)
    elif post == "LOGISTIC":
        score = d("Sigmoid", score)
    if len(labels) != 2:
        return [label, score]
    return [label, side_by_side(d, d("Sub", d.number(1.0, DType.FLOAT32), score), score)]


LINEAR: Mapping[str, Write] = {"LinearClassifier": _classifier, "LinearRegressor": _regressor}
