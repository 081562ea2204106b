from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.graph import Node, Value
from tilewright.ir.merge import MergedOperators, mergeable


class Siblings(GraphBuilder):
    """Convolutions and products of one input, with weights of their own."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.x = self.input(*shape)

    def filter(
        self,
        channels: int,
        kernel: Sequence[int],
        pads: Sequence[int],
        output: Sequence[int],
        **attributes: object,
    ) -> Node:
        group = attributes.get("group", 1)
        assert isinstance(group, int)
        weight = self.constant(channels, self.x.shape[1] // group, *kernel)
        shape = (self.x.shape[0], channels, *output)
        return self.node(self.op("Conv", self.x, weight, shape=shape, pads=tuple(pads), **attributes))  # type: ignore[arg-type]

    def product(self, columns: int, x: Value | None = None) -> Node:
        x = self.x if x is None else x
        return self.node(
            self.op("MatMul", x, self.constant(x.shape[-1], columns), shape=(*x.shape[:-1], columns))
        )


def merged(*nodes: Node, pads_kernels: bool = True) -> MergedOperators | None:
    return mergeable([[node] for node in nodes], pads_kernels=pads_kernels)


def test_convolutions_of_one_input_lie_side_by_side_along_channels() -> None:
    b = Siblings(1, 4, 8, 8)
    one, two = b.filter(3, (3, 3), (1, 1, 1, 1), (8, 8)), b.filter(5, (3, 3), (1, 1, 1, 1), (8, 8))
    found = merged(one, two, pads_kernels=False)
    assert found is not None
    assert found.axis == 1
    assert found.nodes[0].shape == (1, 8, 8, 8)


def test_a_small_kernel_lies_where_the_large_one_has_its_taps() -> None:
    """A stride of 2 over an even extent gives k3p1 and k2p0 equal outputs, but tap 0 of one is tap 1 of the
    other: centring the small kernel would put it at tap 0."""
    b = Siblings(1, 1, 6, 6)
    large = b.filter(2, (3, 3), (1, 1, 1, 1), (3, 3), strides=(2, 2))
    small = b.filter(2, (2, 2), (0, 0, 0, 0), (3, 3), strides=(2, 2))
    found = merged(large, small)
    assert found is not None
    weights = found.nodes[0].inputs[1]
    assert not isinstance(weights, int | Value | None)
    assert np.array_equal(weights.data()[2, 0] != 0, [[False] * 3, [False, True, True], [False, True, True]])
    assert merged(large, small, pads_kernels=False) is None


def test_products_of_one_operand_lie_side_by_side_along_columns() -> None:
    b = Siblings(2, 5, 8)
    found = merged(b.product(3), b.product(4), b.product(4))
    assert found is not None
    assert (found.axis, found.nodes[0].shape) == (2, (2, 5, 11))


@pytest.mark.parametrize(
    ("kernel", "pads", "output", "attributes"),
    [
        ((3, 3), (1, 1, 1, 1), (4, 4), {"strides": (2, 2)}),
        ((3, 3), (2, 2, 2, 2), (8, 8), {"dilations": (2, 2)}),
        ((3, 3), (1, 1, 1, 1), (8, 8), {"group": 2}),
        ((3, 3), (0, 0, 0, 0), (6, 6), {}),
    ],
)
def test_other_windows_groups_and_extents_do_not_merge(
    kernel: Sequence[int], pads: Sequence[int], output: Sequence[int], attributes: dict[str, object]
) -> None:
    b = Siblings(1, 4, 8, 8)
    other = b.filter(4, kernel, pads, output, **attributes)
    assert merged(b.filter(4, (3, 3), (1, 1, 1, 1), (8, 8)), other) is None


def test_dilated_windows_whose_taps_lie_between_each_others_do_not_merge() -> None:
    b = Siblings(1, 1, 9, 9)
    one = b.filter(2, (2, 2), (1, 1, 1, 1), (9, 9), dilations=(2, 2))
    two = b.filter(2, (2, 2), (0, 0, 2, 2), (9, 9), dilations=(2, 2))
    assert merged(one, two) is None
    three = b.filter(2, (2, 2), (2, 2, 0, 0), (9, 9), dilations=(2, 2))
    assert merged(two, three) is not None


def test_groups_do_not_merge_even_where_they_are_equal() -> None:
    b = Siblings(1, 4, 8, 8)
    two = [b.filter(4, (3, 3), (1, 1, 1, 1), (8, 8), group=group) for group in (2, 2)]
    depthwise = [b.filter(4, (3, 3), (1, 1, 1, 1), (8, 8), group=group) for group in (4, 4)]
    assert merged(*two) is None
    assert merged(*depthwise) is None


def test_weights_that_are_data_do_not_merge() -> None:
    b = Siblings(5, 8)
    weights = [b.input(8, 4, name="w") for _ in range(2)]
    products = [b.node(b.op("MatMul", b.x, w, shape=(5, 4))) for w in weights]
    assert merged(*products) is None


def test_operators_of_other_inputs_do_not_merge() -> None:
    b = Siblings(5, 8)
    assert merged(b.product(4), b.product(4, b.input(5, 8))) is None


def test_epilogues_merge_where_they_are_equal() -> None:
    b = Siblings(5, 8)

    def clipped(columns: int, most: float) -> list[Node]:
        product = b.product(columns)
        shifted = b.op("Add", product.output, b.constant(columns))
        limits = [b.constant(name="low", value=0.0), b.constant(name="high", value=most)]
        return [product, b.node(shifted), b.node(b.op("Clip", shifted, *limits))]

    one, two, other = clipped(3, 6.0), clipped(4, 6.0), clipped(4, 7.0)
    found = mergeable([one, two])
    assert found is not None
    assert found.nodes[-1].shape == (5, 7)
    assert mergeable([one, other]) is None
    assert mergeable([one, two[:2]]) is None


def test_an_epilogue_that_sums_along_results_does_not_merge() -> None:
    b = Siblings(5, 8)
    ends = [[p := b.product(4), b.node(b.op("Softmax", p.output))] for _ in range(2)]
    assert mergeable(ends) is None


def test_an_epilogue_with_an_operand_of_its_own_does_not_merge() -> None:
    b = Siblings(5, 8)
    ends = [[p := b.product(4), b.node(b.op("Add", p.output, b.input(5, 4)))] for _ in range(2)]
    assert mergeable(ends) is None
