"""What region propagation must give, row by row of GraphTurbo's table, and the algebra of regions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs import node

from tilewright.errors import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Node, Value
from tilewright.ir.nest import Access, Dim, Lookup, Operand, affine
from tilewright.ir.ops.build import copy_nest
from tilewright.ir.region import (
    dim_intervals,
    full_region,
    hull,
    input_regions,
    intersect,
    nest_input_regions,
    reshape_region,
    volume,
)

Shape = tuple[int, ...]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class TestAlgebra:
    def test_hull_holds_all_and_intersection_is_what_they_share(self) -> None:
        a, b = ((0, 4), (2, 5)), ((3, 6), (0, 3))
        assert hull(a, b) == ((0, 6), (0, 5))
        assert intersect(a, b) == ((3, 4), (2, 3))
        assert intersect(a, ((4, 6), (0, 9))) is None

    def test_the_volume_of_a_scalar_is_one_and_of_an_empty_interval_none(self) -> None:
        assert volume(()) == 1
        assert volume(((2, 2), (0, 5))) == 0
        assert volume(full_region((3, 4))) == 12


class TestTable:
    """The rows of the table in the GraphTurbo specification, section 2."""

    def test_elementwise_keeps_intervals_and_broadcast_axes_need_their_one_element(self) -> None:
        add = node("Add", [(2, 8, 6), (8, 1)], [(2, 8, 6)])
        assert input_regions(add, ((1, 2), (3, 5), (0, 4))) == (((1, 2), (3, 5), (0, 4)), ((3, 5), (0, 1)))

    @pytest.mark.parametrize(
        ("kernel", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (1, 1, 0), (7, 2, 3), (5, 1, 0)]
    )
    @pytest.mark.parametrize("rows", [(0, 1), (0, 3), (1, 4), (2, 5)])
    def test_convolution_needs_its_window_clipped_and_all_channels(
        self, kernel: int, stride: int, pad: int, rows: tuple[int, int]
    ) -> None:
        extent = 17
        out = (extent + 2 * pad - kernel) // stride + 1
        attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (pad,) * 4}
        weight = np.zeros((8, 4, kernel, kernel), np.float32)
        conv = node("Conv", [(2, 4, extent, extent), weight], [(2, 8, out, out)], attributes)
        low, high = rows
        start, stop = max(0, low * stride - pad), min(extent, (high - 1) * stride - pad + kernel)
        x, w = input_regions(conv, ((1, 2), (2, 5), rows, (0, out)))
        columns = (0, min(extent, (out - 1) * stride - pad + kernel))
        assert x == ((1, 2), (0, 4), (start, stop), columns)
        assert w == ((2, 5), *full_region(weight.shape[1:]))

    def test_depthwise_convolution_and_pooling_keep_the_channel_interval(self) -> None:
        depthwise = node("Conv", [(1, 6, 9, 9), (6, 1, 3, 3)], [(1, 6, 7, 7)], {"group": 6})
        pool = node("MaxPool", [(1, 6, 9, 9)], [(1, 6, 4, 4)], {"kernel_shape": (3, 3), "strides": (2, 2)})
        assert input_regions(depthwise, ((0, 1), (2, 4), (0, 7), (0, 7)))[0] == (
            (0, 1),
            (2, 4),
            (0, 9),
            (0, 9),
        )
        assert input_regions(pool, ((0, 1), (2, 4), (1, 2), (0, 4))) == (((0, 1), (2, 4), (2, 5), (0, 9)),)

    def test_dense_needs_the_whole_last_axis_and_the_rows_asked_for(self) -> None:
        gemm = node("Gemm", [(8, 5), (5, 7)], [(8, 7)])
        assert input_regions(gemm, ((2, 4), (1, 3))) == (((2, 4), (0, 5)), ((0, 5), (1, 3)))

    def test_batch_matmul_needs_rows_of_a_and_columns_of_b(self) -> None:
        matmul = node("MatMul", [(3, 4, 8, 5), (4, 5, 7)], [(3, 4, 8, 7)])
        a, b = input_regions(matmul, ((1, 2), (2, 3), (0, 4), (3, 7)))
        assert a == ((1, 2), (2, 3), (0, 4), (0, 5))
        assert b == ((2, 3), (0, 5), (3, 7))

    def test_softmax_needs_its_axis_whole(self) -> None:
        softmax = node("Softmax", [(2, 6, 5)], [(2, 6, 5)], {"axis": 1})
        assert input_regions(softmax, ((0, 1), (2, 3), (1, 4))) == (((0, 1), (0, 6), (1, 4)),)

    def test_layer_normalisation_needs_its_axes_whole(self) -> None:
        norm = node("LayerNormalization", [(2, 6, 5), (5,)], [(2, 6, 5)], {"axis": -1})
        assert input_regions(norm, ((0, 1), (2, 4), (0, 2))) == (((0, 1), (2, 4), (0, 5)), ((0, 2),))

    def test_global_pooling_needs_all_of_space(self) -> None:
        pool = node("GlobalAveragePool", [(2, 6, 5, 7)], [(2, 6, 1, 1)])
        assert input_regions(pool, ((1, 2), (3, 4), (0, 1), (0, 1))) == (((1, 2), (3, 4), (0, 5), (0, 7)),)

    def test_transpose_permutes(self) -> None:
        transpose = node("Transpose", [(4, 5, 6)], [(6, 4, 5)], {"perm": (2, 0, 1)})
        assert input_regions(transpose, ((1, 2), (2, 4), (0, 5))) == (((2, 4), (0, 5), (1, 2)),)

    def test_concat_shifts_and_intersects_and_may_not_need_an_input_at_all(self) -> None:
        concat = node("Concat", [(2, 3), (2, 4), (2, 5)], [(2, 12)], {"axis": 1})
        assert input_regions(concat, ((0, 1), (2, 6))) == (((0, 1), (2, 3)), ((0, 1), (0, 3)), None)
        assert input_regions(concat, ((0, 2), (7, 12))) == (None, None, ((0, 2), (0, 5)))

    def test_split_and_slice_shift(self) -> None:
        split = node("Split", [(9, 2), ints(2, 3, 4)], [(2, 2), (3, 2), (4, 2)], {"axis": 0})
        assert input_regions(split, ((1, 3), (0, 1)), output_index=1) == (((3, 5), (0, 1)), None)
        cut = node("Slice", [(20,), ints(15), ints(-30), ints(0), ints(-3)], [(6,)])
        assert input_regions(cut, ((1, 3),))[0] == ((15 - 2 * 3, 15 - 1 * 3 + 1),)

    def test_embedding_needs_the_table_whole_and_the_indices_asked_for(self) -> None:
        gather = node("Gather", [(100, 8), (2, 6)], [(2, 6, 8)])
        assert input_regions(gather, ((0, 1), (2, 4), (0, 8))) == (((0, 100), (0, 8)), ((0, 1), (2, 4)))

    @pytest.mark.parametrize(("mode", "more"), [("nearest", 0), ("linear", 1)])
    def test_upsampling_needs_what_its_scale_covers(self, mode: str, more: int) -> None:
        scale, extent = 2, 8
        resize = node(
            "Resize",
            [(1, 1, extent, 3), np.zeros(0, np.float32), np.array([1, 1, scale, 1], np.float32)],
            [(1, 1, extent * scale, 3)],
            {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        )
        for low in range(extent * scale):
            for high in range(low + 1, extent * scale + 1):
                region = input_regions(resize, ((0, 1), (0, 1), (low, high), (0, 3)))[0]
                assert region is not None
                # Linear needs the next element only where a fraction is asked for.
                fraction = more if (high - 1) % scale else 0
                assert region[2] == (low // scale, min(extent, -(-high // scale) + fraction))

    def test_an_unknown_operator_needs_everything(self) -> None:
        assert input_regions(node("Mystery", [(3, 4), (2,)], [(3, 4)]), ((0, 1), (0, 1))) == (
            ((0, 3), (0, 4)),
            ((0, 2),),
        )


class TestReshape:
    def reshaped(self, source: Shape, target: Shape, region: tuple[tuple[int, int], ...]) -> object:
        return input_regions(node("Reshape", [source, ints(*target)], [target]), region)[0]

    def test_axes_that_stay_map_one_to_one(self) -> None:
        assert self.reshaped((6, 8, 12), (6, 8, 3, 4), ((2, 3), (1, 5), (0, 3), (0, 4))) == (
            (2, 3),
            (1, 5),
            (0, 12),
        )

    def test_splitting_heads_maps_intervals_of_heads_to_columns(self) -> None:
        n, s, h, d = 2, 6, 4, 5
        region = ((0, 1), (2, 4), (1, 3), (0, d))
        assert self.reshaped((n, s, h * d), (n, s, h, d), region) == ((0, 1), (2, 4), (1 * d, 3 * d))
        one_head = ((0, 1), (2, 4), (1, 2), (2, 4))
        assert self.reshaped((n, s, h * d), (n, s, h, d), one_head) == ((0, 1), (2, 4), (d + 2, d + 4))

    def test_merging_heads_rounds_outwards_to_whole_heads(self) -> None:
        n, s, h, d = 2, 6, 4, 5
        assert self.reshaped((n, s, h, d), (n, s, h * d), ((0, 1), (0, 6), (7, 12))) == (
            (0, 1),
            (0, 6),
            (1, 3),
            (0, d),
        )
        inside_one = ((0, 1), (0, 6), (6, 9))
        assert self.reshaped((n, s, h, d), (n, s, h * d), inside_one) == ((0, 1), (0, 6), (1, 2), (1, 4))

    def test_merging_batch_and_sequence(self) -> None:
        n, s, d = 2, 6, 5
        assert self.reshaped((n, s, d), (n * s, d), ((7, 10), (1, 2))) == ((1, 2), (1, 4), (1, 2))
        assert self.reshaped((n, s, d), (n * s, d), ((5, 7), (1, 2))) == ((0, 2), (0, s), (1, 2))

    def test_shapes_without_common_refinement_go_through_linear_positions(self) -> None:
        # Elements 3..5 of 6: rows 1 and 2 of [3, 2].
        assert self.reshaped((3, 2), (2, 3), ((1, 2), (0, 3))) == ((1, 3), (0, 2))
        assert self.reshaped((7, 3, 2), (7, 2, 3), ((4, 5), (0, 1), (0, 2))) == ((4, 5), (0, 1), (0, 2))

    def test_axes_of_extent_one_come_and_go(self) -> None:
        assert self.reshaped((1, 4, 1, 3), (4, 3, 1), ((1, 2), (0, 2), (0, 1))) == (
            (0, 1),
            (1, 2),
            (0, 1),
            (0, 2),
        )

    def test_a_box_under_another_shape_holds_all_its_elements(self) -> None:
        source, target = (4, 6), (8, 3)
        positions = np.arange(24)
        for first in range(4):
            for last in range(first + 1, 5):
                region = ((first, last), (1, 5))
                box = reshape_region(region, source, target)
                wanted = positions.reshape(source)[first:last, 1:5]
                held = positions.reshape(target)[tuple(slice(*i) for i in box)]
                assert np.isin(wanted, held).all()


class TestWrites:
    """Write indices are solved, not assumed to be one dim per axis."""

    def test_phases_of_a_strided_write_are_hit_exactly(self) -> None:
        stride, extent = 3, 5
        source = Operand("input", 0, DType.FLOAT32, (extent,))
        out = Operand("output", 0, DType.FLOAT32, (stride * extent,))
        dim = Dim("q", extent)
        for phase in range(stride):
            nest = copy_nest(
                [dim], Access(source, (affine("q"),)), Access(out, (affine(("q", stride), phase),))
            )
            for low in range(stride * extent):
                for high in range(low + 1, stride * extent + 1):
                    hit = [q for q in range(extent) if low <= stride * q + phase < high]
                    expected = {"q": (hit[0], hit[-1] + 1)} if hit else None
                    assert dim_intervals(nest, ((low, high),)) == expected

    def test_a_backward_write_is_solved_too(self) -> None:
        source = Operand("input", 0, DType.FLOAT32, (6,))
        out = Operand("output", 0, DType.FLOAT32, (6,))
        write = Access(out, (affine(("q", -1), 5),))
        nest = copy_nest([Dim("q", 6)], Access(source, (affine("q"),)), write)
        assert nest_input_regions(nest, ((1, 3),)) == (((3, 5),),)

    def test_a_write_through_a_table_is_hit_where_the_table_says(self) -> None:
        source = Operand("input", 0, DType.FLOAT32, (4,))
        out = Operand("output", 0, DType.FLOAT32, (4,))
        nest = copy_nest(
            [Dim("q", 4)], Access(source, (affine("q"),)), Access(out, (Lookup((2, 0, 3, 1), "q"),))
        )
        assert nest_input_regions(nest, ((2, 4),)) == (((0, 3),),)

    def test_transposed_convolution_needs_only_the_inputs_that_reach(self) -> None:
        stride, kernel, extent = 2, 3, 6
        out = (extent - 1) * stride + kernel
        deconv = node(
            "ConvTranspose",
            [(1, 2, extent, 1), (2, 3, kernel, 1)],
            [(1, 3, out, 1)],
            {"strides": (stride, 1)},
        )
        for low in range(out):
            region = input_regions(deconv, ((0, 1), (0, 3), (low, low + 1), (0, 1)))[0]
            reach = [i for i in range(extent) if 0 <= low - i * stride < kernel]
            assert region == ((0, 1), (0, 2), (reach[0], reach[-1] + 1), (0, 1))


class TestPadding:
    def test_a_region_wholly_in_the_padding_needs_nothing(self) -> None:
        pad = node("Pad", [(4, 4), ints(3, 0, 2, 0)], [(9, 4)])
        assert input_regions(pad, ((0, 3), (0, 4))) == (None, None)
        assert input_regions(pad, ((2, 5), (1, 3)))[0] == ((0, 2), (1, 3))

    def test_reflected_padding_needs_the_elements_it_mirrors(self) -> None:
        pad = node("Pad", [(6,), ints(3, 0)], [(9,)], {"mode": "reflect"})
        assert input_regions(pad, ((0, 2),))[0] == ((2, 4),)

    def test_gaps_of_a_stride_are_not_counted_at_the_border(self) -> None:
        # One element every three, starting one before the tensor: -1, 2, 5.
        source = Operand("input", 0, DType.FLOAT32, (7,))
        out = Operand("output", 0, DType.FLOAT32, (3,))
        read = Access(source, (affine(("o", 3), -1),), fill=0.0)
        nest = copy_nest([Dim("o", 3)], read, Access(out, (affine("o"),)))
        assert nest_input_regions(nest, ((0, 2),)) == (((2, 3),),)
        assert nest_input_regions(nest, ((0, 3),)) == (((2, 6),),)
        assert nest_input_regions(nest, ((0, 1),)) == (None,)


class TestEdges:
    def test_an_empty_region_needs_nothing(self) -> None:
        assert input_regions(node("Relu", [(4,)], [(4,)]), ((2, 2),)) == (None,)

    def test_a_reduction_over_nothing_needs_only_where_it_starts(self) -> None:
        gemm = node("Gemm", [(4, 0), (0, 3), (3,)], [(4, 3)])
        assert input_regions(gemm, ((0, 2), (1, 3))) == (None, None, ((1, 3),))

    def test_omitted_inputs_need_nothing(self) -> None:
        clip = Node("Clip", [Value("x", DType.FLOAT32, (3,)), None], [Value("y", DType.FLOAT32, (3,))])
        assert input_regions(clip, ((0, 1),)) == (((0, 1),), None)

    def test_shapes_that_are_constants_are_not_read(self) -> None:
        expand = node("Expand", [(1, 3), ints(4, 3)], [(4, 3)])
        assert input_regions(expand, ((2, 3), (0, 2))) == (((0, 1), (0, 2)), None)

    def test_a_region_of_another_rank_is_refused(self) -> None:
        with pytest.raises(InternalError, match=r"does not fit output 0"):
            input_regions(node("Relu", [(4,)], [(4,)]), ((0, 1), (0, 1)))
