"""Nodes of every family, for any opset and type: each recipe proposes one, which may be refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.fuzz.sketch import Sketch, Step, allowed_types, schema_of, typed_apart

from tilewright.ir.dtype import DType

Recipe = Callable[[Sketch], Step | None]

UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Relu",
    "LeakyRelu",
    "Elu",
    "Celu",
    "Selu",
    "ThresholdedRelu",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Mish",
    "Gelu",
    "IsNaN",
    "IsInf",
    "Not",
    "BitwiseNot",
    "Identity",
    "Shrink",
    "Swish",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Add",
    "Mul",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Equal",
    "And",
    "Or",
    "Xor",
]
BITWISE = ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]
VARIADIC = ["Max", "Min", "Sum", "Mean"]
REDUCE = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


def unary(m: Sketch) -> Step | None:
    name = m.choice(UNARY)
    x = m.value(name)
    if x is None:
        return None
    attributes = {}
    if name in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and m.flag():
        attributes["alpha"] = m.choice((0.5, 1.5, 0.1))
    if name == "HardSigmoid" and m.flag():
        attributes.update(alpha=0.25, beta=0.75)
    if name == "IsInf" and m.flag():
        attributes.update(detect_negative=m.number(0, 1), detect_positive=m.number(0, 1))
    if name == "Gelu" and m.flag():
        attributes["approximate"] = "tanh"
    if name == "Shrink":
        attributes.update(lambd=0.75, bias=m.choice((0.0, 0.5)))
    return m.step(name, [x], **attributes)


def binary(m: Sketch) -> Step | None:
    name = m.choice(BINARY)
    x = m.value(name)
    if x is None:
        return None
    pair = [x, m.partner(x)]
    return m.step(name, pair if m.flag() else pair[::-1])


def bitwise(m: Sketch) -> Step | None:
    name = m.choice(BITWISE)
    x = m.value(name)
    return None if x is None else m.step(name, [x, m.partner(x)])


def bit_shift(m: Sketch) -> Step | None:
    x = m.value("BitShift")
    if x is None:
        return None
    return m.step("BitShift", [x, m.partner(x)], direction=m.choice(("LEFT", "RIGHT")))


def modulo(m: Sketch) -> Step | None:
    x = m.value("Mod")
    if x is None:
        return None
    fmod = 1 if m.arrays[x].dtype.kind not in "iu" else m.number(0, 1)
    return m.step("Mod", [x, m.partner(x)], fmod=fmod)


def power(m: Sketch) -> Step | None:
    x = m.value("Pow")
    if x is None:
        return None
    y = m.partner(x)
    if m.flag():
        others = [d for d in allowed_types("Pow", m.opset, 1) if not d.name.startswith("COMPLEX")]
        y = m.fresh(m.arrays[y].shape, m.choice(sorted(others, key=lambda d: d.value)))
    return m.step("Pow", [x, y])


def variadic(m: Sketch) -> Step | None:
    name = m.choice(VARIADIC)
    x = m.value(name)
    if x is None:
        return None
    return m.step(name, [x, *(m.partner(x) for _ in range(m.number(0, 2)))])


def where(m: Sketch) -> Step | None:
    x = m.value("Where", position=1)
    if x is None:
        return None
    shape = m.arrays[x].shape
    condition = m.fresh(shape if m.flag() else shape[m.number(0, len(shape)) :], DType.BOOL)
    return m.step("Where", [condition, x, m.partner(x)])


def clip(m: Sketch) -> Step | None:
    x = m.value("Clip")
    if x is None:
        return None
    bounds = [m.like(x, ()) if m.flag(0.8) else "" for _ in range(m.number(0, 2))]
    return m.step("Clip", [x, *bounds])


def cast(m: Sketch) -> Step | None:
    x = m.value("Cast")
    if x is None:
        return None
    targets = sorted(allowed_types("Cast", m.opset, 0), key=lambda d: d.value)
    target = m.choice([d for d in targets if not d.name.startswith("COMPLEX")])
    if m.opset >= 15 and m.flag(0.2):
        return m.step("CastLike", [x, m.fresh((1,), target)])
    return m.step("Cast", [x], to=target.value)


def reduce_(m: Sketch) -> Step | None:
    name = m.choice(REDUCE)
    x = m.value(name, rank=(0, 4), huge=False)
    if x is None:
        return None
    rank = m.arrays[x].ndim
    axes = [int(a) for a in m.rng.permutation(rank)[: m.number(0, rank)]]
    axes = [a - rank if m.flag(0.3) else a for a in axes]
    keepdims = m.number(0, 1)
    schema = schema_of(name, m.opset)
    if len(schema.inputs) > 1:
        nothing = m.number(0, 1) if not axes else None
        extra = [m.numbers(*axes)] if axes or m.flag(0.3) else []
        return m.step(name, [x, *extra], keepdims=keepdims, noop_with_empty_axes=nothing)
    return m.step(name, [x], axes=axes or None, keepdims=keepdims)


def arg_extreme(m: Sketch) -> Step | None:
    name = m.choice(("ArgMax", "ArgMin"))
    x = m.value(name, rank=(1, 4))
    if x is None:
        return None
    rank = m.arrays[x].ndim
    return m.step(
        name,
        [x],
        axis=m.number(-rank, rank - 1),
        keepdims=m.number(0, 1),
        select_last_index=m.number(0, 1),
    )


def cumulative(m: Sketch) -> Step | None:
    x = m.value("CumSum", rank=(1, 3), huge=False)
    if x is None:
        return None
    rank = m.arrays[x].ndim
    axis = m.given(np.array(m.number(-rank, rank - 1), np.int64), constant=True)
    return m.step("CumSum", [x, axis], exclusive=m.number(0, 1), reverse=m.number(0, 1))


def top_k(m: Sketch) -> Step | None:
    x = m.value("TopK", rank=(1, 3))
    if x is None:
        return None
    axis = m.number(0, m.arrays[x].ndim - 1)
    k = m.numbers(m.number(0, m.arrays[x].shape[axis]), constant=True)
    return m.step("TopK", [x, k], 2, axis=axis, largest=m.number(0, 1))


def softmax(m: Sketch) -> Step | None:
    name = m.choice(("Softmax", "LogSoftmax", "Hardmax"))
    x = m.value(name, rank=(1, 4))
    if x is None:
        return None
    rank = m.arrays[x].ndim
    return m.step(name, [x], axis=m.number(-rank, rank - 1))


def normalisation(m: Sketch) -> Step | None:
    options = [
        "InstanceNormalization",
        "BatchNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "LRN",
    ]
    options += ["LayerNormalization"] * (m.opset >= 17) + ["GroupNormalization"] * (m.opset >= 21)
    options += ["RMSNormalization"] * (m.opset >= 23)
    name = m.choice(options)
    x = m.value(name, rank=(4, 4) if name == "MeanVarianceNormalization" else (2, 4), huge=False)
    if x is None:
        return None
    shape = m.arrays[x].shape
    if name in ("LpNormalization",):
        return m.step(name, [x], axis=m.number(0, len(shape) - 1), p=m.number(1, 2))
    if name == "MeanVarianceNormalization":
        return m.step(name, [x])
    if name == "LRN":
        return m.step(name, [x], size=m.choice((1, 2, 3, 5)))
    if name in ("LayerNormalization", "RMSNormalization"):
        axis = m.number(1, len(shape) - 1)
        factors = [
            m.like(x, shape[axis:], huge=False) for _ in range(m.number(1, 2 if name[0] == "L" else 1))
        ]
        return m.step(name, [x, *factors], axis=axis - (len(shape) if m.flag() else 0))
    channels = (shape[1],)
    if name == "GroupNormalization":
        groups = m.choice([g for g in range(1, shape[1] + 1) if shape[1] % g == 0] or [1])
        return m.step(
            name, [x, m.like(x, channels, huge=False), m.like(x, channels, huge=False)], num_groups=groups
        )
    factors = [m.like(x, channels, huge=False) for _ in range(2)]
    if name == "InstanceNormalization":
        return m.step(name, [x, *factors], epsilon=1e-2)
    variance = m.given(np.abs(m.arrays[m.like(x, channels, huge=False)]))
    return m.step(name, [x, *factors, m.like(x, channels, huge=False), variance])


def reshape(m: Sketch) -> Step | None:
    x = m.value("Reshape")
    if x is None:
        return None
    shape = list(m.arrays[x].shape)
    match m.number(0, 5):
        case 0 if 0 not in shape:
            shape = [-1]
        case 1 if len(shape) > 1:
            axis = m.number(0, len(shape) - 2)
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        case 2:
            shape.insert(m.number(0, len(shape)), 1)
        case 3 if shape and 0 not in shape:
            shape[m.number(0, len(shape) - 1)] = -1
        case 4 if shape and 0 not in shape:
            shape[m.number(0, len(shape) - 1)] = 0
        case _:
            shape = shape[::-1]
    allow = 1 if 0 in m.arrays[x].shape and m.opset >= 14 else None
    return m.step("Reshape", [x, m.numbers(*shape)], allowzero=allow)


def squeeze(m: Sketch) -> Step | None:
    name = m.choice(("Squeeze", "Unsqueeze", "Flatten"))
    x = m.value(name, rank=(0, 3))
    if x is None:
        return None
    shape = m.arrays[x].shape
    if name == "Flatten":
        return m.step(name, [x], axis=m.number(-len(shape), len(shape)))
    if name == "Squeeze":
        axes = [a - (len(shape) if m.flag(0.3) else 0) for a, d in enumerate(shape) if d == 1]
        return m.step(name, [x, m.numbers(*axes)] if axes or m.flag() else [x])
    count = m.number(1, 2)
    axes = [int(a) for a in m.rng.permutation(len(shape) + count)[:count]]
    return m.step(name, [x, m.numbers(*(a - (len(shape) + count if m.flag(0.3) else 0) for a in axes))])


def transpose(m: Sketch) -> Step | None:
    x = m.value("Transpose")
    if x is None:
        return None
    perm = [int(a) for a in m.rng.permutation(m.arrays[x].ndim)]
    return m.step("Transpose", [x], perm=perm if m.flag(0.8) and perm else None)


def concat(m: Sketch) -> Step | None:
    x = m.value("Concat", rank=(1, 4))
    if x is None:
        return None
    shape = m.arrays[x].shape
    axis = m.number(0, len(shape) - 1)
    parts = [x]
    for _ in range(m.number(0, 3)):
        parts.append(m.like(x, (*shape[:axis], m.extent(), *shape[axis + 1 :])))
    m.rng.shuffle(parts)
    return m.step("Concat", parts, axis=axis - (len(shape) if m.flag(0.3) else 0))


def split(m: Sketch) -> Step | None:
    x = m.value("Split", lambda a: max(a.shape, default=0) >= 2, rank=(1, 4))
    if x is None:
        return None
    shape = m.arrays[x].shape
    axis = int(np.argmax(shape))
    cuts = sorted(m.number(0, shape[axis]) for _ in range(m.number(1, 2)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape[axis]], strict=True)]
    if m.opset >= 18 and m.flag(0.3):
        count = m.number(1, min(3, shape[axis]))
        if -(-shape[axis] // count) * (count - 1) >= shape[axis]:
            return None
        return m.step("Split", [x], count, axis=axis, num_outputs=count)
    return m.step("Split", [x, m.numbers(*sizes)], len(sizes), axis=axis)


def slice_(m: Sketch) -> Step | None:
    x = m.value("Slice", rank=(1, 4))
    if x is None:
        return None
    shape = m.arrays[x].shape
    axes = [int(a) for a in m.rng.permutation(len(shape))[: m.number(1, len(shape))]]
    extremes = (-(2**63), 2**63 - 1, -(2**31), 2**31 - 1)
    ends = [
        [m.choice(extremes) if m.flag(0.2) else m.number(-shape[a] - 2, shape[a] + 2) for a in axes]
        for _ in range(2)
    ]
    steps = [m.choice((1, 1, 2, 3, -1, -2, 2**31 - 1, -(2**31))) for _ in axes]
    axes = [a - (len(shape) if m.flag(0.3) else 0) for a in axes]
    return m.step("Slice", [x, *(m.numbers(*n) for n in (*ends, axes, steps))])


def _indices(m: Sketch, shape: tuple[int, ...], extent: int) -> str:
    kind = m.choice((np.int64, np.int32))
    return m.given(np.asarray(m.rng.integers(-extent, extent, shape) if extent else np.zeros((0,)), kind))


def gather(m: Sketch) -> Step | None:
    x = m.value("Gather", rank=(1, 3))
    if x is None:
        return None
    shape = m.arrays[x].shape
    axis = m.number(0, len(shape) - 1)
    return m.step(
        "Gather", [x, _indices(m, m.shape(0, 2), shape[axis])], axis=axis - (len(shape) if m.flag(0.3) else 0)
    )


def gather_elements(m: Sketch) -> Step | None:
    x = m.value("GatherElements", lambda a: a.size > 0, rank=(1, 3))
    if x is None:
        return None
    shape = m.arrays[x].shape
    axis = m.number(0, len(shape) - 1)
    wanted = tuple(m.number(1, 5) if a == axis else m.number(1, d) for a, d in enumerate(shape))
    return m.step("GatherElements", [x, _indices(m, wanted, shape[axis])], axis=axis)


def gather_nd(m: Sketch) -> Step | None:
    x = m.value("GatherND", lambda a: a.size > 0, rank=(1, 4))
    if x is None:
        return None
    shape = m.arrays[x].shape
    batch = m.number(0, min(1, len(shape) - 1))
    depth = m.number(1, len(shape) - batch)
    lead = (*shape[:batch], m.number(1, 4))
    columns = [m.rng.integers(-d, d, lead) for d in shape[batch : batch + depth]]
    return m.step("GatherND", [x, m.given(np.stack(columns, -1).astype(np.int64))], batch_dims=batch)


def scatter(m: Sketch) -> Step | None:
    name = m.choice(("ScatterElements", "ScatterND"))
    x = m.value(name, lambda a: a.size > 0, rank=(1, 3))
    if x is None:
        return None
    shape = m.arrays[x].shape
    reductions = (
        ["none"] + (["add", "mul"] if m.opset >= 16 else []) + (["max", "min"] if m.opset >= 18 else [])
    )
    reduction = m.choice(reductions) if m.opset >= 16 else None
    if name == "ScatterElements":
        axis = m.number(0, len(shape) - 1)
        wanted = tuple(m.number(1, d) for d in shape)
        order = np.stack(
            [
                m.rng.permutation(shape[axis])[: wanted[axis]]
                for _ in range(int(np.prod(wanted)) // wanted[axis])
            ]
        )
        others = tuple(d for a, d in enumerate(wanted) if a != axis)
        index = np.moveaxis(order.reshape(*others, wanted[axis]), -1, axis)
        names = [x, m.given(index.astype(np.int64)), m.like(x, wanted, huge=False)]
        return m.step(name, names, axis=axis, reduction=reduction)
    count = m.number(1, shape[0])
    index = m.rng.permutation(shape[0])[:count].reshape(count, 1)
    updates = m.like(x, (count, *shape[1:]), huge=False)
    return m.step(name, [x, m.given(index.astype(np.int64)), updates], reduction=reduction)


def pad(m: Sketch) -> Step | None:
    x = m.value("Pad", rank=(1, 4))
    if x is None:
        return None
    shape = m.arrays[x].shape
    modes = ["constant", "constant", "edge", "reflect"] + ["wrap"] * (m.opset >= 19)
    mode = m.choice(modes)
    low = -1 if m.flag(0.3) else 0
    amounts = [m.number(low, 3) if m.flag(0.6) else 0 for _ in range(2 * len(shape))]
    inputs = [x, m.numbers(*amounts)]
    if mode == "constant" and m.flag():
        inputs.append(m.like(x, ()))
    return m.step("Pad", inputs, mode=mode)


def expand(m: Sketch) -> Step | None:
    name = m.choice(("Expand", "Tile"))
    x = m.value(name, rank=(0, 3))
    if x is None:
        return None
    shape = m.arrays[x].shape
    if name == "Tile":
        return m.step(
            name, [x, m.numbers(*(m.choice((0, 1, 1, 2, 3)) if m.empty else m.number(1, 3) for _ in shape))]
        )
    wanted = [m.extent() if d == 1 and m.flag() else m.choice((1, d)) for d in shape]
    return m.step(name, [x, m.numbers(*([m.extent()] if m.flag(0.3) else []), *wanted)])


def space_to_depth(m: Sketch) -> Step | None:
    name = m.choice(("DepthToSpace", "SpaceToDepth"))
    types = sorted(allowed_types(name, m.opset, 0), key=lambda d: d.value)
    dtype = m.choice([d for d in types if not d.name.startswith("COMPLEX")])
    block = m.number(1, 3)
    if name == "DepthToSpace":
        x = m.fresh((m.number(1, 2), block * block * m.number(1, 3), m.number(1, 3), m.number(1, 3)), dtype)
        return m.step(name, [x], blocksize=block, mode=m.choice(("DCR", "CRD")))
    x = m.fresh((m.number(1, 2), m.number(1, 3), block * m.number(1, 3), block * m.number(1, 3)), dtype)
    return m.step(name, [x], blocksize=block)


def trilu(m: Sketch) -> Step | None:
    x = m.value("Trilu", rank=(2, 4))
    if x is None:
        return None
    inputs = [x, m.given(np.array(m.number(-4, 4), np.int64), constant=True)] if m.flag() else [x]
    return m.step("Trilu", inputs, upper=m.number(0, 1))


def one_hot(m: Sketch) -> Step | None:
    indices = m.value("OneHot", rank=(0, 2), only=lambda d: d.is_integer)
    if indices is None:
        return None
    depth = m.given(np.array(m.number(1, 6), np.int64), constant=True)
    types = sorted(allowed_types("OneHot", m.opset, 2), key=lambda d: d.value)
    values = m.fresh((2,), m.choice([d for d in types if not d.name.startswith("COMPLEX")]))
    return m.step("OneHot", [indices, depth, values], axis=m.choice((-1, 0)))


def shape_of(m: Sketch) -> Step | None:
    name = m.choice(("Shape", "Size", "ConstantOfShape", "EyeLike"))
    if name == "ConstantOfShape":
        from onnx import numpy_helper

        dtype = m.choice((DType.FLOAT32, DType.INT64, DType.UINT8, DType.BOOL, DType.FLOAT16))
        value = numpy_helper.from_array(m.data((1,), dtype))
        return m.step(name, [m.numbers(*m.shape(0, 3), constant=True)], value=value)
    x = m.value(name, rank=(2, 2) if name == "EyeLike" else (0, 4))
    if x is None:
        return None
    if name == "EyeLike":
        return m.step(name, [x], k=m.number(-3, 3))
    if name == "Shape" and m.opset >= 15:
        return m.step(name, [x], start=m.number(-3, 3), end=m.number(-3, 3) if m.flag() else None)
    return m.step(name, [x])


def reverse_sequence(m: Sketch) -> Step | None:
    x = m.value("ReverseSequence", rank=(2, 3))
    if x is None:
        return None
    batch = m.number(0, 1)
    shape = m.arrays[x].shape
    lengths = m.rng.integers(min(1, shape[1 - batch]), shape[1 - batch] + 1, (shape[batch],))
    names = [x, m.given(np.asarray(lengths, np.int64))]
    return m.step("ReverseSequence", names, batch_axis=batch, time_axis=1 - batch)


def matmul(m: Sketch) -> Step | None:
    name = m.choice(("MatMul", "MatMul", "Gemm"))
    x = m.value(name, rank=(2, 2) if name == "Gemm" else (1, 4), huge=False)
    if x is None:
        return None
    shape = m.arrays[x].shape
    if name == "MatMul":
        lead = shape[:-2] if m.flag() else ()
        other = (*lead, shape[-1], m.extent()) if m.flag(0.8) else (shape[-1],)
        return m.step(name, [x, m.like(x, other, huge=False)])
    trans_a, trans_b = m.number(0, 1), m.number(0, 1)
    rows, inner = shape[::-1] if trans_a else shape
    columns = m.extent()
    inputs = [x, m.like(x, (columns, inner) if trans_b else (inner, columns), huge=False)]
    if m.flag(0.7):
        inputs.append(
            m.like(x, m.choice([(), (columns,), (1, columns), (rows, 1), (rows, columns)]), huge=False)
        )
    numbers = (1.0,) if m.arrays[x].dtype.kind in "iu" else (1.0, 0.5, 2.0)
    return m.step(
        name, inputs, transA=trans_a, transB=trans_b, alpha=m.choice(numbers), beta=m.choice(numbers)
    )


def convolution(m: Sketch) -> Step | None:
    name = m.choice(("Conv", "Conv", "ConvTranspose"))
    x = m.value(name, lambda a: a.size > 0, rank=(3, 4), huge=False)
    if x is None:
        return None
    _batch, channels, *space = m.arrays[x].shape
    group = m.choice([g for g in (1, 1, channels) if channels % g == 0])
    kernel = [m.number(1, 3) for _ in space]
    strides = [m.number(1, 3) for _ in space]
    dilations = [m.number(1, 2) for _ in space]
    filters = m.number(1, 3)
    if name == "Conv":
        weight, count = (filters * group, channels // group, *kernel), filters * group
    else:
        weight, count = (channels, filters, *kernel), filters * group
    inputs = [x, m.like(x, weight, huge=False)]
    if m.flag():
        inputs.append(m.like(x, (count,), huge=False))
    attributes = {
        "strides": strides,
        "dilations": dilations,
        "group": group,
        "kernel_shape": kernel if m.flag() else None,
    }
    kind = m.number(0, 4)
    if kind == 0 and (name == "Conv" or max(dilations) == 1):
        attributes["auto_pad"] = m.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif kind >= 2:
        attributes["pads"] = [m.number(0, 2) for _ in kernel * 2]
    if name == "ConvTranspose" and m.flag(0.3):
        attributes["output_padding"] = [
            m.number(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)
        ]
    return m.step(name, inputs, **attributes)


def pool(m: Sketch) -> Step | None:
    name = m.choice(("MaxPool", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    x = m.value(name, lambda a: a.size > 0, rank=(3, 5 if name == "MaxPool" else 4), huge=False)
    if x is None:
        return None
    if name.startswith("Global"):
        return m.step(name, [x])
    space = m.arrays[x].shape[2:]
    kernel = [m.number(1, 3) for _ in space]
    attributes = {"kernel_shape": kernel, "strides": [m.number(1, 4) for _ in space] if m.flag(0.7) else None}
    if m.flag(0.2):
        attributes["auto_pad"] = m.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif m.flag(0.7):
        attributes["pads"] = [m.number(0, k - 1) for k in kernel * 2]
    modern = m.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[name]
    if modern and m.flag(0.3):
        attributes["dilations"] = [m.number(1, 2) for _ in space]
    if (modern or name == "AveragePool") and m.flag(0.4):
        attributes["ceil_mode"] = 1
    if name == "AveragePool" and m.flag():
        attributes["count_include_pad"] = 1
    if name == "LpPool":
        attributes["p"] = m.number(1, 3)
    outputs = 2 if name == "MaxPool" and m.flag(0.3) else 1
    return m.step(name, [x], outputs, **attributes)


def resize(m: Sketch) -> Step | None:
    mode = m.choice(("nearest", "nearest", "linear", "cubic"))
    rank = (4, 4) if mode == "cubic" else (2, 4)
    x = m.value("Resize", lambda a: a.size > 0, rank=rank, huge=False, only=lambda d: d is not DType.BOOL)
    if x is None:
        return None
    shape = m.arrays[x].shape
    kinds = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize"]
    kinds += ["half_pixel_symmetric"] * (m.opset >= 19)
    kind = m.choice(kinds)
    first = max(0, len(shape) - 2)
    factors = [1.0] * first + [m.choice((0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0)) for _ in shape[first:]]
    sizes = [d if a < first else m.number(1, 2 * d + 1) for a, d in enumerate(shape)]
    by_size = m.flag()
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": kind,
        "nearest_mode": m.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    }
    if mode != "nearest" and m.flag(0.3):
        attributes["exclude_outside"] = 1 if mode == "cubic" else None
    if m.opset >= 18 and mode != "nearest" and m.flag(0.3):
        attributes["antialias"] = 1
    axes = list(range(len(shape)))
    if m.opset >= 18 and m.flag(0.3):
        axes = axes[first:]
        attributes["axes"] = axes
    if m.opset >= 18 and by_size and m.flag(0.3):
        attributes["keep_aspect_ratio_policy"] = m.choice(("stretch", "not_larger", "not_smaller"))
    roi = ""
    if kind == "tf_crop_and_resize":
        starts = [0.0 if a < first else m.choice((0.0, 0.25, -0.2, 0.4)) for a in axes]
        ends = [1.0 if a < first else m.choice((1.0, 0.75, 1.2, 0.6)) for a in axes]
        roi = m.given(np.array(starts + ends, np.float32), constant=True)
        if m.flag():
            attributes["extrapolation_value"] = m.choice((-1.5, 0.0, 7.0))
    if by_size:
        return m.step(
            "Resize", [x, roi, "", m.numbers(*(sizes[a] for a in axes), constant=True)], **attributes
        )
    scales = m.given(np.array([factors[a] for a in axes], np.float32), constant=True)
    return m.step("Resize", [x, roi, scales], **attributes)


def grid_sample(m: Sketch) -> Step | None:
    if m.opset < 16:
        return None
    x = m.value("GridSample", lambda a: a.size > 0 and a.shape[0] <= 3, rank=(4, 4), huge=False)
    if x is None:
        return None
    batch = m.arrays[x].shape[0]
    grid = m.rng.choice(
        (-1.5, -1.0, -0.9, -0.5, 0.0, 0.3, 0.5, 0.75, 1.0, 1.25), (batch, 3, m.number(1, 4), 2)
    )
    types = {"bilinear": ("bilinear", "nearest", "bicubic"), "linear": ("linear", "nearest", "cubic")}
    mode = m.choice(types["linear" if m.opset >= 20 else "bilinear"])
    kind = (
        np.float32
        if typed_apart("GridSample", m.opset, 0, 1) and m.arrays[x].dtype.kind != "f"
        else m.arrays[x].dtype
    )
    return m.step(
        "GridSample",
        [x, m.given(grid.astype(kind))],
        mode=mode,
        padding_mode=m.choice(("zeros", "border", "reflection")),
        align_corners=m.number(0, 1),
    )


def roi_align(m: Sketch) -> Step | None:
    x = m.value("RoiAlign", lambda a: a.size > 0, rank=(4, 4), huge=False)
    if x is None:
        return None
    count = m.number(1, 3)
    kind = m.arrays[x].dtype
    start = m.rng.choice((-1.0, 0.0, 0.5, 1.0, 2.25), (count, 2))
    boxes = np.concatenate([start, start + m.rng.choice((0.0, 0.5, 1.0, 2.0, 5.5), (count, 2))], axis=1)
    batch = m.rng.integers(0, m.arrays[x].shape[0], (count,))
    aligned = m.choice(("half_pixel", "output_half_pixel")) if m.opset >= 16 else None
    return m.step(
        "RoiAlign",
        [x, m.given(boxes.astype(kind)), m.given(np.asarray(batch, np.int64))],
        mode=m.choice(("avg", "max")),
        output_height=m.number(1, 3),
        output_width=m.number(1, 3),
        sampling_ratio=m.number(0, 2),
        spatial_scale=m.choice((1.0, 0.5)),
        coordinate_transformation_mode=aligned,
    )


def quantize(m: Sketch) -> Step | None:
    name = m.choice(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
    x = m.value(name, rank=(1, 3), huge=False)
    if x is None:
        return None
    shape, kind = m.arrays[x].shape, m.arrays[x].dtype
    if name == "DynamicQuantizeLinear":
        return m.step(name, [x], 3)
    axis = m.number(0, len(shape) - 1)
    per_axis = m.flag(0.4)
    scale_shape = (shape[axis],) if per_axis else ()
    scale = m.rng.choice((0.25, 0.5, 0.1, 1.0, 0.003), scale_shape)
    if name == "DequantizeLinear":
        zero = np.zeros(scale_shape, kind) if kind.itemsize == 4 else m.rng.integers(0, 9, scale_shape)
        names = [x, m.given(np.asarray(scale, np.float32)), m.given(np.asarray(zero, kind))]
        return m.step(name, names[: m.number(2, 3)], axis=axis)
    kinds = [d for d in allowed_types(name, m.opset, 2) if d.is_integer]
    target = m.choice(sorted(kinds, key=lambda d: d.value))
    factor = kind if kind.kind == "f" and kind.itemsize <= 4 else np.float32
    names = [
        x,
        m.given(np.asarray(scale, factor)),
        m.given(np.asarray(m.rng.integers(0, 9, scale_shape), target.numpy)),
    ]
    return m.step(name, names, axis=axis)


def integer_product(m: Sketch) -> Step | None:
    a = m.choice((DType.UINT8, DType.INT8))
    b = m.choice((DType.UINT8, DType.INT8))
    rows, inner, columns = m.number(1, 4), m.number(1, 9), m.number(1, 5)
    x, y = m.fresh((rows, inner), a), m.fresh((inner, columns), b)
    zeros = [m.fresh((), a), m.fresh((), b)]
    return m.step("MatMulInteger", [x, y, *zeros[: m.number(0, 2)]])


def einsum(m: Sketch) -> Step | None:
    equation = m.choice(("ij,jk->ik", "bij,bjk->bik", "ii->i", "ij->ji", "ij->", "i,j->ij", "...ij->...ji"))
    x = m.value(
        "Einsum",
        rank=(2, 2) if not equation.startswith(("b", "i,")) else ((3, 3) if equation[0] == "b" else (1, 1)),
        huge=False,
    )
    if x is None:
        return None
    shape = m.arrays[x].shape
    if equation.startswith("ii") and shape[0] != shape[1]:
        return None
    if "," not in equation:
        return m.step("Einsum", [x], equation=equation)
    other = {"ij": (shape[-1], m.extent()), "bi": (shape[0], shape[-1], m.extent()), "i,": (m.extent(),)}
    return m.step("Einsum", [x, m.like(x, other[equation[:2]], huge=False)], equation=equation)


def range_(m: Sketch) -> Step | None:
    dtype = m.choice((DType.INT64, DType.INT32, DType.FLOAT32, DType.FLOAT64, DType.INT16))
    numbers = (m.number(-5, 5), m.number(-5, 9), m.choice((1, 2, 3, -1, -2)))
    return m.step("Range", [m.given(np.array(n, dtype.numpy), constant=True) for n in numbers])


# How often each is taken.
RECIPES: tuple[tuple[Recipe, int], ...] = (
    (unary, 10),
    (binary, 8),
    (bitwise, 2),
    (bit_shift, 2),
    (modulo, 3),
    (power, 2),
    (variadic, 3),
    (where, 2),
    (clip, 3),
    (cast, 6),
    (reduce_, 6),
    (arg_extreme, 3),
    (cumulative, 2),
    (top_k, 2),
    (softmax, 3),
    (normalisation, 4),
    (reshape, 3),
    (squeeze, 2),
    (transpose, 2),
    (concat, 3),
    (split, 2),
    (slice_, 4),
    (gather, 3),
    (gather_elements, 2),
    (gather_nd, 2),
    (scatter, 3),
    (pad, 4),
    (expand, 2),
    (space_to_depth, 1),
    (trilu, 2),
    (one_hot, 1),
    (shape_of, 2),
    (reverse_sequence, 1),
    (matmul, 4),
    (convolution, 5),
    (pool, 5),
    (resize, 6),
    (grid_sample, 3),
    (roi_align, 2),
    (quantize, 4),
    (integer_product, 1),
    (einsum, 1),
    (range_, 1),
)
# Each result element depends on few numbers: errors are judged one by one.
LOCAL = frozenset(
    (
        *UNARY,
        *BINARY,
        *BITWISE,
        "BitShift",
        "Mod",
        "Pow",
        "Max",
        "Min",
        "Sum",
        "Mean",
        "Where",
        "Clip",
        "Cast",
    )
)
