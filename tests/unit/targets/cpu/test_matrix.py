"""Products on the matrix unit: exact where bfloat16 is, within derived bounds elsewhere, at every edge."""

# mypy: disable-error-code="arg-type, assignment"

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.kernels import group_of, results
from tests.support.matrix_unit import can_emulate, emulated_matrix_unit, isa_with_matrix_unit

from tilewright.ir.dtype import DType
from tilewright.ir.fuse import NestGroup
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interpret import run_graph
from tilewright.ir.rows import with_row_loops
from tilewright.ir.text import parse_graph
from tilewright.options import Accuracy
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.cpu.kernel import Declined, Kernel, Layout
from tilewright.targets.cpu.pieces import power_of_two
from tilewright.targets.cpu.plans import parse_plan, plan_kernels
from tilewright.targets.cpu.product.contraction import CONTRACTION
from tilewright.targets.cpu.product.matrix import MATRIX, match_matrix
from tilewright.targets.cpu.product.matrix.choose import choose_plan, chosen_plan
from tilewright.targets.cpu.product.matrix.generate import generate_matrix
from tilewright.targets.cpu.product.matrix.plan import Shape, plan_matrix
from tilewright.targets.cpu.product.matrix.tiles import TERMS, Block, split
from tilewright.targets.cpu.product.plan import Dot
from tilewright.targets.cpu.product.select import lower_product
from tilewright.targets.cpu.template import Context, lower_with
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import PTR, vec
from tilewright.testing.kernel_runner import KernelRunner, guarded
from tilewright.tuning import Choice

F32 = DType.FLOAT32
ACCURATE: tuple[Dot, ...] = ("6 bfloat16 products", "8 int8 products")
UNITS = [
    pytest.param(
        "unit",
        marks=pytest.mark.skipif(
            not host_isa().has_matrix_unit, reason="this processor, or its system, offers no AMX tiles"
        ),
    ),
    pytest.param(
        "emulation",
        marks=pytest.mark.skipif(not can_emulate(), reason="this processor rounds no vectors to bfloat16"),
    ),
]


@pytest.fixture(params=UNITS)
def matrix_isa(request: pytest.FixtureRequest) -> Iterator[Isa]:
    """This processor with the unit: its own, or an emulated one."""
    if request.param == "unit":
        yield host_isa()
        return
    with emulated_matrix_unit():
        yield isa_with_matrix_unit()


def conv(
    c: int,
    k: int,
    size: tuple[int, int],
    kernel: tuple[int, int] = (3, 3),
    *,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    batch: int = 1,
    residual: bool = False,
) -> Graph:
    """A convolution with small whole numbers for weights and bias; with `residual`, added to and clipped."""
    g = Graph("conv")
    rng = np.random.default_rng(0)
    x = g.add_input(Value("x", F32, (batch, c, *size)))
    w = g.constant(rng.integers(-4, 5, (k, c, *kernel)).astype(np.float32), "w")
    b = g.constant(rng.integers(-9, 10, k).astype(np.float32), "b")
    out = [
        (s + pads[i] + pads[i + 2] - d * (f - 1) - 1) // stride + 1
        for i, (s, f, stride, d) in enumerate(zip(size, kernel, strides, dilations, strict=True))
    ]
    attributes = {"pads": pads, "strides": strides, "dilations": dilations, "kernel_shape": kernel}
    shape = (batch, k, *out)
    y = g.append(Node("Conv", [x, w, b], [g.value("y", F32, shape)], attributes)).output
    if residual:
        r = g.add_input(Value("r", F32, shape))
        y = g.append(Node("Add", [y, r], [g.value("sum", F32, shape)])).output
        y = g.append(Node("Relu", [y], [g.value("relu", F32, shape)])).output
    g.outputs = [y]
    return g


def product(m: int, n: int, k: int) -> Graph:
    g = Graph("product")
    x = g.add_input(Value("x", F32, (m, k)))
    w = g.constant(np.random.default_rng(0).integers(-4, 5, (k, n)).astype(np.float32), "w")
    g.outputs = [g.append(Node("MatMul", [x, w], [g.value("y", F32, (m, n))])).output]
    return g


def layout(shape: tuple[int, ...]) -> Layout:
    return Layout((0, 2, 3, 1)) if len(shape) == 4 else Layout.row_major(len(shape))


def layouts_of(group: NestGroup) -> dict[tuple[str, int], Layout]:
    layouts = {
        ("input", i): Layout.row_major(len(v.shape)) if v.is_constant else layout(v.shape)
        for i, v in enumerate(group.inputs)
    }
    return {**layouts, ("output", 0): layout(group.outputs[0].shape)}


def lower(graph: Graph, isa: Isa, dot: Dot) -> tuple[Any, NestGroup, dict[tuple[str, int], Layout]]:
    group = group_of(graph)
    (nest,) = group.nests
    layouts = layouts_of(group)
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    problem = MATRIX.match(nest, Context(isa, layouts, constants=constants))
    if isinstance(problem, Declined):
        return problem, group, layouts
    kernel = generate_matrix(plan_matrix(problem, choose_plan(problem, TERMS[dot], isa)), isa)
    return (kernel,), group, layouts


def run(graph: Graph, isa: Isa, dot: Dot, *, whole: bool, scale: float = 1.0) -> tuple[Any, Any, Kernel]:
    """(The kernel's output, the output in float64, the kernel); `whole` numbers as inputs, or any."""
    kernels, group, layouts = lower(graph, isa, dot)
    assert not isinstance(kernels, Declined), kernels
    rng = np.random.default_rng(1)
    feed = {
        v.name: (rng.integers(-4, 5, v.shape) if whole else scale * rng.standard_normal(v.shape)).astype(
            np.float32
        )
        for v in graph.inputs
    }
    (got,) = results(kernels, group, feed, layouts, isa)
    return got, run_graph(graph, feed, dtype=DType.FLOAT64)[group.outputs[0].name], kernels[0]


EDGES = {
    "one block": lambda: conv(32, 32, (6, 6)),
    "odd channels": lambda: conv(40, 50, (9, 7)),
    "few columns": lambda: conv(16, 9, (12, 20), (1, 1), pads=(0, 0, 0, 0)),
    "strided window": lambda: conv(32, 48, (15, 14), strides=(2, 2)),
    "strided pointwise": lambda: conv(33, 64, (13, 10), (1, 1), pads=(0, 0, 0, 0), strides=(2, 3)),
    "dilated": lambda: conv(32, 32, (11, 12), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "uneven padding": lambda: conv(32, 32, (8, 9), pads=(0, 2, 1, 0)),
    "no padding": lambda: conv(64, 32, (8, 8), pads=(0, 0, 0, 0)),
    "window along lines": lambda: conv(32, 40, (9, 8), (3, 1), pads=(1, 0, 1, 0)),
    "window along rows": lambda: conv(32, 40, (9, 8), (1, 3), pads=(0, 1, 0, 1)),
    "larger window": lambda: conv(24, 32, (9, 9), (5, 5), pads=(2, 2, 2, 2)),
    "window of the image": lambda: conv(48, 64, (4, 4), (4, 4), pads=(0, 0, 0, 0)),
    "batch": lambda: conv(32, 32, (5, 6), batch=3),
    "pointwise batch": lambda: conv(32, 48, (5, 6), (1, 1), pads=(0, 0, 0, 0), batch=3),
    "residual": lambda: conv(48, 48, (7, 7), residual=True),
    "pointwise residual": lambda: conv(64, 96, (7, 9), (1, 1), pads=(0, 0, 0, 0), residual=True),
    "strided stem": lambda: conv(48, 64, (17, 17), (4, 4), pads=(1, 1, 2, 2), strides=(2, 2)),
    # Taps of different phases reach no further than their position: lines have no zeros of their own.
    "phases without reach": lambda: conv(24, 56, (8, 8), (1, 2), pads=(0, 2, 1, 2), strides=(3, 2)),
    "long sums": lambda: conv(520, 48, (4, 5)),
    "rows": lambda: product(37, 80, 130),
    "few rows": lambda: product(5, 200, 96),
    "one row": lambda: product(1, 64, 64),
    "many panels": lambda: product(64, 700, 300),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dot", TERMS)
@pytest.mark.parametrize("name", EDGES)
def test_whole_numbers_give_their_sums(matrix_isa: Isa, name: str, dot: Dot) -> None:
    got, expected, _ = run(EDGES[name](), matrix_isa, dot, whole=True)
    assert_sums(got, expected, dot)


def assert_sums(got: Any, expected: Any, dot: Dot) -> None:
    """Sums of whole numbers: exact of bfloat16 pieces, and of digits with scales within a millionth."""
    if TERMS[dot].is_bytes:
        assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()
    else:
        np.testing.assert_array_equal(got, expected.astype(np.float32))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    c=st.integers(2, 70),
    k=st.integers(2, 70),
    size=st.tuples(st.integers(3, 14), st.integers(3, 14)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    batch=st.integers(1, 2),
    dot=st.sampled_from(ACCURATE),
)
def test_any_convolution_that_is_matched_sums_whole_numbers(
    matrix_isa: Isa,
    c: int,
    k: int,
    size: Any,
    kernel: Any,
    pads: Any,
    strides: Any,
    dilations: Any,
    batch: int,
    dot: Dot,
) -> None:
    for i in (0, 1):
        if size[i] + pads[i] + pads[i + 2] < dilations[i] * (kernel[i] - 1) + 1:
            return
    graph = conv(c, k, size, kernel, pads=pads, strides=strides, dilations=dilations, batch=batch)
    kernels, _, _ = lower(graph, matrix_isa, dot)
    if isinstance(kernels, Declined):
        return
    got, expected, _ = run(graph, matrix_isa, dot, whole=True)
    assert_sums(got, expected, dot)


ROWS = {
    "product": lambda: product(75, 40, 70),
    "images": lambda: conv(32, 48, (9, 7), batch=5),
    "images of few lines": lambda: conv(33, 40, (3, 12), batch=4, residual=True),
    "lines": lambda: conv(32, 40, (5, 8), (1, 3), pads=(0, 1, 0, 1), batch=6),
    "pixels": lambda: conv(64, 48, (5, 6), (1, 1), pads=(0, 0, 0, 0), batch=7, residual=True),
    "pixels apart": lambda: conv(64, 48, (9, 9), (1, 1), pads=(0, 0, 0, 0), strides=(2, 2), batch=5),
    "long sums": lambda: conv(520, 48, (4, 5), batch=4),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dot", ACCURATE)
@pytest.mark.parametrize("unit_parts", [None, 3])
@pytest.mark.parametrize("name", ROWS)
def test_a_run_of_fewer_rows_gives_their_bits_and_leaves_the_others(
    matrix_isa: Isa, name: str, unit_parts: int | None, dot: Dot
) -> None:
    graph = ROWS[name]()
    group = group_of(graph)
    group = with_row_loops(group, dict.fromkeys([*graph.inputs, *graph.outputs], 0))
    constants = frozenset(("input", i) for i, v in enumerate(group.inputs) if v.is_constant)
    context = Context(matrix_isa, layouts_of(group), constants=constants)
    problem = MATRIX.match(group.nests[0], context)
    assert not isinstance(problem, Declined)
    terms = TERMS[dot]
    plan = choose_plan(problem, terms, matrix_isa)
    if unit_parts is not None:
        block = {"block_rows": plan.block.rows, "block_columns": plan.block.columns}
        choice = Choice.of("matrix", **block, unit_parts=unit_parts, panel_parts=1)
        found = chosen_plan(problem, terms, choice, matrix_isa)
        if isinstance(found, Declined):
            pytest.skip(found.reason)
        plan = found
    kernel = generate_matrix(plan_matrix(problem, plan), matrix_isa)
    most = group.outputs[0].shape[0]
    rng = np.random.default_rng(3)
    given = [
        rng.standard_normal(v.shape).astype(np.float32) if v.data is None else v.data for v in group.inputs
    ]

    def run_rows(num_rows: int) -> Any:
        operands = {("input", i): x.copy() for i, x in enumerate(given)}
        for i, value in enumerate(group.inputs):
            if value.data is None:
                operands["input", i][num_rows:] = np.nan
        operands["output", 0] = np.full(group.outputs[0].shape, 7, np.float32)
        runner = KernelRunner((kernel,), operands, context.layouts, matrix_isa)
        runner(num_rows)
        return runner.result(("output", 0))

    whole = run_rows(most)
    for num_rows in (1, 2, most - 1):
        found = run_rows(num_rows)
        np.testing.assert_array_equal(found[:num_rows], whole[:num_rows])
        assert np.all(found[num_rows:] == 7)


@pytest.mark.parametrize("dot", [dot for dot in TERMS if not TERMS[dot].is_bytes])
def test_errors_stay_within_what_the_pieces_leave_out(matrix_isa: Isa, dot: Dot) -> None:
    graph = product(48, 64, 512)
    got, expected, _ = run(graph, matrix_isa, dot, whole=False, scale=1.0)
    weights = next(v.data for v in graph.nodes[0].inputs if v is not None and v.data is not None)
    # Weights are whole and have one piece: what the inputs' pieces leave out counts, and rounding of sums.
    rounding = 512 * 2.0**-24
    left_out = 2.0 ** (1 - 9 * TERMS[dot].num_pieces) + rounding
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((48, 512)).astype(np.float32)
    bound = left_out * (np.abs(inputs).astype(np.float64) @ np.abs(weights).astype(np.float64))
    assert (np.abs(got - expected) <= bound).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [64, 768, 3072, 9216])
@pytest.mark.parametrize("dot", ACCURATE)
def test_accurate_products_err_as_plain_kernels_do_however_long_the_sums(
    matrix_isa: Isa, dot: Dot, depth: int
) -> None:
    graph = product(48, 64, depth)
    (weights,) = [v for v in graph.values() if v.data is not None]
    rng = np.random.default_rng(2)
    weights.data = rng.standard_normal((depth, 64)).astype(np.float32)
    got, expected, _ = run(graph, matrix_isa, dot, whole=False)
    _, group, layouts = lower(graph, matrix_isa, dot)
    context = Context(matrix_isa, layouts, constants=frozenset({("input", 1)}))
    plain = lower_with(CONTRACTION, group.nests[0], context)
    assert not isinstance(plain, Declined)
    x = np.random.default_rng(1).standard_normal((48, depth)).astype(np.float32)
    as_plain = np.abs(results(plain, group, {"x": x}, layouts, matrix_isa)[0] - expected).max()
    assert np.abs(got - expected).max() <= 2 * as_plain


@pytest.mark.skipif(
    not (host_isa().has_matrix_unit and can_emulate()),
    reason="this processor, or its system, offers no AMX tiles",
)
@pytest.mark.parametrize("dot", TERMS)
def test_the_emulation_gives_the_bits_of_the_unit(dot: Dot) -> None:
    graph = conv(72, 40, (9, 8), residual=True)
    by_unit, _, _ = run(graph, host_isa(), dot, whole=False)
    with emulated_matrix_unit():
        emulated, _, _ = run(graph, host_isa(), dot, whole=False)
    np.testing.assert_array_equal(by_unit.view(np.uint32), emulated.view(np.uint32))


@pytest.mark.skipif(
    "+avx512bf16" not in host_isa().features.split(","), reason="this processor rounds no vectors to bfloat16"
)
def test_the_emulation_rounds_as_the_instruction_does() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, (512, 2, 16), dtype=np.uint32)
    bits[0] = [[0, 1, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7F7FFFFF, 0x007FFFFF, 0x00800000] * 2] * 2
    bits[1] = bits[0] | 0x80000000
    bits[2:40] = (bits[2:40] & 0xFFFF0000) | 0x8000  # halfway between two
    results = []
    for context in (contextlib.nullcontext(), emulated_matrix_unit()):
        e = Emitter(attributes=host_isa().function_attributes)
        with e.function("round", (Param("from", PTR), Param("to", PTR))) as (source, target):
            low, high = (e.load(vec("float", 16), e.gep(source, 64 * half)) for half in (0, 1))
            e.store(split(e, low, high, 1)[0], target)
        with context:
            image = compile_object(e.text(), host_isa())
        library = JitLibrary([image], exports=["round"])
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library["round"])
        given, rounded = guarded(bits.copy()), guarded(np.zeros((512, 32), np.uint16))
        for row in range(len(bits)):
            call(given[row].ctypes.data, rounded[row].ctypes.data)
        results.append(rounded)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dot", [dot for dot in TERMS if dot[0] != "1"])
def test_values_that_round_to_infinity_stay_where_they_are(matrix_isa: Isa, dot: Dot) -> None:
    graph = product(16, 32, 32)
    kernels, group, layouts = lower(graph, matrix_isa, dot)
    x = np.ones((16, 32), np.float32)
    x[3, 5] = np.inf
    (got,) = results(kernels, group, {"x": x}, layouts, matrix_isa)
    assert np.isfinite(np.delete(got, 3, axis=0)).all()
    assert not np.isfinite(got[3]).any()


def factors(kind: str, depth: int) -> tuple[Any, Any]:
    """A and B whose products are hard for fixed point, by what makes them so."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((37, depth)), rng.standard_normal((depth, 24))
    outliers = np.where(np.arange(depth) % 97 == 5, 1000.0, 1.0)
    match kind:
        case "inputs":
            a *= outliers
        case "weights":
            b *= outliers[:, None]
        case "inputs made up for by weights":
            a, b = a * outliers, b / outliers[:, None]
        case "one sign":
            a, b = np.full_like(a, -1.0), np.full_like(b, 0.999)
        case "all sizes":
            a *= 10.0 ** rng.uniform(-20, 15, (37, 1))
            b *= 10.0 ** rng.uniform(-15, 15, (1, 24))
    return a.astype(np.float32), b.astype(np.float32)


def multiplied(isa: Isa, dot: Dot, a: Any, b: Any) -> Any:
    """The product by the kernel of a dot."""
    graph = product(len(a), b.shape[1], len(b))
    (weights,) = [v for v in graph.values() if v.data is not None]
    weights.data = b
    kernels, group, layouts = lower(graph, isa, dot)
    return results(kernels, group, {"x": a}, layouts, isa)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dot", [dot for dot in TERMS if TERMS[dot].is_bytes])
@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        ("usual", 200),
        ("inputs", 384),
        ("weights", 384),
        ("inputs made up for by weights", 384),
        ("one sign", 45_000),  # sums of one order outgrow 32 bits unless they are cut
        ("all sizes", 100),
    ],
)
def test_errors_of_digits_stay_within_their_bound(matrix_isa: Isa, dot: Dot, kind: str, depth: int) -> None:
    a, b = factors(kind, depth)
    got = multiplied(matrix_isa, dot, a, b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    # docs/accuracy.md: the largest product of a row and a column, as rows of B are scaled; roundings.
    of_depth = power_of_two(np.abs(b).max(axis=1))
    largest = np.outer(np.abs(a * of_depth).max(axis=1), np.abs(b / of_depth[:, None]).max(axis=0))
    left_out = 2.0**-22.4 if dot[0] == "8" else 2.0**-21.6
    num_passes = -(-depth // 512)
    roundings = (8 + num_passes) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b))
    assert (np.abs(got - wide_a @ wide_b) <= depth * left_out * largest + roundings).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["usual", "inputs", "weights", "inputs made up for by weights"])
def test_eight_products_of_digits_err_as_plain_kernels_do(matrix_isa: Isa, kind: str) -> None:
    a, b = factors(kind, 768)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    as_plain = np.float32(0)
    for k in range(0, 768, 256):  # as plain kernels add: blocks, then their totals
        as_plain = as_plain + np.add.accumulate(a[:, k : k + 256, None] * b[None, k : k + 256], axis=1)[:, -1]
    error = np.abs(multiplied(matrix_isa, "8 int8 products", a, b) - expected).max()
    assert error <= 2.5 * np.abs(as_plain - expected).max()


def test_what_is_not_finite_in_digits_stays_in_its_row_and_column(matrix_isa: Isa) -> None:
    a, b = factors("usual", 70)
    a[3, 69], a[5, 0], b[7, 2], b[8, 4] = np.inf, np.nan, -np.inf, np.nan
    a[6], a[7], b[:, 5] = 0, 1e-40, 0
    got = multiplied(matrix_isa, "8 int8 products", a, b)
    assert np.isnan(got[[3, 5]]).all()
    assert np.isnan(got[:, [2, 4]]).all()
    others = np.delete(np.delete(got, [3, 5], axis=0), [2, 4], axis=1)
    assert np.isfinite(others).all()
    assert (np.delete(got[6], [2, 4]) == 0).all()
    assert (np.delete(got[:, 5], [3, 5]) == 0).all()


def test_a_line_that_is_not_finite_gives_nan_where_it_is_read(matrix_isa: Isa) -> None:
    graph = conv(16, 16, (6, 5))
    kernels, group, layouts = lower(graph, matrix_isa, "8 int8 products")
    x = np.ones((1, 16, 6, 5), np.float32)
    x[0, 3, 4, 1] = np.inf
    (got,) = results(kernels, group, {"x": x}, layouts, matrix_isa)
    assert np.isfinite(got[:, :, :3]).all()
    assert np.isnan(got[:, :, 3:]).all()


def test_sums_that_wait_in_memory_for_the_next_steps_are_kept(matrix_isa: Isa) -> None:
    graph = product(130, 33, 400)
    dot: Dot = "3 bfloat16 products"
    group = group_of(graph)
    problem = match_matrix(group.nests[0], layouts_of(group))
    assert not isinstance(problem, Declined)
    sizes = Shape.of(problem, TERMS[dot]).plan(Block(2, 2), 1, 1)
    assert sizes.num_passes > 1
    assert not sizes.adds_passes
    kernel = generate_matrix(plan_matrix(problem, sizes), matrix_isa)
    feed = {"x": np.random.default_rng(1).integers(-4, 5, (130, 400)).astype(np.float32)}
    (got,) = results((kernel,), group, feed, layouts_of(group), matrix_isa)
    np.testing.assert_array_equal(got, run_graph(graph, feed)["y"])


COMPUTED = {
    "scores": """
  input %p: float32[4, 40, 48]
  input %k: float32[4, 50, 48]
  %v: float32[4, 48, 50] = Transpose(%k) {perm = [0, 2, 1]} "t"
  %y: float32[4, 40, 50] = MatMul(%p, %v) "y"
""",
    "weighted sums": """
  input %p: float32[3, 2, 40, 70]
  input %v: float32[3, 2, 70, 24]
  input %r: float32[3, 2, 40, 24]
  %m: float32[3, 2, 40, 24] = MatMul(%p, %v) "m"
  %y: float32[3, 2, 40, 24] = Add(%m, %r) "y"
""",
    "one for all": """
  input %p: float32[5, 33, 64]
  input %v: float32[64, 100]
  %y: float32[5, 33, 100] = MatMul(%p, %v) "y"
""",
    "shared rows": """
  input %p: float32[1, 17, 40]
  input %v: float32[3, 40, 20]
  %y: float32[3, 17, 20] = MatMul(%p, %v) "y"
""",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dot", ["1 bfloat16 product", "3 bfloat16 products", "6 bfloat16 products"])
@pytest.mark.parametrize("name", COMPUTED)
def test_two_computed_factors(matrix_isa: Isa, name: str, dot: Dot) -> None:
    assert_computed(COMPUTED[name], matrix_isa, dot)


@pytest.mark.parametrize("name", ["scores", "weighted sums"])
def test_two_computed_factors_of_float16(matrix_isa: Isa, name: str) -> None:
    assert_computed(COMPUTED[name].replace("float32", "float16"), matrix_isa, "1 bfloat16 product")


def row_major(group: NestGroup) -> dict[tuple[str, int], Layout]:
    layouts = {("input", i): Layout.row_major(len(v.shape)) for i, v in enumerate(group.inputs)}
    return {**layouts, ("output", 0): Layout.row_major(len(group.outputs[0].shape))}


def assert_computed(nodes: str, isa: Isa, dot: Dot) -> None:
    """Products of whole numbers that a plan of their text makes are exact."""
    graph = parse_graph(f'graph "g" opset 17 {{{nodes}  return %y\n}}\n')
    group = group_of(graph)
    layouts = row_major(group)
    problem = match_matrix(group.nests[0], layouts, frozenset())
    assert not isinstance(problem, Declined)
    plan = plan_matrix(problem, choose_plan(problem, TERMS[dot], isa))
    kernels = plan_kernels(parse_plan(str(plan)), isa)
    rng = np.random.default_rng(0)
    feed = {v.name: rng.integers(-4, 5, v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    (got,) = results(kernels, group, feed, layouts, isa)
    np.testing.assert_array_equal(got, run_graph(graph, feed)["y"])


def test_two_computed_factors_are_multiplied_where_that_gains() -> None:
    graph = parse_graph(f'graph "g" opset 17 {{{COMPUTED["one for all"]}  return %y\n}}\n')
    large = parse_graph(
        'graph "g" opset 17 {\n  input %p: float32[384, 768]\n  input %v: float32[768, 512]\n'
        '  %y: float32[384, 512] = MatMul(%p, %v) "y"\n  return %y\n}\n'
    )

    def templates(graph: Graph, accuracy: Accuracy) -> list[str]:
        group = group_of(graph)
        context = Context(isa_with_matrix_unit(), row_major(group), accuracy=accuracy)
        kernels = lower_product(group.nests[0], context)
        assert not isinstance(kernels, Declined)
        return [kernel.template for kernel in kernels]

    assert templates(large, "default") == ["contraction"]
    assert templates(large, "relaxed") == ["matrix-tiles", "matrix-3"]
    assert templates(large, "fast") == ["matrix-tiles", "matrix-1"]
    assert templates(graph, "relaxed") == ["contraction"]


def test_without_the_unit_it_declines() -> None:
    kernels, _, _ = lower(conv(32, 32, (6, 6)), isa_by_name("avx512"), "3 bfloat16 products")
    assert isinstance(kernels, Declined)
    assert "no matrix unit" in kernels.reason


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (conv(32, 32, (12, 12), (6, 6)), "taps"),
        (conv(32, 32, (6, 6), dilations=(1, 1), pads=(1, 1, 1, 1), batch=1), None),
    ],
)
def test_what_is_matched(graph: Graph, reason: str | None) -> None:
    group = group_of(graph)
    problem = match_matrix(group.nests[0], layouts_of(group))
    if reason is None:
        assert not isinstance(problem, Declined)
    else:
        assert isinstance(problem, Declined)
        assert reason in problem.reason
