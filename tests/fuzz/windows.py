"""Nodes that sum products, or look at windows: convolutions, pooling, matrix products."""

from __future__ import annotations

import numpy as np
from tests.fuzz.maker import MAX_MACS, Maker
from tests.fuzz.pick import broadcasts, is_float, is_image

from tilewright.ir.graph import Value


def convolution(m: Maker) -> None:
    x = m.pick(is_image)
    if x is not None:
        conv(m, x)


def conv(m: Maker, x: Value, filters: int | None = None) -> Value | None:
    rank, channels = len(x.shape) - 2, x.shape[1]
    kernel = [m.choice((1, 1, 2, 3, 3, 4, 5)) for _ in range(rank)]
    kernel = [k if k <= 2 * d + 1 else 1 for k, d in zip(kernel, x.shape[2:], strict=True)]
    group = m.choice([1, 1, channels, m.choice([g for g in range(1, channels + 1) if channels % g == 0])])
    if filters is None:
        filters = group * m.choice((1, 2, 3, 4, 8) if group > 1 else (1, 3, 8, 16, 17, 24, 32))
    elif filters % group:
        group = 1
    plain = m.flag(0.5)
    strides = [1 if plain else m.number(1, 3) for _ in kernel]
    dilations = [1 if plain or m.flag(0.7) else 2 for _ in kernel]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if m.flag(0.6):
        pads = [(r - 1) // 2 for r in reach] + [r // 2 for r in reach]
    else:
        pads = [m.number(0, max(0, r - 1)) for r in reach * 2]
    shape = (filters, channels // group, *kernel)
    if int(np.prod(shape)) * int(np.prod(x.shape[2:])) * x.shape[0] > MAX_MACS:
        return None
    weight = m.weight(shape, x.dtype)
    if not m.sums_exactly(x, weight, int(np.prod(shape[1:]))):
        return None
    inputs = [x, weight]
    if m.flag():
        inputs.append(m.constant((filters,), x.dtype))
    return m.add(
        "Conv",
        inputs,
        kernel_shape=tuple(kernel),
        strides=tuple(strides),
        dilations=tuple(dilations),
        pads=tuple(pads),
        group=group,
    )


def transposed_convolution(m: Maker) -> None:
    x = m.pick(is_image)
    if x is None:
        return
    rank, channels = len(x.shape) - 2, x.shape[1]
    group = m.choice([g for g in (1, 1, channels) if channels % g == 0])
    kernel = [m.number(1, 4) for _ in range(rank)]
    strides = [m.number(1, 3) for _ in range(rank)]
    weight = m.weight((channels, m.choice((1, 2, 8)), *kernel), x.dtype)
    if m.sums_exactly(x, weight, int(np.prod(weight.shape))):
        m.add(
            "ConvTranspose",
            [x, weight],
            kernel_shape=tuple(kernel),
            strides=tuple(strides),
            pads=tuple(m.number(0, k - 1) for k in kernel * 2),
            output_padding=tuple(m.number(0, s - 1) for s in strides),
            group=group,
        )


def pool(m: Maker) -> None:
    x = m.pick(is_image)
    if x is None:
        return
    kernel = [m.choice((1, 2, 2, 3)) for _ in x.shape[2:]]
    pads = [m.number(0, k - 1) for k in kernel * 2]
    strides = tuple(m.number(1, 2) for _ in kernel)
    ceil = m.number(0, 1)
    if m.flag():
        m.add("MaxPool", [x], kernel_shape=tuple(kernel), strides=strides, pads=tuple(pads), ceil_mode=ceil)
    else:
        m.add(
            "AveragePool",
            [x],
            kernel_shape=tuple(kernel),
            strides=strides,
            pads=tuple(pads),
            count_include_pad=m.number(0, 1),
        )


def global_pool(m: Maker) -> None:
    x = m.pick(is_image)
    if x is not None:
        m.add(m.choice(("GlobalAveragePool", "GlobalMaxPool")), [x])


def matmul(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 1)
    if x is None:
        return
    depth, columns = x.shape[-1], m.choice((1, 2, 5, 8, 16, 17, 33, 48, 50))
    shape: tuple[int, ...] = (depth, columns)
    if m.flag(0.15):
        shape = (depth,)
    elif m.flag(0.2) and len(x.shape) > 2:
        shape = (*(d if m.flag() else 1 for d in x.shape[:-2]), *shape)
    y = m.weight(shape, x.dtype)
    if m.sums_exactly(x, y, depth):
        m.add("MatMul", [x, y] if m.flag(0.9) else [transposed(m, y), transposed(m, x)])


def transposed(m: Maker, x: Value) -> Value | None:
    if len(x.shape) < 2:
        return x
    if x.data is not None:
        return m.literal(np.swapaxes(x.data, -1, -2).copy())
    axes = list(range(len(x.shape)))
    return m.add("Transpose", [x], perm=(*axes[:-2], axes[-1], axes[-2]))


def product(m: Maker) -> None:
    """Two computed factors, the second transposed where that fits."""
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 2)
    if x is None:
        return
    y = m.pick(lambda v: v.dtype is x.dtype and len(v.shape) >= 2 and v.shape[-1] == x.shape[-1])
    if y is None or not broadcasts(x.shape[:-2], y.shape[:-2]) or not m.sums_exactly(x, y, x.shape[-1]):
        return
    turned = transposed(m, y)
    if turned is not None:
        m.add("MatMul", [x, turned])


def gemm(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) == 2)
    if x is None:
        return
    turn_a, turn_b, columns = m.number(0, 1), m.number(0, 1), m.choice((1, 3, 8, 16, 31, 64))
    rows, depth = reversed(x.shape) if turn_a else x.shape
    weight = m.weight((columns, depth) if turn_b else (depth, columns), x.dtype)
    bias = m.choice([None, (), (columns,), (1, columns), (rows, 1), (rows, columns)])
    inputs = [x, weight] + ([] if bias is None else [m.constant(bias, x.dtype)])
    if m.sums_exactly(x, weight, depth):
        m.add("Gemm", inputs, transA=turn_a, transB=turn_b, alpha=m.choice((1.0, 0.5, 2.0)), beta=1.0)
