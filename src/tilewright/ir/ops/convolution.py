"""Convolution in one to three spatial dimensions.

Dims are named `n`, `m` (output channel), `od oh ow`, `c` (input channel), `kd kh kw`; each is there
also when its extent is 1, so that loops have the same names in every convolution. With groups, `g`
counts groups and `m` and `c` count within one; a depthwise convolution has neither `g` nor `c`: its
channel dim `m` indexes input, weight and output alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr, Scalar
from tilewright.ir.graph import Node
from tilewright.ir.nest import Access, Affine, Description, Dim, Nest, Opaque, affine
from tilewright.ir.ops.build import input_operand, output_operand, read
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import Window, window_of

Array = np.ndarray[Any, Any]

# Patches are gathered for as many output rows at once as fit here: one copy stays in a large cache.
_PATCH_BYTES = 32 << 20


def convolve(x: Array, weight: Array, window: Window, groups: int) -> Array:
    """`[N, C, *spatial]` by `[M, C/groups, *kernel]`: patches times weights, in the arrays' own type."""
    batch, channels = x.shape[:2]
    num_out, per_group = weight.shape[:2]
    taps = window.taps(x, 0)
    rank = len(window.kernel)
    if per_group == 1 and num_out == channels:
        return _depthwise(taps, weight, rank)
    rows = window.outputs[0]
    result = np.empty((batch, num_out, *window.outputs), np.result_type(x, weight))
    matrix = weight.reshape(groups, num_out // groups, -1)
    inner = int(np.prod(window.outputs[1:], dtype=np.int64))
    row_bytes = inner * channels * int(np.prod(window.kernel)) * result.itemsize
    step = max(1, min(rows, _PATCH_BYTES // max(1, row_bytes)))
    # [N, C, *out, *k] -> [N, C, *k, *out]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    by_tap = taps.transpose(order)
    first_out = 2 + rank
    for n in range(batch):
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            part = by_tap[n][(slice(None),) * (first_out - 1) + (slice(start, stop),)]
            columns = part.reshape(groups, matrix.shape[2], (stop - start) * inner)
            product = np.matmul(matrix, columns)
            result[n, :, start:stop] = product.reshape(num_out, stop - start, *window.outputs[1:])
    return result


def _depthwise(taps: Array, weight: Array, rank: int) -> Array:
    result = np.zeros(taps.shape[:-rank], np.result_type(taps, weight))
    scratch = np.empty_like(result)
    for tap in np.ndindex(*weight.shape[2:]):
        factor = weight[(slice(None), 0, *tap)].reshape(-1, *(1,) * rank)
        result += np.multiply(taps[(..., *tap)], factor, out=scratch)
    return result


@dataclass(frozen=True, slots=True)
class ConvLoops:
    """The loops of one convolution and where they touch input, weight and output."""

    dims: tuple[Dim, ...]
    x: Access
    weight: Access
    write: Access
    out_channel: Affine

    @classmethod
    def of(cls, node: Node, x_position: int, weight_position: int, fill: Scalar = 0.0) -> ConvLoops:
        """Loops of a node with Conv's attributes; `fill` is what padding reads as."""
        x, weight = input_operand(node, x_position), input_operand(node, weight_position)
        out = output_operand(node)
        groups = node.int_attr("group", 1)
        num_out, per_group = weight.shape[:2]
        window = window_of(node, x.shape[2:], weight.shape[2:])
        if groups > 1 and per_group == 1 and num_out == groups:
            channel_dims: tuple[Dim, ...] = (Dim("m", num_out),)
            in_channel = out_channel = affine("m")
            weight_channel = affine()
        elif groups > 1:
            channel_dims = (Dim("g", groups), Dim("m", num_out // groups))
            inside = ("c",) if per_group > 1 else ()
            in_channel = affine(("g", per_group), *inside)
            out_channel = affine(("g", num_out // groups), "m")
            weight_channel = affine(*inside)
        else:
            channel_dims = (Dim("m", num_out),)
            in_channel = weight_channel = affine("c")
            out_channel = affine("m")
        names = window.names
        outputs = tuple(Dim(o, e) for (o, _), e in zip(names, out.shape[2:], strict=True))
        reduced = (Dim("c", per_group, "reduce"),) if groups == 1 or per_group > 1 else ()
        taps = tuple(Dim(k, e, "reduce") for (_, k), e in zip(names, window.kernel, strict=True))
        padding = None if window.stays_inside(x.shape[2:]) else fill
        return cls(
            (Dim("n", x.shape[0]), *channel_dims, *outputs, *reduced, *taps),
            Access(x, (affine("n"), in_channel, *window.index()), padding),
            Access(weight, (out_channel, weight_channel, *(affine(k) for _, k in names))),
            Access(out, (affine("n"), out_channel, *(affine(o) for o, _ in names))),
            out_channel,
        )


def _conv_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, weight = inputs[0], inputs[1]
    assert x is not None
    assert weight is not None
    window = window_of(node, x.shape[2:], weight.shape[2:])
    result = convolve(x, weight, window, node.int_attr("group", 1))
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(window.kernel))
    return (result,)


@operator("Conv", reference=_conv_reference)
def conv(node: Node) -> Description:
    """`out[n, m, o] = bias[m] + sum_{c, k} x[n, c, stride*o + dilation*k - pad] * w[m, c, k]`."""
    loops = ConvLoops.of(node, 0, 1)
    reads = [loops.x, loops.weight]
    init: Expr | None = None
    if node.input(2) is not None:
        reads.append(Access(input_operand(node, 2), (loops.out_channel,)))
        init = read(2, reads[2])
    body = read(0, reads[0]) * read(1, reads[1])
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum", init),)


@operator("DeformConv")
def deform_conv(node: Node) -> Description:
    """Not affine: where the input is read is data, with fractions."""
    return Opaque(f"{node.op_type} reads its input at computed positions")
