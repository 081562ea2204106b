"""Every function of the expression vocabulary, as vectors and as scalars, against its numpy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.loopnest_harness import run_kernels

from tilewright.ir.dtype import DType
from tilewright.ir.expr import FUNCTIONS, Call, Const, Expr, Read, call, cast, evaluate
from tilewright.ir.nest import Access, Dim, Nest, Operand, affine
from tilewright.targets.cpu.isa import Isa, isa_by_name
from tilewright.targets.llvm.exprgen import COMPUTE_ELEMENTS, unsupported_function

ISAS = [isa_by_name(name) for name in ("avx512", "avx2") if isa_by_name(name).runs_on_host]
FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = tuple(d for d in DType if d.is_integer)
COMPUTED = (*FLOATS, *INTEGERS, DType.BOOL)
Array = np.ndarray[Any, Any]

# Where numpy has no answer, or one that is not C's, for integers.
_NO_INTEGER_MEANING = {"pow", "reciprocal", "is_nan", "is_inf", "floor", "ceil", "round", "trunc"}
_FLOAT_ONLY = {"is_nan", "is_inf", "floor", "ceil", "round", "trunc"}
_INTEGER_ONLY = {"and", "or", "xor", "not", "shift_left", "shift_right"}


@pytest.fixture(params=ISAS, ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


def run(isa: Isa, expr: Expr, arrays: list[Array]) -> Array:
    """The expression on 1-D arrays of one length."""
    size = len(arrays[0])
    reads = tuple(
        Access(Operand("input", i, DType.from_numpy(a.dtype), a.shape), (affine("i"),))
        for i, a in enumerate(arrays)
    )
    out = Operand("output", 0, expr.result, (size,))
    nest = Nest((Dim("i", size),), reads, Access(out, (affine("i"),)), expr)
    return run_kernels((nest,), dict(enumerate(arrays)), isa)[0]


def samples(dtype: DType, seed: int) -> Array:
    """61 values (a tail in every width): edges first, then random ones."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, 61).astype(bool)
    if dtype.is_float:
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0]
        return np.concatenate([np.roll(edges, seed), rng.uniform(-4, 4, 49)]).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    edges = [0, 1, info.max, info.min, info.max - 1, 0, 2, 3, 7, 5]
    low = max(info.min, -9)
    first = np.roll(np.array(edges, dtype.numpy), 3 * seed)
    return np.concatenate([first, rng.integers(low, 10, 51).astype(dtype.numpy)])


def defined(function: str, dtype: DType) -> bool:
    """Whether numpy gives the function a meaning on the type that generated code must match."""
    if dtype.is_float:
        return function not in _INTEGER_ONLY
    example = Call(function, (Read(0, dtype),) * FUNCTIONS[function].arity, dtype)
    if unsupported_function(example) is not None or function in _NO_INTEGER_MEANING:
        return False
    return dtype is not DType.BOOL or function not in ("lt", "le", "gt", "ge")


CASES = [
    (name, dtype)
    for name, spec in FUNCTIONS.items()
    for dtype in COMPUTED
    if name not in ("cast", "select") and defined(name, dtype)
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("function", "dtype"), CASES, ids=lambda c: str(c))
def test_functions_mean_what_numpy_means(isa: Isa, function: str, dtype: DType) -> None:
    arrays = [samples(dtype, seed) for seed in range(FUNCTIONS[function].arity)]
    if function == "exp_nonpositive":  # it has no meaning above 0
        arrays = [np.minimum(array, -array) for array in arrays]
    expr = call(function, *(Read(i, dtype) for i in range(len(arrays))))
    with np.errstate(all="ignore"):
        want = evaluate(expr, arrays)
    got = run(isa, expr, arrays)
    assert got.dtype == want.dtype
    if dtype.is_float and want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("function", ["pow", "reciprocal"])
def test_integer_powers_and_reciprocals_truncate(isa: Isa, dtype: DType, function: str) -> None:
    base = np.array([0, 1, 2, 3, 5, 7, 1, 2], dtype.numpy)
    exponent = np.array([0, 5, 3, 2, 1, 0, 1, 6], dtype.numpy)
    if function == "pow":
        got = run(isa, call("pow", Read(0, dtype), Read(1, dtype)), [base, exponent])
        want = [int(b) ** int(x) for b, x in zip(base, exponent, strict=True)]
    else:
        got = run(isa, call("reciprocal", Read(0, dtype)), [base])
        want = [0 if b == 0 else 1 // int(b) for b in base]
    assert got.tolist() == want


def test_a_negative_power_of_an_integer_is_zero_unless_the_base_is_a_unit(isa: Isa) -> None:
    base, exponent = np.array([2, 1, -1, -1, 0], np.int32), np.array([-1, -5, -3, -2, -1], np.int32)
    got = run(isa, call("pow", Read(0, DType.INT32), Read(1, DType.INT32)), [base, exponent])
    assert got.tolist() == [0, 1, -1, 1, 0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", ["is_nan", "is_inf", "round", "trunc", "floor", "ceil"])
def test_float_only_functions_are_in_the_sweep(dtype: DType, function: str) -> None:
    assert (function, dtype) in CASES
    assert function in _FLOAT_ONLY


@pytest.mark.sampled(17)
@pytest.mark.parametrize("source", [*FLOATS, DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL])
@pytest.mark.parametrize("target", [d for d in COMPUTE_ELEMENTS if d is not DType.BFLOAT16])
def test_casts_of_values_that_fit(isa: Isa, source: DType, target: DType) -> None:
    low = 0 if not (source.is_signed and target.is_signed) or DType.BOOL in (source, target) else -100
    high = 2 if source is DType.BOOL else 120
    data = np.random.default_rng(3).integers(low, high, 61).astype(source.numpy)
    if source.is_float and target.is_integer:
        data = data + np.where(data > 0, 0.75, 0).astype(source.numpy)
    want = evaluate(cast(Read(0, source), target), [data])
    got = run(isa, cast(Read(0, source), target), [data])
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_to_integers_saturate(isa: Isa, source: DType, target: DType) -> None:
    info = np.iinfo(target.numpy)
    data = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, -0.75, 41.9], source.numpy)
    got = run(isa, cast(Read(0, source), target), [data])
    assert got.tolist() == [info.max, info.min, info.max, info.min, 0, 0, 41]


@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_a_cast_to_a_half_type_rounds_to_even(isa: Isa, half: DType) -> None:
    data = np.concatenate([np.random.default_rng(1).uniform(-70, 70, 50), [1e-8, np.inf, 0.0]]).astype(
        np.float32
    )
    expr = cast(cast(Read(0, DType.FLOAT32), half), DType.FLOAT32)
    np.testing.assert_array_equal(run(isa, expr, [data]), data.astype(half.numpy).astype(np.float32))


def test_select_takes_the_side_its_condition_names(isa: Isa) -> None:
    a, b = samples(DType.FLOAT32, 0), samples(DType.FLOAT32, 1)
    condition = call("lt", Read(0, DType.FLOAT32), Read(1, DType.FLOAT32))
    expr = call("select", condition, Read(0, DType.FLOAT32), Const(-7.0, DType.FLOAT32))
    np.testing.assert_array_equal(run(isa, expr, [a, b]), np.where(a < b, a, np.float32(-7)))


@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e-38, 1e30, 1.5e38])
def test_division_by_a_shared_divisor_is_as_exact_as_division(isa: Isa, scale: float) -> None:
    """Long rows share one divisor, which takes the way over its inverse."""
    rng = np.random.default_rng(8)
    x = (rng.uniform(-4, 4, (4, 400)) * min(scale, 1e37)).astype(np.float32)
    x[:, 0], x[:, 1], x[:, 2] = np.inf, np.nan, 0.0
    d = np.array([rng.uniform(1, 2), -rng.uniform(1, 2), 0.0, np.inf]) * scale
    divisor = d.astype(np.float32)
    f = DType.FLOAT32
    reads = (
        Access(Operand("input", 0, f, (4, 400)), (affine("i"), affine("j"))),
        Access(Operand("input", 1, f, (4,)), (affine("i"),)),
    )
    out = Operand("output", 0, f, (4, 400))
    nest = Nest(
        (Dim("i", 4), Dim("j", 400)), reads, Access(out, (affine("i"), affine("j"))), Read(0, f) / Read(1, f)
    )
    got = run_kernels((nest,), {0: x, 1: divisor}, isa)[0]
    with np.errstate(all="ignore"):
        want = x / divisor[:, None]
    np.testing.assert_allclose(got, want, rtol=1.2e-7, atol=1.5e-45)


@pytest.mark.parametrize("less", [0, 3, 1 << 16, (1 << 30) + 1, -(1 << 31)])
@pytest.mark.parametrize("divisor", [1.0, 0.3])
def test_bytes_read_as_numbers_are_what_the_bytes_are(isa: Isa, less: int, divisor: float) -> None:
    """Down to the sign of a zero, and whatever is taken off them."""
    x = np.array([-0.3, 0.3, 0.5, -0.5, 2.5, -2.5, -3.0, -0.0, 127.4, 1e30, -np.inf], np.float32)
    steps = call("round", Read(0, DType.FLOAT32) / divisor) + 3.0
    byte = cast(call("min", call("max", steps, -128.0), 127.0), DType.INT8)
    expr = cast(cast(byte, DType.INT32) - less, DType.FLOAT32)
    made, want = run(isa, expr, [x]), np.asarray(evaluate(expr, [x]))
    np.testing.assert_array_equal(made, want)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(want))
