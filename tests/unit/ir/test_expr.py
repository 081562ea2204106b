"""Expressions that share parts: each part counts, is rebuilt and is computed once, at any depth."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    MAX_TREE_PARTS,
    Acc,
    Call,
    Const,
    Expr,
    Iter,
    Read,
    call,
    cast,
    evaluate,
    format_expr,
    parse_expr,
    reads_of,
    select,
    structure,
    substitute,
)

F32 = DType.FLOAT32
X = Read(0, F32)
DEEP = 5_000


def doubled(times: int, start: Expr = X) -> Expr:
    """`start + start`, and that again: a tree would have 2**times leaves."""
    expr = start
    for _ in range(times):
        expr = expr + expr
    return expr


def test_every_part_is_visited_once_from_the_top_and_from_below() -> None:
    shared = X * 2
    expr = (shared + shared) - shared
    assert [format_expr(e) for e in expr.walk()] == [
        "sub(add(mul(r0, 2), mul(r0, 2)), mul(r0, 2))",
        "add(mul(r0, 2), mul(r0, 2))",
        "mul(r0, 2)",
        "r0",
        "2",
    ]
    below = list(expr.postorder())
    assert len(below) == 5
    for position, part in enumerate(below):
        assert all(any(c is b for b in below[:position]) for c in part.children())


def test_deep_and_shared_expressions_cost_as_much_as_their_distinct_parts() -> None:
    expr = doubled(DEEP)
    assert len(list(expr.walk())) == len(list(expr.postorder())) == DEEP + 1
    assert reads_of(expr) == {0}
    assert evaluate(doubled(100), [np.float32(1)]) == np.float32(2.0**100)
    moved = substitute(expr, lambda r: Read(1, r.dtype))
    assert len(list(moved.walk())) == DEEP + 1
    assert reads_of(moved) == {1}
    assert hash(expr) == hash(doubled(DEEP))
    assert expr == doubled(DEEP)
    assert expr != doubled(DEEP - 1)
    assert repr(expr).startswith("Call(s0 = add(r0, r0); s1 = add(s0, s0); ")


def test_substitution_keeps_what_it_does_not_change() -> None:
    same = X * 2
    expr = same + Acc(F32)
    made = substitute(expr, acc=Read(1, F32))
    assert isinstance(made, Call)
    assert made.args[0] is same
    assert made.args[1] == Read(1, F32)


def test_equality_knows_types_and_the_sign_of_zero_but_not_what_is_shared() -> None:
    one, other = X * 2, X * 2
    assert one + one == one + other
    assert structure(one + one) == structure(one + other)
    assert X * 0.0 != X * -0.0
    assert X + 1 != X + 1.0
    assert cast(X, DType.FLOAT64) != cast(X, DType.FLOAT16)
    assert X + 1 != X
    assert len({X + 1, X + 1, X + 2}) == 2


def test_text_names_shared_parts_only_where_it_would_repeat_much() -> None:
    small = doubled(3)
    assert format_expr(small) == "add(add(add(r0, r0), add(r0, r0)), add(add(r0, r0), add(r0, r0)))"
    text = format_expr(doubled(64))
    assert text.startswith("s0 = add(r0, r0); s1 = add(s0, s0); ")
    assert text.endswith("add(s62, s62)")
    chain: Expr = X
    for _ in range(MAX_TREE_PARTS):
        chain = Call("neg", (chain,), F32)
    assert format_expr(chain).startswith("neg(neg(")  # nothing is shared
    assert format_expr(cast(Const(1, F32), DType.INT32)) == "int32(1)"


ACC, I8 = Acc(F32), Read(1, DType.INT8)


@pytest.mark.parametrize(
    "expr",
    [
        ACC,
        Const(0.0, F32),
        call("max", ACC + X, 0),
        call("min", ACC, Const(float("inf"), F32)),
        (ACC - 1e-05) * -2.5,
        select(call("lt", X, 0.0), X, 1.0),
        cast(cast(I8, F32) * X, DType.INT32),
        cast(Iter("n.m"), F32) + ACC,
        doubled(14),
    ],
    ids=str,
)
def test_text_is_read_as_the_same_expression(expr: Expr) -> None:
    read = parse_expr(format_expr(expr), [F32, DType.INT8], F32)
    assert format_expr(read) == format_expr(expr)
    assert structure(read) == structure(expr)


def test_equal_parts_of_a_text_are_one_object() -> None:
    read = parse_expr("mul(add(acc, r0), add(acc, r0))", [F32], F32)
    first, second = read.children()
    assert first is second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add(acc", "is not one expression"),
        ("add(acc, r0))", "one ) too many"),
        ("add(acc, r3)", "'r3' is neither acc, a read"),
        ("add(acc)", "'add' of 1 values is no function"),
        ("plus(acc, r0)", "'plus' of 2 values is no function"),
        ("add(acc, r1)", "operand types differ"),
        ("acc r0", "is not one expression"),
        ("", "is not one expression"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse_expr(text, [F32, DType.INT8], F32)
