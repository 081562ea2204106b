"""Movement operators keep affine indices on real axes wherever that is possible."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs import node

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Affine, Lookup, Nest, Opaque, affine
from tilewright.ir.ops import describe
from tilewright.ir.shapes import common_refinement, equal_product_groups

Shape = tuple[int, ...]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def only_nest(one: Node) -> Nest:
    nests = describe(one)
    assert not isinstance(nests, Opaque), nests.reason
    (nest,) = nests
    return nest


def reshape(source: Shape, target: Shape) -> Nest:
    return only_nest(node("Reshape", [source, ints(*target)], [target]))


class TestReshape:
    @pytest.mark.parametrize(
        ("source", "target"),
        [
            ((2, 3, 20), (2, 3, 4, 5)),
            ((2, 3, 4, 5), (2, 3, 20)),
            ((4, 6), (8, 3)),
            ((1, 6, 1), (2, 3)),
            ((6,), (1, 2, 1, 3, 1)),
            ((1,), ()),
        ],
    )
    def test_both_sides_are_affine_without_a_view(self, source: Shape, target: Shape) -> None:
        nest = reshape(source, target)
        (read,) = nest.reads
        assert read.view is None
        assert nest.write.view is None
        assert all(isinstance(i, Affine) for i in (*read.index, *nest.write.index))
        assert nest.num_iterations == np.prod(source, dtype=int)

    def test_a_split_axis_is_read_by_the_sum_of_its_parts(self) -> None:
        nest = reshape((2, 20), (2, 4, 5))
        batch, row, column = (d.name for d in nest.dims)
        assert nest.reads[0].index == (affine(batch), affine((row, 5), column))

    def test_axes_of_extent_one_have_no_loop(self) -> None:
        assert [d.extent for d in reshape((1, 6, 1, 4), (6, 4)).dims] == [6, 4]

    def test_only_the_axes_without_a_refinement_are_viewed(self) -> None:
        nest = reshape((5, 2, 3, 7), (5, 3, 2, 7))
        assert nest.reads[0].view == (5, 3, 2, 7)
        assert nest.write.view is None
        nest = reshape((2, 3, 20), (3, 2, 4, 5))
        assert nest.reads[0].view == (3, 2, 20)

    def test_groups_are_minimal_and_in_order(self) -> None:
        groups = equal_product_groups((2, 6, 1, 4), (2, 3, 2, 4))
        assert [((2, 6, 1, 4)[slice(*g.left)], (2, 3, 2, 4)[slice(*g.right)]) for g in groups] == [
            ((2,), (2,)),
            ((6,), (3, 2)),
            ((1,), ()),
            ((4,), (4,)),
        ]

    def test_a_refinement_is_merged_into_both_shapes(self) -> None:
        assert common_refinement((12, 5), (3, 20)) == (3, 4, 5)
        assert common_refinement((10, 3), (6, 5)) is None


class TestCutting:
    def test_a_slice_is_a_scaled_and_shifted_index(self) -> None:
        nest = only_nest(node("Slice", [(20,), ints(15), ints(-30), ints(0), ints(-3)], [(6,)]))
        assert nest.reads[0].index == (affine(("d0", -3), 15),)

    def test_concat_writes_each_input_behind_the_one_before(self) -> None:
        nests = describe(node("Concat", [(2, 3), (2, 4), (2, 1)], [(2, 8)], {"axis": -1}))
        assert not isinstance(nests, Opaque)
        assert [n.write.index[1] for n in nests] == [affine("d1", offset) for offset in (0, 3, 7)]

    def test_empty_inputs_of_concat_are_left_out(self) -> None:
        nests = describe(node("Concat", [(2, 3), (2, 0)], [(2, 3)], {"axis": 1}))
        assert not isinstance(nests, Opaque)
        assert len(nests) == 1

    def test_split_leaves_out_the_outputs_that_nobody_wants(self) -> None:
        x = Value("x", DType.FLOAT32, (9,))
        sizes = Value("s", DType.INT64, (3,), ints(2, 3, 4))
        nests = describe(Node("Split", [x, sizes], [None, None, Value("y", DType.FLOAT32, (4,))]))
        assert not isinstance(nests, Opaque)
        assert [(n.write.operand.position, n.reads[0].index) for n in nests] == [(2, (affine("d0", 5),))]


class TestPad:
    def test_constant_padding_is_a_fill_value_outside(self) -> None:
        nest = only_nest(node("Pad", [(4,), ints(2, 1), np.array(7, np.float32)], [(7,)]))
        assert nest.reads[0].index == (affine("d0", -2),)
        assert nest.reads[0].fill == 7.0

    def test_cutting_promises_to_stay_inside(self) -> None:
        nest = only_nest(node("Pad", [(6,), ints(-2, -1)], [(3,)]))
        assert nest.reads[0].index == (affine("d0", 2),)
        assert nest.reads[0].fill is None

    @pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
    def test_other_modes_are_tables_of_where_numpy_takes_elements(self, mode: str) -> None:
        nest = only_nest(node("Pad", [(2, 5), ints(0, 3, 0, 2)], [(2, 10)], {"mode": mode}))
        table = tuple(np.pad(np.arange(5), (3, 2), mode=mode).tolist())  # type: ignore[call-overload]
        assert nest.reads[0].index == (affine("d0"), Lookup(table, "d1"))


class TestOpaque:
    @pytest.mark.parametrize(
        ("one", "reason"),
        [
            (node("Slice", [(8,), (1,), (1,)], [(4,)]), "bounds are data"),
            (node("Split", [(8,), (2,)], [(4,), (4,)]), "sizes are data"),
            (node("Pad", [(8,), (2,)], [(10,)]), "amounts are data"),
            (node("Pad", [(8,), ints(1, 1), ()], [(10,)]), "value is data"),
        ],
        ids=lambda v: v if isinstance(v, str) else v.op_type,
    )
    def test_what_the_nests_cannot_know_is_said(self, one: Node, reason: str) -> None:
        found = describe(one)
        assert isinstance(found, Opaque)
        assert reason in found.reason

    def test_text_has_no_nests(self) -> None:
        text = Node("Identity", [Value("x", DType.STRING, (2,))], [Value("y", DType.STRING, (2,))])
        assert describe(text) == Opaque("text tensors have no nests")
