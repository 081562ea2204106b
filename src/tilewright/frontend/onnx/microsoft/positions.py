"""What positions of tokens beside each other add to scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.frontend.onnx.microsoft.definition import MAX_CONSTANT_ELEMENTS, Definition, Write


def _relative_position_bias(d: Definition) -> Sequence[str]:
    num_buckets, _ = d.shape(0, 2)
    lengths = []
    for position, name in ((1, "query_length"), (2, "key_length")):
        data = d.value(position).data
        d.support(data is not None, f"its {name} is not constant")
        lengths.append(int(np.asarray(data).reshape(-1)[0]))
    rows, columns = lengths
    d.require(min(lengths) >= 1, f"its lengths are {rows} and {columns}")
    d.support(rows * columns <= MAX_CONSTANT_ELEMENTS, f"{rows} x {columns} positions are too many")
    distance, both = d.whole("max_distance", 128), bool(d.whole("is_bidirectional", 0))
    d.require(num_buckets >= 4 and distance > num_buckets, f"{num_buckets} buckets up to {distance}")
    apart = np.arange(columns)[None] - np.arange(rows)[:, None]
    buckets = d.constant(_buckets(apart, num_buckets, distance, both=both))
    bias = d("Transpose", d("Gather", "x0", buckets), perm=[2, 0, 1])
    return [d("Unsqueeze", bias, d.whole_numbers([0]))]


def _buckets(apart: Array, num_buckets: int, max_distance: int, *, both: bool) -> Array:
    """The number of each distance: near ones each have their own, far ones share by their logarithm.

    Those of both signs have half of the buckets each; else later tokens are all in the first.
    """
    first = np.zeros_like(apart)
    if both:
        num_buckets //= 2
        first = np.where(apart > 0, num_buckets, 0)
        size = np.abs(apart)
    else:
        size = np.maximum(-apart, 0)
    near = num_buckets // 2
    share = np.log(np.maximum(size, near).astype(np.float32) / np.float32(near))
    share = share / np.float32(math.log(max_distance / near)) * np.float32(num_buckets - near)
    far = np.minimum(near + share.astype(np.int64), num_buckets - 1)
    return np.asarray(first + np.where(size < near, size, far))


def _gated_relative_position_bias(d: Definition) -> Sequence[str]:
    d.refuse_inputs({6: "token_offset"})
    batch, length, columns = d.shape(0, 3)
    count = d.whole("num_heads", 0)
    d.require(count >= 1 and columns % count == 0, f"{count} heads do not divide {columns} channels")
    size, gates = columns // count, d.shape(3, 2)[1]
    d.require(gates % 2 == 0, f"{gates} gates are not two halves")
    query = d("Reshape", d("Add", "x0", "x1"), d.whole_numbers([batch, length, count, size]))
    product = d("Add", d("MatMul", d("Transpose", query, perm=[0, 2, 1, 3]), "x3"), "x4")
    halves = d("Reshape", product, d.whole_numbers([batch, count, length, 2, gates // 2]))
    both = d("Sigmoid", d("ReduceSum", halves, d.whole_numbers([4]), keepdims=0))
    update, reset = d.several("Split", both, count=2, axis=3, num_outputs=2)
    dtype = d.value(0).dtype
    inner = d("Sub", d("Mul", reset, "x5"), d.number(1.0, dtype))
    gate = d("Add", d("Mul", update, inner), d.number(2.0, dtype))
    return [d("Mul", gate, "x2")]


POSITIONS: Mapping[str, Write] = {
    "GatedRelativePositionBias": _gated_relative_position_bias,
    "RelativePositionBias": _relative_position_bias,
}
