"""Cases of gather, scatter and one-hot."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, case, generator, integers, reals, shapes

from tilewright.ir.graph import Attribute

# Positions of inputs that are initializers: none, or the indices.
_KNOWN = st.sampled_from([(), (1,)])


def _indices(draw: Draw, shape: tuple[int, ...], extent: int) -> Array:
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return integers(draw, shape, -extent, extent - 1, dtype)


@generator("Gather")
def gather(draw: Draw, op_type: str) -> Case:
    data = reals(draw, shapes(draw))
    axis = draw(st.integers(-data.ndim, data.ndim - 1))
    shape = shapes(draw, low=0, high=2, max_extent=3)
    extent = data.shape[axis]
    if draw(st.booleans()):
        indices = _indices(draw, shape, extent)
    else:  # an arithmetic progression, which becomes an affine index
        indices = (
            np.minimum(np.arange(np.prod(shape, dtype=int)), extent - 1).reshape(shape)[..., ::-1]
            if shape
            else np.array(0)
        )
    constants = draw(st.sampled_from([(), (1,)]))
    return case(op_type, [data, indices.copy()], {"axis": axis}, opset=13, constants=constants, exact=True)


@generator("GatherElements")
def gather_elements(draw: Draw, op_type: str) -> Case:
    data = reals(draw, shapes(draw))
    axis = draw(st.integers(-data.ndim, data.ndim - 1))
    # Other axes may be shorter than the data's.
    shape = [draw(st.integers(1, e)) for e in data.shape]
    shape[axis] = draw(st.integers(1, 4))
    indices = _indices(draw, tuple(shape), data.shape[axis])
    return case(op_type, [data, indices], {"axis": axis}, opset=13, exact=True)


@generator("GatherND")
def gather_nd(draw: Draw, op_type: str) -> Case:
    data = reals(draw, shapes(draw, low=2))
    batch = draw(st.integers(0, data.ndim - 1))
    depth = draw(st.integers(1, data.ndim - batch))
    lead = data.shape[:batch] + shapes(draw, low=0, high=1, max_extent=3)
    if not lead:
        lead = (2,)
    columns = [integers(draw, lead, -e, e - 1, np.int64) for e in data.shape[batch : batch + depth]]
    inputs = [data, np.stack(columns, axis=-1)]
    return case(op_type, inputs, {"batch_dims": batch}, opset=13, exact=True)


@generator("OneHot")
def one_hot(draw: Draw, op_type: str) -> Case:
    shape = shapes(draw, high=3, max_extent=3)
    depth = draw(st.integers(1, 5))
    # Indices outside [-depth, depth) give no hot element.
    indices = integers(
        draw, shape, -depth - 1, depth, draw(st.sampled_from([np.int64, np.int32, np.float32]))
    )
    inputs = [indices, np.array(depth, np.int64), np.array([-1.0, 2.5], np.float32)]
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    return case(op_type, inputs, {"axis": axis}, opset=11, constants=(1,), exact=True)


@generator("ScatterElements", "Scatter")
def scatter_elements(draw: Draw, op_type: str) -> Case:
    data = integers(draw, shapes(draw))
    axis = draw(st.integers(0, data.ndim - 1))
    extent = data.shape[axis]
    shape = [draw(st.integers(1, e)) for e in data.shape]
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    attributes: dict[str, Attribute] = {"axis": axis}
    reduction = "none"
    if op_type == "ScatterElements":
        reduction = attributes["reduction"] = draw(
            st.sampled_from(["none", "none", "add", "mul", "max", "min"])
        )
    if reduction == "none":
        # The standard wants every place written once then.
        places = rng.permuted(np.broadcast_to(np.arange(extent), (*np.delete(shape, axis), extent)), axis=-1)
        indices = np.moveaxis(places[..., : shape[axis]], -1, axis).astype(np.int64)
    else:
        indices = rng.integers(0, extent, shape)
    indices = np.where(rng.random(shape) < 0.3, indices - extent, indices)
    inputs = [data, indices, integers(draw, shape)]
    opset = 18 if op_type == "ScatterElements" else 10
    return case(op_type, inputs, attributes, opset=opset, constants=draw(_KNOWN), exact=True)


@generator("ScatterND")
def scatter_nd(draw: Draw, op_type: str) -> Case:
    data = integers(draw, shapes(draw))
    reduction = draw(st.sampled_from(["none", "none", "add", "mul", "max", "min"]))
    depth = draw(st.integers(1, data.ndim))
    extents = data.shape[:depth]
    places = int(np.prod(extents))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    lead = draw(st.sampled_from([(1,), (2,), (3,), (2, 2)]))
    count = int(np.prod(lead))
    if reduction == "none" and count > places:
        lead, count = (places,), places
    flat = rng.permutation(places)[:count] if reduction == "none" else rng.integers(0, places, count)
    columns = [
        np.where(rng.random(count) < 0.3, c - e, c)
        for c, e in zip(np.unravel_index(flat, extents), extents, strict=True)
    ]
    indices = np.stack(columns, axis=-1).reshape(*lead, depth).astype(np.int64)
    updates = integers(draw, (*lead, *data.shape[depth:]))
    inputs = [data, indices, updates]
    return case(op_type, inputs, {"reduction": reduction}, opset=18, constants=draw(_KNOWN), exact=True)


@generator("MaxUnpool")
def max_unpool(draw: Draw, op_type: str) -> Case:
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    out = (*shape[:2], 2 * shape[2], 2 * shape[3])
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    indices = rng.permutation(int(np.prod(out)))[: int(np.prod(shape))].reshape(shape).astype(np.int64)
    attributes: dict[str, Attribute] = {"kernel_shape": (2, 2), "strides": (2, 2)}
    return case(op_type, [integers(draw, shape), indices], attributes, opset=11, exact=True)


@generator("TopK")
def top_k(draw: Draw, op_type: str) -> Case:
    shape = draw(st.sampled_from([(5,), (3, 7), (2, 41), (4, 3, 2), (1, 50, 3)]))
    dtype = draw(st.sampled_from([np.float32, np.float32, np.int64, np.int32]))
    # Few distinct values, so that many are equal.
    x = integers(draw, shape, -6, 6, dtype)
    if dtype is np.float32 and draw(st.booleans()):
        x[np.random.default_rng(draw(st.integers(0, 99))).random(shape) < 0.3] = -np.inf
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    count = draw(st.integers(1, shape[axis]))
    attributes: dict[str, Attribute] = {"axis": axis, "largest": draw(st.integers(0, 1))}
    inputs = [x, np.array([count], np.int64)]
    return case(op_type, inputs, attributes, opset=11, constants=(1,), outputs=(True, True), exact=True)


@generator("TensorScatter")
def tensor_scatter(draw: Draw, op_type: str) -> Case:
    data = integers(draw, shapes(draw, low=2))
    axis = draw(st.integers(1, data.ndim - 1))
    places, mode = data.shape[axis], draw(st.sampled_from(["linear", "circular"]))
    count = draw(st.integers(1, places))
    updates = integers(draw, [count if a == axis else e for a, e in enumerate(data.shape)])
    last = places - count if mode == "linear" else 2 * places
    starts = integers(draw, data.shape[:1], 0, last, np.int64) if draw(st.booleans()) else None
    inputs = [data, updates, starts][: 2 if starts is None else 3]
    attributes: dict[str, Attribute] = {"mode": mode, "axis": axis - draw(st.sampled_from([0, data.ndim]))}
    return case(op_type, inputs, attributes, opset=24, exact=True)
