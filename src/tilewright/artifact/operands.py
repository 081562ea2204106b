"""What ONNX says of the operands and results of its operators, held against a graph that was read as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from tilewright.fields import FieldError
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    from onnx.defs import OpSchema

_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
"""Types that ONNX's schemas call otherwise."""


def require_operands(graph: Graph) -> None:
    """Check that nodes have as many operands as their operators take, and types that go together.

    Raises:
        FieldError: naming the first node that has others.
    """
    from onnx import defs

    for node in graph.nodes:
        try:
            schema = defs.get_schema(node.op_type, node.opset, node.domain)
        except defs.SchemaError:
            continue  # an operator of ours
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            raise FieldError(f"{node.op_type} {node.name!r} has {len(node.inputs)} operands")
        types: dict[str, str] = {}  # of the operator's type variables
        for formal, value in _values(schema, node):
            stated = f"tensor({_NAMES.get(value.dtype, value.dtype)})"
            expected = types.setdefault(formal.type_str, stated) if formal.is_homogeneous else stated
            if stated not in formal.types or stated != expected:
                raise FieldError(f"{node.op_type} {node.name!r}: {formal.name} cannot be a {stated}")


def _values(schema: OpSchema, node: Node) -> Iterator[tuple[OpSchema.FormalParameter, Value]]:
    """Operands and results, each with what its operator says of it; the last may stand for several."""
    sides: tuple[tuple[Sequence[OpSchema.FormalParameter], Sequence[Value | None]], ...] = (
        (schema.inputs, node.inputs),
        (schema.outputs, node.outputs),
    )
    for formals, values in sides:
        if formals:
            pairs = zip_longest(formals[: len(values)], values, fillvalue=formals[-1])
            yield from ((formal, value) for formal, value in pairs if isinstance(value, Value))
