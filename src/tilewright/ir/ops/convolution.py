"""Convolution in one to three spatial dimensions.

Dims are named `n`, `m` (output channel), `od oh ow`, `c` (input channel), `kd kh kw`; each is there
also when its extent is 1, so that loops have the same names in every convolution. With groups, `g`
counts groups and `m` and `c` count within one; a depthwise convolution has neither `g` nor `c`: its
channel dim `m` indexes input, weight and output alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Expr, Scalar
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Description, Dim, Nest, Opaque, affine
from tilewright.ir.ops.build import (
    input_operand,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import Window, window_of
from tilewright.ir.work import HostWork
from tilewright.records import dataclass

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


def conv_window(node: Node, x_position: int = 0, weight_position: int = 1) -> Window:
    """The window of a node with Conv's attributes, whose input, weight and groups fit each other.

    Raises:
        ModelRejected: they do not.
    """
    x = require_rank(node, x_position, 3)
    weight = require_rank(node, weight_position, len(x), len(x))
    groups = node.int_attr("group", 1)
    require(node, groups >= 1, f"group is {groups}, but there is at least 1")
    for channels, which in ((x[1], "input"), (weight[0], "output")):
        require(node, channels % groups == 0, f"group={groups} does not divide {channels} {which} channels")
    require_shape(
        node, weight_position, (None, x[1] // groups, *weight[2:]), f"{x[1]} input channels, group={groups}"
    )
    require_kernel(node, weight[2:])
    return window_of(node, x[2:], weight[2:])


def require_kernel(node: Node, kernel: Sequence[int]) -> None:
    """Require that `kernel_shape`, if it is there, says what the weight has.

    Raises:
        ModelRejected: it says something else.
    """
    said = node.ints_attr("kernel_shape") or tuple(kernel)
    require(node, said == tuple(kernel), f"kernel_shape is {list(said)}, but the weight has {list(kernel)}")


def conv_shapes(node: Node, x_position: int = 0, weight_position: int = 1) -> tuple[Shape, ...]:
    """The shape of the result of a node with Conv's attributes."""
    window = conv_window(node, x_position, weight_position)
    x, weight = node.require(x_position).shape, node.require(weight_position).shape
    return ((x[0], weight[0], *window.outputs),)


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
        """Loops of a node with Conv's attributes; `fill` is what padding reads as.

        Raises:
            ModelRejected: input, weight, groups and result do not fit each other.
        """
        require_result(node, conv_shapes(node, x_position, weight_position)[0])
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
        outputs = tuple(Dim(o, e) for (o, _), e in zip(names, window.outputs, strict=True))
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


@operator("Conv", reference=_conv_reference, shapes=conv_shapes)
def conv(node: Node) -> Description:
    """`out[n, m, o] = bias[m] + sum_{c, k} x[n, c, stride*o + dilation*k - pad] * w[m, c, k]`."""
    loops = ConvLoops.of(node, 0, 1)
    reads = [loops.x, loops.weight]
    init: Expr | None = None
    require_shape(node, 2, (node.output.shape[1],), "one for each output channel")
    if node.input(2) is not None:
        reads.append(Access(input_operand(node, 2), (loops.out_channel,)))
        init = read(2, reads[2])
    body = read(0, reads[0]) * read(1, reads[1])
    return (Nest(loops.dims, tuple(reads), loops.write, body, "sum", init),)


def _deform_conv_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    weight, out = node.require(1).shape, node.output.shape
    return HostWork(steps=prod(out) * prod(weight[1:]))


@operator("DeformConv", host_work=_deform_conv_work)
def deform_conv(node: Node) -> Description:
    """Not affine: where the input is read is data, with fractions."""
    window = conv_window(node)
    x, weight = node.require(0).shape, node.require(1).shape
    groups, taps = node.int_attr("offset_group", 1), prod(window.kernel)
    require(node, groups >= 1 and x[1] % groups == 0, f"offset_group is {groups} for {x[1]} input channels")
    require_shape(
        node, 2, (x[0], groups * taps * len(window.kernel), *window.outputs), "an offset for each tap"
    )
    require_shape(node, 3, (weight[0],), "one for each output channel")
    require_shape(node, 4, (x[0], groups * taps, *window.outputs), "a factor for each tap")
    require_result(node, (x[0], weight[0], *window.outputs))
    return Opaque(f"{node.op_type} reads its input at computed positions")
