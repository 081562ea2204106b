"""Transposed convolution, as one plain convolution per output phase."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Const
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Affine, Description, Dim, Nest, Operand, affine
from tilewright.ir.ops.build import (
    input_operand,
    output_operand,
    read,
    require,
    require_rank,
    require_result,
    require_shape,
)
from tilewright.ir.ops.convolution import require_kernel
from tilewright.ir.ops.registry import operator
from tilewright.ir.ops.window import Window, WindowAttributes
from tilewright.records import dataclass


def transposed_window(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of the convolution that a ConvTranspose inverts; `outputs` are the transposed outputs."""
    rank = len(kernel)
    require(node, len(spatial) == rank, f"a kernel {list(kernel)} does not fit axes {list(spatial)}")
    given = WindowAttributes.of(node, kernel)
    strides, dilations, begin, end = given.strides, given.dilations, given.begin, given.end
    extra = node.ints_attr("output_padding") or (0,) * rank
    require(node, len(extra) == rank, f"output_padding is {list(extra)}, but {rank} numbers are taken")
    require(node, min(extra) >= 0, f"output_padding {list(extra)} is negative")
    asked = node.ints_attr("output_shape") or None
    full = tuple(
        (extent - 1) * s + (k - 1) * d + 1 + e
        for extent, s, k, d, e in zip(spatial, strides, kernel, dilations, extra, strict=True)
    )
    if asked is None and given.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # Padding only takes away: a kernel smaller than the stride leaves less than extent * stride.
        asked = tuple(min(extent * s, f) for extent, s, f in zip(spatial, strides, full, strict=True))
    if asked is None:
        asked = tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    else:
        require(
            node, len(asked) in (rank, rank + 2), f"output_shape {list(asked)} does not name {rank} extents"
        )
        asked = asked[-rank:]
        total = [max(0, f - a) for f, a in zip(full, asked, strict=True)]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begin, end = (less, more) if given.auto_pad == "SAME_UPPER" else (more, less)
    require(node, min(asked) >= 0, f"its result would have the negative extents {list(asked)}")
    return Window(tuple(kernel), strides, dilations, begin, end, asked)


def _transposed_shapes(node: Node) -> tuple[Shape, ...]:
    """The shape of the result, of operands that fit each other."""
    x = require_rank(node, 0, 3)
    weight = require_rank(node, 1, len(x), len(x))
    groups = node.int_attr("group", 1)
    require(node, groups >= 1, f"group is {groups}, but there is at least 1")
    require(node, x[1] % groups == 0, f"group is {groups}, which does not divide the {x[1]} input channels")
    require_shape(node, 1, (x[1], *weight[1:]), "as many input channels as the input")
    require_kernel(node, weight[2:])
    return ((x[0], groups * weight[1], *transposed_window(node, x[2:], weight[2:]).outputs),)


def _conv_transpose_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x, weight = inputs[0], inputs[1]
    assert x is not None
    assert weight is not None
    window = transposed_window(node, x.shape[2:], weight.shape[2:])
    groups = node.int_attr("group", 1)
    batch, channels = x.shape[:2]
    per_group = weight.shape[1]
    taps = int(np.prod(window.kernel))
    matrix = weight.reshape(groups, channels // groups, per_group * taps).swapaxes(1, 2)
    columns = np.matmul(matrix, x.reshape(batch, groups, channels // groups, -1))
    columns = columns.reshape(batch, groups * per_group, *window.kernel, *x.shape[2:])
    full = [
        max(b + o, (extent - 1) * s + (k - 1) * d + 1)
        for b, o, extent, s, k, d in zip(
            window.begin,
            window.outputs,
            x.shape[2:],
            window.strides,
            window.kernel,
            window.dilations,
            strict=True,
        )
    ]
    buffer = np.zeros((batch, groups * per_group, *full), columns.dtype)
    for tap in np.ndindex(*window.kernel):
        where = tuple(
            slice(k * d, k * d + (extent - 1) * s + 1, s)
            for k, d, s, extent in zip(tap, window.dilations, window.strides, x.shape[2:], strict=True)
        )
        buffer[(slice(None), slice(None), *where)] += columns[(slice(None), slice(None), *tap)]
    crop = tuple(slice(b, b + o) for b, o in zip(window.begin, window.outputs, strict=True))
    result = buffer[(slice(None), slice(None), *crop)]
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None:
        result = result + bias.reshape(-1, *(1,) * len(window.kernel))
    return (result,)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Along one axis, the outputs `stride*q + start`, and the taps `first + step*j` that reach them."""

    start: int
    count: int
    first: int
    step: int
    num_taps: int
    offset: int
    back: int

    @classmethod
    def of(cls, start: int, window: Window, axis: int) -> _Phase:
        """The taps `k` with `(start + begin - dilation*k) % stride == 0`, and the input they read."""
        stride, dilation = window.strides[axis], window.dilations[axis]
        begin, kernel = window.begin[axis], window.kernel[axis]
        count = -(-(window.outputs[axis] - start) // stride)
        taps = [k for k in range(kernel) if (start + begin - dilation * k) % stride == 0]
        first = taps[0] if taps else 0
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        offset = (start + begin - dilation * first) // stride
        return cls(start, count, first, step, len(taps), offset, dilation * step // stride)


@operator("ConvTranspose", reference=_conv_transpose_reference, shapes=_transposed_shapes)
def conv_transpose(node: Node) -> Description:
    """One plain convolution per output phase.

    The outputs `stride*q + r` of phase `r` gather exactly the taps that are congruent to it, so no
    output is written twice and no product is with a zero between strides. A phase without taps is the
    bias, or zero.
    """
    (shape,) = _transposed_shapes(node)
    require_result(node, shape)
    require_shape(node, 2, (shape[1],), "one for each output channel")
    x, weight, out = input_operand(node, 0), input_operand(node, 1), output_operand(node)
    window = transposed_window(node, x.shape[2:], weight.shape[2:])
    phases = itertools.product(
        *(
            [_Phase.of(start, window, axis) for start in range(min(stride, window.outputs[axis]))]
            for axis, stride in enumerate(window.strides)
        )
    )
    return tuple(_phase_nest(node, x, weight, out, window, phase) for phase in phases)


def _phase_nest(
    node: Node, x: Operand, weight: Operand, out: Operand, window: Window, phases: Sequence[_Phase]
) -> Nest:
    channels = _transposed_channels(node.int_attr("group", 1), weight.shape[0], weight.shape[1])
    names = window.names
    rows = tuple(Dim(o, p.count) for (o, _), p in zip(names, phases, strict=True))
    parallel = (Dim("n", x.shape[0]), *channels.parallel, *rows)
    spatial = tuple(
        affine((o, stride), p.start) for (o, _), stride, p in zip(names, window.strides, phases, strict=True)
    )
    write = Access(out, (affine("n"), channels.output, *spatial))
    bias = Access(input_operand(node, 2), (channels.output,)) if node.input(2) is not None else None
    compute = out.dtype.compute
    if any(p.num_taps == 0 for p in phases):
        if bias is None:
            return Nest(parallel, (), write, Const(0.0, compute))
        return Nest(parallel, (bias,), write, read(0, bias))
    taps = tuple(Dim(k, p.num_taps, "reduce") for (_, k), p in zip(names, phases, strict=True))
    source = Access(
        x,
        (
            affine("n"),
            channels.input,
            *(affine(o, (k, -p.back), p.offset) for (o, k), p in zip(names, phases, strict=True)),
        ),
    )
    factors = Access(
        weight,
        (
            channels.input,
            channels.weight,
            *(affine((k, p.step), p.first) for (_, k), p in zip(names, phases, strict=True)),
        ),
    )
    dims = (*parallel, *channels.reduced, *taps)
    reads = (_padded(source, dims), factors)
    body = read(0, source) * read(1, factors)
    if bias is None:
        return Nest(dims, reads, write, body, "sum")
    return Nest(dims, (*reads, bias), write, body, "sum", read(2, bias))


def _padded(access: Access, dims: Sequence[Dim]) -> Access:
    """The access with a fill of zero if some iteration leaves the tensor."""
    extents = {d.name: d.extent for d in dims}
    for index, extent in zip(access.index, access.shape, strict=True):
        assert isinstance(index, Affine)
        low, high = index.bounds(extents)
        if low < 0 or high >= extent:
            return Access(access.operand, access.index, 0.0)
    return access


@dataclass(frozen=True, slots=True)
class _Channels:
    """Channel dims of a transposed convolution, whose weight is `[C, M/groups, *kernel]`."""

    parallel: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    input: Affine
    output: Affine
    weight: Affine


def _transposed_channels(groups: int, num_in: int, per_group: int) -> _Channels:
    if groups > 1 and per_group == 1 and num_in == groups:
        return _Channels((Dim("m", groups),), (), affine("m"), affine("m"), affine())
    if groups == 1:
        reduced: tuple[Dim, ...] = (Dim("c", num_in, "reduce"),)
        return _Channels((Dim("m", per_group),), reduced, affine("c"), affine("m"), affine("m"))
    inside = num_in // groups
    reduced = (Dim("c", inside, "reduce"),) if inside > 1 else ()
    in_channel = affine(("g", inside), *(d.name for d in reduced))
    parallel = (Dim("g", groups), Dim("m", per_group))
    return _Channels(parallel, reduced, in_channel, affine(("g", per_group), "m"), affine("m"))
