"""Gather, resampling and the elementwise operators whose form depends on constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ModelRejected
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, format_expr
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.interpret import run_node
from tilewright.ir.nest import Indirect, Lookup, Nest, Nests, Opaque, affine
from tilewright.ir.nest_interpreter import run_described
from tilewright.ir.ops import describe
from tilewright.ir.ops.resize import MOST_TAPS

Input = tuple[int, ...] | np.ndarray | None


def node(
    op_type: str,
    inputs: Sequence[Input],
    output: tuple[int, ...],
    attributes: Mapping[str, Attribute] | None = None,
    opset: int = 21,
) -> Node:
    """A node of float32 variables; arrays among the inputs are constants."""
    values: list[Value | None] = []
    for i, x in enumerate(inputs):
        if x is None:
            values.append(None)
        elif isinstance(x, np.ndarray):
            values.append(Value(f"x{i}", DType.from_numpy(x.dtype), x.shape, x))
        else:
            values.append(Value(f"x{i}", DType.FLOAT32, x))
    return Node(op_type, values, [Value("y", DType.FLOAT32, output)], attributes, opset=opset)


def nests_of(one: Node) -> Nests:
    nests = describe(one)
    assert not isinstance(nests, Opaque), nests.reason
    return nests


def only_nest(one: Node) -> Nest:
    (nest,) = nests_of(one)
    return nest


def reason_of(one: Node) -> str:
    found = describe(one)
    assert isinstance(found, Opaque)
    return found.reason


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class TestGather:
    def gather(self, indices: np.ndarray) -> Nest:
        return only_nest(node("Gather", [(10, 4), indices], (*indices.shape, 4)))

    def test_a_constant_scalar_is_a_constant_index(self) -> None:
        assert self.gather(np.array(-3, np.int64)).reads[0].index == (affine(7), affine("d0"))

    def test_constant_progressions_are_affine_in_any_rank(self) -> None:
        assert self.gather(ints(1, 3, 5)).reads[0].index[0] == affine(("d0", 2), 1)
        grid = np.array([[0, 1], [4, 5]], np.int64)
        assert self.gather(grid).reads[0].index[0] == affine(("d0", 4), "d1")

    def test_other_constants_are_a_table(self) -> None:
        assert self.gather(ints(3, -1, 4)).reads[0].index[0] == Lookup((3, 9, 4), "d0")

    def test_data_is_an_indirect_index_so_that_embeddings_are_nests(self) -> None:
        nest = only_nest(node("Gather", [(10, 4), (2, 3)], (2, 3, 4)))
        assert nest.reads[1].index == (Indirect(0), affine("d2"))
        assert nest.reads[0].index == (affine("d0"), affine("d1"))

    def test_constant_indices_outside_are_refused(self) -> None:
        with pytest.raises(ModelRejected, match="holds the index 10, but the axis has 10 elements"):
            describe(node("Gather", [(10, 4), ints(10)], (1, 4)))


def resize(
    extent: int, size: int, mode: str, attributes: Mapping[str, Attribute] | None = None, rank: int = 1
) -> Node:
    """`rank` equal axes resized alike."""
    return node(
        "Resize",
        [(extent,) * rank, None, None, ints(*(size,) * rank)],
        (size,) * rank,
        {"mode": mode, **(attributes or {})},
    )


@pytest.mark.parametrize(
    ("fill", "dtype", "read"),
    [
        (-1.5, np.uint8, 0),
        (3.7, np.uint8, 3),
        (300.0, np.int8, 127),
        (-1.5, np.int8, -1),
        (1e30, np.int64, 2**63 - 1),
        (1e30, np.uint64, 2**64 - 1),
    ],
)
@pytest.mark.parametrize("mode", ["cubic", "linear", "nearest"])
def test_integers_outside_a_crop_are_cut_off_and_saturate(
    mode: str, fill: float, dtype: type[Any], read: int
) -> None:
    x = Value("x", DType.from_numpy(np.dtype(dtype)), (8,))
    roi, scales = np.array([-4.0, -3.0], np.float32), np.array([1.0], np.float32)
    constants = [Value(f"c{i}", DType.FLOAT32, c.shape, c) for i, c in enumerate((roi, scales))]
    crop: dict[str, Attribute] = {"extrapolation_value": fill}
    crop["coordinate_transformation_mode"] = "tf_crop_and_resize"
    output = Value("y", x.dtype, (8,))
    resized = Node("Resize", [x, *constants], [output], {"mode": mode, **crop}, opset=19)
    arrays = [np.arange(8).astype(dtype), roi, scales]
    # Described by weights, the largest 64-bit integers are no floating-point numbers for numpy to round.
    is_rounded = x.dtype.size_bytes == 8 and mode != "nearest"
    for way in (run_node,) if is_rounded else (run_node, run_described):
        (found,) = way(resized, arrays)
        np.testing.assert_array_equal(found, np.full(8, read, dtype))


class TestResize:
    def test_enlarging_by_a_whole_factor_repeats_each_element(self) -> None:
        asymmetric: dict[str, Attribute] = {
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        for attributes in ({}, asymmetric):
            nest = only_nest(resize(3, 9, "nearest", attributes))
            assert nest.reads[0].index == (Lookup(tuple(i // 3 for i in range(9)), "d0"),)

    def test_shrinking_by_a_whole_factor_is_affine(self) -> None:
        nest = only_nest(resize(9, 3, "nearest"))
        assert nest.reads[0].index == (affine(("d0", 3), 1),)  # half_pixel: the middle of three

    def test_linear_reads_two_elements_and_two_weights_per_axis(self) -> None:
        nest = only_nest(resize(4, 8, "linear", rank=2))
        data = [a for a in nest.reads if a.operand.kind == "input"]
        weights = [a for a in nest.reads if a.operand.kind == "table"]
        assert (len(data), len(weights)) == (2 * 2, 2 + 2)

    @pytest.mark.parametrize("mode", ["linear", "cubic"])
    @pytest.mark.parametrize("antialias", [0, 1])
    def test_weights_of_each_element_sum_to_one(self, mode: str, antialias: int) -> None:
        nest = only_nest(resize(12, 7, mode, {"antialias": antialias}))
        (table,) = {id(a.operand): a.operand for a in nest.reads if a.operand.kind == "table"}.values()
        assert table.data is not None
        np.testing.assert_allclose(table.data.sum(axis=1), 1, rtol=1e-6)

    def test_many_taps_go_axis_by_axis(self) -> None:
        nests = nests_of(resize(4, 8, "cubic", rank=3))
        assert MOST_TAPS < 4**3
        assert [n.write.operand.kind for n in nests] == ["local", "local", "output"]

    def test_axes_of_equal_size_are_left_alone(self) -> None:
        one = node("Resize", [(3, 4), None, None, ints(3, 8)], (3, 8), {"mode": "linear"})
        assert {a.operand.shape for a in only_nest(one).reads if a.operand.kind == "table"} == {(8, 2)}

    def test_outside_the_crop_reads_the_extrapolation_value(self) -> None:
        one = node(
            "Resize",
            [(4,), np.array([0.0, 2.0], np.float32), None, ints(4)],
            (4,),
            {
                "mode": "nearest",
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 9.0,
            },
        )
        (read,) = only_nest(one).reads
        assert read.index == (Lookup((0, 2, -1, -1), "d0"),)
        assert read.fill == 9.0

    @pytest.mark.parametrize(
        ("one", "reason"),
        [
            (resize(200, 10, "cubic", {"antialias": 1}), "antialiasing over more than"),
            (node("Resize", [(4,), None, None, (1,)], (8,), {"mode": "linear"}), "scales"),
        ],
        ids=["taps", "data"],
    )
    def test_too_many_taps_and_scales_that_are_data_are_opaque(self, one: Node, reason: str) -> None:
        assert reason in reason_of(one)


class TestConstantsInBodies:
    def test_constant_bounds_of_clip_are_literals(self) -> None:
        nest = only_nest(node("Clip", [(4,), np.array(0, np.float32), np.array(6, np.float32)], (4,)))
        assert len(nest.reads) == 1
        assert format_expr(nest.body) == "min(max(r0, 0.0), 6.0)"

    def test_constants_of_one_element_are_literals_whatever_their_rank(self) -> None:
        nest = only_nest(node("Div", [(4, 3), np.full((1, 1), 8, np.float32)], (4, 3)))
        assert format_expr(nest.body) == "div(r0, 8.0)"
        nest = only_nest(node("Where", [(3,), np.array(-np.inf, np.float32), (3,)], (3,)))
        assert format_expr(nest.body) == "select(r0, -inf, r1)"

    def test_larger_constants_are_read(self) -> None:
        assert len(only_nest(node("Add", [(4, 3), np.zeros(3, np.float32)], (4, 3))).reads) == 2

    def test_bounds_of_clip_that_are_data_are_read(self) -> None:
        nest = only_nest(node("Clip", [(4,), None, ()], (4,)))
        assert format_expr(nest.body) == "min(r0, r1)"

    @pytest.mark.parametrize(
        ("exponent", "body"),
        [
            (2.0, "mul(r0, r0)"),
            (0.5, "sqrt(r0)"),
            (-1.0, "reciprocal(r0)"),
            (1.0, "r0"),
            (2.5, "pow(r0, 2.5)"),
        ],
    )
    def test_powers_by_small_constants_are_products_and_roots(self, exponent: float, body: str) -> None:
        nest = only_nest(node("Pow", [(4,), np.array(exponent, np.float32)], (4,)))
        assert format_expr(nest.body) == body

    @pytest.mark.parametrize(
        ("one", "reason"),
        [
            (node("Dropout", [(4,), None, np.array(True)], (4,)), "training"),
            (node("Dropout", [(4,), None, ()], (4,)), "is data"),
            (node("CumSum", [(4,), ()], (4,)), "axis"),
            (node("CumSum", [(1 << 15,), np.array(0)], (1 << 15,)), "serial"),
        ],
        ids=lambda v: v if isinstance(v, str) else v.op_type,
    )
    def test_unknown_attributes_never_give_a_nest(self, one: Node, reason: str) -> None:
        assert reason in reason_of(one)

    def test_the_mask_of_dropout_is_all_true(self) -> None:
        x, y = Value("x", DType.FLOAT32, (4,)), Value("y", DType.FLOAT32, (4,))
        _, mask = nests_of(Node("Dropout", [x], [y, Value("m", DType.BOOL, (4,))]))
        assert mask.body == Const(True, DType.BOOL)
