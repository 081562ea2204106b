"""Recipes of operators that rearrange: shapes, slices, gathers, scatters."""

from __future__ import annotations

import numpy as np
from tests.fuzz.sketch import Sketch, Step, allowed_types

from tilewright.ir.dtype import DType


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
