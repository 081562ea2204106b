"""What matchers ask of nodes: constants of one value, products and sums with a constant, reductions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, Value
from tilewright.ir.ops.reduction import reduced_axes
from tilewright.passes.edit import Editor
from tilewright.records import dataclass

# How far a constant of a pattern may lie from its formula, relative: exporters write few digits, and half
# types round by as much, but never to the next number beside 1.
_TOLERANCE = {DType.FLOAT16: 4.881e-4, DType.BFLOAT16: 3.9e-3, DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-8}


@dataclass(frozen=True, slots=True)
class Scaled:
    """A value times, or plus, a constant scalar."""

    value: Value
    constant: float


def made_by(value: Value | None, *op_types: str) -> Node | None:
    """The producer of a value if it is one of these standard operators."""
    producer = None if value is None else value.producer
    return producer if producer is not None and not producer.domain and producer.op_type in op_types else None


def scalar(editor: Editor, value: Value | None) -> float | None:
    """The number that every element of a constant has."""
    data = editor.data(value)
    if data is None or data.dtype.kind in "OUSc" or data.size == 0:
        return None
    first = data.reshape(-1)[0]
    if data.size > 1 and not np.all(data == first):
        return None
    return float(first)


def is_about(value: float | None, formula: float, dtype: DType) -> bool:
    """Whether a constant of a pattern of this type is what the formula says, up to its digits."""
    return value is not None and abs(value - formula) <= _TOLERANCE.get(dtype, 0.0) * abs(formula)


def operand_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """Both orders of a commutative operator's two operands."""
    a, b = node.input(0), node.input(1)
    if a is not None and b is not None and len(node.inputs) == 2:
        yield a, b
        yield b, a


def product_with_scalar(editor: Editor, value: Value | None) -> Scaled | None:
    """`value` as `x * c` with x of the same shape: a Mul in either order, or a Div."""
    node = made_by(value, "Mul", "Div")
    if node is None or value is None or not value.dtype.is_float:
        return None
    for x, c in operand_orders(node):
        number = scalar(editor, c)
        if number is not None and x.shape == value.shape:
            if node.op_type == "Mul":
                return Scaled(x, number)
            return Scaled(x, 1 / number) if c is node.inputs[1] and number != 0 else None
    return None


def sum_with_scalar(editor: Editor, value: Value | None) -> Scaled | None:
    """`value` as `x + c` with x of the same shape: an Add in either order, or a Sub."""
    node = made_by(value, "Add", "Sub")
    if node is None or value is None or not value.dtype.is_float:
        return None
    for x, c in operand_orders(node):
        number = scalar(editor, c)
        if number is not None and x.shape == value.shape:
            if node.op_type == "Add":
                return Scaled(x, number)
            return Scaled(x, -number) if c is node.inputs[1] else None
    return None


def power(editor: Editor, value: Value | None, exponent: float) -> Value | None:
    """The base of `x ** exponent`."""
    node = made_by(value, "Pow")
    if (
        node is None
        or scalar(editor, node.input(1)) != exponent
        or node.require(0).shape != node.output.shape
    ):
        return None
    return node.require(0)


def square(editor: Editor, value: Value | None) -> Value | None:
    """The base of `x * x` or `x ** 2`."""
    node = made_by(value, "Mul")
    if node is not None and node.input(0) is node.input(1):
        return node.input(0)
    return power(editor, value, 2.0)


def reduction_axes(editor: Editor, node: Node) -> tuple[int, ...] | None:
    """The axes that a Reduce* node with kept dims reduces, or None where they are not known."""
    if len(node.inputs) > 1 and node.inputs[1] is not None and editor.data(node.inputs[1]) is None:
        return None
    x = node.require(0)
    if len(node.output.shape) != len(x.shape):
        return None
    return reduced_axes(node, len(x.shape), editor.data(node.input(1)))


def trailing_axis(axes: tuple[int, ...] | None, rank: int) -> int | None:
    """The first of axes that are the last ones of a shape without a gap."""
    if not axes or axes != tuple(range(rank - len(axes), rank)):
        return None
    return axes[0]


def clip_bounds(editor: Editor, node: Node) -> tuple[float | None, float | None] | None:
    """The constant bounds of a Clip, None for an open one; None if a bound is data."""
    bounds: list[float | None] = []
    for position, name in ((1, "min"), (2, "max")):
        attribute, value = node.attributes.get(name), node.input(position)
        if isinstance(attribute, int | float):
            bounds.append(float(attribute))
        elif value is None:
            bounds.append(None)
        else:
            number = scalar(editor, value)
            if number is None:
                return None
            bounds.append(number)
    return bounds[0], bounds[1]


def is_one_float(node: Node) -> bool:
    """Whether a node maps a floating-point type to itself."""
    return node.require(0).dtype is node.output.dtype and node.output.dtype.is_float


def inverse_root(editor: Editor, node: Node, x: Value, other: Value) -> Value | None:
    """The v of `x / sqrt(v)`, `x * (1 / sqrt(v))` or `x * v ** -0.5`, where `node` combines x and `other`."""
    if node.op_type == "Div":
        if x is not node.require(0):
            return None
        root = made_by(other, "Sqrt")
        return root.require(0) if root is not None else power(editor, other, 0.5)
    reciprocal = made_by(other, "Reciprocal")
    quotient = made_by(other, "Div")
    if quotient is not None and _is_one(editor, quotient.require(0)):
        under = quotient.require(1)
    elif reciprocal is not None:
        under = reciprocal.require(0)
    else:
        return power(editor, other, -0.5)
    root = made_by(under, "Sqrt")
    return root.require(0) if root is not None else power(editor, under, 0.5)


def _is_one(editor: Editor, value: Value) -> bool:
    data = editor.data(value)
    return data is not None and data.size == 1 and float(data.reshape(())) == 1.0


def constant_operand(
    editor: Editor, node: Node | None, op_type: str, value: Value, shape: tuple[int, ...]
) -> Value | None:
    """The constant of this shape that `node` combines with `value`."""
    if node is None or node.op_type != op_type or node.domain:
        return None
    for x, other in operand_orders(node):
        if x is value and other.shape == shape and editor.data(other) is not None:
            return other
    return None
