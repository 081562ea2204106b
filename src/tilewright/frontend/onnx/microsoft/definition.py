"""A definition while it is being written: its nodes so far, and what is known of the node it defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, helper

from tilewright.arrays import Array
from tilewright.errors import ModelRejected, UnsupportedOp
from tilewright.frontend.onnx.infer import constant_proto
from tilewright.frontend.onnx.protos import node_label
from tilewright.frontend.onnx.tensors import embedded_array
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Shape, Value

# The version of ai.onnx that definitions are written in: the first with Attention and RMSNormalization.
OPSET = 23
# What a definition makes for itself, such as the places of keys, is no larger.
MAX_CONSTANT_ELEMENTS = 1 << 20


class Definition:
    """The definition of one node. Calling it adds a node to it and gives the name of its first result.

    Inputs of the defined node go by `x0`, `x1`, ..., and by the empty name where they were left out, as in
    ONNX. Attributes that nothing asked for are refused: they may change what the node means.
    """

    def __init__(self, node: NodeProto, inputs: Sequence[Value | None]) -> None:
        self._label = node_label(node)
        self._num_outputs = len(node.output)
        self._wanted = [bool(name) for name in node.output]
        self._inputs = inputs
        self._attributes = {attribute.name: attribute for attribute in node.attribute}
        self._asked: set[str] = set()
        self._read: set[int] = set()
        self._nodes: list[NodeProto] = []

    def __call__(self, op_type: str, *operands: str, **attributes: Any) -> str:
        """Add a node with one result; its name."""
        return self.several(op_type, *operands, count=1, **attributes)[0]

    def several(self, op_type: str, *operands: str, count: int, **attributes: Any) -> list[str]:
        """Add a node with several results; their names."""
        names = [f"{op_type.lower()}{len(self._nodes)}{f'_{i}' if i else ''}" for i in range(count)]
        self._nodes.append(helper.make_node(op_type, operands, names, **attributes))
        return names

    def like(self, op_type: str, *operands: str, keep: Sequence[str], **attributes: Any) -> str:
        """Add a node that takes those attributes of the defined node whose names are in `keep`."""
        result = self(op_type, *operands, **attributes)
        self._asked.update(keep)
        self._nodes[-1].attribute.extend(a for name, a in self._attributes.items() if name in keep)
        return result

    def constant(self, data: Array) -> str:
        """A constant."""
        return self("Constant", value=constant_proto(data, "value"))

    def number(self, value: float, dtype: DType) -> str:
        """One number of a type."""
        return self.constant(np.array(value, dtype.numpy))

    def whole_numbers(self, values: Sequence[int]) -> str:
        """A list of integers: axes, a shape."""
        return self.constant(np.array(values, np.int64))

    @property
    def num_inputs(self) -> int:
        """How many inputs are given, those that are left out included."""
        return len(self._inputs)

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        self._read.add(position)
        return position < len(self._inputs) and self._inputs[position] is not None

    def name(self, position: int) -> str:
        """The name of an input, empty where it was left out."""
        return f"x{position}" if self.has(position) else ""

    def value(self, position: int) -> Value:
        """An input that must be there."""
        self._read.add(position)
        value = self._inputs[position] if position < len(self._inputs) else None
        if value is None:
            raise ModelRejected(f"node {self._label} needs input {position}; export the model again.")
        return value

    def shape(self, position: int, *ranks: int) -> Shape:
        """The shape of an input, which must have one of these ranks."""
        shape = self.value(position).shape
        expected = " or ".join(map(str, ranks))
        self.require(
            not ranks or len(shape) in ranks, f"input {position} is {list(shape)}, not of rank {expected}"
        )
        return shape

    def wants(self, position: int) -> bool:
        """Whether a result is read."""
        return position < len(self._wanted) and self._wanted[position]

    def require(self, fits: bool, otherwise: str) -> None:
        """Refuse a node whose inputs or attributes do not fit it."""
        if not fits:
            raise ModelRejected(f"node {self._label}: {otherwise}; export the model again.")

    def support(self, is_known: bool, otherwise: str) -> None:
        """Refuse a use of the operator that has no definition."""
        if not is_known:
            raise UnsupportedOp(f"node {self._label}: {otherwise}; export the model with standard operators.")

    def refuse_inputs(self, names: Mapping[int, str]) -> None:
        """Refuse inputs that the definition does not know, by position and name."""
        for position, name in names.items():
            self.support(not self.has(position), f"its input {name} is not supported")

    def real(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self._attribute(name, AttributeProto.FLOAT, default))

    def whole(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        return int(self._attribute(name, AttributeProto.INT, default))

    def wholes(self, name: str) -> list[int]:
        """An attribute that is a list of whole numbers, empty where it is not given."""
        return [int(i) for i in self._attribute(name, AttributeProto.INTS, ())]

    def reals(self, name: str) -> list[float]:
        """An attribute that is a list of numbers, empty where it is not given."""
        return [float(i) for i in self._attribute(name, AttributeProto.FLOATS, ())]

    def numbers(self, name: str, dtype: DType) -> Array:
        """An attribute that is a list of numbers as a vector, empty where it is not given: it may be long."""
        kind = AttributeProto.FLOATS if dtype.is_float else AttributeProto.INTS
        self._asked.add(name)
        attribute = self._attributes.get(name)
        if attribute is None:
            return np.zeros(0, dtype.numpy)
        self.require(attribute.type == kind, f"its attribute {name!r} is of another type")
        values = attribute.floats if dtype.is_float else attribute.ints
        return np.fromiter(values, dtype.numpy, len(values))

    def texts(self, name: str) -> list[bytes]:
        """An attribute that is a list of texts, as bytes; empty where it is not given."""
        return list(self._attribute(name, AttributeProto.STRINGS, ()))

    def tensor(self, name: str) -> Array | None:
        """An attribute that is a tensor of numbers, None where it is not given."""
        found = self._attribute(name, AttributeProto.TENSOR, None)
        return None if found is None else embedded_array(found)

    def text(self, name: str) -> str:
        """An attribute that is a text, empty where it is not given."""
        return bytes(self._attribute(name, AttributeProto.STRING, b"")).decode("utf-8", "replace")

    def _attribute(self, name: str, kind: int, default: Any) -> Any:
        self._asked.add(name)
        attribute = self._attributes.get(name)
        if attribute is None:
            return default
        self.require(attribute.type == kind, f"its attribute {name!r} is of another type")
        return helper.get_attribute_value(attribute)

    def function(self, results: Sequence[str]) -> FunctionProto:
        """The definition, whose results are these; the empty name is one that it does not make."""
        for name in self._attributes.keys() - self._asked:
            raise UnsupportedOp(
                f"node {self._label}: its attribute {name!r} is not known; export the model with standard "
                "operators."
            )
        used = {name for node in self._nodes for name in node.input}
        for position, value in enumerate(self._inputs):
            is_known = value is None or position in self._read or f"x{position}" in used
            self.support(is_known, f"its input {position} is not known")
        for position in range(self._num_outputs):
            made = position < len(results) and results[position]
            self.support(bool(made) or not self.wants(position), f"its result {position} is not made")
        return FunctionProto(
            input=[f"x{i}" for i in range(len(self._inputs))],
            output=results,
            node=self._nodes,
            opset_import=[helper.make_opsetid("", OPSET)],
        )


Write = Callable[[Definition], Sequence[str]]
"""Writes the definition of an operator, and says which names its results have."""
