"""Every reader of nests agrees on what a contraction is, over the nests of all operators."""

# mypy: disable-error-code="func-returns-value, union-attr"

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, reduce

import numpy as np
import pytest
from tests.property.checks import for_all
from tests.property.strategies import Case, generators

from tilewright.hardware.machine import Work
from tilewright.ir.contraction import contraction_of, contractions
from tilewright.ir.derive import is_complex, macs, nests_of
from tilewright.ir.expr import Call, Iter, evaluate, reads_of
from tilewright.ir.fuse import NestGroup, fuse_nodes
from tilewright.ir.graph import Node
from tilewright.ir.nest import Indirect, Nest, Opaque, access_dims
from tilewright.ir.operation_class import OperationClass
from tilewright.ir.ops import describe
from tilewright.mapping.network import problem_of
from tilewright.targets.cpu.isa import isa_by_name
from tilewright.targets.cpu.loopnest import loop_nest_supports, lower_nests
from tilewright.targets.npu.node_work import shape_of, work_of

EXAMPLES = 6
KEYS = sorted(generators())

# Operators that sum products of reads which both move along summed dims and are no contraction of two reads.
NO_CONTRACTIONS = {
    "Einsum": "multiplies three operands in one nest",
    "GridSample": "the weights of the taps are products themselves, and taps without weight are not read",
    "RoiAlign": "as GridSample",
    "RNNSteps": "the state before a step is that of the start or of the last step: a choice of two reads",
    "GRUSteps": "as RNNSteps",
    "LSTMSteps": "as RNNSteps",
}


def products_of_moving_reads(nest: Nest) -> bool:
    """Whether anywhere in the body two different reads that move along summed dims meet in a product."""
    summed = {d.name for d in nest.reduce_dims}
    moving = {i for i, a in enumerate(nest.reads) if summed & set(access_dims(nest, a))}
    for part in nest.body.walk():
        if isinstance(part, Call) and part.function == "mul":
            left, right = (reads_of(a) & moving for a in part.args)
            if left and right and len(left | right) > 1:
                return True
    return False


@cache
def cases(key: tuple[str, str]) -> tuple[Case, ...]:
    """A few cases of an operator."""
    drawn: list[Case] = []
    for_all(key, lambda one: drawn.append(one) is None, EXAMPLES)
    return tuple(drawn)


def sums(node: Node) -> Iterator[Nest]:
    return (n for n in nests_of(node) if n.combine == "sum")


@pytest.mark.sampled(18)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_sums_of_products_are_contractions_or_listed(key: tuple[str, str]) -> None:
    for one in cases(key):
        for nest in sums(one.node):
            if contraction_of(nest) is not None:
                assert products_of_moving_reads(nest)
            elif products_of_moving_reads(nest):
                assert one.node.op_type in NO_CONTRACTIONS, nest


@pytest.mark.sampled(40)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_the_factors_of_a_form_multiply_to_the_body(key: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    for form in (f for one in cases(key) for f in contractions(nests_of(one.node))):
        nest = form.nest
        values = [rng.integers(-4, 5, 16).astype(a.operand.dtype.compute.numpy) for a in nest.reads]
        iters = {e.dim: np.zeros(16, np.int64) for e in nest.body.walk() if isinstance(e, Iter)}
        parts = (form.left.value, form.right.value, *form.scales)
        product = reduce(np.multiply, (evaluate(part, values, iters=iters) for part in parts))
        np.testing.assert_array_equal(evaluate(nest.body, values, iters=iters), product)
        if form.centred is None:
            continue
        for centred, factor in zip(form.centred, (form.left, form.right), strict=True):
            at = centred.zero_read
            zero = centred.zero if at is None else values[at].astype(np.int64)
            shifted = values[centred.read].astype(np.int64) - zero
            assert centred.guarded or np.array_equal(evaluate(factor.value, values, iters=iters), shifted)


@pytest.mark.sampled(45)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_dims_of_the_result_are_rows_columns_batch_or_move_no_factor(key: tuple[str, str]) -> None:
    for form in (f for one in cases(key) for f in contractions(nests_of(one.node))):
        left, right = (set(access_dims(form.nest, a)) for a in form.accesses)
        for name in (d.name for d in form.nest.parallel_dims):
            roles = [name in role for role in (form.batch, form.rows, form.columns)]
            assert roles == [name in left & right, name in left - right, name in right - left]


@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_classes_units_and_mappers_see_the_same_contractions(key: tuple[str, str]) -> None:
    for one in cases(key):
        node, forms = one.node, contractions(nests_of(one.node))
        assert macs(node) == sum(form.nest.num_iterations for form in forms)
        assert is_complex(node) == bool(forms)
        is_opaque = isinstance(describe(node), Opaque)  # loops over steps have nests, but fuse with nothing
        is_in_class = OperationClass.of(node) is OperationClass.COMPLEX
        assert is_in_class == (is_complex(node) and not is_opaque)
        assert (work_of(node) in (Work.CONTRACTION, Work.DEPTHWISE)) == bool(forms)
        if work_of(node) is Work.DEPTHWISE:
            assert not shape_of(node).columns
        for nest in nests_of(node):
            problem, form = problem_of(node, nest), contraction_of(nest)
            if form is None:
                assert problem is None
                continue
            by_data = any(isinstance(i, Indirect) for a in (*form.accesses, nest.write) for i in a.index)
            assert (problem is None) == by_data
            assert problem is None or problem.num_macs == nest.num_iterations


@pytest.mark.sampled(44)
@pytest.mark.parametrize("key", KEYS, ids="".join)
def test_kernels_count_the_multiply_accumulates_of_their_contractions(key: tuple[str, str]) -> None:
    isa = isa_by_name("avx2")
    for one in cases(key):
        group = fuse_nodes((one.node,), tuple(one.node.results()))
        if not isinstance(group, NestGroup) or not any(True for _ in sums(one.node)):
            continue
        if loop_nest_supports(group.nests) is None:
            kernels = lower_nests(group.nests, {}, isa)
            expected = sum(form.nest.num_iterations for form in contractions(group.nests))
            assert sum(k.macs for k in kernels) == expected
