"""The checker of stages that merge: what differs between two siblings, and what may."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import GraphBuilder

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attribute, Graph, Node, Value
from tilewright.partition import PartitionProblem
from tilewright.partition.base import Reason, build_partition
from tilewright.partition.split import WHOLE, Split
from tilewright.planning import Provenance
from tilewright.schedule import Group, Instance, Schedule, ScheduleProblem, Stage
from tilewright.schedule.check_merges import check_merges
from tilewright.schedule.merge import merge_stage
from tilewright.targets.npu.costs import UNPRICED

Sibling = Callable[["Siblings"], Value]


class Siblings(GraphBuilder):
    """Operators of one input of each kind, with constants of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.rows, self.batch = self.input(1, 4, 8, 8), self.input(5, 6), self.input(2, 5, 6)
        self.column, self.other_rows = self.input(5, 1), self.input(5, 6)
        self.stacked = self.input(2, 3, 6)
        self.given = self.graph.add_input(self.constant(6, 3))

    def typed(
        self, op_type: str, *operands: Value | None, like: Value, dtype: DType = DType.FLOAT32, **node: Any
    ) -> Value:
        result = self.graph.value(op_type, dtype, like.shape)
        return self.graph.append(Node(op_type, operands, [result], **node)).output  # type: ignore[arg-type]


def window(
    kernel: Sequence[int] = (3, 3),
    pads: Sequence[int] = (1, 1, 1, 1),
    *,
    channels: int = 3,
    out: tuple[int, int] = (8, 8),
    group: int = 1,
    **attributes: Attribute,
) -> Sibling:
    """A convolution of the image; in one group, which is not said."""

    def make(b: Siblings) -> Value:
        weight = b.constant(channels, 4 // group, *kernel)
        more = {"group": group} if group > 1 else {}
        shape = (1, channels, *out)
        return b.op("Conv", b.image, weight, shape=shape, pads=tuple(pads), **attributes, **more)

    return make


def product(columns: int = 3, x: str = "rows", weight: Sequence[int] | None = None) -> Sibling:
    """A product of rows and a constant."""

    def make(b: Siblings) -> Value:
        operand: Value = getattr(b, x)
        its = b.constant(*(weight or (operand.shape[-1], columns)))
        shape = (*np.broadcast_shapes(operand.shape[:-2], its.shape[:-2]), operand.shape[-2], columns)
        return b.op("MatMul", operand, its, shape=shape)

    return make


def behind(
    op_type: str,
    *constants: tuple[Sequence[int], float],
    columns: int = 3,
    shape: Sequence[int] | None = None,
    before: Sibling | None = None,
    **attributes: Attribute,
) -> Sibling:
    """A product and what follows it, of constants of these shapes and values."""

    def make(b: Siblings) -> Value:
        made = (before or product(columns))(b)
        its = [b.constant(*extents, value=value) for extents, value in constants]
        return b.op(op_type, made, *its, shape=shape, **attributes)

    return make


def twice(*, turned: bool = False) -> Sibling:
    """A product whose result is read in two places."""

    def make(b: Siblings) -> Value:
        made = product(3)(b)
        operands = (b.op("Relu", made), made)
        return b.op("Sub", *(reversed(operands) if turned else operands))

    return make


def of_inner(b: Siblings) -> Value:
    """Only what is in the middle leaves, not the last operator's result."""
    made = product(3)(b)
    b.op("Relu", made)
    return made


def clipped(low: float | None, high: float | None) -> Sibling:
    def make(b: Siblings) -> Value:
        made = product(3)(b)
        limits = [None if limit is None else b.constant(value=limit) for limit in (low, high)]
        return b.typed("Clip", made, *limits, like=made)

    return make


def shifted(by: Callable[[Siblings], Value], *, turned: bool = False) -> Sibling:
    def make(b: Siblings) -> Value:
        operands = (product(6)(b), by(b))
        return b.op("Add", *(reversed(operands) if turned else operands), shape=(5, 6))

    return make


def summed(b: Siblings) -> Value:
    """A product that is added up along its columns."""
    return b.op("ReduceSum", product(3)(b), b.integers(1), shape=(5, 1))


def reshaped(sizes: Sequence[int], shape: Sequence[int], columns: int = 3) -> Sibling:
    def make(b: Siblings) -> Value:
        return b.op("Reshape", product(columns)(b), b.integers(*sizes), shape=shape)

    return make


def unsqueezed(b: Siblings) -> Value:
    """As up to opset 12: axes are an attribute."""
    result = b.graph.value("unsqueeze", DType.FLOAT32, (1, 5, 3))
    node = Node("Unsqueeze", [product(3)(b)], [result], {"axes": (0,)}, opset=11)
    return b.graph.append(node).output


def sliced(b: Siblings) -> Value:
    """The inner columns of a product."""
    bounds = (b.integers(number) for number in (1, 5, 1))
    return b.op("Slice", product(6)(b), *bounds, shape=(5, 4))


def cast(dtype: DType, to: int) -> Sibling:
    def make(b: Siblings) -> Value:
        made = product(3)(b)
        return b.typed("Cast", made, like=made, dtype=dtype, attributes={"to": to})

    return make


def relu(**node: Any) -> Sibling:
    def make(b: Siblings) -> Value:
        made = product(3)(b)
        return b.typed("Relu", made, like=made, **node)

    return make


def halves(b: Siblings) -> Value:
    """A product in another type."""
    weight = b.graph.constant(np.zeros((6, 3), np.float16), "w")
    return b.op("MatMul", b.rows, weight, shape=(5, 3))


def with_bias(b: Siblings) -> Value:
    weight = b.constant(3, 4, 3, 3)
    return b.op("Conv", b.image, weight, b.constant(3), shape=(1, 3, 8, 8), pads=(1, 1, 1, 1))


def without_bias(b: Siblings) -> Value:
    return b.typed("Conv", b.image, b.constant(4, 4, 1, 1), None, like=b.image)


def of_given(b: Siblings) -> Value:
    return b.op("Add", b.op("MatMul", b.rows, b.given, shape=(5, 3)), b.constant(3))


def many_numbers(last: float) -> Sibling:
    numbers = np.zeros(2000)
    numbers[1000] = last
    return relu(attributes={"numbers": numbers})


OPERATORS, VALUES, ATTRIBUTES = "have other operators", "read other values", "have other attributes"
KINDS, ASIDE, SUMS = "have operands of other kinds", "do not lie side by side", "several passes"
RESULTS, GROUPS, SLIDE = "have other results", "are convolutions in groups", "slide their windows"
TAPS, EXTENTS = "taps lie between", "several extents"
DATA = "for which a caller may give other data"

PADDED = window((1, 1), (0, 0, 0, 0))
"""A kernel of another extent that fits the others' window."""

PAIRS: dict[str, tuple[Sibling, Sibling, str]] = {
    "windows": (window(), window(), ""),
    "more channels": (window(), window(channels=5), ""),
    "padded": (window(), PADDED, EXTENTS),
    "taller": (window((3, 1), (1, 0, 1, 0)), window((1, 1), (0, 0, 0, 0)), EXTENTS),
    "begins later": (
        window((2, 2), (1, 1, 0, 0)), window((2, 2), (0, 1, 1, 0)), EXTENTS),
    "reaches farther": (window((3, 3), (0, 0, 2, 2)), window((2, 2), (0, 0, 1, 1)), EXTENTS),
    "groups of the second": (window(channels=4), window(channels=4, group=2), GROUPS),
    "groups of the first": (window(channels=4, group=2), window(channels=4), GROUPS),
    "strides": (
        window((1, 1), (0, 0, 0, 0), strides=(2, 2), out=(4, 4)),
        window((5, 5), (0, 0, 0, 0), out=(4, 4)), SLIDE),
    "dilations": (window(), window((3, 3), (2, 2, 2, 2), dilations=(2, 2)), SLIDE),
    "extents": (window(), window((3, 3), (1, 0, 1, 0), out=(8, 6)), SLIDE),
    "taps between": (
        window((2, 2), (1, 1, 1, 1), dilations=(2, 2)),
        window((2, 2), (1, 0, 1, 2), dilations=(2, 2)), TAPS),
    "bias": (window(), with_bias, KINDS),
    "biases": (with_bias, with_bias, ""),
    "one channel": (window(channels=1), window(channels=1), ASIDE),
    "one channel beside more": (window(channels=1), window(channels=3), ASIDE),
    "one channel behind more": (window(channels=3), window(channels=1), ASIDE),
    "products": (product(), product(4), ""),
    "operators": (product(), behind("Relu"), OPERATORS),
    "other operators": (behind("Relu"), behind("Neg"), OPERATORS),
    "domains": (relu(), relu(domain="com.microsoft"), OPERATORS),
    "versions": (relu(opset=13), relu(opset=14), OPERATORS),
    "inner columns": (sliced, sliced, ASIDE),
    "equal old versions": (unsqueezed, unsqueezed, ""),
    "inputs": (product(), product(x="other_rows"), VALUES),
    "batches": (product(x="batch"), product(4, x="batch"), ""),
    "weights of batches": (
        product(3, x="batch", weight=(2, 6, 3)), product(4, x="batch", weight=(2, 6, 4)), ""),
    "weights of batches of their own": (
        product(3, weight=(2, 6, 3)), product(3, weight=(2, 6, 3)), ""),
    "weights of one batch": (product(weight=(1, 6, 3)), product(4, weight=(1, 6, 4)), ""),
    "weights of several batches": (product(weight=(2, 6, 3)), product(weight=(3, 6, 3)), ""),
    "biases left out": (without_bias, without_bias, ""),
    "types": (product(), halves, KINDS),
    "no sum": (
        lambda b: b.op("Mul", b.column, b.constant(1, 3), shape=(5, 3)),
        lambda b: b.op("Mul", b.column, b.constant(1, 3), shape=(5, 3)), ASIDE),
    "results": (of_inner, of_inner, RESULTS),
    "result of the second": (behind("Relu"), of_inner, RESULTS),
    "result of the first": (of_inner, behind("Relu"), RESULTS),
    "read twice": (twice(), twice(), ""),
    "read twice the other way round": (twice(), twice(turned=True), VALUES),
    "scalars": (behind("Add", ((), 1.0)), behind("Add", ((), 1.0), columns=4), ""),
    "other scalars": (behind("Add", ((), 1.0)), behind("Add", ((), 2.0)), ASIDE),
    "shapes of one number": (behind("Add", ((), 1.0)), behind("Add", ((1,), 1.0)), ASIDE),
    "columns": (behind("Add", ((3,), 1.0)), behind("Add", ((4,), 2.0), columns=4), ""),
    "whole columns": (behind("Add", ((5, 3), 1.0)), behind("Add", ((5, 4), 2.0), columns=4), ""),
    "a column for all": (behind("Add", ((3,), 1.0)), behind("Add", ((1,), 1.0), columns=4), ASIDE),
    "constants first": (shifted(lambda b: b.constant(6), turned=True),) * 2 + ("",),
    "columns of several rows": (behind("Add", ((5, 3), 1.0)), behind("Add", ((1, 3), 2.0)), ASIDE),
    "equal limits": (clipped(0.0, 6.0), clipped(0.0, 6.0), ""),
    "upper limits": (clipped(0.0, 6.0), clipped(0.0, 5.0), ASIDE),
    "upper limits alone": (clipped(None, 6.0), clipped(None, 5.0), ASIDE),
    "equal upper limits alone": (clipped(None, 6.0), clipped(None, 6.0), ""),
    "limits left out": (clipped(None, 6.0), clipped(0.0, 6.0), KINDS),
    "limits left out of the second": (clipped(0.0, 6.0), clipped(None, 6.0), KINDS),
    "attributes": (behind("LeakyRelu", alpha=0.1), behind("LeakyRelu", alpha=0.2), ATTRIBUTES),
    "long attributes": (many_numbers(0.0), many_numbers(1.0), ATTRIBUTES),
    "equal long attributes": (many_numbers(0.0), many_numbers(0.0), ""),
    "several passes": (behind("Softmax"), behind("Softmax"), SUMS),
    "several nests": (
        behind("Concat", ((5, 3), 1.0), shape=(10, 3), axis=0),
        behind("Concat", ((5, 3), 1.0), shape=(10, 3), axis=0), SUMS),
    "sums": (summed, summed, SUMS),
    "sums of several": (
        behind("MatMul", ((3, 4), 1.0), shape=(5, 4)), behind("MatMul", ((3, 4), 1.0), shape=(5, 4)), SUMS),
    "no nests": (
        behind("NonZero", shape=(2, 15)), behind("NonZero", shape=(2, 15)), SUMS),
    "shared operands": (shifted(lambda b: b.other_rows), shifted(lambda b: b.other_rows), ASIDE),
    "shared columns": (shifted(lambda b: b.column), shifted(lambda b: b.column), ""),
    "what the product reads": (shifted(lambda b: b.rows), shifted(lambda b: b.rows), ASIDE),
    "a constant for an operand": (
        shifted(lambda b: b.other_rows), shifted(lambda b: b.constant(5, 6)), KINDS),
    "other types": (cast(DType.FLOAT16, 10), cast(DType.INT32, 10), ASIDE),
    "turned": (
        behind("Transpose", shape=(3, 5), perm=(1, 0)),
        behind("Transpose", columns=4, shape=(4, 5), perm=(1, 0)), ""),
    "shapes with more axes": (reshaped((1, 5, -1), (1, 5, 3)), reshaped((1, 5, -1), (1, 5, 4), 4), ""),
    "stated shapes": (reshaped((1, 5, 3), (1, 5, 3)), reshaped((1, 5, 3), (1, 5, 3)), ASIDE),
    "shapes without common axes": (reshaped((2, 10), (2, 10), 4), reshaped((2, 10), (2, 10), 4), ASIDE),
    "data": (product(), of_given, DATA),
    "data of the first": (of_given, product(), DATA),
}  # fmt: skip


def planned(*siblings: Sibling) -> tuple[Graph, Schedule]:
    """Subgraphs that are all merged."""
    b = Siblings()
    groups, outputs = [], []
    for make in siblings:
        before = len(b.graph.nodes)
        outputs.append(make(b))
        groups.append(b.graph.nodes[before:])
    graph = b.finish(*outputs)
    partition = build_partition(
        PartitionProblem(graph), groups, lambda *_: Reason.CLUSTER, Provenance("test"), quality=UNPRICED
    )
    stages = (merge_stage(range(len(groups))),)
    return graph, Schedule(partition, stages, UNPRICED, Provenance("test"))


def found(schedule: Schedule, *, pads_kernels: bool = False) -> list[str]:
    problem = ScheduleProblem(schedule.partition, pads_kernels=pads_kernels)
    violations = list(check_merges(problem, schedule))
    assert {violation.rule for violation in violations} <= {"merge"}
    return [violation.message for violation in violations]


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_between_siblings_is_named(name: str) -> None:
    first, second, fault = PAIRS[name]
    _, schedule = planned(first, second)
    for pads_kernels in (False, True):
        expected = fault if not pads_kernels or fault != EXTENTS else ""
        messages = found(schedule, pads_kernels=pads_kernels)
        assert [expected in message for message in messages] == [True] * bool(expected), messages


def test_each_sibling_is_compared_and_the_first_that_differs_is_named() -> None:
    for odd, name in ((window(channels=4, group=2), GROUPS), (of_given, DATA)):
        for others in ((window(), odd), (odd, window()), (odd, odd)):
            _, schedule = planned(window(), *others)
            (message,) = found(schedule)
            assert "other operators" in message or name in message
            (place,) = [i for i, other in enumerate(others, 1) if other is odd][:1]
            assert f"{place} " in message


def test_what_merges_are_two_groups_of_one_whole_instance_each() -> None:
    _, schedule = planned(product(), product(), product())
    one, two, three = (Group((Instance(i),)) for i in range(3))

    def faults(*groups: Group, splits: tuple[Split, ...] = (WHOLE,) * 3) -> list[str]:
        stages = (Stage((one,)), Stage(groups, "merge"))
        return found(replace(schedule, stages=stages, splits=splits))

    assert faults(two, three) == []
    few = "stage 1: merges other than two groups or more of one instance each"
    assert faults(two) == [few]
    assert faults(Group((Instance(1), Instance(2)))) == [few]
    assert faults(one, Group((Instance(1), Instance(2)))) == [few]
    for splits in ((WHOLE, Split(1, 3), WHOLE), (WHOLE, Split(1, 3), Split(1, 3))):
        assert faults(two, three, splits=splits) == ["stage 1: merges slices"]
    parallel = replace(schedule, stages=(Stage((one,)), Stage((two,))))
    assert found(parallel) == []
