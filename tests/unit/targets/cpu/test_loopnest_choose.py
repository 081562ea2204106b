"""Loop nests run in any way that may be chosen: same results, other code; nonsense is left to the rules."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.loopnest_harness import Array, assert_same, run_kernels
from tests.unit.targets.cpu.test_loopnest import ISAS, NHWC, at, depthwise, dims, operand, values

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Read, call
from tilewright.ir.nest import Lookup, Nest
from tilewright.targets.cpu.isa import Isa
from tilewright.targets.cpu.kernel import Layout, Layouts, Loops
from tilewright.targets.cpu.loopnest import chooser_of, loop_choices, lower_nests
from tilewright.targets.cpu.products import loops_signature
from tilewright.tuning import Choice

F = DType.FLOAT32
CHANNELS_LAST: Layouts = {("input", 0): NHWC, ("output", 0): NHWC, ("input", 1): Layout((1, 2, 0))}
Case = tuple[Sequence[Nest], dict[int, Array], Layouts]


@pytest.fixture(params=ISAS, ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


def convolved(channels: int, size: int, stride: int, taps: int) -> Case:
    inputs = {
        0: values(2, channels, size, size),
        1: values(channels, taps, taps),
        2: values(channels),
    }
    return (depthwise(channels, size, stride, taps),), inputs, CHANNELS_LAST


def softmax(rows: int, columns: int) -> Case:
    """Nests that share their rows."""
    x, out = operand("input", 0, rows, columns), operand("output", 0, rows, columns)
    top, total = operand("local", 0, rows), operand("local", 1, rows)
    powers = operand("local", 2, rows, columns)
    nests = (
        Nest(dims(i=rows, k=columns), (at(x, "i", "k"),), at(top, "i"), Read(0, F), "max"),
        Nest(
            dims(i=rows, j=columns),
            (at(x, "i", "j"), at(top, "i")),
            at(powers, "i", "j"),
            call("exp", Read(0, F) - Read(1, F)),
        ),
        Nest(dims(i=rows, k=columns), (at(powers, "i", "k"),), at(total, "i"), Read(0, F), "sum"),
        Nest(
            dims(i=rows, j=columns),
            (at(powers, "i", "j"), at(total, "i")),
            at(out, "i", "j"),
            Read(0, F) / Read(1, F),
        ),
    )
    return nests, {0: values(rows, columns)}, {}


def row_means(rows: int, columns: int) -> Case:
    x, out = operand("input", 0, rows, columns), operand("output", 0, rows)
    finish = Acc(F) / float(columns)
    nest = Nest(dims(i=rows, k=columns), (at(x, "i", "k"),), at(out, "i"), Read(0, F), "sum", finish=finish)
    return (nest,), {0: values(rows, columns)}, {}


def added(size: int) -> Case:
    a, b, out = operand("input", 0, size), operand("input", 1, size), operand("output", 0, size)
    nest = Nest(dims(i=size), (at(a, "i"), at(b, "i")), at(out, "i"), Read(0, F) + Read(1, F))
    return (nest,), {0: values(size), 1: values(size)}, {}


CASES = {
    "depthwise": convolved(72, 13, 1, 3),
    "strided": convolved(20, 15, 2, 3),
    "wide": convolved(40, 11, 1, 5),
    "softmax": softmax(37, 45),
    "means": row_means(9, 130),
    "sum": added(1000),
}


def ways(case: Case, isa: Isa, *, divides: bool) -> list[Choice]:
    nests, _, layouts = case
    (kernel,) = lower_nests(nests, layouts, isa)
    (loops,) = kernel.loops
    listed, more = loop_choices(loops, isa, divides=divides)
    assert not set(listed) & set(more)
    assert Choice("loop-nest") not in (*listed, *more)
    return [*listed, *more]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_all_ways_compute_the_same(isa: Isa, name: str) -> None:
    nests, inputs, layouts = case = CASES[name]
    found = ways(case, isa, divides=True)
    assert found
    texts = set()
    for choice in found[:: max(1, len(found) // 12)]:
        assert_same(nests, inputs, isa, layouts, both_ends=False, choice=choice)
        (kernel,) = lower_nests(nests, layouts, isa, lambda members, choice=choice: choice)
        texts.add((kernel.symbol, kernel.num_chunks))
    (plain,) = lower_nests(nests, layouts, isa)
    assert texts - {(plain.symbol, plain.num_chunks)}


def test_what_is_chosen_of_a_depthwise_convolution_is_what_the_code_does(isa: Isa) -> None:
    nests, inputs, layouts = convolved(72, 28, 1, 3)
    choice = Choice.of("loop-nest", rows=4, vectors=2, chunks=3)
    (plain,) = lower_nests(nests, layouts, isa)
    (kernel,) = lower_nests(nests, layouts, isa, lambda members: choice)
    assert (plain.num_chunks != 3, kernel.num_chunks) == (True, 3)
    assert kernel.symbol != plain.symbol
    results = [run_kernels(nests, inputs, isa, layouts, choice=c)[0] for c in (None, choice)]
    assert results[0].tobytes() == results[1].tobytes(), "each total is added up in the same order"


def test_on_one_thread_no_way_has_chunks_and_a_large_nest_is_tried_without(isa: Isa) -> None:
    found = ways(convolved(72, 28, 1, 3), isa, divides=False)
    assert found[0] == Choice.of("loop-nest", chunks=1)
    assert {choice.get("chunks") for choice in found} == {1}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "parameters",
    [
        {"rows": 10**9, "vectors": -4},
        {"axis": 99, "row_axis": -1, "lanes": 3},
        {"chunks": 0, "block": -16, "straight": 10**6},
        {"item_rows": 10**9, "speed": 7},
    ],
)
def test_nonsense_from_a_file_is_left_to_the_rules(isa: Isa, parameters: dict[str, int]) -> None:
    for nests, _, layouts in CASES.values():
        (plain,) = lower_nests(nests, layouts, isa)
        (kernel,) = lower_nests(nests, layouts, isa, lambda members: Choice.of("loop-nest", **parameters))
        assert (kernel.symbol, kernel.num_chunks) == (plain.symbol, plain.num_chunks)


def test_choices_hold_for_nests_of_their_signature_alone(isa: Isa) -> None:
    nests, _, layouts = convolved(72, 28, 1, 3)
    others, _, _ = convolved(72, 28, 2, 3)
    choices = {loops_signature(nests, layouts): Choice.of("loop-nest", chunks=1)}
    choose = chooser_of(choices, layouts)
    assert choose is not None
    (chosen,), (other,) = (lower_nests(n, layouts, isa, choose) for n in (nests, others))
    assert chosen.num_chunks == 1
    assert other.num_chunks > 1
    assert chooser_of({"8f00": Choice("contraction")}, layouts) is None


def test_nests_that_tables_direct_have_no_other_ways(isa: Isa) -> None:
    x, out = operand("input", 0, 64), operand("output", 0, 64)
    table = (*reversed(range(63)), 5)
    nest = Nest(dims(i=64), (at(x, Lookup(table, "i")),), at(out, "i"), Read(0, F))
    assert loop_choices(Loops((nest,), {}), isa, divides=True) == ((), ())
    assert loops_signature((nest,), {}) == ""
    got = run_kernels((nest,), {0: values(64)}, isa, choice=Choice.of("loop-nest", vectors=1))
    np.testing.assert_array_equal(got[0], values(64)[list(table)])
