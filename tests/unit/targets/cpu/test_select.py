"""Which template computes a contraction, by accuracy."""

from __future__ import annotations

import pytest
from tests.support.kernels import group_of
from tests.unit.targets.cpu.test_contraction import channels_last, conv_graph

from tilewright.ir.graph import Graph
from tilewright.options import Accuracy
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.product.select import lower_product
from tilewright.targets.cpu.template import Context

LARGE = conv_graph(64, 64, (56, 56), (3, 3), pads=(1, 1, 1, 1))


def template(graph: Graph, accuracy: Accuracy) -> str:
    group = group_of(graph)
    layouts = {("output", 0): channels_last(4)}
    for position, value in enumerate(group.inputs):
        rank = len(value.shape)
        layouts["input", position] = Layout.row_major(rank) if value.is_constant else channels_last(rank)
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    context = Context(isa_by_name("avx512"), layouts, accuracy, constants)
    kernels = lower_product(group.nests[0], context)
    assert not isinstance(kernels, Declined)
    return kernels[-1].template


def test_a_large_convolution_takes_fewer_products() -> None:
    assert template(LARGE, "default").startswith("winograd")


def test_strict_forbids_winograd() -> None:
    assert template(LARGE, "strict") == "contraction"


@pytest.mark.parametrize(
    "graph",
    [
        conv_graph(64, 64, (56, 56), (3, 3), stride=2, pads=(1, 1, 1, 1)),
        conv_graph(64, 64, (56, 56), (1, 1)),
        conv_graph(64, 64, (56, 56), (3, 3), dilation=2, pads=(2, 2, 2, 2)),
        conv_graph(8, 8, (2, 2), (3, 3), pads=(1, 1, 1, 1)),
    ],
    ids=["strided", "pointwise", "dilated", "tiny"],
)
def test_where_winograd_does_not_apply_or_pay_the_direct_kernel_runs(graph: Graph) -> None:
    assert template(graph, "default") == "contraction"
