"""Resampling: Resize and Upsample through exact per-axis tables; AffineGrid.

Every mode comes down to the same thing: along each axis, output element o is a weighted sum of a few
input elements, whose positions and weights depend on o alone. They are computed once and become lookup
tables of the nests and gathers of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import isclose, prod
from typing import Any

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Const, Expr, call, cast
from tilewright.ir.graph import Node, Shape
from tilewright.ir.nest import Access, Description, Dim, Index, Lookup, Nest, Opaque, Operand, affine
from tilewright.ir.ops.build import (
    choice_attr,
    copy_nest,
    dims_of,
    identity,
    input_operand,
    local,
    normalized_axis,
    output_operand,
    read,
    require,
    require_result,
    scalar_like,
    table,
)
from tilewright.ir.ops.indexing import progression
from tilewright.ir.ops.operands import optional, present
from tilewright.ir.ops.quantization import saturated, saturated_array
from tilewright.ir.ops.registry import operator
from tilewright.ir.work import HostWork, check_table, require_holdable
from tilewright.records import dataclass

# Taps are unrolled in the body. Above this many the axes are resampled one after the other, and one
# axis that alone needs more (antialiasing by a large factor) is not worth a nest.
MOST_TAPS = 16
# Elements of an axis after resizing: positions and weights of each are kept.
MAX_RESIZED_EXTENT = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Resampling:
    """One axis: `positions[o, t]` in the input and their `weights[o, t]`, which sum to 1.

    A position of -1 lies outside and reads the extrapolation value.
    """

    positions: Array
    weights: Array

    @property
    def num_taps(self) -> int:
        """Input elements per output element."""
        return int(self.positions.shape[1])


@dataclass(frozen=True, slots=True)
class _Axis:
    """What the coordinate formulas are over: extents, the real-valued scale, the region of interest."""

    extent: int
    resized: int
    scale: float
    roi: tuple[float, float]

    @property
    def exact_resized(self) -> float:
        """The resized length before rounding, which ONNX's formulas use."""
        return self.scale * self.extent


def _coordinates(mode: str, axis: _Axis) -> Array:
    """Where each output element lies on the input's axis.

    In float32, in which ONNX holds scales and regions: whether a coordinate lies on a border, or half way
    between two elements, is as ONNX Runtime has it.
    """
    return _coordinates_in_float32(mode, axis).astype(np.float64)


def _coordinates_in_float32(mode: str, axis: _Axis) -> Array:
    o = np.arange(axis.resized, dtype=np.float32)
    half, scale, last = np.float32(0.5), np.float32(axis.scale), np.float32(axis.extent - 1)
    match mode:
        case "half_pixel":
            return (o + half) / scale - half
        case "half_pixel_symmetric":
            adjustment = np.float32(axis.resized) / (scale * np.float32(axis.extent))
            offset = np.float32(axis.extent / 2) * (1 - adjustment)
            # Only this mode adds up in float64.
            place = np.float64(offset) + (o + half).astype(np.float64) / np.float64(scale) - 0.5
            return place.astype(np.float32)
        case "pytorch_half_pixel":
            return (o + half) / scale - half if axis.resized > 1 else np.zeros_like(o)
        case "tf_half_pixel_for_nn":
            return (o + half) / scale
        case "asymmetric":
            return o / scale
        case "align_corners":
            # ONNX's suite aligns with the length before it is rounded down to whole elements.
            resized = np.float32(axis.exact_resized)
            return o * last / (resized - 1) if resized != 1 else np.zeros_like(o)
        case "tf_crop_and_resize":
            start, end = (np.float32(n) for n in axis.roi)
            if axis.resized <= 1:
                return np.full_like(o, 0.5 * (start + end) * last)
            return start * last + o * (end - start) * last / np.float32(axis.resized - 1)
    raise AssertionError(f"coordinate mode {mode!r} was not checked")


_MODES = ("nearest", "linear", "cubic")
_COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "asymmetric",
    "align_corners",
    "tf_crop_and_resize",
)
# How near to the middle between two elements a coordinate counts as the middle, as in ONNX Runtime: it is
# float32's, whose rounding errors must not choose the side.
_MIDDLE = 1e-6


def _with_middles(x: Array) -> Array:
    middle = np.floor(x) + 0.5
    return np.where(np.abs(x - middle) <= _MIDDLE, middle, x)


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(_with_middles(x) - 0.5),
    "round_prefer_ceil": lambda x: np.floor(_with_middles(x) + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _triangle(distance: Array) -> Array:
    return np.asarray(np.clip(1 - np.abs(distance), 0, None))


def _cubic(distance: Array, a: float) -> Array:
    """Keys' cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _resample(node: Node, axis: _Axis) -> Resampling:
    mode = node.str_attr("mode", "nearest")
    check_table(axis.resized)
    coordinate_mode = _coordinate_mode(node)
    x = _coordinates(coordinate_mode, axis)
    last = axis.extent - 1
    if mode == "nearest":
        positions = _NEAREST[_nearest_mode(node)](x)[:, None]
        weights = np.ones_like(positions)
    else:
        # Antialiasing stretches the kernel when the axis shrinks.
        stretch = min(axis.scale, 1.0) if node.int_attr("antialias", 0) else 1.0
        radius = 1 if mode == "linear" else 2
        first = int(np.floor(-radius / stretch)) + 1
        check_table(max(axis.resized, 1) * (2 - 2 * first))
        base = np.floor(x)
        positions = base[:, None] + np.arange(first, 2 - first)
        distance = (positions - x[:, None]) * stretch
        weights = (
            _triangle(distance)
            if mode == "linear"
            else _cubic(distance, node.float_attr("cubic_coeff_a", -0.75))
        )
        if node.int_attr("exclude_outside", 0):
            weights = np.where((positions < 0) | (positions > last), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    positions = np.clip(positions, 0, last).astype(np.int64)
    # A tap without weight reads what the heaviest one reads: nothing more is needed of the input.
    heaviest = np.take_along_axis(positions, np.abs(weights).argmax(axis=1)[:, None], axis=1)
    positions = np.where(weights == 0, heaviest, positions)
    if coordinate_mode == "tf_crop_and_resize":
        positions = np.where(((x < 0) | (x > last))[:, None], -1, positions)
    used = [t for t in range(weights.shape[1]) if weights[:, t].any()] or [0]
    return Resampling(positions[:, used], weights[:, used])


def _is_old(node: Node) -> bool:
    """Upsample and the first Resize knew neither coordinate nor nearest modes."""
    return node.op_type == "Upsample" or node.opset < 11


def _coordinate_mode(node: Node) -> str:
    default = "asymmetric" if _is_old(node) else "half_pixel"
    return node.str_attr("coordinate_transformation_mode", default)


def _nearest_mode(node: Node) -> str:
    return node.str_attr("nearest_mode", "floor" if _is_old(node) else "round_prefer_floor")


def _require_modes(node: Node) -> None:
    mode = choice_attr(node, "mode", _MODES, "nearest")
    choice_attr(node, "coordinate_transformation_mode", _COORDINATE_MODES, "half_pixel")
    choice_attr(node, "nearest_mode", tuple(_NEAREST), "round_prefer_floor")
    choice_attr(node, "keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
    defined = mode != "nearest" or not node.int_attr("antialias", 0)
    require(node, defined, "antialias is not defined for mode 'nearest'")


def _axes(node: Node, shape: Shape, arguments: Sequence[Array | None]) -> dict[int, _Axis]:
    """Extents and scales of the axes that are resized. `arguments`: roi, scales, sizes."""
    rank = len(shape)
    roi, scales, sizes = (a if a is not None and a.size else None for a in arguments)
    if _coordinate_mode(node) != "tf_crop_and_resize":
        roi = None  # other modes take none, whatever is given
    axes = [normalized_axis(node, a, rank, "an axis") for a in node.ints_attr("axes", range(rank)) or ()]
    require(node, len(set(axes)) == len(axes), f"axes {axes} name an axis twice")
    for given, count, name in ((roi, 2, "roi"), (scales, 1, "scales"), (sizes, 1, "sizes")):
        fits = given is None or given.size == count * len(axes)
        require(node, fits, f"its {name} are not {count} for each of {len(axes)} axes")
    if scales is not None and sizes is None:
        require(
            node,
            bool(np.all(scales > 0) and np.all(np.isfinite(scales))),
            f"its scales are {scales.tolist()}",
        )
    factors, resized = [1.0] * rank, list(shape)
    spans = [(0.0, 1.0)] * rank
    for i, a in enumerate(axes):
        if roi is not None:
            spans[a] = (float(roi[i]), float(roi[i + len(axes)]))
        if sizes is not None:
            resized[a] = int(sizes[i])
            factors[a] = int(sizes[i]) / shape[a] if shape[a] else 1.0
        elif scales is not None:
            factors[a] = float(scales[i])
            resized[a] = int(factors[a] * shape[a])
    policy = node.str_attr("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        choose = min if policy == "not_larger" else max
        common = choose(factors[a] for a in axes)
        for a in axes:
            factors[a], resized[a] = common, int(common * shape[a] + 0.5)
    for a in axes:
        require(node, resized[a] >= 0, f"axis {a} would have {resized[a]} elements")
        problem = f"axis {a} would have {resized[a]} elements, but at most {MAX_RESIZED_EXTENT} are made"
        require(node, resized[a] <= MAX_RESIZED_EXTENT or resized[a] == shape[a], problem)
    return {a: _Axis(shape[a], resized[a], factors[a], spans[a]) for a in axes}


def _plan(node: Node, shape: Shape, arguments: Sequence[Array | None]) -> list[Resampling | None]:
    """The resampling of each axis, None where it stays as it is. `arguments`: roi, scales, sizes."""
    plan: list[Resampling | None] = [None] * len(shape)
    for a, axis in _axes(node, shape, arguments).items():
        same = isclose(axis.scale, 1.0) and axis.resized == axis.extent and axis.roi == (0.0, 1.0)
        if not same:
            plan[a] = _resample(node, axis)
    return plan


def _constant_arguments(node: Node) -> Sequence[Array | None] | str:
    """Region of interest, scales and sizes, or why they are not known."""
    positions = (1,) if _is_old(node) else (2, 3)
    if any(node.input(p) is not None and node.constant(p) is None for p in positions):
        return f"the scales of {node.op_type} are data"
    if _coordinate_mode(node) == "tf_crop_and_resize" and node.constant(1) is None:
        return "the region of interest of Resize is data"
    return (None, node.constant(1), None) if _is_old(node) else [node.constant(i) for i in (1, 2, 3)]


def _shapes(node: Node) -> tuple[Shape | None, ...]:
    """The shape of the result, where scales or sizes are known."""
    arguments = _constant_arguments(node)
    if isinstance(arguments, str):
        return (None,)
    shape = node.require(0).shape
    axes = _axes(node, shape, arguments)
    return (tuple(axes[a].resized if a in axes else extent for a, extent in enumerate(shape)),)


def _reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x = present(inputs)
    _require_modes(node)
    arguments = (
        (None, present(inputs, 1), None) if _is_old(node) else [optional(inputs, i) for i in (1, 2, 3)]
    )
    axes = _axes(node, x.shape, arguments)
    resized = [axes[a].resized if a in axes else extent for a, extent in enumerate(x.shape)]
    if 0 in resized:
        return (np.zeros(resized, x.dtype),)
    require_holdable(node, resized)
    plan = _plan(node, x.shape, arguments)
    exact = node.str_attr("mode", "nearest") == "nearest"
    fill = _fill(node)
    result = x if exact or x.dtype.kind == "f" else x.astype(np.float64)
    for axis, resampling in enumerate(plan):
        if resampling is None:
            continue
        outside = resampling.positions < 0
        along = [-1 if a == axis else 1 for a in range(x.ndim)]
        total: Any = 0
        for t in range(resampling.num_taps):
            taken = np.take(result, np.where(outside, 0, resampling.positions)[:, t], axis=axis)
            taken = np.where(outside[:, t].reshape(along), np.asarray(fill).astype(result.dtype), taken)
            total = (
                taken
                if exact
                else total + taken * resampling.weights[:, t].astype(result.dtype).reshape(along)
            )
        result = total
    if result.dtype != x.dtype and x.dtype.kind in "iu":
        result = saturated_array(np.rint(result), node.output.dtype)
    return (result,)


def _fill(node: Node) -> int | float:
    """What is read outside, as a number that the type has: whole and in its range for integers."""
    fill, dtype = node.float_attr("extrapolation_value", 0.0), node.require(0).dtype
    return int(saturated_array(np.trunc(fill), dtype)) if dtype.is_integer else fill


def _tap_index(resampling: Resampling, tap: int, dim: Dim) -> Index:
    positions = resampling.positions[:, tap]
    straight = progression(positions, (dim,)) if positions.min() >= 0 else None
    return straight if straight is not None else Lookup(tuple(int(p) for p in positions), dim.name)


def _weighted_nest(
    dims: tuple[Dim, ...],
    source: Operand,
    target: Operand,
    plan: Sequence[Resampling | None],
    weights: dict[int, Operand],
    fill: int | float | None,
) -> Nest:
    """All taps of the planned axes in one body: the sum over taps of products of weights and a read."""
    axes = [a for a, r in enumerate(plan) if r is not None]
    compute = weights[axes[0]].dtype
    outside = None if fill is None else scalar_like(fill, source.dtype)
    reads: list[Access] = []

    def value(access: Access) -> Expr:
        reads.append(access)
        return cast(read(len(reads) - 1, access), compute)

    factors = {
        a: [value(Access(weights[a], (affine(dims[a].name), affine(t)))) for t in range(weights[a].shape[1])]
        for a in axes
    }
    taps: dict[tuple[int, ...], Expr] = {}
    for chosen in product(*(range(len(factors[a])) for a in axes)):
        index: list[Index] = list(identity(dims))
        for a, tap in zip(axes, chosen, strict=True):
            resampling = plan[a]
            assert resampling is not None
            index[a] = _tap_index(resampling, tap, dims[a])
        taps[chosen] = value(Access(source, tuple(index), outside))
    # Innermost axis first: each step sums one axis away, as a separable filter does.
    for a in reversed(axes):
        summed: dict[tuple[int, ...], Expr] = {}
        for chosen, tap_value in taps.items():
            term = tap_value * factors[a][chosen[-1]]
            summed[chosen[:-1]] = summed[chosen[:-1]] + term if chosen[:-1] in summed else term
        taps = summed
    total = taps[()]
    if target.dtype.is_integer:
        body = saturated(call("round", total), target.dtype)
    else:
        body = cast(total, target.dtype.compute)
    return Nest(dims, tuple(reads), Access(target, identity(dims)), body)


@operator("Resize", "Upsample", reference=_reference, shapes=_shapes)
def resize(node: Node) -> Description:
    """Nearest: one copy. Linear, cubic, antialiased: weighted taps, over all axes at once if they are few."""
    source, out = input_operand(node, 0), output_operand(node)
    _require_modes(node)
    require_result(node, (None,) * len(source.shape))
    arguments = _constant_arguments(node)
    if isinstance(arguments, str):
        return Opaque(arguments)
    (resized,) = _shapes(node)
    require_result(node, resized or ())
    if 0 in out.shape:
        nothing = Const(scalar_like(0, out.dtype.compute), out.dtype.compute)
        everywhere = dims_of(out.shape)
        return (Nest(everywhere, (), Access(out, identity(everywhere)), nothing),)
    require(node, 0 not in source.shape, f"{list(out.shape)} cannot be made of {list(source.shape)}")
    plan = _plan(node, source.shape, arguments)
    leaves = any(r is not None and (r.positions < 0).any() for r in plan)
    fill = _fill(node) if leaves else None
    planned = {a: r for a, r in enumerate(plan) if r is not None}
    dims = dims_of(out.shape)
    if node.str_attr("mode", "nearest") == "nearest" or not planned:
        index = tuple(
            affine(d.name) if r is None else _tap_index(r, 0, d) for d, r in zip(dims, plan, strict=True)
        )
        outside = None if fill is None else scalar_like(fill, source.dtype)
        return (copy_nest(dims, Access(source, index, outside), Access(out, identity(dims))),)
    if max(r.num_taps for r in planned.values()) > MOST_TAPS:
        return Opaque(f"antialiasing over more than {MOST_TAPS} elements")
    is_wide = source.dtype.size_bytes == 8 or (source.dtype.is_integer and source.dtype.size_bytes == 4)
    compute = np.float64 if is_wide else np.float32
    weights = {a: table(a, r.weights.astype(compute)) for a, r in planned.items()}
    if prod(r.num_taps for r in planned.values()) <= MOST_TAPS:
        return (_weighted_nest(dims, source, out, plan, weights, fill),)
    nests = []
    shape = list(source.shape)
    current = source
    for number, (a, resampling) in enumerate(planned.items()):
        shape[a] = out.shape[a]
        final = number == len(planned) - 1
        target = out if final else local(number, weights[a].dtype, shape)
        alone = [resampling if axis == a else None for axis in range(len(shape))]
        nests.append(_weighted_nest(dims_of(shape), current, target, alone, weights, fill))
        current = target
    return tuple(nests)


def _affine_grid_work(node: Node, data: Sequence[Array | None]) -> HostWork:
    """Places with a one behind, then moved by each matrix."""
    if (size := data[1]) is None:
        return HostWork()
    num_places = prod(max(int(e), 0) for e in size.reshape(-1)[2:])
    return HostWork(elements=num_places * (size.size + 3 * node.require(0).shape[0]))


@operator("AffineGrid", host_work=_affine_grid_work)
def affine_grid(node: Node) -> Description:
    """Places to sample at, for GridSample."""
    return Opaque("AffineGrid makes places of its data")
