"""Composition of nests: what fuses, what must not, and that the meaning stays."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call
from tilewright.ir.fuse import MAX_FUSED_FLOP, MAX_FUSED_READS, NestGroup, fuse_nodes
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.nest import Opaque
from tilewright.ir.nest_interpreter import run_nests

F32 = DType.FLOAT32


class Builder:
    """A graph grown node by node."""

    def __init__(self) -> None:
        self.graph = Graph("fused")

    def input(self, name: str, *shape: int) -> Value:
        return self.graph.add_input(Value(name, F32, shape))

    def add(self, op: str, inputs: Sequence[Value], shape: Sequence[int], **attributes: Any) -> Value:
        out = self.graph.value(op.lower(), F32, shape)
        return self.graph.append(Node(op, inputs, [out], attributes)).output  # type: ignore[arg-type]

    def ints(self, *values: int) -> Value:
        return self.graph.constant(np.array(values, np.int64))

    def group(self, *outputs: Value) -> NestGroup:
        self.graph.outputs = list(outputs)
        group = fuse_nodes(self.graph.nodes, outputs)
        assert isinstance(group, NestGroup)
        return group


def check_meaning(builder: Builder, group: NestGroup) -> None:
    """The group computes what the graph does."""
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in builder.graph.inputs}
    expected = run_graph(builder.graph, feed)
    arrays = [v.data if v.data is not None else feed[v.name] for v in group.inputs]
    got = run_nests(group.nests, arrays, [(v.dtype, v.shape) for v in group.outputs])
    for value, array in zip(group.outputs, got, strict=True):
        np.testing.assert_allclose(array, expected[value.name], rtol=1e-5, atol=1e-5)


def test_bias_activation_and_residual_become_the_epilogue() -> None:
    b = Builder()
    x, w, r = b.input("x", 3, 8), b.input("w", 8, 5), b.input("r", 3, 5)
    y = b.add("MatMul", [x, w], (3, 5))
    y = b.add("Add", [y, r], (3, 5))
    y = b.add("Relu", [y], (3, 5))
    group = b.group(y)
    assert str(group.nests[0]).endswith(
        "sum= mul(r0, r1) then max(add(acc, r2), 0) where r0=in0[m, k], r1=in1[k, n], r2=in2[m, n]"
    )
    assert len(group.nests) == 1
    check_meaning(b, group)


def test_transposes_around_a_product_become_its_addresses() -> None:
    b = Builder()
    x, w = b.input("x", 3, 8), b.input("w", 5, 8)
    wt = b.add("Transpose", [w], (8, 5), perm=(1, 0))
    y = b.add("MatMul", [x, wt], (3, 5))
    y = b.add("Transpose", [y], (5, 3), perm=(1, 0))
    group = b.group(y)
    assert len(group.nests) == 1
    assert group.nests[0].write.index != group.nests[0].reads[0].index
    check_meaning(b, group)


def test_a_value_needed_outside_is_still_written() -> None:
    b = Builder()
    x, w = b.input("x", 3, 8), b.input("w", 8, 5)
    y = b.add("MatMul", [x, w], (3, 5))
    z = b.add("Relu", [y], (3, 5))
    group = b.group(y, z)
    assert len(group.nests) == 2
    check_meaning(b, group)


def test_an_operand_read_elsewhere_in_the_tensor_is_not_an_epilogue() -> None:
    b = Builder()
    x, w = b.input("x", 4, 8), b.input("w", 8, 4)
    y = b.add("MatMul", [x, w], (4, 4))
    t = b.add("Transpose", [y], (4, 4), perm=(1, 0))
    z = b.add("Add", [y, t], (4, 4))
    group = b.group(z)
    assert len(group.nests) == 2, "y[m, n] + y[n, m] needs the whole of y first"
    check_meaning(b, group)


def test_arithmetic_is_not_repeated_by_broadcasting_readers() -> None:
    b = Builder()
    x, r = b.input("x", 1, 5), b.input("r", 7, 5)
    e = b.add("Exp", [x], (1, 5))
    y = b.add("Add", [e, r], (7, 5))
    group = b.group(y)
    assert len(group.nests) == 2, "exp would run seven times per element"
    check_meaning(b, group)


def test_elementwise_work_before_a_reduction_is_substituted() -> None:
    b = Builder()
    x = b.input("x", 6, 5)
    y = b.add("Mul", [x, x], (6, 5))
    y = b.add("ReduceSum", [y, b.ints(1)], (6, 1), keepdims=1)
    group = b.group(y)
    assert len(group.nests) == 1
    check_meaning(b, group)


def test_softmax_keeps_its_passes_over_the_row() -> None:
    b = Builder()
    x = b.input("x", 6, 5)
    y = b.add("Softmax", [x], (6, 5), axis=-1)
    y = b.add("Relu", [y], (6, 5))
    group = b.group(y)
    assert len(group.nests) >= 3
    check_meaning(b, group)


def test_concatenation_writes_each_input_to_its_slice() -> None:
    b = Builder()
    x, y = b.input("x", 2, 3), b.input("y", 2, 4)
    a = b.add("Relu", [x], (2, 3))
    z = b.add("Concat", [a, y], (2, 7), axis=1)
    group = b.group(z)
    assert len(group.nests) == 2
    check_meaning(b, group)


def test_padded_reads_keep_their_padding() -> None:
    b = Builder()
    x = b.input("x", 1, 2, 4, 4)
    w = b.graph.constant(np.ones((3, 2, 3, 3), np.float32), "w")
    e = b.add("Exp", [x], (1, 2, 4, 4))
    y = b.add("Conv", [e, w], (1, 3, 4, 4), pads=(1, 1, 1, 1), kernel_shape=(3, 3))
    group = b.group(y)
    assert len(group.nests) == 2, "exp of the padding would be one, not zero"
    check_meaning(b, group)


def test_gather_feeds_its_followers() -> None:
    b = Builder()
    table = b.graph.constant(np.arange(20, dtype=np.float32).reshape(5, 4), "table")
    ids = b.graph.constant(np.array([3, -1, 0], np.int64), "ids")
    r = b.input("r", 3, 4)
    y = b.add("Gather", [table, ids], (3, 4), axis=0)
    y = b.add("Add", [y, r], (3, 4))
    group = b.group(y)
    check_meaning(b, group)


def test_an_operator_without_nests_makes_the_group_opaque() -> None:
    b = Builder()
    x = b.input("x", 2, 2)
    y = b.add("Det", [x], ())
    b.graph.outputs = [y]
    assert isinstance(fuse_nodes(b.graph.nodes, [y]), Opaque)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1), (5, 1, 2)])
def test_chains_of_movement_compose(shape: tuple[int, int, int]) -> None:
    b = Builder()
    x = b.input("x", *shape)
    moved = (shape[2], shape[0], shape[1])
    y = b.add("Transpose", [x], moved, perm=(2, 0, 1))
    y = b.add("Reshape", [y, b.ints(shape[2], -1)], (shape[2], shape[0] * shape[1]))
    y = b.add("Transpose", [y], (shape[0] * shape[1], shape[2]), perm=(1, 0))
    group = b.group(y)
    assert len(group.nests) == 1
    check_meaning(b, group)


def test_padding_along_an_axis_of_one_element_is_not_forgotten() -> None:
    b = Builder()
    x = b.input("x", 1, 8, 3, 5)
    turned = b.add("Transpose", [x], (8, 3, 1, 5), perm=(1, 2, 0, 3))
    y = b.add("MaxPool", [turned], (8, 3, 3, 5), kernel_shape=(1, 1), pads=(1, 0, 1, 0))
    check_meaning(b, b.group(y))


def test_padding_of_an_expanded_axis_ends_where_the_axis_does() -> None:
    b = Builder()
    x = b.input("x", 1, 3)
    wide = b.add("Expand", [x, b.ints(4, 3)], (4, 3))
    y = b.add("Pad", [wide, b.ints(1, 0, 2, 0)], (7, 3))
    check_meaning(b, b.group(y))


def test_indices_computed_on_the_way_stay_indices() -> None:
    b = Builder()
    data = b.input("data", 6)
    offsets = b.graph.add_input(Value("offsets", DType.INT64, (4,)))
    indices = b.graph.value("indices", DType.INT64, (4,))
    b.graph.append(Node("Add", [offsets, b.ints(1, 2, 3, 4)], [indices]))
    y = b.add("Gather", [data, indices], (4,), axis=0)
    group = b.group(y)
    assert len(group.nests) == 2
    check_meaning(b, group)


def test_a_half_value_is_rounded_before_it_leaves_its_type() -> None:
    b = Builder()
    x = b.input("x", 4, 33)
    half = b.graph.value("half", DType.FLOAT16, (4, 33))
    b.graph.append(Node("Cast", [x], [half], {"to": DType.FLOAT16.value}))
    wide = b.add("Cast", [half], (4, 33), to=DType.FLOAT32.value)
    group = b.group(b.add("Relu", [wide], (4, 33)))
    assert len(group.nests) == 2
    data = np.linspace(0.1, 99_999, 132, dtype=np.float32).reshape(4, 33)
    got = run_nests(group.nests, [data], [(v.dtype, v.shape) for v in group.outputs])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[0], data.astype(np.float16).astype(np.float32))


def chained(step: str, length: int) -> tuple[Builder, Value]:
    """`length` element-wise steps in which each value is read twice."""
    b = Builder()
    x = b.input("x", 6)
    before, y = x, b.add("Neg", [x], (6,))
    for _ in range(length):
        if step == "newton":
            quotient = b.add("Div", [x, y], (6,))
            new = b.add("Mul", [b.add("Add", [y, quotient], (6,)), x], (6,))
        elif step == "gated":
            new = b.add("Mul", [y, b.add("Sigmoid", [y], (6,))], (6,))
        else:
            new = b.add("Mul", [y, before], (6,))
        before, y = y, new
    return b, y


@pytest.mark.parametrize("step", ["newton", "gated", "fibonacci"])
def test_values_with_two_readers_are_computed_once(step: str) -> None:
    short, y = chained(step, 6)
    group = short.group(y)
    assert len(group.nests) == 1
    check_meaning(short, group)
    (nest,) = group.nests
    calls = [e for e in nest.body.walk() if isinstance(e, Call)]
    assert len(calls) == len(short.graph.nodes)
    assert len(nest.reads) == 1  # however often the input is read


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", ["newton", "gated", "fibonacci"])
def test_long_groups_become_nests_of_limited_size(step: str) -> None:
    long, y = chained(step, 1_000)
    group = long.group(y)
    calls = [[e for e in n.body.walk() if isinstance(e, Call)] for n in group.nests]
    assert sum(map(len, calls)) == len(long.graph.nodes)
    for parts in calls:
        assert sum(FUNCTIONS[c.function].cost_flop for c in parts) <= MAX_FUSED_FLOP


def test_a_composed_nest_reads_a_limited_number_of_tensors() -> None:
    b = Builder()
    inputs = [b.input(f"x{i}", 4) for i in range(3 * MAX_FUSED_READS)]
    total = inputs[0]
    for x in inputs[1:]:
        total = b.add("Add", [total, x], (4,))
    group = b.group(total)
    assert max(len({a.operand.key for a in n.reads}) for n in group.nests) <= MAX_FUSED_READS
    assert len(group.nests) <= 4
    check_meaning(b, group)


def test_results_that_nobody_reads_are_dropped_however_long_the_chain() -> None:
    b = Builder()
    x = b.input("x", 4)
    dead = x
    for _ in range(2_000):
        dead = b.add("Tanh", [dead], (4,))
    wanted = b.add("Relu", [x], (4,))
    assert len(b.group(wanted).nests) == 1
