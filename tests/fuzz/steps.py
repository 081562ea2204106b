"""The nodes and small blocks that random graphs are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.fuzz.maker import FLOATS, INTEGERS, MAX_MACS, Maker

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value


def is_float(value: Value) -> bool:
    return value.dtype.is_float


def is_single(value: Value) -> bool:
    return value.dtype is DType.FLOAT32


def is_image(value: Value) -> bool:
    return is_float(value) and 3 <= len(value.shape) <= 5


# Element by element.


def unary(m: Maker) -> None:
    names = ["Relu", "Neg", "Abs", "Identity", "Clip"]
    if m.exact:
        names += ["Sign", "Floor", "Ceil", "Round"]
    else:
        names += ["Sigmoid", "Tanh", "HardSwish", "Erf", "LeakyRelu", "Elu", "Softplus", "Gelu"]
        names += ["HardSigmoid", "Exp", "Cos", "Softsign", "Mish"]
    x = m.pick(is_float)
    if x is None:
        return
    name = m.choice(names)
    if name == "Clip":
        low, high = (m.literal(np.array(n, x.dtype.numpy)) for n in (-2.0, 2.0))
        m.add(name, [x, low, high])
    else:
        m.add(name, [x])


def binary(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is not DType.BOOL)
    if x is None:
        return
    m.add(m.choice(("Add", "Mul", "Sub", "Add", "Max", "Min")), partners(m, x))


def partners(m: Maker, x: Value) -> list[Value]:
    """`x` and something it broadcasts with, in either order."""
    kind, shape = m.number(0, 6), x.shape
    y = m.pick(lambda v: v.dtype is x.dtype and broadcasts(v.shape, shape)) if kind >= 3 else None
    if y is None:
        if kind == 0:
            other: tuple[int, ...] = ()
        elif kind == 1 and len(shape) >= 2:
            other = tuple(d if a == 1 else 1 for a, d in enumerate(shape))
        elif kind == 2:
            other = shape[m.number(0, len(shape)) :]
        else:
            other = tuple(d if m.flag() else 1 for d in shape)
        y = m.constant(other, x.dtype)
    return [x, y] if m.flag() else [y, x]


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(i == j or 1 in (i, j) for i, j in zip(reversed(a), reversed(b), strict=False))


def compare(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is not DType.BOOL)
    if x is None or not m.exact:
        return
    condition = m.add(m.choice(("Less", "Greater", "Equal", "LessOrEqual")), partners(m, x), DType.BOOL)
    if condition is None or m.flag(0.3):
        return
    if m.flag(0.3):
        condition = m.add("Not", [condition])
    a = m.pick(lambda v: v.dtype is x.dtype and broadcasts(v.shape, x.shape)) or x
    other = m.constant(x.shape[-1:], x.dtype)
    assert condition is not None
    m.add("Where", [condition, a, other], x.dtype)


def logic(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype is DType.BOOL)
    if x is not None:
        m.add(m.choice(("And", "Or", "Xor")), partners(m, x))


def cast(m: Maker) -> None:
    x = m.pick()
    if x is None:
        return
    if m.exact:
        target = m.choice((*FLOATS[:3], *INTEGERS, DType.BOOL))
    elif is_float(x):
        target = m.choice(FLOATS)
    else:
        return
    if is_float(x) and target in INTEGERS:
        limits, array = np.iinfo(target.numpy), m.arrays[x].astype(np.float64)
        if array.min() < limits.min or array.max() > limits.max:
            return  # what becomes of numbers out of range is not defined
    y = m.add("Cast", [x], target, to=target.value)
    if y is not None and m.flag(0.6):
        m.add("Cast", [y], DType.FLOAT32, to=DType.FLOAT32.value)


def arg_max(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 1)
    if x is not None and m.exact:
        name, axis = m.choice(("ArgMax", "ArgMin")), m.number(0, len(x.shape) - 1)
        m.add(name, [x], DType.INT64, axis=axis, keepdims=m.number(0, 1), select_last_index=m.number(0, 1))


# Windows.


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


# Products.


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


# Movement.


def reshape(m: Maker) -> None:
    x = m.pick()
    if x is None:
        return
    shape = list(x.shape)
    match m.number(0, 5):
        case 0:
            first = m.choice([d for d in range(1, x.num_elements + 1) if x.num_elements % d == 0])
            shape = [first, x.num_elements // first]
        case 1 if len(shape) >= 2:
            axis = m.number(0, len(shape) - 2)
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        case 2 | 3 if shape:
            axis = m.number(0, len(shape) - 1)
            part = m.choice([d for d in range(1, shape[axis] + 1) if shape[axis] % d == 0])
            shape[axis : axis + 1] = [part, shape[axis] // part]
        case 4:
            shape.insert(m.number(0, len(shape)), 1)
        case 5:
            shape = [d for d in shape if d != 1]
    m.add("Reshape", [x, m.integers(*shape)])


def flatten(m: Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 1)
    if x is not None:
        m.add("Flatten", [x], axis=m.number(0, len(x.shape)))


def transpose(m: Maker) -> None:
    x = m.pick()
    if x is not None:
        m.add("Transpose", [x], perm=tuple(int(a) for a in m.rng.permutation(len(x.shape))))


def concat(m: Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 1)
    if x is None:
        return
    axis = m.number(0, len(x.shape) - 1) if m.flag() else min(1, len(x.shape) - 1)

    def fits(v: Value) -> bool:
        same = len(v.shape) == len(x.shape) and v.dtype is x.dtype
        return same and all(
            a == axis or d == e for a, (d, e) in enumerate(zip(v.shape, x.shape, strict=True))
        )

    parts = [x, *(v for v in (m.pick(fits) for _ in range(m.number(1, 3))) if v is not None)]
    if m.flag(0.15):
        parts.append(m.constant((*x.shape[:axis], 2, *x.shape[axis + 1 :]), x.dtype))
    m.rng.shuffle(parts)  # type: ignore[arg-type]
    m.add("Concat", parts, axis=axis)


def split(m: Maker) -> None:
    x = m.pick(lambda v: max(v.shape, default=0) >= 2)
    if x is None:
        return
    axis = m.choice([a for a, d in enumerate(x.shape) if d >= 2])
    extent = x.shape[axis]
    count = m.number(2, min(3, extent))
    cuts = sorted(int(c) for c in m.rng.choice(np.arange(1, extent), count - 1, replace=False))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)]
    m.add("Split", [x, m.integers(*sizes)], *([x.dtype] * count), axis=axis)


def slice_(m: Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 1)
    if x is None:
        return
    axis = m.number(0, len(x.shape) - 1)
    extent, step = x.shape[axis], m.choice((1, 1, 1, 2, 3, -1, -2))
    start = m.number(0, extent - 1)
    stop = m.number(start + 1, extent) if step > 0 else m.choice((-extent - 1, m.number(-extent - 1, start)))
    m.add("Slice", [x, *(m.integers(n) for n in (start, stop, axis, step))])


def gather(m: Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 1)
    if x is None:
        return
    axis = m.number(0, len(x.shape) - 1)
    shape = m.choice([(), (1,), (3,), (2, 2)])
    chosen = m.rng.integers(-x.shape[axis], x.shape[axis], shape)
    m.add("Gather", [x, m.literal(np.asarray(chosen, np.int64))], axis=axis)


def gather_computed(m: Maker) -> None:
    """Rows selected by indices that the model computes from an input."""
    x = m.pick(lambda v: len(v.shape) >= 1 and v.shape[0] >= 2)
    if x is None:
        return
    shape = m.choice([(1,), (4,), (3, 2)])
    low, high = m.input(shape, DType.INT64), m.constant(shape, DType.INT64)
    summed = m.add(m.choice(("Add", "Sub")), [low, high])
    bound = m.literal(np.array(x.shape[0], np.int64))
    index = None if summed is None else m.add("Mod", [summed, bound])
    if index is not None:
        m.add("Gather", [x, index], x.dtype, axis=0)


def pad(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 1)
    if x is None:
        return
    mode = m.choice(("constant", "constant", "reflect", "edge"))
    low = -1 if mode == "constant" else 0
    amounts = [m.number(low, 2) if m.flag(0.4) else 0 for _ in range(2 * len(x.shape))]
    inputs = [x, m.integers(*amounts)]
    if mode == "constant" and m.flag():
        inputs.append(m.literal(np.array(m.choice((-1.0, 0.5)), x.dtype.numpy)))
    m.add("Pad", inputs, mode=mode)


def expand(m: Maker) -> None:
    x = m.pick()
    if x is not None:
        shape = [m.number(1, 4) if d == 1 else d for d in x.shape]
        m.add("Expand", [x, m.integers(*([m.number(1, 2)] if m.flag(0.3) else []), *shape)])


def tile(m: Maker) -> None:
    x = m.pick(lambda v: len(v.shape) >= 1)
    if x is not None:
        m.add("Tile", [x, m.integers(*(m.choice((1, 1, 1, 2, 3)) for _ in x.shape))])


def resize(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) == 4)
    if x is None:
        return
    empty = m.literal(np.zeros(0, np.float32))
    scales = m.literal(np.array([1, 1, m.choice((1, 2, 3)), m.choice((1, 2, 2.5))], np.float32))
    mode = "nearest" if m.exact else m.choice(("nearest", "linear", "cubic"))
    kind = m.choice(("asymmetric", "half_pixel", "align_corners"))
    if kind == "align_corners" and 2.5 in m.arrays[scales]:
        kind = "half_pixel"  # ONNX Runtime aligns with the rounded size, the standard with the exact one
    m.add("Resize", [x, empty, scales], mode=mode, coordinate_transformation_mode=kind, nearest_mode="floor")


def depth_to_space(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) == 4)
    if x is None:
        return
    if x.shape[1] % 4 == 0 and m.flag():
        m.add("DepthToSpace", [x], blocksize=2, mode=m.choice(("DCR", "CRD")))
    elif x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
        m.add("SpaceToDepth", [x], blocksize=2)


# Normalisation and reduction.


def batch_norm(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 2)
    if x is not None:
        c = x.shape[1]
        inputs = [x, m.constant((c,)), m.constant((c,)), m.constant((c,)), m.positive((c,))]
        m.add("BatchNormalization", inputs, epsilon=0.0 if m.exact else 1e-5)


def normalisation(m: Maker) -> None:
    x = m.pick(lambda v: is_float(v) and len(v.shape) >= 2 and v.shape[-1] > 1)
    if x is None or m.exact:
        return
    match m.number(0, 3):
        case 0:
            m.add(m.choice(("Softmax", "LogSoftmax")), [x], axis=m.number(0, len(x.shape) - 1))
        case 1:
            axis = m.number(1, len(x.shape) - 1)
            factors = [m.constant(x.shape[axis:], x.dtype) for _ in range(2)]
            m.add("LayerNormalization", [x, *factors], axis=axis, epsilon=1e-2)
        case 2 if is_image(x) and is_single(x):
            c = x.shape[1]
            inputs = [x, m.constant((c,)), m.constant((c,))]
            m.add("InstanceNormalization", inputs, epsilon=1e-2)
        case _:
            m.add("Softmax", [x], axis=-1)


def reduce_(m: Maker) -> None:
    x = m.pick(lambda v: v.dtype in (DType.FLOAT32, DType.FLOAT64, DType.INT32) and len(v.shape) >= 1)
    if x is None:
        return
    names = ["ReduceSum", "ReduceMax", "ReduceMin"]
    if is_float(x):
        names += ["ReduceMean"] if m.exact else ["ReduceMean", "ReduceL2", "ReduceLogSumExp"]
    count = m.number(1, len(x.shape))
    axes = sorted(int(a) for a in m.rng.choice(len(x.shape), count, replace=False))
    m.add(m.choice(names), [x, m.integers(*axes)], keepdims=m.number(0, 1))


def cumulative(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 1)
    if x is not None:
        axis = m.literal(np.array(m.number(0, len(x.shape) - 1), np.int64))
        m.add("CumSum", [x, axis], exclusive=m.number(0, 1), reverse=m.number(0, 1))


def top_k(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) >= 1)
    if x is not None and m.exact:
        axis = m.number(0, len(x.shape) - 1)
        m.add("TopK", [x, m.integers(m.number(1, x.shape[axis]))], DType.FLOAT32, DType.INT64, axis=axis)


# Blocks.


def residual(m: Maker) -> None:
    x = m.pick(is_image)
    if x is not None:
        y = conv(m, x, x.shape[1])
        if y is not None and y.shape == x.shape:
            total = m.add("Add", [x, y] if m.flag() else [y, x])
            if total is not None:
                m.add("Relu", [total])


def dense_connection(m: Maker) -> None:
    """Each layer's result joins what all later layers read, as in DenseNet."""
    x = m.pick(is_image)
    for _ in range(m.number(2, 3)):
        if x is None:
            return
        y = conv(m, x, m.choice((4, 8, 12, 16)))
        if y is None or y.shape[2:] != x.shape[2:]:
            return
        x = m.add("Concat", [x, y], axis=1)


def branches(m: Maker) -> None:
    """Several ways from one tensor to one concatenation, as in Inception and Fire modules."""
    x = m.pick(is_image)
    if x is None:
        return
    parts = [y for y in (conv(m, x) for _ in range(m.number(2, 4))) if y is not None]
    if m.flag(0.3):
        parts.append(x)
    parts = [y for y in parts if y.shape[2:] == x.shape[2:]]
    if parts:
        m.add("Concat", parts, axis=1)


def channel_shuffle(m: Maker) -> None:
    x = m.pick(lambda v: is_image(v) and v.shape[1] % 2 == 0)
    if x is None:
        return
    batch, channels, *space = x.shape
    wide = m.add("Reshape", [x, m.integers(batch, 2, channels // 2, *space)])
    perm = (0, 2, 1, *range(3, 3 + len(space)))
    turned = None if wide is None else m.add("Transpose", [wide], perm=perm)
    if turned is not None:
        m.add("Reshape", [turned, m.integers(batch, channels, *space)])


def attention(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and len(v.shape) == 3 and v.shape[-1] % 4 == 0 and v.shape[1] <= 40)
    if x is None or m.exact:
        return
    batch, steps, width = x.shape
    heads = m.choice((1, 2, 4))

    def projected(perm: tuple[int, ...]) -> Value | None:
        y = m.add("MatMul", [x, m.constant((width, width), scale=width**-0.5)])
        y = None if y is None else m.add("Add", [y, m.constant((width,))])
        y = None if y is None else m.add("Reshape", [y, m.integers(batch, steps, heads, width // heads)])
        return None if y is None else m.add("Transpose", [y], perm=perm)

    q, k, v = projected((0, 2, 1, 3)), projected((0, 2, 3, 1)), projected((0, 2, 1, 3))
    scores = None if q is None or k is None else m.add("MatMul", [q, k])
    weights = None if scores is None else m.add("Softmax", [scores], axis=-1)
    context = None if weights is None or v is None else m.add("MatMul", [weights, v])
    turned = None if context is None else m.add("Transpose", [context], perm=(0, 2, 1, 3))
    if turned is not None:
        m.add("Reshape", [turned, m.integers(batch, steps, width)])


def excite(m: Maker) -> None:
    x = m.pick(lambda v: is_single(v) and is_image(v))
    if x is None:
        return
    pooled = m.add("GlobalMaxPool" if m.exact else "GlobalAveragePool", [x])
    squeezed = None if pooled is None else conv(m, pooled, x.shape[1])
    if squeezed is not None:
        gate = m.add("Clip" if m.exact else "Sigmoid", [squeezed])
        if gate is not None:
            m.add("Mul", [x, gate] if m.flag() else [gate, x])


STEPS: tuple[tuple[Callable[[Maker], None], int], ...] = (
    (unary, 8),
    (binary, 10),
    (compare, 3),
    (logic, 1),
    (cast, 3),
    (arg_max, 1),
    (convolution, 12),
    (transposed_convolution, 2),
    (pool, 4),
    (global_pool, 1),
    (matmul, 5),
    (product, 3),
    (gemm, 4),
    (reshape, 5),
    (flatten, 1),
    (transpose, 5),
    (concat, 5),
    (split, 3),
    (slice_, 4),
    (gather, 2),
    (gather_computed, 1),
    (pad, 3),
    (expand, 1),
    (tile, 1),
    (resize, 1),
    (depth_to_space, 1),
    (batch_norm, 2),
    (normalisation, 5),
    (reduce_, 4),
    (cumulative, 1),
    (top_k, 1),
    (residual, 4),
    (dense_connection, 3),
    (branches, 4),
    (channel_shuffle, 2),
    (attention, 3),
    (excite, 2),
)


def random_maker(seed: int) -> Maker:
    """A random graph with its sample data: equal seeds give equal graphs."""
    m = Maker(seed, exact=seed % 2 == 0)
    dtype = DType.FLOAT32 if m.flag(0.85) else m.choice((DType.FLOAT64, DType.FLOAT16))
    shapes: list[tuple[int, ...]] = []
    if m.flag(0.75):
        size = m.number(1, 3) if m.flag(0.2) else m.number(4, 12)
        space = [size, m.number(1, 11)] if m.flag(0.75) else [m.number(1, 7) for _ in range(m.choice((1, 3)))]
        shapes.append((m.number(1, 2), m.choice((1, 2, 3, 4, 8, 12, 16, 17, 20)), *space))
        shapes += shapes[:1] if m.flag(0.3) else []
    if not shapes or m.flag(0.3):
        shapes.append((m.number(1, 2), m.number(1, 20), m.choice((1, 4, 8, 12, 16, 24))))
    if m.flag(0.25):
        shapes.append(m.choice([(), (m.number(1, 40),), (m.number(1, 9), m.number(1, 40))]))
    for shape in shapes:
        m.input(shape, dtype)
    steps = [step for step, weight in STEPS for _ in range(weight)]
    target = m.number(3, 12) if m.flag(0.7) else m.number(12, 30)
    for _ in range(4 * target):
        if len(m.graph.nodes) >= target:
            break
        m.choice(steps)(m)
    m.finish()
    return m
