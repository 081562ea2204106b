"""Recipes of products, windows, samples and quantised operators."""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import numpy as np
from tests.fuzz.sketch import Sketch, Step, allowed_types, typed_apart

from tilewright.ir.dtype import DType


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
