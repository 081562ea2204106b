"""The Gaussian error linear unit, as exporters spell it out."""

from __future__ import annotations

import math

from tilewright.ir.graph import Node, Value
from tilewright.passes.edit import Editor
from tilewright.passes.patterns import (
    Scaled,
    is_about,
    made_by,
    operand_orders,
    power,
    product_with_scalar,
    sum_with_scalar,
)
from tilewright.passes.rules import Rule, RulePass
from tilewright.records import dataclass


@dataclass(frozen=True, slots=True)
class _Gelu:
    x: Value
    approximate: str


def _match(editor: Editor, node: Node) -> _Gelu | None:
    """`node` is `factor * x * (1 + gate)`: take the product apart, whatever its order."""
    if node.output.dtype.is_float:
        factor, parts = _factors(editor, node.output, 3)
        for gate in parts:
            others = [p for p in parts if p is not gate]
            found = _gated(editor, gate)
            if found is None or len(others) != 1 or others[0] is not found.x:
                continue
            # The gate may hold the half: 0.5 + 0.5 * erf.
            if is_about(factor, 0.5, node.output.dtype) and found.x.shape == node.output.shape:
                return found
    return None


def _build(editor: Editor, node: Node, found: _Gelu) -> str:
    attributes = {} if found.approximate == "none" else {"approximate": found.approximate}
    editor.become(node, "Gelu", [found.x], attributes, since=20)
    return f"recognised as Gelu(approximate={found.approximate})"


def _factors(editor: Editor, value: Value, depth: int) -> tuple[float, tuple[Value, ...]]:
    """`value` as a number times at most two tensors; inner products only where nothing else reads them."""
    scaled = product_with_scalar(editor, value)
    if scaled is not None:
        factor, parts = _inner_factors(editor, scaled.value, depth)
        return factor * scaled.constant, parts
    node = made_by(value, "Mul")
    if node is None or depth == 0:
        return 1.0, (value,)
    number, tensors = 1.0, []
    for operand in (node.require(0), node.require(1)):
        inner = product_with_scalar(editor, operand)
        if inner is not None and editor.sole_user(operand) is not None:
            number *= inner.constant
            operand = inner.value
        tensors.append(operand)
    return number, tuple(tensors)


def _inner_factors(editor: Editor, value: Value, depth: int) -> tuple[float, tuple[Value, ...]]:
    if editor.sole_user(value) is None:
        return 1.0, (value,)
    return _factors(editor, value, depth - 1)


def _gated(editor: Editor, gate: Value) -> _Gelu | None:
    """The x of `1 + erf(x / sqrt 2)` or `1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))`."""
    total = sum_with_scalar(editor, gate)
    if total is None or not is_about(total.constant, 1.0, gate.dtype):
        return None
    erf = made_by(total.value, "Erf")
    if erf is not None:
        scaled = product_with_scalar(editor, erf.require(0))
        if scaled is not None and is_about(scaled.constant, math.sqrt(0.5), gate.dtype):
            return _Gelu(scaled.value, "none")
    tanh = made_by(total.value, "Tanh")
    if tanh is not None:
        x = _tanh_argument(editor, tanh.require(0))
        if x is not None:
            return _Gelu(x, "tanh")
    return None


def _tanh_argument(editor: Editor, value: Value) -> Value | None:
    """The x of `sqrt(2/pi) * (x + 0.044715 x^3)`, also as `sqrt(2/pi) * x * (1 + 0.044715 x^2)`."""
    scaled = product_with_scalar(editor, value)
    if scaled is not None and is_about(scaled.constant, math.sqrt(2 / math.pi), value.dtype):
        total = made_by(scaled.value, "Add")
        if total is not None:
            for x, term in operand_orders(total):
                if _cubed(editor, term) is x:
                    return x
        product = made_by(scaled.value, "Mul")
        if product is not None:
            return _x_times_polynomial(editor, product, 1.0)
    product = made_by(value, "Mul")
    return None if product is None else _x_times_polynomial(editor, product, math.sqrt(2 / math.pi))


def _x_times_polynomial(editor: Editor, product: Node, factor: float) -> Value | None:
    """The x of `(factor * x) * (1 + 0.044715 x^2)`."""
    dtype = product.output.dtype
    for first, second in operand_orders(product):
        scaled = product_with_scalar(editor, first) if factor != 1.0 else Scaled(first, 1.0)
        total = sum_with_scalar(editor, second)
        if scaled is None or total is None or not is_about(scaled.constant, factor, dtype):
            continue
        if is_about(total.constant, 1.0, dtype) and _polynomial_base(editor, total.value, 2) is scaled.value:
            return scaled.value
    return None


def _cubed(editor: Editor, value: Value) -> Value | None:
    """The x of `0.044715 x^3`."""
    return _polynomial_base(editor, value, 3)


def _polynomial_base(editor: Editor, value: Value, degree: int) -> Value | None:
    """The x of `0.044715 x^degree`, as a power or as products, the number anywhere among them."""
    scale, base, found = 1.0, None, 0
    pending = [value]
    while pending:
        current = pending.pop()
        scaled = product_with_scalar(editor, current)
        node = made_by(current, "Mul", "Pow")
        if scaled is not None:
            scale *= scaled.constant
            pending.append(scaled.value)
        elif node is not None and node.op_type == "Mul" and found + len(pending) < degree:
            pending += [node.require(0), node.require(1)]
        else:
            exponent = next((e for e in (2, 3) if power(editor, current, float(e)) is not None), 1)
            leaf = current if exponent == 1 else power(editor, current, float(exponent))
            if base is not None and leaf is not base:
                return None
            base, found = leaf, found + exponent
    return base if found == degree and is_about(scale, 0.044715, value.dtype) else None


class RecogniseGelu(RulePass):
    """`x * (1 + erf(x / sqrt 2)) / 2` and its tanh form, the factors in any order, become one Gelu.

    Constants count as the formula's if their digits agree to 1e-6 (float32).
    """

    name = "recognise-gelu"
    rules = (Rule(("Mul", "Div"), _match, _build),)
