"""Nests in sequence: which become one kernel, and that the values passed between them are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.loopnest_harness import assert_same, run_kernels

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Read, call
from tilewright.ir.graph import Node, Value
from tilewright.ir.nest import Access, Dim, Indirect, Lookup, Nest, Nests, Operand, affine
from tilewright.ir.ops.registry import describe
from tilewright.targets.cpu.isa import Isa, isa_by_name
from tilewright.targets.cpu.kernel import Layout
from tilewright.targets.cpu.loopnest import lower_nests
from tilewright.targets.llvm.shared_loops import form_groups, shared_loops

F = DType.FLOAT32
ISAS = [isa_by_name(name) for name in ("avx512", "avx2") if isa_by_name(name).runs_on_host]
Array = np.ndarray[Any, Any]


@pytest.fixture(params=ISAS, ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


def values(*shape: int) -> Array:
    return np.random.default_rng(shape).uniform(-3, 3, shape).astype(np.float32)


def nests_of(op_type: str, inputs: list[Array], shape: tuple[int, ...], **attributes: Any) -> Nests:
    given = [Value(f"i{i}", DType.from_numpy(a.dtype), a.shape) for i, a in enumerate(inputs)]
    made = describe(Node(op_type, given, [Value("o", F, shape)], attributes))
    assert isinstance(made, tuple)
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((6, 100), -1), ((3, 5), -1), ((70, 33), -1), ((2, 3, 7), 1), ((2, 40, 150), 1), ((2, 70, 64), 1),
        ((37, 128), -1), ((4, 2, 1), 1), ((1, 50), -1), ((130, 4), 0),
    ],
)  # fmt: skip
def test_softmax_over_any_axis(isa: Isa, shape: tuple[int, ...], axis: int) -> None:
    x = values(*shape)
    assert_same(nests_of("Softmax", [x], shape, axis=axis), {0: x}, isa)


def test_softmax_is_one_kernel_whose_exponentials_stay_in_scratch(isa: Isa) -> None:
    x = values(64, 128)
    nests = nests_of("Softmax", [x], x.shape, axis=-1)
    (kernel,) = lower_nests(nests, {}, isa)
    assert {a.kind for a in kernel.args if isinstance(a, Operand)} == {"input", "output"}
    row_bytes = 128 * 4
    assert row_bytes <= kernel.scratch_bytes < x.nbytes


def test_softmax_handles_infinities_and_nan(isa: Isa) -> None:
    x = np.zeros((5, 40), np.float32)
    x[0, 3], x[1, 39], x[2, :20], x[3, 7] = np.nan, 88.0, -np.inf, 3e38
    nests = nests_of("Softmax", [x], x.shape, axis=-1)
    assert_same(nests, {0: x}, isa)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(6, 100), (4, 768), (3, 5, 40), (2, 9)])
def test_layer_normalization(isa: Isa, shape: tuple[int, ...]) -> None:
    inputs = [values(*shape), values(shape[-1]), values(1, shape[-1])[0]]
    nests = nests_of("LayerNormalization", inputs, shape)
    assert len(lower_nests(nests, {}, isa)) == 1
    assert_same(nests, dict(enumerate(inputs)), isa)


@pytest.mark.parametrize("channels_last", [True, False])
def test_instance_normalization_in_either_layout(isa: Isa, channels_last: bool) -> None:
    inputs = [values(2, 20, 8, 9), values(20), values(1, 20)[0]]
    nhwc = Layout((0, 2, 3, 1))
    layouts = {("input", 0): nhwc, ("output", 0): nhwc} if channels_last else {}
    assert_same(
        nests_of("InstanceNormalization", inputs, (2, 20, 8, 9)), dict(enumerate(inputs)), isa, layouts
    )


def _operand(kind: Any, position: int, *shape: int) -> Operand:
    return Operand(kind, position, F, shape)


def _chain(second_index: tuple[str, str]) -> tuple[Nest, Nest]:
    """Doubles into a temporary, then reads it back with the given index."""
    x, t, out = _operand("input", 0, 40, 40), _operand("local", 0, 40, 40), _operand("output", 0, 40, 40)
    loops = (Dim("a", 40), Dim("b", 40))
    straight = (affine("a"), affine("b"))
    first = Nest(loops, (Access(x, straight),), Access(t, straight), Read(0, F) * 2.0)
    index = tuple(affine(i) for i in second_index)
    return first, Nest(loops, (Access(t, index),), Access(out, straight), Read(0, F) + 1.0)


def test_rows_of_a_temporary_are_shared_but_its_transpose_is_not(isa: Isa) -> None:
    straight, turned = _chain(("a", "b")), _chain(("b", "a"))
    assert [loop.names for loop in shared_loops(straight)] == [("a", "a"), ("b", "b")]
    # Through a transposed read, rows of the first nest are columns of the second: they pair up crosswise,
    # and each item still is one element of both.
    assert [loop.names for loop in shared_loops(turned)] == [("a", "b"), ("b", "a")]
    for nests in (straight, turned):
        assert_same(nests, {0: values(40, 40)}, isa)


def test_a_temporary_read_through_a_window_is_not_shared_along_it(isa: Isa) -> None:
    x, t, out = _operand("input", 0, 6, 30), _operand("local", 0, 6, 30), _operand("output", 0, 6, 28)
    first = Nest(
        (Dim("a", 6), Dim("b", 30)), (Access(x, (affine("a"), affine("b"))),),
        Access(t, (affine("a"), affine("b"))), Read(0, F) * 2.0,
    )  # fmt: skip
    second = Nest(
        (Dim("a", 6), Dim("b", 28), Dim("k", 3, "reduce")), (Access(t, (affine("a"), affine("b", "k"))),),
        Access(out, (affine("a"), affine("b"))), Read(0, F), "max",
    )  # fmt: skip
    assert [loop.names for loop in shared_loops((first, second))] == [("a", "a")]
    assert_same((first, second), {0: values(6, 30)}, isa)


@pytest.mark.parametrize("by", ["a", "b"])
@pytest.mark.parametrize("shape", [(24, 300), (300, 24)])
def test_a_shared_loop_that_indexes_a_table_is_not_cut(isa: Isa, by: str, shape: tuple[int, int]) -> None:
    extents = dict(zip("ab", shape, strict=True))
    x, t, out = _operand("input", 0, *shape), _operand("local", 0, *shape), _operand("output", 0, *shape)
    w = _operand("input", 1, 11)
    table = tuple(int(v) for v in np.random.default_rng(2).integers(0, 11, extents[by]))
    loops = (Dim("a", shape[0]), Dim("b", shape[1]))
    straight = (affine("a"), affine("b"))
    first = Nest(loops, (Access(x, straight),), Access(t, straight), Read(0, F) * 2.0)
    picked = Access(w, (Lookup(table, by),))
    second = Nest(loops, (Access(t, straight), picked), Access(out, straight), Read(0, F) + Read(1, F))
    assert_same((first, second), {0: values(*shape), 1: values(11)}, isa)


def test_nests_that_share_nothing_are_kernels_with_the_temporary_as_argument(isa: Isa) -> None:
    """The second nest needs the total of all rows, so no loop is common."""
    x, t, out = _operand("input", 0, 30, 50), _operand("local", 0), _operand("output", 0, 30, 50)
    total = Nest(
        (Dim("a", 30, "reduce"), Dim("b", 50, "reduce")), (Access(x, (affine("a"), affine("b"))),),
        Access(t, ()), Read(0, F), "sum",
    )  # fmt: skip
    divide = Nest(
        (Dim("a", 30), Dim("b", 50)), (Access(x, (affine("a"), affine("b"))), Access(t, ())),
        Access(out, (affine("a"), affine("b"))), Read(0, F) / Read(1, F),
    )  # fmt: skip
    assert form_groups((total, divide)) == [[0], [1]]
    kernels = lower_nests((total, divide), {}, isa)
    assert [[a.kind for a in k.args if isinstance(a, Operand)] for k in kernels] == [
        ["input", "local"],
        ["input", "local", "output"],
    ]
    assert_same((total, divide), {0: values(30, 50)}, isa)


def test_a_temporary_that_a_later_kernel_reads_is_an_argument(isa: Isa) -> None:
    """Rows are shared by the first two nests; the third reads all of the temporary."""
    x, t, out = _operand("input", 0, 24, 32), _operand("local", 0, 24), _operand("output", 0, 24, 32)
    u = _operand("output", 1)
    index = (affine("a"), affine("b"))
    top = Nest(
        (Dim("a", 24), Dim("b", 32, "reduce")),
        (Access(x, index),),
        Access(t, (affine("a"),)),
        Read(0, F),
        "max",
    )
    shifted = Nest(
        (Dim("a", 24), Dim("b", 32)), (Access(x, index), Access(t, (affine("a"),))), Access(out, index),
        Read(0, F) - Read(1, F),
    )  # fmt: skip
    over = Nest(
        (Dim("a", 24, "reduce"),), (Access(t, (affine("a"),)),), Access(u, ()), Read(0, F), "sum", None,
        call("max", Acc(F), 0.0),
    )  # fmt: skip
    nests = (top, shifted, over)
    assert form_groups(nests) == [[0, 1], [2]]
    first, _ = lower_nests(nests, {}, isa)
    assert ("local", 0) in {a.key for a in first.args if isinstance(a, Operand)}
    assert_same(nests, {0: values(24, 32)}, isa)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", [-1, 1])
def test_chunks_of_a_fused_kernel_give_the_same_bits(
    isa: Isa, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.targets.cpu.loopnest import region

    x = values(5, 33, 70)
    nests = nests_of("Softmax", [x], x.shape, axis=axis)
    results = []
    for wanted in (1, 4, 10**6):
        monkeypatch.setattr(region, "choose_num_chunks", lambda extent, _, wanted=wanted: min(extent, wanted))
        results.append(run_kernels(nests, {0: x}, isa)[0].tobytes())
    assert results[0] == results[1] == results[2]


def test_parts_of_a_concatenation_are_chunks_of_one_kernel(isa: Isa) -> None:
    parts = [values(1, c, 28, 28) for c in (96, 17, 128)]
    nests = nests_of("Concat", parts, (1, 241, 28, 28), axis=1)
    assert len(nests) == 3
    (kernel,) = lower_nests(nests, {}, isa)
    assert kernel.num_chunks == sum(lower_nests((n,), {}, isa)[0].num_chunks for n in nests)
    assert_same(nests, dict(enumerate(parts)), isa)


def test_overwriting_by_data_waits_for_what_it_overwrites(isa: Isa) -> None:
    """A scatter: first a copy of everything, then rows that an index names."""
    x, out = _operand("input", 0, 9, 20), _operand("output", 0, 9, 20)
    rows, new = Operand("input", 1, DType.INT64, (3,)), _operand("input", 2, 3, 20)
    straight = (affine("a"), affine("b"))
    copy = Nest((Dim("a", 9), Dim("b", 20)), (Access(x, straight),), Access(out, straight), Read(0, F))
    reads = (Access(new, (affine("i"), affine("b"))), Access(rows, (affine("i"),)))
    write = Access(out, (Indirect(1), affine("b")))
    overwrite = Nest((Dim("i", 3), Dim("b", 20)), reads, write, Read(0, F))
    assert len(lower_nests((copy, overwrite), {}, isa)) == 2
    inputs = {0: values(9, 20), 1: np.array([4, -1, 4]), 2: values(3, 20)}
    got = run_kernels((copy, overwrite), inputs, isa)[0]
    want = inputs[0].copy()
    for row, data in zip(inputs[1], inputs[2], strict=True):
        want[row] = data
    np.testing.assert_array_equal(got, want)
