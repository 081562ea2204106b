"""The emitter's text, run: control flow, index folding, lanes, memory and casts against Python and numpy."""

# mypy: disable-error-code="arg-type, call-overload"

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cuda.emitter import CudaEmitter
from tilewright.targets.llvm.codegen import JitLibrary, compile_object
from tilewright.targets.llvm.emitter import Emitter, Param
from tilewright.targets.llvm.values import (
    DOUBLE,
    FLOAT,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Int,
    Operand,
    Type,
    Val,
    literal,
    vec,
    vector_literal,
)

Array = np.ndarray[Any, Any]
NUMPY = {
    "float": np.float32, "double": np.float64, "half": np.float16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64,
}  # fmt: skip


def run(emitter: Emitter, *arguments: int | Array) -> None:
    """Call the module's `@f` with pointers and i64 numbers."""
    library = JitLibrary([compile_object(emitter.text(), host_isa())], exports=["f"])
    kinds = [ctypes.c_void_p if isinstance(a, np.ndarray) else ctypes.c_int64 for a in arguments]
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    ctypes.CFUNCTYPE(None, *kinds)(library["f"])(*values)


def lanes_of(make: Callable[..., Val], result: Type, *inputs: Array) -> Array:
    """What `make(emitter, *vectors)` computes from whole arrays as vectors."""
    emitter = Emitter()
    elements = {np.dtype(kind): element for element, kind in NUMPY.items()}
    params = [Param(f"x{i}", PTR) for i in range(len(inputs))]
    with emitter.function("f", [*params, Param("y", PTR)]) as (*pointers, target):
        types = [vec(elements[x.dtype], x.size) for x in inputs]
        loaded = [emitter.load(t, p) for t, p in zip(types, pointers, strict=True)]
        emitter.store(make(emitter, *loaded), target)
    made = np.zeros(result.lanes, NUMPY[result.element])
    run(emitter, *inputs, made)
    return made


def counted(low: Int, high: Int, step: int, *, nonempty: bool = False) -> Callable[[Emitter], list[Val]]:
    """A loop that carries the number of its iterations and the sum of its indices."""

    def emit(e: Emitter) -> list[Val]:
        def body(i: Int, carried: list[Val]) -> list[Operand]:
            return [e.iadd(carried[0], 1), e.iadd(carried[1], e.index(i))]

        return e.loop(low, high, step, body, [(I64, 0), (I64, 0)], nonempty=nonempty)

    return emit


BOUNDS = [(0, 0, 1), (5, 5, 2), (7, 3, 1), (0, 1, 1), (0, 10, 3), (2, 3, 16), (-4, 5, 2), (0, 48, 16)]


@pytest.mark.parametrize(("low", "high", "step"), BOUNDS)
@pytest.mark.parametrize("known", ["both", "low", "neither"])
def test_loops_run_as_range_does(low: int, high: int, step: int, known: str) -> None:
    emitter, result = Emitter(), np.zeros(2, np.int64)
    with emitter.function("f", [Param("y", PTR), Param("low", I64), Param("high", I64)]) as (y, a, b):
        emit = counted(a if known == "neither" else low, high if known == "both" else b, step)
        for slot, value in enumerate(emit(emitter)):
            emitter.store(value, emitter.gep(y, slot, "i64"))
    run(emitter, result, low, high)
    assert result.tolist() == [len(range(low, high, step)), sum(range(low, high, step))]


@pytest.mark.parametrize(("low", "high", "step"), BOUNDS)
def test_static_loops_branch_only_when_they_repeat(low: int, high: int, step: int) -> None:
    emitter = Emitter()
    with emitter.function("f"):
        counted(low, high, step)(emitter)
    assert ("br " in emitter.text()) == (len(range(low, high, step)) > 1)


def test_a_promised_iteration_saves_the_check_on_entry() -> None:
    texts = []
    for nonempty in (False, True):
        emitter = Emitter()
        with emitter.function("f", [Param("n", I64)]) as (n,):
            counted(0, n, 1, nonempty=nonempty)(emitter)
        texts.append(emitter.text())
    assert [text.count("icmp") for text in texts] == [2, 1]


@pytest.mark.parametrize(("high", "width"), [(2**31 - 8, 32), (2**31 - 1, 64), (3 * 2**30, 64)])
def test_iterations_are_counted_in_numbers_that_hold_their_bounds(high: int, width: int) -> None:
    e = CudaEmitter()
    with e.kernel(1, 32) as (place,):
        e.loop(0, high, 4, lambda number, _: e.store(e.index(number), place))
    assert re.findall(r"= phi i(\d+)", e.text()) == [str(width)]


def test_loops_nest_and_carry_vectors() -> None:
    rows, columns = 5, 24
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    result = np.zeros(8, np.float32)
    emitter, eight = Emitter(), vec("float", 8)
    params = [Param("x", PTR), Param("y", PTR), Param("rows", I64), Param("columns", I64)]
    with emitter.function("f", params) as (x, y, num_rows, num_columns):

        def row(i: Int, outer: list[Val]) -> list[Val]:
            start = emitter.gep(x, emitter.mul(i, num_columns), "float")

            def column(j: Int, inner: list[Val]) -> list[Operand]:
                return [emitter.fadd(inner[0], emitter.load(eight, emitter.gep(start, j, "float")))]

            return emitter.loop(0, num_columns, 8, column, [(eight, outer[0])])

        emitter.store(emitter.loop(0, num_rows, 1, row, [(eight, 0.0)])[0], y)
    run(emitter, matrix, result, rows, columns)
    np.testing.assert_array_equal(result, matrix.reshape(rows, -1, 8).sum(axis=(0, 1)))


def test_a_loop_body_must_return_what_is_carried() -> None:
    emitter = Emitter()
    with pytest.raises(ValueError, match="loop body returned 0 values, 1 are carried"), emitter.function("f"):
        emitter.loop(0, 4, 1, lambda i, carried: None, [(FLOAT, 0.0)])


def test_carried_values_keep_their_type() -> None:
    emitter = Emitter()
    with pytest.raises(TypeError, match="stands where float is expected"), emitter.function("f"):
        emitter.loop(0, 4, 1, lambda i, carried: [emitter.constant(DOUBLE, 1)], [(FLOAT, 0.0)])


def test_do_while_repeats_until_its_condition_fails() -> None:
    emitter, result = Emitter(), np.zeros(1, np.int64)
    with emitter.function("f", [Param("y", PTR), Param("n", I64)]) as (y, n):

        def halve(values: list[Val]) -> tuple[Val, Sequence[Operand]]:
            rest = emitter.lshr(values[0], 1)
            return emitter.icmp("ne", rest, 0), [rest, emitter.iadd(values[1], 1)]

        emitter.store(emitter.do_while(halve, [(I64, n), (I64, 0)])[1], y)
    for number in (1, 2, 255, 256):
        run(emitter, result, number)
        assert result[0] == number.bit_length()


@pytest.mark.parametrize("number", [-3, 0, 4])
def test_if_merges_the_values_of_its_branches(number: int) -> None:
    emitter, result = Emitter(), np.zeros(1, np.int64)
    with emitter.function("f", [Param("y", PTR), Param("n", I64)]) as (y, n):
        negative = emitter.compare("slt", n, 0)
        value = emitter.if_(negative, lambda: [emitter.isub(0, n)], lambda: [emitter.imul(n, 10)], [I64])[0]
        emitter.if_(emitter.compare("eq", n, 0), lambda: emitter.store(emitter.constant(I64, 77), y))
        emitter.if_(emitter.compare("ne", n, 0), lambda: emitter.store(value, y))
    run(emitter, result, number)
    assert result[0] == (77 if number == 0 else -number if number < 0 else number * 10)


def test_if_on_a_known_condition_emits_one_branch() -> None:
    emitter = Emitter()
    with emitter.function("f"):
        picked = emitter.if_(False, lambda: [emitter.constant(I64, 1)], lambda: [2], [I64])
        assert picked == [Val("2", I64)]
        assert emitter.if_(False, lambda: emitter.ret()) == []
    assert "br " not in emitter.text()


def test_a_branch_may_return_from_the_function() -> None:
    emitter, result = Emitter(), np.zeros(1, np.int64)
    with emitter.function("f", [Param("y", PTR), Param("n", I64)]) as (y, n):
        kept = emitter.if_(emitter.compare("slt", n, 0), lambda: emitter.ret(), lambda: [n], [I64])[0]
        emitter.store(kept, y)
    for number, expected in ((5, 5), (-5, 5)):
        run(emitter, result, number)
        assert result[0] == expected


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "sdiv": lambda a, b: int(a / b),
    "min": min,
    "max": max,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
@pytest.mark.parametrize(("a", "b"), [(0, 1), (7, 1), (1, 7), (17, 5), (-17, 5), (17, -5), (-17, -5)])
def test_index_arithmetic_agrees_folded_and_computed(name: str, a: int, b: int) -> None:
    if name in ("udiv", "urem") and min(a, b) < 0:
        pytest.skip("unsigned operations take indices that are not negative")
    expected = OPERATIONS[name](a, b)
    emitter, result = Emitter(), np.zeros(3, np.int64)
    with emitter.function("f", [Param("y", PTR), Param("a", I64), Param("b", I64)]) as (y, x, z):
        operate = getattr(emitter, name)
        assert operate(a, b) == expected
        for slot, value in enumerate((operate(x, z), operate(x, b), operate(a, z))):
            emitter.store(emitter.index(value), emitter.gep(y, slot, "i64"))
    run(emitter, result, a, b)
    assert result.tolist() == [expected] * 3


def test_neutral_operands_emit_nothing() -> None:
    emitter = Emitter()
    with emitter.function("f", [Param("n", I64), Param("p", PTR)]) as (n, p):
        unchanged = (
            emitter.add(n, 0),
            emitter.add(0, n),
            emitter.sub(n, 0),
            emitter.mul(1, n),
            emitter.udiv(n, 1),
        )
        assert all(value is n for value in unchanged)
        assert emitter.mul(n, 0) == 0
        assert emitter.urem(n, 1) == 0
        assert emitter.gep(p, 0, "float") is p
        assert emitter.select_index(True, n, 3) is n
    assert "%v" not in emitter.text()


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge"])
def test_comparisons_fold_to_what_they_compute(predicate: str) -> None:
    pairs = [(1, 2), (2, 2), (-1, 0), (3, -3)]
    emitter, result = Emitter(), np.zeros(len(pairs), np.int8)
    folded = []
    with emitter.function("f", [Param("y", PTR), Param("zero", I64)]) as (y, zero):
        for slot, (a, b) in enumerate(pairs):
            folded.append(emitter.compare(predicate, a, b))
            computed = emitter.compare(predicate, emitter.op(f"add i64 {zero}, {a}", I64), b)
            assert isinstance(computed, Val)
            emitter.store(emitter.cast("zext", computed, "i8"), emitter.gep(y, slot))
    run(emitter, result, 0)
    assert result.astype(bool).tolist() == folded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("element", ["float", "double", "i32", "i8"])
def test_masked_access_touches_only_the_leading_lanes(element: str, lanes: int) -> None:
    type_, dtype = vec(element, lanes), NUMPY[element]
    source = np.arange(1, lanes + 1, dtype=dtype)
    for known in (True, False):
        for active in range(-1, lanes + 2):
            emitter = Emitter()
            with emitter.function("f", [Param("x", PTR), Param("y", PTR), Param("n", I64)]) as (x, y, n):
                count: Int = active if known else n
                loaded = emitter.masked_load(type_, x, count, fill=9)
                emitter.masked_store(loaded, emitter.gep(y, lanes, element), count)
                emitter.store(loaded, y)
            result = np.full(2 * lanes, 5, dtype)
            run(emitter, source, result, active)
            kept = np.arange(lanes) < active
            np.testing.assert_array_equal(result[:lanes], np.where(kept, source, dtype(9)))
            np.testing.assert_array_equal(result[lanes:], np.where(kept, source, dtype(5)))
            if lanes > 4:
                break


def test_strided_access_gathers_and_scatters() -> None:
    source, result = np.arange(64, dtype=np.float32), np.full(64, -1, np.float32)
    emitter, four = Emitter(), vec("float", 4)
    with emitter.function("f", [Param("x", PTR), Param("y", PTR), Param("stride", I64)]) as (x, y, stride):
        gathered = emitter.load_strided(four, x, stride, active=3)
        emitter.store_strided(gathered, y, 7)
        emitter.store_strided(emitter.load_strided(four, x, 2), emitter.gep(y, 32, "float"), stride, active=2)
    run(emitter, source, result, 5)
    assert result[[0, 7, 14, 21]].tolist() == [0, 5, 10, 0]
    assert result[[32, 37]].tolist() == [0, 2]
    assert np.count_nonzero(result != -1) == 6


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_reductions_see_every_lane(lanes: int) -> None:
    x = np.random.default_rng(lanes).permutation(lanes).astype(np.float32) - 3
    for name, expected in (("fadd", x.sum()), ("maximum", x.max()), ("minimum", x.min())):
        assert lanes_of(lambda e, v, name=name: e.reduce(v, getattr(e, name)), FLOAT, x)[0] == expected


def test_reduction_needs_a_power_of_two() -> None:
    emitter = Emitter()
    with pytest.raises(ValueError, match="must be a power of two"), emitter.function("f"):
        emitter.reduce(emitter.zero(vec("float", 6)), emitter.fadd)


def test_lanes_move_by_shuffle_concat_splat_and_insert() -> None:
    x, y = np.arange(4, dtype=np.float32), np.arange(10, 14, dtype=np.float32)

    def mixed(e: Emitter, a: Val, b: Val) -> Val:
        picked = e.shuffle(a, b, [7, 0])
        pair = e.concat(e.extract(a, 3), e.extract(b, 1))
        return e.concat(e.concat(picked, pair), e.insert(e.splat(e.extract(b, 2), 4), e.extract(a, 1), 2))

    assert lanes_of(mixed, vec("float", 8), x, y).tolist() == [13, 0, 3, 11, 12, 12, 1, 12]


def test_maximum_and_minimum_propagate_nan() -> None:
    x = np.array([1, np.nan, 3, np.nan], np.float32)
    y = np.array([2, 2, np.nan, np.nan], np.float32)
    four = vec("float", 4)
    np.testing.assert_array_equal(lanes_of(Emitter.maximum, four, x, y), np.maximum(x, y))
    np.testing.assert_array_equal(lanes_of(Emitter.minimum, four, x, y), np.minimum(x, y))


def test_fma_rounds_once_and_a_separate_product_does_not_fuse() -> None:
    x = np.full(4, 1 + 2.0**-12, np.float32)
    exact = x.astype(np.float64) ** 2 - 1
    four = vec("float", 4)
    np.testing.assert_array_equal(lanes_of(lambda e, v: e.fma(v, v, -1.0), four, x), exact.astype(np.float32))
    separate = lanes_of(lambda e, v: e.fsub(e.fmul(v, v), 1.0), four, x)
    np.testing.assert_array_equal(separate, x * x - np.float32(1))
    assert (separate != exact).all()


def test_float_to_integer_saturates_and_nan_gives_zero() -> None:
    x = np.array([1.9, -1.9, 1e20, -1e20, math.inf, -math.inf, math.nan, 0.0], np.float32)
    signed = lanes_of(lambda e, v: e.fptoint(v, "i32"), vec("i32", 8), x)
    limits = np.iinfo(np.int32)
    assert signed.tolist() == [1, -1, limits.max, limits.min, limits.max, limits.min, 0, 0]
    unsigned = lanes_of(lambda e, v: e.fptoint(v, "i8", signed=False), vec("i8", 8), x)
    assert unsigned.view(np.uint8).tolist() == [1, 0, 255, 0, 255, 0, 0, 0]


@pytest.mark.parametrize("lanes", [1, 8])
def test_bfloat_rounds_as_its_definition_says(lanes: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    edges = np.array([0.0, -0.0, 1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, math.inf, -math.inf], np.float32)
    random = np.frombuffer(np.random.default_rng(1).bytes(4 * 248), np.float32)
    x = np.concatenate([edges, np.float32([1e-40, 1e-45] * 4), random])
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    emitter, result, back = Emitter(), np.zeros(x.size, np.int16), np.zeros(x.size, np.float32)
    with emitter.function("f", [Param("x", PTR), Param("y", PTR), Param("z", PTR)]) as (source, y, z):

        def body(i: Int, _: list[Val]) -> None:
            wide = emitter.load(vec("float", lanes), emitter.gep(source, i, "float"))
            narrow = emitter.from_float(wide, "bfloat")
            emitter.store(narrow, emitter.gep(y, i, "bfloat"))
            emitter.store(emitter.to_float(narrow), emitter.gep(z, i, "float"))

        emitter.loop(0, x.size, lanes, body)
    run(emitter, x, result, back)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(back, expected.astype(np.float32))
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(result[finite], expected.view(np.int16)[finite])


def test_half_conversions_match_numpy() -> None:
    x = np.array([0.1, -65504, 1e-7, 1e9], np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    made = lanes_of(lambda e, v: e.from_float(v, "half"), vec("half", 4), x)
    np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(lanes_of(Emitter.to_float, vec("float", 4), made), made.astype(np.float32))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 0.1, 1e-45, -3.4028234663852886e38, math.inf, math.nan, 65504.0, 1e39]
)
@pytest.mark.parametrize("element", ["float", "double", "half"])
def test_float_literals_are_exact(element: str, value: float) -> None:
    with np.errstate(over="ignore"):
        expected = NUMPY[element](value)
    made = lanes_of(lambda e: e.constant(vec(element, 2), value), vec(element, 2))
    np.testing.assert_array_equal(made, np.array([expected, expected]))
    assert np.signbit(made[0]) == np.signbit(expected)


def test_integer_literals_cover_signed_and_unsigned_spellings() -> None:
    assert [literal(I8, -1), literal(I1, 1), literal(vec("i32", 4), 7)] == ["-1", "true", "splat (i32 7)"]
    assert vector_literal("i1", [True, False]).typed == "<2 x i1> <i1 true, i1 false>"


def test_tables_are_stored_once_and_read_back() -> None:
    emitter, result = Emitter(), np.zeros(3, np.int16)
    with emitter.function("f", [Param("y", PTR)]) as (y,):
        table = emitter.constant_array("i16", [5, -6, 7])
        assert emitter.constant_array("i16", [5, -6, 7]) == table
        assert emitter.constant_array("i16", [5, -6]) != table
        for i in range(3):
            emitter.store(emitter.load(I16, emitter.gep(table, i, "i16")), emitter.gep(y, i, "i16"))
    run(emitter, result)
    assert result.tolist() == [5, -6, 7]


def test_functions_defined_inside_others_become_functions_of_the_module() -> None:
    emitter, result = Emitter(), np.zeros(1, np.int32)
    with emitter.function("f", [Param("y", PTR)]) as (y,):
        assert not emitter.defines("twice")
        with emitter.function("twice", [Param("x", I32)], result=I32, linkage="internal") as (x,):
            emitter.ret(emitter.iadd(x, x))
        assert emitter.defines("twice")
        made = emitter.call("twice", [emitter.constant(I32, 21)], I32, declare=False)
        assert made is not None
        emitter.store(made, y)
    run(emitter, result)
    assert result[0] == 42


def test_a_function_must_return_its_result_and_be_defined_once() -> None:
    emitter = Emitter()
    with pytest.raises(ValueError, match="function 'g' must return i32"), emitter.function("g", result=I32):
        pass
    with emitter.function("f"):
        pass
    with pytest.raises(ValueError, match="function 'f' is already defined"), emitter.function("f"):
        pass


def test_stack_space_is_reserved_once_however_often_the_code_runs() -> None:
    emitter, result = Emitter(), np.zeros(1, np.float32)
    with emitter.function("f", [Param("y", PTR)]) as (y,):

        def body(i: Int, carried: list[Val]) -> list[Operand]:
            slot = emitter.alloca(FLOAT)
            emitter.store(emitter.fadd(carried[0], 1.0), slot)
            return [emitter.load(FLOAT, slot)]

        emitter.store(emitter.loop(0, 1 << 20, 1, body, [(FLOAT, 0.0)])[0], y)
    run(emitter, result)
    assert result[0] == 1 << 20


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_any_lane_is_true_when_one_is(lanes: int) -> None:
    emitter = Emitter()
    with emitter.function("f", [Param("x", PTR), Param("y", PTR)]) as (x, y):
        positive = emitter.fcmp("ogt", emitter.load(vec("float", lanes), x), 0.0)
        emitter.store(emitter.cast("zext", emitter.any_lane(positive), "i8"), y)
    for position in (None, 0, lanes - 1):
        source, result = np.zeros(lanes, np.float32), np.full(1, 9, np.int8)
        if position is not None:
            source[position] = 1
        run(emitter, source, result)
        assert result[0] == (position is not None)


def test_the_same_calls_give_the_same_text() -> None:
    def build() -> str:
        emitter = Emitter(
            triple="x86_64-unknown-linux-gnu", attributes='nounwind "prefer-vector-width"="512"'
        )
        with emitter.function("f", [Param("y", PTR, "noalias"), Param("n", I64)]) as (y, n):
            counted(0, n, 1)(emitter)
            emitter.prefetch(y)
            emitter.store(emitter.sqrt(emitter.load(vec("float", 4), y)), y)
        return emitter.text()

    assert build() == build()
    assert build().startswith('target triple = "x86_64-unknown-linux-gnu"\ndeclare')


def test_operations_on_numbers_alone_are_refused() -> None:
    emitter = Emitter()
    with pytest.raises(TypeError, match="at least one must be a value"):
        emitter.fadd(1.0, 2.0)
    with pytest.raises(TypeError, match="at least one must be a value"):
        emitter.fma(1.0, 2.0, 3.0)


def test_unknown_types_name_the_known_ones() -> None:
    with pytest.raises(ValueError, match="LLVM element type 'f32': expected one of float, double"):
        vec("f32", 4)
    with pytest.raises(ValueError, match="with 0 lanes"):
        vec("float", 0)


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("num_entries", [16, 400])
def test_tables_hold_what_they_were_given_however_long_they_are(element: str, num_entries: int) -> None:
    limits = np.iinfo(NUMPY[element])
    values = np.random.default_rng(0).integers(limits.min, limits.max, num_entries, NUMPY[element], True)
    values[:2] = limits.min, limits.max
    emitter = Emitter()
    with emitter.function("f", [Param("y", PTR)]) as (target,):
        table = emitter.constant_array(element, values.tolist())
        assert emitter.constant_array(element, values.tolist()) == table

        def copy(i: Int, carried: list[Val]) -> list[Operand]:
            entry = emitter.load(vec(element), emitter.gep(table, i, element))
            emitter.store(entry, emitter.gep(target, i, element))
            return []

        emitter.loop(0, num_entries, 1, copy, [])
    made = np.zeros(num_entries, NUMPY[element])
    run(emitter, made)
    np.testing.assert_array_equal(made, values)
