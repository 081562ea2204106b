"""Expressions whose products round before they are added, as strict models ask.

Generators fuse a product with the sum it goes into, which rounds once: `x*y - x*y` is then the rounding error
of `x*y` instead of zero. A cast of the product to its own type says that it is a value of its own. Sums over
loops are not concerned: there a fused chain is the dot product itself.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Call, Expr, fold
from tilewright.ir.nest import Nest


def round_products(nest: Nest) -> Nest:
    """The nest with every product that is added or subtracted rounded first; what is shared stays shared."""
    rounded: dict[int, Expr] = {}

    def value(expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.function != "mul":
            return expr
        return rounded.setdefault(id(expr), Call("cast", (expr,), expr.dtype))

    def rebuilt(part: Expr, args: tuple[Expr, ...]) -> Expr:
        if not isinstance(part, Call):
            return part
        if part.function in ("add", "sub") and part.dtype.is_float:
            args = tuple(map(value, args))
        return Call(part.function, args, part.dtype)

    made: dict[int, Expr] = {}  # keeps the products alive whose identities `rounded` knows
    body, init, finish = fold(rebuilt, nest.body, nest.init, nest.finish, made=made)
    assert body is not None
    return replace(nest, body=body, init=init, finish=finish)
