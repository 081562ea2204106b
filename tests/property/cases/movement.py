"""Cases of operators that only move elements."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, shapes

from tilewright.ir.graph import Attribute


def _data(draw: Draw, shape: tuple[int, ...]) -> Array:
    """Every element different, so that a misplaced one shows."""
    return np.arange(prod(shape), dtype=draw(st.sampled_from([np.float32, np.int64, np.float16]))).reshape(
        shape
    )


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _factors(draw: Draw, size: int) -> list[int]:
    """A random shape of that many elements."""
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
        shape.append(factor)
        size //= factor
    return shape


@generator("Reshape")
def reshape(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw, max_extent=6))
    target = _factors(draw, x.size) or [1]
    for axis in range(min(x.ndim, len(target))):
        if target[axis] == x.shape[axis] and draw(st.booleans()):
            target[axis] = 0
    if draw(st.booleans()):
        target[draw(st.integers(0, len(target) - 1))] = -1
    return case(op_type, [x, _ints(*target)], opset=14, constants=(1,), exact=True)


@generator("Flatten")
def flatten(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw))
    return case(op_type, [x], {"axis": draw(st.integers(-x.ndim, x.ndim))}, opset=13, exact=True)


@generator("Squeeze")
def squeeze(draw: Draw, op_type: str) -> Case:
    shape = tuple(draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4)))
    x = _data(draw, shape)
    ones = [a for a, extent in enumerate(shape) if extent == 1]
    inputs = [x]
    if draw(st.booleans()) and ones:
        axes = draw(st.lists(st.sampled_from(ones), min_size=1, unique=True))
        inputs.append(_ints(*(a - x.ndim if draw(st.booleans()) else a for a in axes)))
    return case(op_type, inputs, opset=13, constants=(1,), exact=True)


@generator("Unsqueeze")
def unsqueeze(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw, max_extent=3, high=3))
    count = draw(st.integers(1, 2))
    rank = x.ndim + count
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=count, max_size=count, unique=True))
    signed = [a - rank if draw(st.booleans()) else a for a in axes]
    return case(op_type, [x, _ints(*signed)], opset=13, constants=(1,), exact=True)


@generator("Expand")
def expand(draw: Draw, op_type: str) -> Case:
    full = shapes(draw)
    shape = tuple(1 if draw(st.booleans()) else e for e in full)[draw(st.integers(0, len(full) - 1)) :]
    target = [1 if draw(st.integers(0, 3)) == 0 else e for e in full]
    return case(op_type, [_data(draw, shape), _ints(*target)], opset=13, constants=(1,), exact=True)


@generator("Transpose")
def transpose(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw))
    attributes: dict[str, Attribute] = {}
    if draw(st.booleans()):
        attributes["perm"] = tuple(draw(st.permutations(range(x.ndim))))
    return case(op_type, [x], attributes, opset=13, exact=True)


@generator("Concat")
def concat(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    inputs: list[Array] = []
    for _ in range(draw(st.integers(1, 3))):
        part = list(shape)
        part[axis] = draw(st.integers(0 if inputs else 1, 4))
        inputs.append(integers(draw, part))
    return case(op_type, inputs, {"axis": axis}, opset=13, exact=True)


@generator("Split")
def split(draw: Draw, op_type: str) -> Case:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    shape = list(shapes(draw, high=3))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    form = draw(st.sampled_from(["sizes", "num_outputs", "equal"]))
    outputs = (True,) * len(sizes)
    attributes: dict[str, Attribute] = {"axis": axis}
    if form == "sizes":
        shape[axis] = sum(sizes)
        x = _data(draw, tuple(shape))
        return case(
            op_type, [x, _ints(*sizes)], attributes, opset=13, constants=(1,), outputs=outputs, exact=True
        )
    shape[axis] = 2 * len(sizes)
    if form == "num_outputs":
        shape[axis] -= draw(st.integers(0, 1))
        attributes["num_outputs"] = len(sizes)
    x = _data(draw, tuple(shape))
    opset = 18 if form == "num_outputs" else 13
    return case(op_type, [x], attributes, opset=opset, outputs=outputs, exact=True)


@generator("Slice")
def slice_case(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw, max_extent=7))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, unique=True))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        first, last = sorted((draw(st.integers(0, extent - 1)), draw(st.integers(0, extent - 1))))
        start, end = (first, last + 1) if step > 0 else (last, first - 1)
        # The same place counted from the end, and ends far outside.
        start = start - extent if draw(st.booleans()) else start
        if end < 0 or (step < 0 and draw(st.integers(0, 3)) == 0):
            end = -(2**31)
        elif step > 0 and draw(st.integers(0, 3)) == 0:
            end = 2**31
        starts.append(start)
        ends.append(end)
        steps.append(step)
    inputs = [x, _ints(*starts), _ints(*ends), _ints(*axes), _ints(*steps)]
    return case(op_type, inputs, opset=13, constants=(1, 2, 3, 4), exact=True)


@generator("Pad")
def pad(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw, high=3))
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, unique=True))
    pads = []
    for side in range(2):
        for axis in axes:
            # Reflections and wraps stay within one copy of the axis, and something of it is left.
            most = 3 if mode in ("constant", "edge") else max(0, x.shape[axis] - 1)
            least = -1 if mode == "constant" and x.shape[axis] > 2 and side == 0 else 0
            pads.append(draw(st.integers(least, most)))
    inputs: list[Array | None] = [x, _ints(*pads), None, _ints(*axes)]
    if mode == "constant" and draw(st.booleans()):
        inputs[2] = np.array(7, x.dtype)
    return case(op_type, inputs, {"mode": mode}, opset=19, constants=(1, 2, 3), exact=True)


@generator("Tile")
def tile(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw, high=3))
    repeats = [draw(st.integers(1, 3)) for _ in x.shape]
    return case(op_type, [x, _ints(*repeats)], opset=13, constants=(1,), exact=True)


@generator("DepthToSpace", "SpaceToDepth")
def blocks(draw: Draw, op_type: str) -> Case:
    size = draw(st.integers(1, 3))
    n, c, h, w = (draw(st.integers(1, 3)) for _ in range(4))
    shape = (n, c * size**2, h, w) if op_type == "DepthToSpace" else (n, c, h * size, w * size)
    attributes: dict[str, Attribute] = {"blocksize": size}
    if op_type == "DepthToSpace":
        attributes["mode"] = draw(st.sampled_from(["DCR", "CRD"]))
    x = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    return case(op_type, [x], attributes, opset=13, exact=True)


@generator("CenterCropPad")
def center_crop_pad(draw: Draw, op_type: str) -> Case:
    x = _data(draw, shapes(draw))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, unique=True))
    sizes = [draw(st.integers(1, 8)) for _ in axes]
    return case(op_type, [x, _ints(*sizes)], {"axes": tuple(axes)}, opset=18, constants=(1,), exact=True)
