"""Vector math against numpy in wider arithmetic: errors in units of the last place, special values, bits."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from tilewright.ir.expr import FUNCTIONS
from tilewright.targets.cpu.isa import Isa, host_isa, isa_by_name
from tilewright.targets.llvm.codegen import JitLibrary, compile_object, emit_assembly
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import I64, PTR, Int, Val, vec
from tilewright.targets.llvm.vecmath import VECTOR_FUNCTIONS

Array = np.ndarray[Any, Any]

ELEMENTS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
ARITY_TWO = ("mod", "fmod", "pow", "max", "min")
BIT_OPERATIONS = ("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "max", "min")
# Those whose error has a bound relative to their value everywhere; the others have tests of their own.
MATHEMATICAL = sorted(
    set(VECTOR_FUNCTIONS) - set(ARITY_TWO) - set(BIT_OPERATIONS) - {"gelu", "silu", "exp_nonpositive"}
)

# Largest error allowed, in units of the last place. Floats that are computed in double round once.
MAX_ULP_32 = {
    "exp": 0.9, "expm1": 1.5, "log": 1.0, "log1p": 1.6, "tanh": 1.5, "sigmoid": 2.4, "erf": 1.2,
}  # fmt: skip
ROUNDED_ONCE_ULP = 0.501
MAX_ULP_64 = 3.0

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0, -2.0, 3.0, -3.0, 7.0, 1e-3, 1e-45, -1e-45, 1.2e-38,
    -1e-40, 3.4e38, -3.4e38, 1e10, -1e10, 16777217.0, 2.0**31, 88.8, -88.8, 104.0, -104.0,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
SPECIAL_64 = (5e-324, -5e-324, 1e308, -1e308, 2e-308, 710.2, -745.0, 709.8, 1e300, -1e-300)


def kernel_text(name: str, element: str, lanes: int, arity: int, attributes: str = "nounwind") -> str:
    """A loop `y[i] = f(x0[i], ...)` over whole vectors."""
    emitter = Emitter(attributes=attributes)
    function = VECTOR_FUNCTIONS[name]
    params = [*(Param(f"x{i}", PTR) for i in range(arity)), Param("y", PTR), Param("n", I64)]
    with emitter.function("kernel", params) as (*sources, target, num):

        def body(i: Int, _: list[Val]) -> None:
            loaded = [emitter.load(vec(element, lanes), emitter.gep(x, i, element)) for x in sources]
            emitter.store(function(emitter, *loaded), emitter.gep(target, i, element))

        emitter.loop(0, num, lanes, body)
    return emitter.text()


def evaluate(name: str, *arguments: Array, lanes: int = 16, isa: Isa | None = None) -> Array:
    """`name` of equally long arrays, through machine code."""
    dtype, num = arguments[0].dtype, len(arguments[0])
    padded = [np.resize(x, (num + lanes - 1) // lanes * lanes) for x in arguments]
    isa = isa or host_isa()
    text = kernel_text(name, ELEMENTS[dtype], lanes, len(arguments), isa.function_attributes)
    library = JitLibrary([compile_object(text, isa)], exports=["kernel"])
    result = np.empty_like(padded[0])
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arguments) + 1), ctypes.c_int64)
    signature(library["kernel"])(*(x.ctypes.data for x in padded), result.ctypes.data, len(result))
    return result[:num]


def ulp_errors(result: Array, exact: Array) -> Array:
    """Distance in last places of the rounded exact result; infinite where a special value is wrong."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(result.dtype)
        places = np.spacing(np.abs(rounded)).astype(exact.dtype)
        distance = np.abs(result.astype(exact.dtype) - exact) / places
    same = (np.isnan(rounded) & np.isnan(result)) | (rounded == result)
    return np.where(np.isfinite(rounded) & np.isfinite(result), distance, np.where(same, 0, np.inf))


def reference(name: str, x: Array) -> Array:
    """The function in arithmetic wider than that of `x`."""
    with np.errstate(all="ignore"):
        x = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
        if name == "erf":
            x = x.astype(np.float64)
        return np.asarray(FUNCTIONS[name].numpy(x))


def all_magnitudes(step: int) -> Array:
    """Every `step`-th float32 of the whole range, NaN and infinities included."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def check_special(result: Array, expected: Array, arguments: tuple[Array, ...], max_ulp: float) -> None:
    """Same NaN, infinities and zero signs; finite results within a few last places."""
    with np.errstate(all="ignore"):
        error = ulp_errors(result, expected.astype(np.longdouble))
    wrong = (error > max_ulp) | (~np.isnan(expected) & (np.signbit(result) != np.signbit(expected)))
    cases = [(*(x[i] for x in arguments), result[i], expected[i]) for i in np.nonzero(wrong)[0]]
    assert cases == []


def test_the_table_covers_every_float_function_that_is_not_plain_arithmetic() -> None:
    plain = {"add", "sub", "mul", "div", "and", "or", "xor", "not", "shift_left", "shift_right"}
    other = {name for name, f in FUNCTIONS.items() if f.rule != "same"}
    assert set(VECTOR_FUNCTIONS) == set(FUNCTIONS) - plain - other


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MATHEMATICAL)
def test_float32_error_over_the_whole_range(name: str) -> None:
    x = all_magnitudes(step=4093)
    error = ulp_errors(evaluate(name, x), reference(name, x))
    worst = int(np.argmax(error))
    limit = MAX_ULP_32.get(name, ROUNDED_ONCE_ULP)
    assert error[worst] <= limit, f"{name}({x[worst]!r}) is off by {error[worst]:.3f} ulp"


@pytest.mark.slow
@pytest.mark.parametrize("name", MATHEMATICAL)
def test_float32_error_over_a_dense_sweep(name: str) -> None:
    x = all_magnitudes(step=211)
    error = ulp_errors(evaluate(name, x), reference(name, x))
    assert error.max() <= MAX_ULP_32.get(name, ROUNDED_ONCE_ULP)


def test_gelu_errs_less_than_the_sum_that_defines_it() -> None:
    """In float32, where 1 + erf cancels; above zero as much as a few roundings."""
    x = np.concatenate([all_magnitudes(step=4093), np.linspace(-7, 7, 1 << 18).astype(np.float32)])
    x = x[np.isfinite(x)]
    exact, result = reference("gelu", x), evaluate("gelu", x)
    gate = reference("erf", (x * np.float32(math.sqrt(0.5))).astype(np.float32)).astype(np.float32)
    summed = x * np.float32(0.5) * (gate + np.float32(1))
    positive = x >= 0
    assert ulp_errors(result[positive], exact[positive]).max() <= 1.6
    error = np.abs(result[~positive] - exact[~positive])
    assert error.max() <= 2.0**-24 < np.abs(summed[~positive] - exact[~positive]).max()
    assert np.all(result[x < -6.0] == 0.0)


def test_silu_errs_as_a_product_with_a_rounded_sigmoid_does() -> None:
    x = np.concatenate([all_magnitudes(step=4093), np.linspace(-30, 30, 1 << 18).astype(np.float32)])
    x = x[np.isfinite(x)]
    exact, result = reference("silu", x), evaluate("silu", x)
    above = x >= -1
    assert ulp_errors(result[above], exact[above]).max() <= 2.6
    assert np.abs(result[~above] - exact[~above]).max() <= 2.0**-23.7
    shown = np.abs(x) < 20
    product = np.abs(x * evaluate("sigmoid", x) - exact)[shown]
    error = np.abs(result - exact)[shown]
    assert error.max() <= 1.5 * product.max()
    assert np.mean(error) <= 1.1 * np.mean(product)
    assert np.all(result[x < -89] == 0.0)


def test_powers_of_a_softmax_err_as_exp_does_and_are_never_denormal() -> None:
    x = np.concatenate([-np.abs(all_magnitudes(step=4093)), np.linspace(-90, 0, 1 << 18).astype(np.float32)])
    x = x[np.isfinite(x)]
    exact, result = reference("exp_nonpositive", x), evaluate("exp_nonpositive", x)
    shown = exact >= 2.5e-38
    assert ulp_errors(result[shown], exact[shown]).max() <= MAX_ULP_32["exp"]
    tail = result[~shown]
    assert np.all((tail == 0.0) | (tail >= np.finfo(np.float32).tiny))
    assert tail.max() <= 2.6e-38


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MATHEMATICAL)
def test_float64_error_where_longdouble_is_wider(name: str) -> None:
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("longdouble is no wider than float64 on this machine")
    rng = np.random.default_rng(7)
    any_bits = np.frombuffer(rng.bytes(8 * 4096), np.float64)
    x = np.concatenate([rng.standard_normal(4096) * scale for scale in (1e-4, 0.5, 10.0, 300.0)] + [any_bits])
    if name == "acosh":
        x = 1 + np.abs(x[np.isfinite(x)])
    # math.erf is itself rounded to double.
    limit = MAX_ULP_64 + (1.0 if name == "erf" else 0.0)
    error = ulp_errors(evaluate(name, x, lanes=8), reference(name, x))
    worst = int(np.argmax(error))
    assert error[worst] <= limit, f"{name}({x[worst]!r}) is off by {error[worst]:.3f} ulp"


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(set(VECTOR_FUNCTIONS) - set(ARITY_TWO)))
def test_special_values_of_one_argument(name: str, dtype: type[np.floating[Any]]) -> None:
    x = np.array(SPECIAL if dtype is np.float32 else SPECIAL + SPECIAL_64, dtype)
    if name in ("gelu", "silu"):  # their tails have bounds of their own
        x = x[~((x < -1) & np.isfinite(x))]
    if name == "exp_nonpositive":  # of what is above 0 nothing is said, nor of what would be denormal
        x = x[~(x > 0) & ~((x < -86) & (x > -800))]
    with np.errstate(all="ignore"):
        expected = reference(name, x).astype(dtype)
    check_special(evaluate(name, x), expected, (x,), max_ulp=4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["pow", "fmod", "mod"])
def test_special_values_of_two_arguments(name: str, dtype: type[np.floating[Any]]) -> None:
    values = np.array(SPECIAL if dtype is np.float32 else SPECIAL + SPECIAL_64, dtype)
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        if name == "pow":
            expected = np.power(x.astype(np.longdouble), y.astype(np.longdouble)).astype(dtype)
        else:
            expected = np.asarray(FUNCTIONS[name].numpy(x, y))
    check_special(evaluate(name, x, y), expected, (x, y), max_ulp=4 if name == "pow" else 0)


def test_pow_is_rounded_once_in_float32() -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.lognormal(0, 3, 1 << 16).astype(np.float32), rng.normal(0, 9, 1 << 16).astype(np.float32))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulp_errors(evaluate("pow", x, y), exact).max() <= ROUNDED_ONCE_ULP


def test_pow_in_float64_holds_up_to_overflow() -> None:
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("longdouble is no wider than float64 on this machine")
    rng = np.random.default_rng(4)
    x, y = rng.lognormal(0, 3, 1 << 14), rng.normal(0, 90, 1 << 14)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert ulp_errors(evaluate("pow", x, y), exact).max() <= MAX_ULP_64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["fmod", "mod"])
def test_remainders_are_exact_at_every_ratio(name: str, dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(5)
    num, bits = 1 << 13, np.dtype(dtype).itemsize
    x, y = (np.frombuffer(rng.bytes(num * bits), dtype) for _ in range(2))
    with np.errstate(all="ignore"):
        near = (y * rng.integers(1, 1000, num)).astype(dtype)  # quotients that are nearly whole numbers
        x, y = np.concatenate([x, near]), np.concatenate([y, y])
        expected = np.asarray(FUNCTIONS[name].numpy(x, y))
    check_special(evaluate(name, x, y), expected, (x, y), max_ulp=0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(VECTOR_FUNCTIONS))
def test_every_width_and_instruction_set_gives_the_same_bits(name: str) -> None:
    arity = 2 if name in ARITY_TWO else 1
    rng = np.random.default_rng(11)
    sample = np.concatenate([np.array(SPECIAL, np.float32), np.frombuffer(rng.bytes(4 * 993), np.float32)])
    mild = (rng.standard_normal(1024) * 3).astype(np.float32)
    arguments = [np.concatenate([sample, mild]), np.concatenate([mild, sample])][:arity]
    machines = [host_isa(), *(i for i in map(isa_by_name, ("avx2", "avx512", "neon")) if i.runs_on_host)]
    variants = [(machine, lanes) for machine in machines for lanes in (1, 4, 8, 16)]
    results = [evaluate(name, *arguments, lanes=lanes, isa=isa) for isa, lanes in variants]
    # The payload and sign of a NaN are no promise; everything else is, to the bit.
    first = np.where(np.isnan(results[0]), np.float32(0), results[0]).view(np.uint32)
    for (isa, lanes), result in zip(variants, results, strict=True):
        np.testing.assert_array_equal(np.isnan(result), np.isnan(results[0]), f"{isa.name} x {lanes}")
        bits = np.where(np.isnan(result), np.float32(0), result).view(np.uint32)
        np.testing.assert_array_equal(bits, first, f"{isa.name} x {lanes}")


@pytest.mark.parametrize(
    "name", ["exp", "exp_nonpositive", "expm1", "log", "log1p", "tanh", "sigmoid", "silu", "erf", "gelu"]
)
@pytest.mark.parametrize(("isa_name", "lanes"), [("avx512", 16), ("avx2", 8)])
def test_hot_functions_stay_in_registers_and_call_nothing(name: str, isa_name: str, lanes: int) -> None:
    isa = isa_by_name(isa_name)
    assembly = emit_assembly(kernel_text(name, "float", lanes, 1, isa.function_attributes), isa)
    instructions = [line.strip() for line in assembly.splitlines() if line.startswith("\t")]
    register = "zmm" if isa_name == "avx512" else "ymm"
    assert any(register in line for line in instructions)
    assert [line for line in instructions if line.startswith("call")] == []
    assert [line for line in instructions if "(%rsp)" in line and "mm" in line] == []


@pytest.mark.sampled(20)
@pytest.mark.parametrize("element", ["float", "double"])
@pytest.mark.parametrize("name", sorted(VECTOR_FUNCTIONS))
def test_aarch64_objects_need_no_library(name: str, element: str) -> None:
    neon = isa_by_name("neon")
    text = kernel_text(name, element, neon.lanes(element), 2 if name in ARITY_TWO else 1)
    assembly = emit_assembly(text, neon)
    called = [line.split()[1] for line in assembly.splitlines() if line.startswith("\tbl\t")]
    assert set(called) <= {"tilewright_reduce_quarter_turns"}


def test_half_operands_are_refused_with_the_remedy() -> None:
    emitter = Emitter()
    with pytest.raises(TypeError, match="widen it to float first"), emitter.function("f"):
        VECTOR_FUNCTIONS["exp"](emitter, emitter.zero(vec("half", 8)))
