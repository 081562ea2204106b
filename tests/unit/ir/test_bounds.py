"""Graphs that state wrong shapes are found before code is generated from them."""

# mypy: disable-error-code="list-item"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from tests.property.checks import EXAMPLES
from tests.property.mixed_graphs import mixed_graphs

from tilewright.errors import InternalError, ModelRejected
from tilewright.ir import bounds
from tilewright.ir.bounds import (
    LARGEST_INDEX,
    find_nest_problem,
    find_out_of_bounds,
    require_bounded,
    require_bounded_graph,
    require_bounded_nests,
    require_bounded_part,
)
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Const, Expr
from tilewright.ir.graph import Graph, Value
from tilewright.ir.nest import (
    Access,
    Affine,
    Dim,
    Index,
    Indirect,
    Lookup,
    Nest,
    Opaque,
    Operand,
    Stepwise,
    affine,
)
from tilewright.ir.ops.build import read
from tilewright.ir.restrict import RestrictedNests
from tilewright.ir.text import parse_graph

HEAD = 'graph "g" opset 17 {\n input %x: float32[4, 6]\n input %w: float32[6, 5]\n'


def found(line: str, result: str = "y") -> str | None:
    return find_out_of_bounds(parse_graph(f"{HEAD}{line}\n return %{result}\n}}"))


@EXAMPLES
@given(graph=mixed_graphs(max_nodes=6))
def test_graphs_with_the_shapes_of_their_operators_stay_inside(graph: Graph) -> None:
    assert find_out_of_bounds(graph) is None


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[4, 6] = Relu(%x)",
        "%y: float32[4, 5] = MatMul(%x, %w)",
        "%y: float32[6, 4] = Transpose(%x) {perm = [1, 0]}",
        "%y: float32[4, 12] = Concat(%x, %x) {axis = 1}",
    ],
)
def test_right_shapes_are_accepted(line: str) -> None:
    assert found(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[4, 7] = Relu(%x)",
        "%y: float32[400, 6] = Relu(%x)",
        "%y: float32[4, 50] = MatMul(%x, %w)",
        "%y: float32[40, 5] = MatMul(%x, %w)",
        "%y: float32[4, 6] = MatMul(%x, %x)",
        "%y: float32[60, 4] = Transpose(%x) {perm = [1, 0]}",
        "%y: float32[4, 120] = Concat(%x, %x) {axis = 1}",
        "%y: float32[9, 6] = Add(%x, %x)",
    ],
)
def test_wrong_shapes_are_refused(line: str) -> None:
    problem = found(line)
    assert problem is not None
    assert "'y'" in problem


def test_a_pass_that_breaks_a_graph_is_an_internal_error() -> None:
    graph = parse_graph(f"{HEAD}%y: float32[4, 7] = Relu(%x)\n return %y\n}}")
    with pytest.raises(InternalError, match=r"after cutting corners, Relu 'y': .*\[4, 7\].*\[4, 6\]"):
        require_bounded_graph(graph, "cutting corners")


# Nests by hand. `x` is the input, `y` the result, of these shapes.

F32 = DType.FLOAT32
ONE = Const(1.0, F32)


def writes(
    shape: Sequence[int], *parts: tuple[Sequence[tuple[str, int]], Sequence[Index]]
) -> tuple[list[Nest], list[Value]]:
    """Nests that write ones where their dims and index say, and the result they write."""
    out = Operand("output", 0, F32, tuple(shape))
    nests = [Nest(tuple(Dim(*d) for d in dims), (), Access(out, tuple(index)), ONE) for dims, index in parts]
    return nests, [Value("y", F32, shape)]


def problem_of(shape: Sequence[int], *parts: tuple[Sequence[tuple[str, int]], Sequence[Index]]) -> str | None:
    nests, outputs = writes(shape, *parts)
    return find_nest_problem(nests, [], outputs)


ROW, COLUMN = affine("i"), affine("j")


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((6,), [((("i", 2), ("j", 3)), [affine(("i", 3), "j")])]),
        ((6,), [((("i", 2), ("j", 3)), [affine(("i", -3), ("j", -1), 5)])]),
        ((6,), [((("i", 3),), [affine(("i", 2))]), ((("i", 3),), [affine(("i", 2), 1)])]),
        ((5,), [((("i", 3),), [affine(("i", 2))]), ((("i", 2),), [affine(("i", 2), 1)])]),
        ((4,), [((("i", 4),), [Lookup((3, 1, 0, 2), "i")])]),
        ((3, 4), [((("i", 3), ("j", 1)), [ROW, COLUMN]), ((("i", 3), ("j", 3)), [ROW, affine("j", 1)])]),
        # Columns of unequal parts of the rows, which no one axis divides.
        (
            (3, 3),
            [
                ((("i", 1), ("j", 2)), [ROW, COLUMN]),
                ((("i", 2), ("j", 1)), [ROW, affine("j", 2)]),
                ((("i", 1), ("j", 2)), [affine("i", 2), affine("j", 1)]),
                ((("i", 2), ("j", 1)), [affine("i", 1), COLUMN]),
                ((), [affine(1), affine(1)]),
            ],
        ),
        # Rows, and within a row every other column.
        (
            (2, 4),
            [
                ((("j", 4),), [affine(0), COLUMN]),
                ((("j", 2),), [affine(1), affine(("j", 2))]),
                ((("j", 2),), [affine(1), affine(("j", 2), 1)]),
            ],
        ),
        # What covers everything may be written over.
        ((4,), [((("i", 4),), [ROW]), ((("i", 2),), [affine("i", 1)])]),
        ((0, 3), []),
    ],
)
def test_writes_that_cover_the_result_are_recognised(shape: tuple[int, ...], parts: list) -> None:
    assert problem_of(shape, *parts) is None


@pytest.mark.parametrize(
    ("shape", "parts", "message"),
    [
        ((6,), [((("i", 5),), [ROW])], "not every element of the result 'y'"),
        # As many iterations as elements, but one element is written twice.
        ((6,), [((("i", 2), ("j", 3)), [affine(("i", 2), "j")])], "more than once"),
        ((6,), [((("i", 3), ("j", 2)), [affine("i")])], "more than once"),
        ((4,), [((("i", 4),), [Lookup((3, 1, 1, 2), "i")])], "more than once"),
        ((3, 3), [((("i", 3),), [ROW, ROW]), ((("i", 3), ("j", 2)), [ROW, COLUMN])], "not every element"),
        # As many elements as there are, in parts that overlap.
        ((6,), [((("i", 4),), [ROW]), ((("i", 2),), [affine("i", 3)])], "not every element"),
        # All of them, but in parts that overlap.
        ((6,), [((("i", 4),), [ROW]), ((("i", 4),), [affine("i", 2)])], "not every element"),
        ((2, 2), [((("j", 2),), [affine(0), COLUMN]), ((), [affine(1), affine(0)])], "not every element"),
        (
            (6,),
            [((("i", 2),), [ROW]), ((("i", 3),), [affine("i", 2)]), ((("i", 1),), [affine("i", 3)])],
            "not every element",
        ),
        ((2, 2), [((("i", 2),), [ROW, affine()]), ((("i", 2),), [affine(), ROW])], "not every element"),
        ((6,), [((("i", 3),), [affine(("i", 2))]), ((("i", 3),), [affine(("i", 2))])], "not every element"),
        ((6,), [((("i", 7),), [ROW])], "leaves its tensor"),
        ((6,), [((("i", 6),), [affine("i", -1)])], "leaves its tensor"),
        ((6,), [((("i", 6),), [affine("k")])], "uses the dim 'k'"),
        ((6,), [((("i", -6),), [ROW])], "negative extent"),
        ((6,), [], "not every element"),
        ((6,), [((("i", 6),), [ROW, COLUMN])], "another shape"),
    ],
)
def test_writes_that_miss_an_element_or_leave_are_found(
    shape: tuple[int, ...], parts: list, message: str
) -> None:
    problem = problem_of(shape, *parts)
    assert problem is not None
    assert message in problem


def reads_problem(
    access: Access, extent: int = 4, *, before: Sequence[Access] = (), body: Expr | None = None
) -> str | None:
    """Of a nest over `i` that copies what an access reads into `y`; other reads come before it."""
    reads = (*before, access)
    out = Operand("output", 0, F32, (extent,))
    value = read(len(reads) - 1, access) if body is None else body
    nest = Nest((Dim("i", extent),), reads, Access(out, (ROW,)), value)
    operands = {a.operand.position: a.operand for a in reads if a.operand.kind == "input"}
    inputs = [Value(f"x{p}", operands[p].dtype, operands[p].shape) for p in sorted(operands)]
    return find_nest_problem([nest], inputs, [Value("y", F32, (extent,))])


def x(*shape: int, position: int = 0, dtype: DType = F32) -> Operand:
    return Operand("input", position, dtype, shape)


INDICES = Access(x(4, position=0, dtype=DType.INT64), (ROW,))


@pytest.mark.parametrize(
    ("access", "before"),
    [
        (Access(x(4), (ROW,)), ()),
        (Access(x(7), (affine(("i", 2)),)), ()),
        (Access(x(4), (affine("i", 9),), fill=0.0), ()),
        (Access(x(2, 2), (ROW,), view=(4,)), ()),
        (Access(x(3), (Lookup((2, 0, 0, 1), "i"),)), ()),
        (Access(x(3, position=1), (Indirect(0),)), (INDICES,)),
        (Access(Operand("table", 0, F32, (4,), np.ones(4, np.float32)), (ROW,)), ()),
    ],
)
def test_reads_inside_are_accepted(access: Access, before: Sequence[Access]) -> None:
    assert reads_problem(access, before=before) is None


@pytest.mark.parametrize(
    ("access", "before", "message"),
    [
        (Access(x(3), (ROW,)), (), "leaves its tensor [3]"),
        (Access(x(4), (affine("i", -1),)), (), "leaves its tensor"),
        (Access(x(4), (affine(("i", LARGEST_INDEX)),), fill=0.0), (), "leaves its tensor"),
        (Access(x(2, 2), (ROW,), view=(5,)), (), "another shape"),
        (Access(x(3), (Lookup((2, 0, 3, 1), "i"),)), (), "leaves its tensor"),
        (Access(x(3), (Lookup((2, 0, 0), "i"),)), (), "leaves its tensor"),
        # Nothing is inside an axis without elements, so an index cannot be kept there.
        (Access(x(0, position=1), (Indirect(0),)), (INDICES,), "leaves its tensor"),
        (Access(x(3, position=1), (Indirect(7),)), (INDICES,), "leaves its tensor"),
        (Access(x(3, position=1), (Indirect(2),)), (INDICES,), "leaves its tensor"),
        (Access(x(3, position=1), (Indirect(-1),)), (INDICES,), "leaves its tensor"),
        (
            Access(x(3, position=2), (Indirect(1),)),
            (INDICES, Access(x(4, 4, position=1, dtype=DType.INT64), (Indirect(0), ROW))),
            "leaves its tensor",
        ),
        (Access(x(3, position=1), (Indirect(1),)), (INDICES,), "leaves its tensor"),
        (Access(Operand("local", 0, F32, (4,)), (ROW,)), (), "not written yet"),
        (Access(Operand("output", 0, F32, (4,)), (ROW,)), (), "not written yet"),
        (Access(Operand("table", 0, F32, (4,), np.ones(3, np.float32)), (ROW,)), (), "another shape"),
    ],
)
def test_reads_outside_or_too_early_are_found(access: Access, before: Sequence[Access], message: str) -> None:
    problem = reads_problem(access, before=before)
    assert problem is not None
    assert message in problem


def test_reads_of_an_empty_reduction_count_where_they_happen() -> None:
    """Without an iteration the body is never evaluated, but the initial value is."""
    out, outputs = Operand("output", 0, F32, (4,)), [Value("y", F32, (4,))]
    dims = (Dim("i", 4), Dim("k", 0, "reduce"))
    inside = Access(x(4), (ROW,))
    outside = Access(x(2, position=1), (ROW,))
    inputs = [Value("x", F32, (4,)), Value("z", F32, (2,))]
    body = read(0, inside) * read(1, outside)
    only_body = Nest(dims, (inside, outside), Access(out, (ROW,)), body, "sum", None, Acc(F32))
    also_initial = Nest(dims, (inside, outside), Access(out, (ROW,)), body, "sum", read(1, outside))
    assert find_nest_problem([only_body], inputs, outputs) is None
    problem = find_nest_problem([also_initial], inputs, outputs)
    assert problem is not None
    assert "leaves its tensor [2]" in problem


def test_a_part_of_a_temporary_is_read_after_it_was_written() -> None:
    kept, out = Operand("local", 0, F32, (4,)), Operand("output", 0, F32, (2,))
    fill = Nest((Dim("i", 2),), (), Access(kept, (affine("i", 1),)), ONE)

    def copy(first: int) -> Nest:
        source = Access(kept, (affine("i", first),))
        return Nest((Dim("i", 2),), (source,), Access(out, (ROW,)), read(0, source))

    outputs = [Value("y", F32, (2,))]
    assert find_nest_problem([fill, copy(1)], [], outputs) is None
    for nests in ([fill, copy(0)], [copy(1), fill]):
        problem = find_nest_problem(nests, [], outputs)
        assert problem is not None
        assert "not written yet" in problem


@pytest.mark.parametrize(
    ("steps", "reads", "message"),
    [
        # Every third place from the second on: those alone, one at a time.
        ((3, 1, 3), affine(1), None),
        ((3, 1, 3), affine(4), None),
        ((3, 1, 3), affine(7), None),
        ((3, 1, 3), affine(2), "not written yet"),
        ((3, 1, 3), affine(0), "not written yet"),
        ((3, 1, 3), affine(8), "not written yet"),
        ((1, 4, 1), affine(4), None),
        ((1, 4, 1), affine(3), "not written yet"),
        # Places 2 to 5 of 9: not one before, not one behind.
        ((1, 2, 4), affine("i", 2), None),
        ((1, 2, 4), affine("i", 4), None),
        ((1, 2, 4), affine("i", 5), "not written yet"),
        ((1, 2, 4), affine("i", 1), "not written yet"),
        ((1, 2, 4), Lookup((2, 5), "i"), None),
        ((1, 2, 4), Lookup((2, 6), "i"), "not written yet"),
        ((1, 2, 4), Lookup((1, 2), "i"), "not written yet"),
        ((1, 2, 4), Lookup((-1, 2), "i"), "leaves its tensor"),
        ((1, 2, 4), Lookup((2, 9), "i"), "leaves its tensor"),
    ],
)
def test_a_temporary_is_read_where_it_was_written(
    steps: tuple[int, int, int], reads: Index, message: str | None
) -> None:
    step, start, count = steps
    kept, out = Operand("local", 0, F32, (9,)), Operand("output", 0, F32, (2,))
    fill = Nest((Dim("i", count),), (), Access(kept, (affine(("i", step), start),)), ONE)
    source = Access(kept, (reads,))
    copy = Nest((Dim("i", 2),), (source,), Access(out, (ROW,)), read(0, source))
    problem = find_nest_problem([fill, copy], [], [Value("y", F32, (2,))])
    assert problem is None if message is None else message in str(problem)


def test_a_lookup_is_written_where_its_table_says_and_read_only_there() -> None:
    kept, out = Operand("local", 0, F32, (4,)), Operand("output", 0, F32, (1,))
    fill = Nest((Dim("i", 2),), (), Access(kept, (Lookup((3, 1), "i"),)), ONE)
    for place, is_there in enumerate((False, True, False, True)):
        source = Access(kept, (affine(place),))
        copy = Nest((), (source,), Access(out, (affine(0),)), read(0, source))
        assert (find_nest_problem([fill, copy], [], [Value("y", F32, (1,))]) is None) is is_there


def test_what_lies_between_places_of_a_table_is_not_there_and_within_rows_it_is() -> None:
    kept, out = Operand("local", 0, F32, (8,)), Operand("output", 0, F32, (2,))
    table = Nest((Dim("i", 2),), (), Access(kept, (Lookup((3, 1), "i"),)), ONE)
    rows = Nest((Dim("i", 2), Dim("j", 3)), (), Access(kept, (affine(("i", 3), "j", 1),)), ONE)
    for fill, first, is_there in (
        (table, 1, False),
        (rows, 1, True),
        (rows, 4, True),
        (rows, 0, False),
        (rows, 5, False),
    ):
        source = Access(kept, (affine(("i", 2), first),))
        copy = Nest((Dim("i", 2),), (source,), Access(out, (ROW,)), read(0, source))
        assert (find_nest_problem([fill, copy], [], [Value("y", F32, (2,))]) is None) is is_there


def test_data_may_point_at_all_of_a_temporary() -> None:
    kept, out = Operand("local", 0, F32, (4,)), Operand("output", 0, F32, (4,))
    source = Access(kept, (Indirect(0),))
    copy = Nest((Dim("i", 4),), (INDICES, source), Access(out, (ROW,)), read(1, source))
    for extent, is_fine in ((4, True), (3, False)):
        fill = Nest((Dim("i", extent),), (), Access(kept, (ROW,)), ONE)
        problem = find_nest_problem([fill, copy], [Value("i", DType.INT64, (4,))], [Value("y", F32, (4,))])
        assert (problem is None) is is_fine


def test_an_input_is_not_written() -> None:
    nests = [
        Nest((Dim("i", 4),), (), Access(operand, (ROW,)), ONE)
        for operand in (x(4), Operand("output", 0, F32, (4,)))
    ]
    assert "is no result" in str(find_nest_problem(nests, [Value("x", F32, (4,))], [Value("y", F32, (4,))]))


def test_padding_behind_what_was_written_is_not_waited_for() -> None:
    kept, out = Operand("local", 0, F32, (4,)), Operand("output", 0, F32, (3,))
    fill = Nest((Dim("i", 2),), (), Access(kept, (affine("i", 2),)), ONE)
    for first, is_fine in ((2, True), (1, False)):
        source = Access(kept, (affine("i", first),), fill=0.0)
        copy = Nest((Dim("i", 3),), (source,), Access(out, (ROW,)), read(0, source))
        assert (find_nest_problem([fill, copy], [], [Value("y", F32, (3,))]) is None) is is_fine


def test_axes_behind_one_that_data_index_stay_inside_too() -> None:
    for offset, is_fine in ((0, True), (1, False)):
        access = Access(x(3, 4, position=1), (Indirect(0), affine("i", offset)))
        assert (reads_problem(access, before=(INDICES,)) is None) is is_fine


def test_what_a_nodes_nests_do_is_proved_and_what_it_does_on_the_host_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = parse_graph(f"{HEAD}%y: float32[4, 6] = Relu(%x)\n return %y\n}}")
    wrong = Nest((Dim("i", 4),), (), Access(Operand("output", 0, F32, (4, 6)), (ROW, ROW)), ONE)
    earlier = Access(Operand("output", 0, F32, (4, 6)), (affine("i", -1), COLUMN), fill=0.0)
    dims = (Dim("i", 4), Dim("j", 6))
    steps = Nest(dims, (earlier,), Access(Operand("output", 0, F32, (4, 6)), (ROW, COLUMN)), read(0, earlier))
    for described, message in (
        ((wrong,), "not every element of the result 'y'"),
        (Stepwise("steps", (wrong,), "i"), "not every element of the result 'y'"),
        (Stepwise("steps", (steps,), "i"), None),
        ((steps,), "not written yet"),
        (Opaque("on the host"), None),
    ):
        monkeypatch.setattr(bounds, "describe", lambda node, described=described: described)
        found = find_out_of_bounds(graph)
        assert found is None if message is None else found is not None and message in found, described
        if message is None:
            require_bounded(graph.nodes[0])
        else:
            with pytest.raises(ModelRejected, match=f"Relu 'y': .*{message}"):
                require_bounded(graph.nodes[0])


def test_a_temporary_keeps_its_shape_and_type() -> None:
    """Nests that mean one temporary by its place agree on what it is."""
    first, out = Operand("local", 0, F32, (4,)), Operand("output", 0, F32, (4,))
    fill = Nest((Dim("i", 4),), (), Access(first, (ROW,)), ONE)
    for shape, dtype, is_same in (((4,), F32, True), ((5,), F32, False), ((4,), DType.INT32, False)):
        source = Access(Operand("local", 0, dtype, shape), (ROW,))
        copy = Nest((Dim("i", 4),), (source,), Access(out, (ROW,)), read(0, source))
        problem = find_nest_problem([fill, copy], [], [Value("y", F32, (4,))])
        assert (problem is None) is is_same, problem


@pytest.mark.parametrize("operand", [x(5), x(4, dtype=DType.INT32), x(4, position=1), x(4, position=2)])
def test_an_operand_is_what_the_node_has_in_its_place(operand: Operand) -> None:
    access = Access(operand, (ROW,))
    nest = Nest((Dim("i", 4),), (access,), Access(Operand("output", 0, F32, (4,)), (ROW,)), read(0, access))
    outputs = [Value("y", F32, (4,))]
    assert "another shape or type" in str(find_nest_problem([nest], [Value("x", F32, (4,)), None], outputs))


def test_what_is_beyond_every_index_is_no_padding() -> None:
    for offset, is_fine in ((2**53 - 3, True), (2**53 - 2, False), (-(2**53), True), (-(2**53) - 1, False)):
        assert (reads_problem(Access(x(4), (affine("i", offset),), fill=0.0)) is None) is is_fine


def test_an_index_that_is_data_is_a_whole_number_that_no_other_data_gives() -> None:
    for dtype, is_fine in ((DType.INT64, True), (DType.INT32, True), (DType.FLOAT32, False)):
        given = Access(x(4, dtype=dtype), (ROW,))
        problem = reads_problem(Access(x(3, position=1), (Indirect(0),)), before=(given,))
        assert (problem is None) is is_fine


def test_where_an_index_of_a_final_value_lies_counts_without_iterations_too() -> None:
    out, outputs = Operand("output", 0, F32, (4,)), [Value("y", F32, (4,))]
    dims = (Dim("i", 4), Dim("k", 0, "reduce"))
    data = Access(x(6, position=1), (Indirect(0),))
    inputs = [Value("i", DType.INT64, (4,)), Value("x", F32, (6,))]
    for offset, is_fine in ((0, True), (1, False)):
        index = Access(x(4, dtype=DType.INT64), (affine("i", offset),))
        nest = Nest(dims, (index, data), Access(out, (ROW,)), ONE, "sum", None, Acc(F32) + read(1, data))
        assert (find_nest_problem([nest], inputs, outputs) is None) is is_fine
        unread = Nest(dims, (index, data), Access(out, (ROW,)), read(1, data), "sum", None, Acc(F32))
        assert find_nest_problem([unread], inputs, outputs) is None


@pytest.mark.parametrize("is_missing", [False, True])
def test_writes_that_are_no_products_of_sets_are_followed(is_missing: bool) -> None:
    """A diagonal and what is beside it; rows of a square and the rest as a line; a table along a diagonal."""
    diagonal = ((("i", 2),), [ROW, ROW])
    corner = ((), [affine(0), affine(1)])
    other = ((), [affine(1), affine(0)])
    parts = [diagonal, corner] if is_missing else [diagonal, corner, other]
    assert (problem_of((2, 2), *parts) is None) is not is_missing
    out = Operand("output", 0, F32, (2, 3))
    nests = [
        Nest((Dim("j", 3),), (), Access(out, (affine(0), COLUMN)), ONE),
        Nest((Dim("i", 2 if is_missing else 3),), (), Access(out, (affine("i", 3),), view=(6,)), ONE),
    ]
    assert (find_nest_problem(nests, [], [Value("y", F32, (2, 3))]) is None) is not is_missing
    swapped = ((("i", 2),), [Lookup((1, 0), "i"), ROW])
    parts = [diagonal] if is_missing else [diagonal, swapped]
    assert (problem_of((2, 2), *parts) is None) is not is_missing
    mirrored = ((("i", 2),), [affine(("i", -1), 1), ROW])
    assert problem_of((2, 2), diagonal, mirrored) is None
    assert problem_of((2, 2), diagonal, diagonal) is not None


def test_nests_of_a_later_step_are_an_internal_error() -> None:
    nests, outputs = writes((6,), ((("i", 5),), [Affine((("i", 1),))]))
    with pytest.raises(InternalError, match="after fusion, the nests for 'y': not every element"):
        require_bounded_nests(nests, [], outputs, "fusion")


def test_a_part_stays_in_its_windows_and_reads_what_was_made_before() -> None:
    kept, out = Operand("local", 0, F32, (3,)), Operand("output", 0, F32, (2,))

    def part(first: int) -> RestrictedNests:
        source = Access(kept, (affine("i", first),))
        return RestrictedNests((Nest((Dim("i", 2),), (source,), Access(out, (ROW,)), read(0, source)),), {})

    require_bounded_part(part(1), {kept.key}, "cutting")
    with pytest.raises(InternalError, match=r"after cutting, a block of nests: .* not written yet"):
        require_bounded_part(part(1), (), "cutting")
    with pytest.raises(InternalError, match="leaves its tensor"):
        require_bounded_part(part(2), {kept.key}, "cutting")
