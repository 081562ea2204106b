"""Expressions that share parts: each part counts, is rebuilt and is computed once, at any depth."""

from __future__ import annotations

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    MAX_TREE_PARTS,
    Acc,
    Call,
    Const,
    Expr,
    Read,
    cast,
    evaluate,
    format_expr,
    reads_of,
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
