"""CheckShape: what a shape operand that is data must say for a graph of static shapes to be right.

A node whose result's shape is decided by data is compiled for the shape that its model declares: it gets the
operand that gives this shape as a constant, and a CheckShape beside it compares what the operand really says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.arrays import Array
from tilewright.errors import InputError
from tilewright.ir.graph import Attribute, Node, Shape, SubgraphAttribute
from tilewright.ir.nest import Description, Opaque
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, Sizing, operator, sizing_of

CHECK_SHAPE = "CheckShape"
# Attributes of a check beside those of the node that it checks.
_OPERATOR, _NODE, _FROM, _TO = "checked_operator", "checked_node", "checked_from", "checked_to"

# Values of an operand that a message shows.
_MOST_SHOWN = 8


def check_attributes(node: Node) -> dict[str, Attribute | SubgraphAttribute]:
    """What the check of a node has to know of it."""
    return {
        **node.attributes,
        _OPERATOR: node.op_type,
        _NODE: node.name,
        _FROM: node.require(0).shape,
        _TO: node.output.shape,
    }


def assumed_operand(node: Node, sizing: Sizing) -> Array | None:
    """What an operand must hold for the node's result to have the declared shape, None if nothing can."""
    source, operand = node.require(0).shape, node.require(sizing.operand)
    try:
        data = np.asarray(sizing.data(node, source, node.output.shape), operand.dtype.numpy)
        data = data.reshape(operand.shape)
        shape = sizing.shape(node, source, data)
    except (ValueError, IndexError):
        return None
    return data if shape == node.output.shape else None


def _check_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    operand = node.require(0)
    source, declared = node.ints_attr(_FROM) or (), node.ints_attr(_TO) or ()
    data = inputs[0]
    sizing = sizing_of(node.str_attr(_OPERATOR, ""))
    assert data is not None
    assert sizing is not None
    problem = _problem(node, sizing, source, declared, data)
    if problem is not None:
        where = f"{node.str_attr(_OPERATOR, '')} {node.str_attr(_NODE, '')!r}"
        raise InputError(
            f"{where}: its {sizing.name} {operand.name!r} is {_shown(data)}, {problem}; it was compiled "
            f"for the declared shape {list(declared)}."
        )
    return (np.ones((), np.bool_),)


def _problem(node: Node, sizing: Sizing, source: Shape, declared: Shape, data: Array) -> str | None:
    try:
        shape = sizing.shape(node, source, data)
    except ValueError as error:
        return f"which cannot be: {error}"
    return None if shape == declared else f"which gives the shape {list(shape)}"


def _shown(data: Array) -> str:
    values = [str(v) for v in data.ravel()[:_MOST_SHOWN]]
    if data.size > _MOST_SHOWN:
        values.append("...")
    return values[0] if data.ndim == 0 else f"[{', '.join(values)}]"


@operator(CHECK_SHAPE, reference=_check_reference, domain=INTERNAL_DOMAIN, has_effect=True)
def check_shape(node: Node) -> Description:
    """True; raises where the operand does not give the declared shape."""
    return Opaque(f"compares a shape that is data with the one that {node.str_attr(_NODE, '')!r} has")
