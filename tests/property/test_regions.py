"""Input regions are sound for every operator, and exact where the operator is affine."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.property.strategies import Array, Case, Draw, generators

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe
from tilewright.ir.region import Region, full_region, hull, input_regions, union_volume, volume
from tilewright.ir.shapes import common_refinement, equal_product_groups

# Inputs that are read and yet may not matter: weights of a window wholly in the padding, and what is
# scaled by 0.
WITHOUT_EFFECT = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (2,)}


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


KEYS = sorted(generators())
# Operators of which every element inside the input region matters to some element of the output region.
EXACT = (
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("Slice", "Concat", "Split", "Transpose", "Reshape", "Expand", "Tile", "Pad", "DepthToSpace"),
    *("SpaceToDepth", "CumSum", "Add", "Relu", "ReduceSum", "ReduceMax", "Resize"),
)


def slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in region)


def draw_region(draw: Draw, shape: tuple[int, ...]) -> Region:
    """A random box that is not empty."""
    region = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        region.append((start, draw(st.integers(start + 1, extent))))
    return tuple(region)


def draw_problem(draw: Draw, one: Case) -> tuple[int, Region, tuple[Region | None, ...]]:
    """An output, a region of it, and what that region is said to need."""
    present = [i for i, v in enumerate(one.node.outputs) if v is not None]
    index = draw(st.sampled_from(present))
    shape = one.node.outputs[index].shape  # type: ignore[union-attr]
    assume(0 not in shape)
    region = draw_region(draw, shape)
    return index, region, input_regions(one.node, region, index)


def variable_inputs(one: Case) -> list[int]:
    """Positions whose data the nests do not depend on."""
    return [i for i, v in enumerate(one.node.inputs) if v is not None and not v.is_constant]


def shuffled(array: Array, rng: np.random.Generator) -> Array:
    """Other values of the same kind: an index stays a valid index, a row of indices a valid row."""
    if array.size == 0:
        return array
    if array.ndim > 1 and array.dtype.kind == "i":
        return rng.choice(array.reshape(-1, array.shape[-1]), array.size // array.shape[-1]).reshape(
            array.shape
        )
    return rng.choice(array.ravel(), array.shape)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS, ids="".join)
@examples(8)
@given(data=st.data())
def test_what_lies_outside_the_input_regions_does_not_matter(
    key: tuple[str, str], data: st.DataObject
) -> None:
    one = data.draw(generators()[key])
    index, region, needed = draw_problem(data.draw, one)
    if isinstance(describe(one.node), Opaque):
        assert needed == tuple(None if v is None else full_region(v.shape) for v in one.node.inputs)
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    changed: list[Any] = list(one.inputs)
    for position in variable_inputs(one):
        original = one.inputs[position]
        assert original is not None
        array = shuffled(original, rng)
        inside = needed[position]
        if inside is not None:
            array[slices(inside)] = original[slices(inside)]
        changed[position] = array
    before, after = (run_described(one.node, arrays)[index] for arrays in (one.inputs, changed))
    assert before is not None
    assert after is not None
    # Bit for bit: NaN equals NaN, and 0.0 is not -0.0.
    assert before[slices(region)].tobytes() == after[slices(region)].tobytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op_type", EXACT)
@examples(15)
@given(data=st.data())
def test_every_side_of_an_input_region_is_needed(op_type: str, data: st.DataObject) -> None:
    one = data.draw(generators()["", op_type])
    nests = describe(one.node)
    # Running sums in blocks need whole blocks.
    assume(not isinstance(nests, Opaque) and (op_type != "CumSum" or len(nests) == 1))
    index, region, needed = draw_problem(data.draw, one)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    base: list[Any] = [
        # Small and positive, so that no maximum hides behind another input and no product is zero.
        None if a is None else rng.integers(1, 3, a.shape).astype(a.dtype) if i in variable_inputs(one) else a
        for i, a in enumerate(one.inputs)
    ]
    before = run_described(one.node, base)[index]
    assert before is not None
    for position in variable_inputs(one):
        if position in WITHOUT_EFFECT.get(op_type, ()):
            continue
        box = needed[position]
        if box is None:
            continue
        assert volume(box) > 0
        for axis, (start, stop) in enumerate(box):
            for edge in (start, stop - 1):
                changed = list(base)
                changed[position] = base[position].copy()
                slab = slices((*box[:axis], (edge, edge + 1), *box[axis + 1 :]))
                changed[position][slab] = 50
                after = run_described(one.node, changed)[index]
                assert after is not None
                assert (before[slices(region)] != after[slices(region)]).any(), (position, axis, edge)


def _random_shape(draw: Draw, size: int) -> tuple[int, ...]:
    shape = [1] * draw(st.integers(0, 1))
    while size > 1:
        shape.append(draw(st.sampled_from([f for f in range(2, size + 1) if size % f == 0])))
        size //= shape[-1]
        shape += [1] * (draw(st.integers(0, 4)) == 4)
    return tuple(shape)


def _rule_of_the_specification(region: Region, source: tuple[int, ...], target: tuple[int, ...]) -> Region:
    """GraphTurbo's table: single-valued outer axes, then a linear range, rounded out; else full."""
    result: list[tuple[int, int]] = []
    for group in equal_product_groups(source, target):
        left, right = source[slice(*group.left)], target[slice(*group.right)]
        box = region[slice(*group.left)]
        if len(left) == len(right) == 1:
            result += box
            continue
        loose = next((a for a, (start, stop) in enumerate(box) if stop - start > 1), len(box) - 1)
        rest_is_full = all(i == (0, e) for i, e in zip(box[loose + 1 :], left[loose + 1 :], strict=True))
        if not right or not rest_is_full:
            result += full_region(right)
            continue
        inner = prod(left[loose + 1 :])
        base = sum(box[a][0] * prod(left[a + 1 :]) for a in range(loose)) if left else 0
        first, last = (base + box[loose][0] * inner, base + box[loose][1] * inner - 1) if left else (0, 0)
        outer = prod(right[1:])
        result += [(first // outer, last // outer + 1), *full_region(right[1:])]
    return tuple(result)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_reshaped_region_is_the_bounding_box_of_its_elements(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([6, 12, 24, 30, 36, 60]))
    source, target = _random_shape(data.draw, size), _random_shape(data.draw, size)
    region = draw_region(data.draw, target)
    x, y = Value("x", DType.FLOAT32, source), Value("y", DType.FLOAT32, target)
    shape = Value("s", DType.INT64, (len(target),), np.array(target, np.int64))
    found = input_regions(Node("Reshape", [x, shape], [y]), region)[0]
    assert found is not None
    positions = np.arange(size).reshape(target)[slices(region)].ravel()
    places = np.unravel_index(positions, source) if source else ()
    box = tuple((int(p.min()), int(p.max()) + 1) for p in places)
    assert hull(found, box) == found
    if all(
        common_refinement(source[slice(*g.left)], target[slice(*g.right)]) is not None
        for g in equal_product_groups(source, target)
    ):
        assert found == box
    assert hull(_rule_of_the_specification(region, target, source), found) == _rule_of_the_specification(
        region, target, source
    )


@examples(200)
@given(st.data())
def test_the_union_of_boxes_is_what_at_least_one_of_them_holds(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 3))
    interval = st.tuples(st.integers(0, 6), st.integers(0, 6))
    boxes = data.draw(st.lists(st.tuples(*[interval] * rank), max_size=6))
    held = np.zeros((6,) * rank, bool)
    for box in boxes:
        held[tuple(slice(*axis) for axis in box)] = True
    assert union_volume(boxes) == held.sum()
