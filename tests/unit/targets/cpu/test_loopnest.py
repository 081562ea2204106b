"""Single nests of every shape the generator treats specially, against the interpreter, in guarded memory."""

# mypy: disable-error-code="dict-item, var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.loopnest_harness import assert_same, run_kernels

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Acc, Expr, Read, call, cast
from tilewright.ir.nest import (
    Access,
    Affine,
    Dim,
    Index,
    Indirect,
    Lookup,
    Nest,
    Operand,
    affine,
)
from tilewright.targets.cpu.cut import MAX_CHUNKS
from tilewright.targets.cpu.isa import Isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Layout
from tilewright.targets.cpu.loopnest import loop_nest_supports, lower_nests
from tilewright.targets.cpu.loopnest.plan import plan_nest
from tilewright.targets.cpu.loopnest.region import single_region
from tilewright.targets.llvm.refs import linearise, simplify

pytestmark = pytest.mark.sampled(90)

F = DType.FLOAT32
ISAS = [isa_by_name(name) for name in ("avx512", "avx2") if isa_by_name(name).runs_on_host]
NHWC = Layout((0, 2, 3, 1))
Array = np.ndarray[Any, Any]


@pytest.fixture(params=ISAS, ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


def values(*shape: int, dtype: DType = F) -> Array:
    rng = np.random.default_rng(shape)
    if dtype.is_float:
        return rng.uniform(-2, 2, shape).astype(dtype.numpy)
    return rng.integers(-4 if dtype.is_signed else 0, 5, shape).astype(dtype.numpy)


def operand(kind: Any, position: int, *shape: int, dtype: DType = F) -> Operand:
    return Operand(kind, position, dtype, shape)


def at(target: Operand, *indices: Index | str | int, fill: Any = None) -> Access:
    made = tuple(affine(i) if isinstance(i, str | int) else i for i in indices)
    return Access(target, made, fill)


def dims(**extents: int) -> tuple[Dim, ...]:
    return tuple(Dim(n, e, "reduce" if n.startswith("k") else "parallel") for n, e in extents.items())


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [F, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.INT64])
@pytest.mark.parametrize("size", [1, 3, 15, 16, 17, 100, 129])
def test_a_row_is_added_to_rows_of_any_length(isa: Isa, dtype: DType, size: int) -> None:
    a, b = operand("input", 0, 3, size, dtype=dtype), operand("input", 1, size, dtype=dtype)
    out = operand("output", 0, 3, size, dtype=dtype)
    body = Read(0, dtype.compute) + Read(1, dtype.compute)
    nest = Nest(dims(i=3, j=size), (at(a, "i", "j"), at(b, "j")), at(out, "i", "j"), body)
    assert_same((nest,), {0: values(3, size, dtype=dtype), 1: values(size, dtype=dtype)}, isa, rtol=2e-2)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shape", [(33, 50), (5, 50), (50, 7), (16, 16), (4, 4), (64, 3), (1, 40)])
@pytest.mark.parametrize("dtype", [F, DType.INT8, DType.INT16, DType.FLOAT64, DType.BOOL])
def test_transposes_of_any_shape(isa: Isa, shape: tuple[int, int], dtype: DType) -> None:
    rows, columns = shape
    source, out = (
        operand("input", 0, rows, columns, dtype=dtype),
        operand("output", 0, columns, rows, dtype=dtype),
    )
    nest = Nest(dims(i=columns, j=rows), (at(source, "j", "i"),), at(out, "i", "j"), Read(0, dtype.compute))
    data = values(rows, columns, dtype=DType.INT32).astype(dtype.numpy)
    assert_same((nest,), {0: data}, isa)


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("dtype", [F, DType.UINT8])
def test_few_channels_are_written_side_by_side(isa: Isa, channels: int, dtype: DType) -> None:
    source, scale = operand("input", 0, channels, 150), operand("input", 1, channels)
    out = operand("output", 0, 150, channels, dtype=dtype)
    body = call("round", Read(0, F) * Read(1, F))
    if dtype is DType.UINT8:
        body = cast(call("max", call("min", body, 255.0), 0.0), dtype)
    reads = (at(source, "c", "i"), at(scale, "c"))
    nest = Nest(dims(c=channels, i=150), reads, at(out, "i", "c"), body)
    linear = linearise(nest, {})
    assert not isinstance(linear, Declined)
    plan = plan_nest(simplify(linear), isa)
    assert (plan.vector, plan.row, plan.rows) == ("i", "c", channels)
    assert_same((nest,), {0: 90 * values(channels, 150), 1: 1 + values(channels) / 4}, isa)


def test_channels_are_written_side_by_side_all_at_once_or_alone(isa: Isa) -> None:
    """Padding along channels and positions leaves room for two of three rows in a tile."""
    sources = [operand("input", n, 3, 200) for n in range(4)]
    reads = tuple(at(x, affine("c", -1), affine(("i", 5), -1 - n), fill=1.0) for n, x in enumerate(sources))
    body = Read(0, F) + Read(1, F) + Read(2, F) + Read(3, F)
    nest = Nest(dims(c=3, i=40), reads, at(operand("output", 0, 40, 3), "i", "c"), body)
    assert_same((nest,), {n: n + values(3, 200) for n in range(4)}, isa)


def test_a_transposed_and_a_straight_operand_meet(isa: Isa) -> None:
    a, b, out = operand("input", 0, 40, 35), operand("input", 1, 35, 40), operand("output", 0, 35, 40)
    nest = Nest(
        dims(i=35, j=40), (at(a, "j", "i"), at(b, "i", "j")), at(out, "i", "j"), Read(0, F) - Read(1, F)
    )
    assert_same((nest,), {0: values(40, 35), 1: values(35, 40)}, isa)


def patches(channels: int, rows: int, columns: int, patch: int = 2) -> Nest:
    """Patches, each place of them a plane of channels, become an image of planes."""
    source = operand("input", 0, patch * patch, rows * columns, channels)
    out = operand("output", 0, channels, patch * rows, patch * columns)
    place, position = affine(("p", patch), "q"), affine(("i", columns), "j")
    target = at(out, "c", affine(("i", patch), "p"), affine(("j", patch), "q"))
    loops = dims(c=channels, i=rows, j=columns, p=patch, q=patch)
    return Nest(loops, (at(source, place, position, "c"),), target, Read(0, F))


def unfolded(nest: Nest) -> Nest:
    """The copy the other way round."""
    (read,), write = nest.reads, nest.write
    source = replace(write, operand=replace(write.operand, kind="input"))
    return replace(nest, reads=(source,), write=replace(read, operand=replace(read.operand, kind="output")))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("channels", "columns"), [(40, 16), (5, 37), (37, 5), (3, 3)])
def test_patches_are_folded_into_an_image(isa: Isa, channels: int, columns: int) -> None:
    nest = patches(channels, 3, columns)
    assert_same((nest,), {0: values(4, 3 * columns, channels)}, isa)


@pytest.mark.parametrize(("channels", "columns"), [(40, 512), (5, 1024), (21, 7)])
def test_an_image_is_unfolded_into_patches(isa: Isa, channels: int, columns: int) -> None:
    nest = unfolded(patches(channels, 1, columns))
    assert_same((nest,), {0: values(channels, 2, 2 * columns)}, isa)


def test_lanes_that_would_read_far_apart_are_turned(isa: Isa) -> None:
    """At steps of 4 KiB; elsewhere what is gathered stays in the cache until its neighbours are."""
    for columns, is_turned in ((16, True), (15, False)):
        linear = linearise(unfolded(patches(144, 16, columns)), {})
        assert not isinstance(linear, Declined)
        plan = plan_nest(simplify(linear), isa)
        assert (plan.vector, plan.transposed) == ("c", is_turned)


def test_lanes_that_would_write_far_apart_are_turned(isa: Isa) -> None:
    """Planes of the image are 4 KiB apart: lanes along channels would write into one set of a cache."""
    linear = linearise(patches(144, 16, 16), {})
    assert not isinstance(linear, Declined)
    plan = plan_nest(simplify(linear), isa)
    assert (plan.vector, plan.row, plan.transposed) == ("j", "c", True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 31, 40, 2704])
def test_sums_across_lanes_are_finished_in_vectors(isa: Isa, size: int) -> None:
    a, b, out = operand("input", 0, 2, size, 37), operand("input", 1, size), operand("output", 0, 2, size)
    finish = call("sigmoid", Acc(F)) * Read(1, F)
    reads = at(a, "i", "j", "k"), at(b, "j")
    product = Read(0, F) * Read(0, F)
    nest = Nest(dims(i=2, j=size, k=37), reads, at(out, "i", "j"), product, "sum", Read(1, F), finish)
    assert_same((nest,), {0: values(2, size, 37), 1: values(size)}, isa, rtol=1e-5)
    if size > 31:
        linear = linearise(nest, {})
        assert not isinstance(linear, Declined)
        sums, finished = single_region(simplify(linear), isa).nests
        assert (sums.combine, sums.finish, finished.combine) == ("sum", None, None)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("stride", [2, 3, 4, 7, -1])
@pytest.mark.parametrize("size", [5, 16, 37])
def test_strided_and_reversed_reads(isa: Isa, stride: int, size: int) -> None:
    # The last element read is the last of the operand: whole vectors would cross its end.
    reach = abs(stride) * (size - 1) + 1
    source, out = operand("input", 0, reach), operand("output", 0, size)
    index = affine(("j", stride), 0 if stride > 0 else size - 1)
    nest = Nest(dims(j=size), (at(source, index),), at(out, "j"), Read(0, F))
    assert_same((nest,), {0: values(reach)}, isa)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pads", [(1, 2), (0, 20), (19, 0), (3, 3)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_padding_is_never_read_from_memory(isa: Isa, pads: tuple[int, int], order: tuple[int, int]) -> None:
    before, after = pads
    rows, columns = 9 + before + after, 21 + before + after
    source, out = operand("input", 0, 9, 21), operand("output", 0, rows, columns)
    read = at(source, affine("i", -before), affine("j", -before), fill=7.5)
    nest = Nest(dims(i=rows, j=columns), (read,), at(out, "i", "j"), Read(0, F))
    layouts = {("input", 0): Layout(order), ("output", 0): Layout(order)}
    assert_same((nest,), {0: values(9, 21)}, isa, layouts)


def test_reads_that_share_one_bound_and_differ_in_another(isa: Isa) -> None:
    """Rows outside the first operand may be inside the second, which shares one of its bounds."""
    a, b = operand("input", 0, 3, 3, 40), operand("input", 1, 3, 40)
    out = operand("output", 0, 6, 5, 40)
    reads = (at(a, "i", "j", "k0", fill=1.0), at(b, "j", "k0", fill=2.0))
    loops = tuple(Dim(n, x) for n, x in (("i", 6), ("j", 5), ("k0", 40)))
    nest = Nest(loops, reads, at(out, "i", "j", "k0"), Read(0, F) + Read(1, F))
    assert_same((nest,), {0: values(3, 3, 40), 1: values(3, 40)}, isa)
    diagonal = Nest(loops, (at(a, "i", "i", "k0", fill=1.0),), at(out, "i", "j", "k0"), Read(0, F))
    assert_same((diagonal,), {0: values(3, 3, 40)}, isa)


def depthwise(channels: int, size: int, stride: int, kernel: int, dilation: int = 1, **more: Any) -> Nest:
    pad = kernel // 2 * dilation
    out_size = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    x, w = operand("input", 0, 2, channels, size, size), operand("input", 1, channels, kernel, kernel)
    b, out = operand("input", 2, channels), operand("output", 0, 2, channels, out_size, out_size)
    reads = (
        at(
            x, "n", "c", affine(("h", stride), ("kh", dilation), -pad),
            affine(("w", stride), ("kw", dilation), -pad), fill=more.get("fill", 0.0),
        ),
        at(w, "c", "kh", "kw"),
        at(b, "c"),
    )  # fmt: skip
    loops = dims(n=2, c=channels, h=out_size, w=out_size, kh=kernel, kw=kernel)
    product = more.get("body", Read(0, F) * Read(1, F))
    combine = more.get("combine", "sum")
    finish = call("max", Acc(F), 0.0)
    init = Read(2, F) if combine == "sum" else None
    return Nest(loops, reads, at(out, "n", "c", "h", "w"), product, combine, init, finish)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("channels", "size", "stride", "kernel", "dilation"),
    [
        (20, 9, 1, 3, 1),
        (32, 14, 2, 3, 1),
        (48, 28, 1, 3, 1),
        (3, 30, 1, 5, 1),
        (16, 7, 1, 3, 2),
        (17, 5, 2, 7, 1),
    ],
)
@pytest.mark.parametrize("channels_last", [True, False])
def test_depthwise_convolution(
    isa: Isa, channels: int, size: int, stride: int, kernel: int, dilation: int, channels_last: bool
) -> None:
    nest = depthwise(channels, size, stride, kernel, dilation)
    layouts = {}
    if channels_last:
        layouts = {("input", 0): NHWC, ("output", 0): NHWC, ("input", 1): Layout((1, 2, 0))}
    inputs = {0: values(2, channels, size, size), 1: values(channels, kernel, kernel), 2: values(channels)}
    assert_same((nest,), inputs, isa, layouts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels_last", [True, False])
def test_padding_that_counts_is_not_skipped(isa: Isa, channels_last: bool) -> None:
    """A fill that changes the result (here the sum of x + w) must be added, not left out."""
    nest = depthwise(18, 9, 1, 3, fill=1.5, body=Read(0, F) + Read(1, F))
    layouts = {("input", 0): NHWC, ("output", 0): NHWC} if channels_last else {}
    inputs = {0: values(2, 18, 9, 9), 1: values(18, 3, 3), 2: values(18)}
    assert_same((nest,), inputs, isa, layouts)


@pytest.mark.parametrize("channels_last", [True, False])
def test_max_pooling_ignores_padding_and_keeps_nan(isa: Isa, channels_last: bool) -> None:
    nest = depthwise(20, 9, 2, 3, fill=float("-inf"), body=Read(0, F), combine="max")
    x = values(2, 20, 9, 9)
    x[0, 3, 4, 4] = np.nan
    layouts = {("input", 0): NHWC, ("output", 0): NHWC} if channels_last else {}
    assert_same((nest,), {0: x, 1: values(20, 3, 3), 2: values(20)}, isa, layouts)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("combine", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("size", [1, 7, 16, 50, 200])
@pytest.mark.parametrize("dtype", [F, DType.FLOAT16, DType.INT32, DType.UINT8])
def test_reductions_along_lanes_and_across_them(isa: Isa, combine: Any, size: int, dtype: DType) -> None:
    source = operand("input", 0, 5, size, dtype=dtype)
    data = values(5, size, dtype=dtype)
    data = (data / 2 if dtype.is_float else data).astype(dtype.numpy)
    for kept, extent in (("i", 5), ("k", size)):
        out = operand("output", 0, extent, dtype=dtype)
        names = {"i": ("i", "k"), "k": ("k", "i")}[kept]
        loops = (Dim(names[0], extent), Dim(names[1], size if kept == "i" else 5, "reduce"))
        nest = Nest(loops, (at(source, "i", "k"),), at(out, kept), Read(0, dtype.compute), combine)
        assert_same((nest,), {0: data}, isa, rtol=1e-2 if dtype is DType.FLOAT16 else 2e-5)


@pytest.mark.parametrize("place", [0, 5, 16, 40, 99])
@pytest.mark.parametrize("combine", ["max", "min"])
def test_extrema_along_lanes_propagate_nan(isa: Isa, place: int, combine: Any) -> None:
    source, out = operand("input", 0, 2, 100), operand("output", 0, 2)
    nest = Nest(dims(i=2, k=100), (at(source, "i", "k"),), at(out, "i"), Read(0, F), combine)
    data = values(2, 100)
    data[1, place] = np.nan
    made = run_kernels((nest,), {0: data}, isa)[0]
    assert made[0] == getattr(data[0], combine)()
    assert np.isnan(made[1])


@pytest.mark.parametrize("combine", ["and", "or"])
def test_booleans_are_reduced(isa: Isa, combine: Any) -> None:
    source = operand("input", 0, 6, 70, dtype=DType.BOOL)
    out = operand("output", 0, 6, dtype=DType.BOOL)
    nest = Nest(dims(i=6, k=70), (at(source, "i", "k"),), at(out, "i"), Read(0, DType.BOOL), combine)
    data = np.full((6, 70), combine == "and")
    data[2, 69] = data[4, 0] = combine == "or"
    assert_same((nest,), {0: data}, isa)


@pytest.mark.parametrize("last", [True, False])
def test_tables_index_any_axis(isa: Isa, last: bool) -> None:
    table = (3, 0, 0, 7, 5, 5, 2, 1, 6, 4, 7, 7, 0, 3, 2, 1, 6)
    loops = dims(i=17, j=19)
    source = operand("input", 0, 19, 8) if last else operand("input", 0, 8, 19)
    read = at(source, "j", Lookup(table, "i")) if last else at(source, Lookup(table, "i"), "j")
    out = operand("output", 0, 19, 17) if last else operand("output", 0, 17, 19)
    write = at(out, "j", "i") if last else at(out, "i", "j")
    nest = Nest(loops, (read,), write, Read(0, F))
    assert_same((nest,), {0: values(*source.shape)}, isa)


@pytest.mark.parametrize("axis", [0, 1])
def test_tables_may_point_into_padding(isa: Isa, axis: int) -> None:
    table = (-1, 0, 5, 6, 2, 99, 3, 1, -7, 5)
    source, out = operand("input", 0, 6, 6), operand("output", 0, 10, 10)
    index: list[Index] = [affine("i", -2), affine("j", -3)]
    index[axis] = Lookup(table, "ij"[axis])
    nest = Nest(dims(i=10, j=10), (at(source, *index, fill=-1.0),), at(out, "i", "j"), Read(0, F))
    assert_same((nest,), {0: values(6, 6)}, isa)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("index_type", [DType.INT64, DType.INT32])
@pytest.mark.parametrize("width", [1, 5, 64])
def test_rows_and_elements_are_gathered_by_data(isa: Isa, index_type: DType, width: int) -> None:
    ids = operand("input", 1, 21, dtype=index_type)
    source, out = operand("input", 0, 11, width), operand("output", 0, 21, width)
    nest = Nest(
        dims(i=21, j=width), (at(source, Indirect(1), "j"), at(ids, "i")), at(out, "i", "j"), Read(0, F)
    )
    picked = np.random.default_rng(5).integers(-11, 11, 21).astype(index_type.numpy)
    assert_same((nest,), {0: values(11, width), 1: picked}, isa)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", [0, 15, 16, 19])  # in a vector, its last lane, a tail, its last lane
@pytest.mark.parametrize("wild", [10**12, -(10**12), 7, -8])
def test_wild_indices_are_reported_and_not_followed(isa: Isa, wild: int, place: int) -> None:
    ids, source = operand("input", 1, 20, dtype=DType.INT64), operand("input", 0, 7)
    out = operand("output", 0, 20)
    nest = Nest(dims(i=20), (at(source, Indirect(1)), at(ids, "i")), at(out, "i"), Read(0, F))
    data = values(7)
    picked = np.arange(20) % 14 - 7
    reports: list[np.ndarray] = []
    run_kernels((nest,), {0: data, 1: picked}, isa, reports=reports)
    assert [r.tolist() for r in reports] == [[[0, 0]]]
    picked[place] = wild
    reports.clear()
    made = run_kernels((nest,), {0: data, 1: picked}, isa, reports=reports)[0]
    assert [r.tolist() for r in reports] == [[[min(wild, 0), max(wild, 0)]]]
    picked[place] = 0
    np.testing.assert_array_equal(made, data[picked])


def test_indices_that_cannot_lie_outside_are_not_looked_at(isa: Isa) -> None:
    ids, source = operand("input", 1, 20, dtype=DType.INT64), operand("input", 0, 7)
    out = operand("output", 0, 20)
    nest = Nest(dims(i=20), (at(source, Indirect(1, None)), at(ids, "i")), at(out, "i"), Read(0, F))
    (kernel,) = lower_nests((nest,), {}, isa)
    assert kernel.checks == ()
    assert "atomicrmw" not in kernel.text


def test_views_walk_the_row_major_elements(isa: Isa) -> None:
    source, out = operand("input", 0, 6, 35), operand("output", 0, 14, 15)
    read = Access(source, (affine("j"), affine("i")), None, (15, 14))
    nest = Nest(dims(i=14, j=15), (read,), at(out, "i", "j"), Read(0, F))
    assert_same((nest,), {0: values(6, 35)}, isa)


@pytest.mark.parametrize("columns", [16, 21])
def test_a_window_of_a_larger_tensor_is_all_that_is_written(isa: Isa, columns: int) -> None:
    """The layout of a part of a concatenation: rows lie 64 apart, what is between them belongs to others."""
    source, out = operand("input", 0, 30, columns), operand("output", 0, 30, columns)
    nest = Nest(dims(i=30, j=columns), (at(source, "i", "j"),), at(out, "i", "j"), Read(0, F) + 1.0)
    layouts = {("output", 0): Layout((0, 1), (64, 1)), ("input", 0): Layout((0, 1), (50, 1))}
    assert_same((nest,), {0: values(30, columns)}, isa, layouts)


def test_a_view_of_a_permuted_operand_is_declined() -> None:
    source, out = operand("input", 0, 6, 35), operand("output", 0, 210)
    nest = Nest(dims(i=210), (Access(source, (affine("i"),), None, (210,)),), at(out, "i"), Read(0, F))
    assert loop_nest_supports((nest,)) is None
    refusal = loop_nest_supports((nest,), {("input", 0): Layout((1, 0))})
    assert isinstance(refusal, Declined)
    assert "reshaped" in refusal.reason


@pytest.mark.sampled(6)
@pytest.mark.parametrize("factor", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [5, 16, 26])
def test_enlarging_by_repetition(isa: Isa, factor: int, size: int) -> None:
    source, out = operand("input", 0, 3, size), operand("output", 0, 3, factor * size)
    table = tuple(i // factor for i in range(factor * size))
    nest = Nest(
        dims(i=3, j=factor * size), (at(source, "i", Lookup(table, "j")),), at(out, "i", "j"), Read(0, F)
    )
    assert_same((nest,), {0: values(3, size)}, isa)


def test_indices_into_nothing_are_declined() -> None:
    ids, source = operand("input", 1, 20, dtype=DType.INT64), operand("input", 0, 0)
    nest = Nest(
        dims(i=20), (at(source, Indirect(1)), at(ids, "i")), at(operand("output", 0, 20), "i"), Read(0, F)
    )
    refusal = loop_nest_supports((nest,))
    assert isinstance(refusal, Declined)
    assert "without elements" in refusal.reason


def test_complex_numbers_are_declined() -> None:
    source, out = (operand(kind, 0, 4, dtype=DType.COMPLEX64) for kind in ("input", "output"))
    nest = Nest(dims(i=4), (at(source, "i"),), at(out, "i"), Read(0, DType.COMPLEX64))
    refusal = loop_nest_supports((nest,))
    assert isinstance(refusal, Declined)
    assert "complex64" in refusal.reason


def test_scalars_and_single_elements(isa: Isa) -> None:
    source, out = operand("input", 0), operand("output", 0)
    nest = Nest((), (at(source),), at(out), Read(0, F) * 2.0)
    assert_same((nest,), {0: np.float32(1.25).reshape(())}, isa)


def test_nothing_is_emitted_for_empty_outputs_and_empty_sums_are_zero(isa: Isa) -> None:
    source, out = operand("input", 0, 0, 4), operand("output", 0, 0, 4)
    nothing = Nest(dims(i=0, j=4), (at(source, "i", "j"),), at(out, "i", "j"), Read(0, F))
    assert lower_nests((nothing,), {}, isa) == ()
    out = operand("output", 0, 4)
    empty = Nest(dims(j=4, k=0), (at(source, "k", "j"),), at(out, "j"), Read(0, F), "sum")
    assert_same((empty,), {0: values(0, 4)}, isa)


def test_matrix_products_also_work_without_the_contraction_kernel(isa: Isa) -> None:
    a, b, out = operand("input", 0, 37, 29), operand("input", 1, 29, 45), operand("output", 0, 37, 45)
    nest = Nest(
        dims(i=37, j=45, k=29), (at(a, "i", "k"), at(b, "k", "j")), at(out, "i", "j"),
        Read(0, F) * Read(1, F), "sum",
    )  # fmt: skip
    assert_same((nest,), {0: values(37, 29), 1: values(29, 45)}, isa, atol=1e-4)


def _chunked_cases() -> Sequence[tuple[Nest, dict[int, Array]]]:
    x, out = operand("input", 0, 3, 5000), operand("output", 0, 3, 5000)
    body: Expr = call("exp", Read(0, F))
    return (
        (Nest(dims(i=3, j=5000), (at(x, "i", "j"),), at(out, "i", "j"), body), {0: values(3, 5000)}),
        (
            Nest(dims(i=3, k=5000), (at(x, "i", "k"),), at(operand("output", 0, 3), "i"), body, "sum"),
            {0: values(3, 5000)},
        ),
        (depthwise(40, 28, 1, 3), {0: values(2, 40, 28, 28), 1: values(40, 3, 3), 2: values(40)}),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(3))
def test_the_number_of_chunks_does_not_change_a_bit(
    isa: Isa, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.targets.cpu.loopnest import region

    nest, inputs = _chunked_cases()[case]
    seen = set()
    results = []
    for wanted in (None, 1, 3, 10**6):
        if wanted is not None:
            monkeypatch.setattr(
                region, "choose_num_chunks", lambda extent, _, wanted=wanted: min(extent, wanted)
            )
        seen.update(k.num_chunks for k in lower_nests((nest,), {}, isa))
        results.append(run_kernels((nest,), inputs, isa)[0])
    assert len(seen) > 1
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("shape", [(9600, 48), (48, 9600), (1, 200_003), (6, 40_000, 3)], ids=str)
def test_long_sums_are_cut_so_that_errors_do_not_grow(isa: Isa, shape: tuple[int, ...]) -> None:
    """One chain of 9,600 additions errs by 1e-5: so did the means of feature maps that gates read."""
    x, out = operand("input", 0, *shape), operand("output", 0, *(e for e in shape if e < 100))
    names = "ijk"[: len(shape)]
    loops = tuple(Dim(n, e, "parallel" if e < 100 else "reduce") for n, e in zip(names, shape, strict=True))
    kept = [d.name for d in loops if d.role == "parallel"]
    nest = Nest(loops, (at(x, *names),), at(out, *kept), Read(0, F), "sum")
    data = values(*shape) + np.float32(3)
    (got,) = run_kernels((nest,), {0: data}, isa).values()
    want = data.astype(np.float64).sum(axis=tuple(a for a, e in enumerate(shape) if e >= 100))
    assert np.abs(got / want - 1).max() < 1e-6


def test_a_long_sum_from_a_start_counts_it_once(isa: Isa) -> None:
    x, start, out = operand("input", 0, 5000, 20), operand("input", 1, 20), operand("output", 0, 20)
    reads = (at(x, "j", "i"), at(start, "i"))
    loops = (Dim("i", 20), Dim("j", 5000, "reduce"))
    nest = Nest(loops, reads, at(out, "i"), Read(0, F), "sum", Read(1, F))
    (got,) = run_kernels((nest,), {0: np.ones((5000, 20)), 1: np.arange(20)}, isa).values()
    np.testing.assert_array_equal(got, 5000 + np.arange(20, dtype=np.float32))


def test_big_nests_have_chunks_enough_and_small_ones_one(isa: Isa) -> None:
    def lowered(size: int) -> int:
        x, out = operand("input", 0, size), operand("output", 0, size)
        nest = Nest(dims(i=size), (at(x, "i"),), at(out, "i"), Read(0, F))
        return sum(k.num_chunks for k in lower_nests((nest,), {}, isa))

    assert lowered(1 << 24) == MAX_CHUNKS
    assert lowered(1000) == 1


def test_equal_nests_give_equal_kernels(isa: Isa) -> None:
    first, second = (lower_nests((depthwise(20, 9, 1, 3),), {}, isa)[0] for _ in range(2))
    assert (first.symbol, first.text) == (second.symbol, second.text)


def test_depthwise_text_stays_small(isa: Isa) -> None:
    """Compile time follows lines: edges and interior of a padded depthwise kernel fit in one page."""
    layouts = {("input", 0): NHWC, ("output", 0): NHWC, ("input", 1): Layout((1, 2, 0))}
    (kernel,) = lower_nests((depthwise(144, 56, 1, 3),), layouts, isa)
    assert kernel.text.count("\n") < 500
    assert kernel.macs == 2 * 144 * 56 * 56 * 9


def test_an_affine_index_may_name_two_loops(isa: Isa) -> None:
    x, out = operand("input", 0, 30), operand("output", 0, 10, 21)
    index = Affine((("i", 1), ("j", 1)), 0)
    nest = Nest(dims(i=10, j=21), (at(x, index),), at(out, "i", "j"), cast(Read(0, F), F))
    assert_same((nest,), {0: values(30)}, isa)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F, DType.FLOAT16, DType.INT8, DType.BOOL], ids=str)
def test_the_same_nests_compile_for_a_machine_with_short_vectors(dtype: DType) -> None:
    from tilewright.targets.llvm.codegen import compile_object

    neon = isa_by_name("neon")
    source, out = operand("input", 0, 9, 35, dtype=dtype), operand("output", 0, 35, 9, dtype=dtype)
    turned = Nest(dims(i=35, j=9), (at(source, "j", "i"),), at(out, "i", "j"), Read(0, dtype.compute))
    top = operand("output", 0, 9, dtype=dtype)
    reduced = Nest(dims(i=9, k=35), (at(source, "i", "k"),), at(top, "i"), Read(0, dtype.compute), "max")
    for nest in (turned, reduced, depthwise(20, 9, 1, 3)):
        for kernel in lower_nests((nest,), {}, neon):
            assert compile_object(kernel.text, neon).startswith(b"\x7fELF")
