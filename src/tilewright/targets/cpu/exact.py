"""Expressions whose products round before they are added, as strict models ask.

Generators fuse a product with the sum it goes into, which rounds once: `x*y - x*y` is then the rounding error
of `x*y` instead of zero. A cast of the product to its own type says that it is a value of its own. Sums over
loops are not concerned: there a fused chain is the dot product itself.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Call, Expr
from tilewright.ir.nest import Nest


def round_products(nest: Nest) -> Nest:
    """The nest with every product that is added or subtracted rounded first."""
    made: dict[int, Expr] = {}
    return replace(
        nest,
        body=_rounded(nest.body, made),
        init=None if nest.init is None else _rounded(nest.init, made),
        finish=None if nest.finish is None else _rounded(nest.finish, made),
    )


def _rounded(expr: Expr, made: dict[int, Expr]) -> Expr:
    """The expression rebuilt; parts that are shared stay shared."""
    if not isinstance(expr, Call):
        return expr
    found = made.get(id(expr))
    if found is None:
        args = tuple(_rounded(a, made) for a in expr.args)
        if expr.function in ("add", "sub") and expr.dtype.is_float:
            args = tuple(_value(a, made) for a in args)
        found = made[id(expr)] = Call(expr.function, args, expr.dtype)
    return found


def _value(expr: Expr, made: dict[int, Expr]) -> Expr:
    if not isinstance(expr, Call) or expr.function != "mul":
        return expr
    key = ~id(expr)  # no identity is negative
    found = made.get(key)
    if found is None:
        found = made[key] = Call("cast", (expr,), expr.dtype)
    return found
