"""Nodes that move elements and change none."""

from __future__ import annotations

import numpy as np
from tests.fuzz.maker import Maker
from tests.fuzz.pick import is_float, is_single

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Value


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
