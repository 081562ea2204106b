"""Facts derived from nests, against counts made by hand from the operators' definitions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs import node

from tilewright.ir.derive import (
    OperatorClass,
    flops,
    input_bytes,
    is_complex,
    is_injective,
    is_pointwise,
    macs,
    nests_of,
    operator_class,
)
from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Nest, access_dims

Shape = tuple[int, ...]
F32_BYTES = DType.FLOAT32.size_bytes


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def conv(kernel: int, *, channels: int = 6, filters: int = 8, group: int = 1, extent: int = 10) -> Node:
    out = extent - kernel + 1
    weight = zeros(filters, channels // group, kernel, kernel)
    return node(
        "Conv",
        [(2, channels, extent, extent), weight, zeros(filters)],
        [(2, filters, out, out)],
        {"group": group},
    )


class TestWork:
    @pytest.mark.parametrize(("kernel", "group"), [(1, 1), (3, 1), (3, 2), (3, 6)])
    def test_convolution_multiplies_each_output_by_its_window(self, kernel: int, group: int) -> None:
        channels, filters, extent = 6, 12, 10
        outputs = 2 * filters * (extent - kernel + 1) ** 2
        convolution = conv(kernel, channels=channels, filters=filters, group=group, extent=extent)
        assert macs(convolution) == outputs * (channels // group) * kernel**2

    def test_matmul_and_gemm(self) -> None:
        assert macs(node("MatMul", [(3, 4, 5), (5, 6)], [(3, 4, 6)])) == 3 * 4 * 5 * 6
        gemm = node("Gemm", [(4, 5), (5, 6), (6,)], [(4, 6)])
        assert macs(gemm) == 4 * 5 * 6
        assert flops(gemm) == 2 * macs(gemm)

    def test_scaling_a_product_costs_one_operation_per_element(self) -> None:
        plain = node("Gemm", [(4, 5), (5, 6)], [(4, 6)])
        scaled = node("Gemm", [(4, 5), (5, 6)], [(4, 6)], {"alpha": 2.0})
        assert flops(scaled) - flops(plain) == 4 * 6

    def test_functions_cost_what_the_vocabulary_says(self) -> None:
        assert flops(node("Add", [(4, 5), (5,)], [(4, 5)])) == 20
        assert flops(node("Tanh", [(4, 5)], [(4, 5)])) == 20 * FUNCTIONS["tanh"].cost_flop

    def test_moving_and_converting_is_no_arithmetic(self) -> None:
        assert flops(node("Transpose", [(4, 5)], [(5, 4)])) == 0
        half = Node("Cast", [Value("x", DType.FLOAT32, (9,))], [Value("y", DType.INT32, (9,))])
        assert flops(half) == 0

    def test_a_reduction_adds_but_multiplies_nothing(self) -> None:
        total = node("ReduceSum", [(4, 5), ints(1)], [(4, 1)])
        assert macs(total) == 0
        assert flops(total) == 4 * 5

    def test_a_sum_of_squares_is_no_contraction(self) -> None:
        squares = node("ReduceSumSquare", [(4, 5)], [(1, 1)])
        assert macs(squares) == 0
        assert not is_complex(squares)

    def test_opaque_operators_count_no_work(self) -> None:
        assert macs(node("Compress", [(4,), ints(2)], [(2,), (2,)])) == 0


class TestBytes:
    def test_a_convolution_reads_its_input_once_and_its_parameters(self) -> None:
        convolution = conv(3)
        parameters = (8 * 6 * 9 + 8) * F32_BYTES
        image, *others = input_bytes(convolution).values()
        assert (image, sum(others)) == (2 * 6 * 10 * 10 * F32_BYTES, parameters)

    def test_a_slice_reads_only_what_it_keeps(self) -> None:
        cut = node("Slice", [(100, 4), ints(10), ints(20), ints(0)], [(10, 4)])
        assert input_bytes(cut)[0] == 10 * 4 * F32_BYTES

    def test_an_embedding_reads_one_row_per_index(self) -> None:
        table, indices = zeros(1000, 8), Value("i", DType.INT64, (6,))
        gather = Node(
            "Gather",
            [Value("t", DType.FLOAT32, table.shape, table), indices],
            [Value("y", DType.FLOAT32, (6, 8))],
        )
        assert input_bytes(gather) == {0: 6 * 8 * F32_BYTES, 1: 6 * DType.INT64.size_bytes}

    def test_a_value_given_twice_is_read_once(self) -> None:
        x = Value("x", DType.FLOAT32, (5,))
        square = Node("Mul", [x, x], [Value("y", DType.FLOAT32, (5,))])
        assert list(input_bytes(square).values()) == [5 * F32_BYTES]

    def test_all_outputs_count(self) -> None:
        split = node("Split", [(9, 2), ints(4, 5)], [(4, 2), (5, 2)])
        assert input_bytes(split)[0] == 18 * F32_BYTES

    def test_an_opaque_operator_reads_everything(self) -> None:
        assert input_bytes(node("Compress", [(7,), ints(2)], [(2,), (2,)])) == {0: 7 * F32_BYTES, 1: 8}


def dims_of(nest: Nest) -> list[set[str]]:
    """For each read and last the write, the dims its address depends on: CoSA's matrix A (its Table IV)."""
    return [set(access_dims(nest, access)) for access in (*nest.reads, nest.write)]


class TestReuse:
    def test_each_operand_of_a_matmul_lacks_a_dim(self) -> None:
        (nest,) = nests_of(node("MatMul", [(4, 5), (5, 6)], [(4, 6)]))
        assert dims_of(nest) == [set("mk"), set("kn"), set("mn")]

    def test_convolution_follows_cosa(self) -> None:
        (nest,) = nests_of(node("Conv", [(2, 3, 9, 9), (4, 3, 3, 3)], [(2, 4, 7, 7)]))
        inputs, weights, outputs = dims_of(nest)
        assert inputs == {"n", "c", "oh", "ow", "kh", "kw"}
        assert weights == {"m", "c", "kh", "kw"}
        assert outputs == {"n", "m", "oh", "ow"}

    def test_an_index_that_is_data_depends_on_the_dims_of_its_read(self) -> None:
        table, indices = Value("t", DType.FLOAT32, (10, 8)), Value("i", DType.INT64, (6,))
        (nest,) = nests_of(Node("Gather", [table, indices], [Value("y", DType.FLOAT32, (6, 8))]))
        assert dims_of(nest)[1] == dims_of(nest)[2]


class TestClasses:
    @pytest.mark.parametrize(
        ("one", "expected"),
        [
            (node("Relu", [(2, 3)], [(2, 3)]), OperatorClass.ALGEBRAIC),
            (node("Add", [(2, 3), (2, 3)], [(2, 3)]), OperatorClass.ALGEBRAIC),
            (node("Transpose", [(2, 3)], [(3, 2)]), OperatorClass.ALGEBRAIC),
            (node("Add", [(2, 3), (3,)], [(2, 3)]), OperatorClass.BROADCAST),
            (node("Expand", [(1, 3), ints(2, 3)], [(2, 3)]), OperatorClass.BROADCAST),
            (
                node("BatchNormalization", [(1, 3, 4, 4), *[zeros(3)] * 4], [(1, 3, 4, 4)]),
                OperatorClass.BROADCAST,
            ),
            (node("ReduceSum", [(2, 3), ints(1)], [(2, 1)]), OperatorClass.REDUCTION),
            (node("Softmax", [(2, 3)], [(2, 3)]), OperatorClass.REDUCTION),
            (node("GlobalAveragePool", [(1, 3, 4, 4)], [(1, 3, 1, 1)]), OperatorClass.REDUCTION),
            (conv(3), OperatorClass.COMPLEX),
            (conv(3, group=6, filters=6), OperatorClass.COMPLEX),
            (node("Gemm", [(4, 5), (5, 6)], [(4, 6)]), OperatorClass.COMPLEX),
            (node("MatMul", [(3, 4, 5), (3, 5, 6)], [(3, 4, 6)]), OperatorClass.COMPLEX),
            (conv(1), OperatorClass.TWO_PHASE),
            (
                node("MaxPool", [(1, 3, 8, 8)], [(1, 3, 7, 7)], {"kernel_shape": (2, 2)}),
                OperatorClass.TWO_PHASE,
            ),
            (node("Concat", [(2, 3), (2, 4)], [(2, 7)], {"axis": 1}), OperatorClass.INFUSIBLE),
            (node("Constant", [], [(3,)], {"value_floats": (1.0, 2.0, 3.0)}), OperatorClass.INFUSIBLE),
            (node("Compress", [(4,), ints(2)], [(2,), (2,)]), OperatorClass.INFUSIBLE),
        ],
        ids=lambda v: v.op_type if isinstance(v, Node) else v.value,
    )
    def test_operators_are_classed_as_in_pcgc(self, one: Node, expected: OperatorClass) -> None:
        assert operator_class(one) is expected

    def test_complex_operators_contain_a_contraction(self) -> None:
        assert is_complex(node("MatMul", [(4, 5), (5, 6)], [(4, 6)]))
        assert not is_complex(node("Mul", [(4, 5), (4, 5)], [(4, 5)]))

    def test_pointwise_keeps_places_injective_may_move_them(self) -> None:
        pointwise = [
            node("Add", [(2, 3), (3,)], [(2, 3)]),
            node("BatchNormalization", [(1, 3, 4, 4), *[zeros(3)] * 4], [(1, 3, 4, 4)]),
            node("Clip", [(4,)], [(4,)]),
        ]
        moving = [
            node("Transpose", [(3, 3)], [(3, 3)]),
            node("Reshape", [(2, 3), ints(6)], [(6,)]),
            node("Slice", [(8,), ints(1), ints(5)], [(4,)]),
            node("Concat", [(2, 3), (2, 4)], [(2, 7)], {"axis": 1}),
            node("Pad", [(3,), ints(1, 1)], [(5,)]),
        ]
        neither = [node("Softmax", [(2, 3)], [(2, 3)]), node("Compress", [(4,), ints(2)], [(2,), (2,)])]
        assert [is_pointwise(n) for n in pointwise + moving + neither] == [True] * 3 + [False] * 7
        assert [is_injective(n) for n in pointwise + moving + neither] == [True] * 8 + [False] * 2
