"""What passes that write recurrent layers in other operators share: a layer's facts, its parts, new nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Node, Value
from tilewright.ir.ops.cells import ACTIVATIONS
from tilewright.ir.ops.recurrent import DEFAULT_ACTIVATIONS, layer_activations, split_bias
from tilewright.passes.edit import Editor
from tilewright.passes.rules import Kept

Array = np.ndarray[Any, Any]

# Split with sizes as an input, and Where of every type.
_OPSET = 16


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Extents of a layer, and what its cells have in common."""

    steps: int
    batch: int
    width: int
    size: int
    directions: int
    activations: list[list[tuple[str, float, float]]]
    attributes: Attributes


def match_layer(max_steps: int | None, editor: Editor, node: Node) -> RecurrentLayer | Kept | None:
    """The facts of a layer, or why it stays as it is; one of more than `max_steps` steps does."""
    x, weight, recurrence = (node.require(i) for i in range(3))
    by_batch = node.int_attr("layout", 0)
    steps, batch = (x.shape[1], x.shape[0]) if by_batch else x.shape[:2]
    directions, size = weight.shape[0], recurrence.shape[-1]
    if 0 in (steps, batch, x.shape[2], size):
        return None
    if max_steps is not None and steps > max_steps:
        return Kept(f"{steps} steps of time are more than {max_steps}")
    if any(value in user.captures for value in node.results() for user in value.users):
        return Kept("its result is read by name")
    names = node.attributes.get("activations", ())
    assert isinstance(names, tuple)
    unknown = [str(n) for n in names if str(n).lower() not in ACTIVATIONS]
    if unknown or (names and len(names) != directions * len(DEFAULT_ACTIVATIONS[node.op_type])):
        return Kept(f"its activations are {', '.join(map(str, names))}")
    kept = ("clip", "linear_before_reset", "input_forget")
    attributes = {name: node.attributes[name] for name in kept if name in node.attributes}
    activations = layer_activations(node, directions)
    return RecurrentLayer(steps, batch, x.shape[2], size, directions, activations, attributes)


@dataclass(frozen=True, slots=True)
class LayerNodes:
    """New nodes before the layer, named after it."""

    editor: Editor
    node: Node

    def several(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[str, DType, tuple[int, ...]]],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
    ) -> list[Value]:
        """The results (a stem, a type and a shape each) of a new node."""
        graph = self.editor.graph
        values = [graph.value(f"{self.node.name}_{stem}", dtype, shape) for stem, dtype, shape in results]
        opset = 1 if domain else max(self.node.opset, _OPSET)
        graph.insert_before(self.node, Node(op_type, inputs, values, attributes, opset=opset, domain=domain))
        return values

    def one(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        stem: str,
        shape: tuple[int, ...],
        attributes: Attributes | None = None,
        *,
        dtype: DType | None = None,
    ) -> Value:
        """The result of a new node, of the layer's type unless `dtype` says another."""
        dtype = self.node.require(0).dtype if dtype is None else dtype
        return self.several(op_type, inputs, [(stem, dtype, shape)], attributes)[0]

    def constant(self, data: Array, stem: str, dtype: DType | None = None) -> Value:
        """A new initializer."""
        dtype = DType.from_numpy(data.dtype) if dtype is None else dtype
        return self.editor.constant(data, dtype, f"{self.node.name}_{stem}")

    def reshape(self, value: Value, stem: str, shape: tuple[int, ...]) -> Value:
        """The same elements under another shape."""
        target = self.constant(np.array(shape, np.int64), f"{stem}_shape")
        return self.one("Reshape", [value, target], stem, shape, dtype=value.dtype)

    def transpose(self, value: Value, stem: str, perm: tuple[int, ...]) -> Value:
        """The axes of a value in another order."""
        shape = tuple(value.shape[p] for p in perm)
        return self.one("Transpose", [value], stem, shape, {"perm": perm})

    def split(self, value: Value, stem: str, sizes: Sequence[int]) -> list[Value]:
        """Pieces along the first axis."""
        if len(sizes) == 1:
            return [value]
        lengths = self.constant(np.array(sizes, np.int64), f"{stem}_sizes")
        pieces = [
            (f"{stem}_{number}", value.dtype, (size, *value.shape[1:])) for number, size in enumerate(sizes)
        ]
        return self.several("Split", [value, lengths], pieces, {"axis": 0})

    def concat(self, values: Sequence[Value], stem: str) -> Value:
        """Values one after the other along the first axis."""
        if len(values) == 1:
            return values[0]
        shape = (sum(v.shape[0] for v in values), *values[0].shape[1:])
        return self.one("Concat", values, stem, shape, {"axis": 0})

    def part(self, position: int, direction: int, stem: str) -> Value | None:
        """Of an input of the layer what belongs to a direction; None for an omitted one."""
        value = self.node.input(position)
        if value is None:
            return None
        data = self.editor.data(value)
        stem = f"{stem}_{direction}"
        if data is not None:
            return self.constant(np.ascontiguousarray(data[direction]), stem, value.dtype)
        index = self.constant(np.array(direction, np.int64), f"{stem}_index")
        return self.one("Gather", [value, index], stem, value.shape[1:], {"axis": 0})

    def state(self, position: int, direction: int, stem: str) -> Value | None:
        """The state a direction starts with; None for zeros."""
        value = self.node.input(position)
        data = self.editor.data(value)
        if value is None or (data is not None and not data.any()):
            return None
        if not self.node.int_attr("layout", 0):
            return self.part(position, direction, stem)
        stem = f"{stem}_{direction}"
        if data is not None:
            return self.constant(np.ascontiguousarray(data[:, direction]), stem, value.dtype)
        index = self.constant(np.array(direction, np.int64), f"{stem}_index")
        shape = (value.shape[0], value.shape[2])
        return self.one("Gather", [value, index], stem, shape, {"axis": 1})


def is_wanted(editor: Editor, node: Node, position: int) -> bool:
    """Whether anybody reads a result."""
    value = node.outputs[position] if position < len(node.outputs) else None
    return value is not None and (bool(value.users) or editor.is_output(value))


def checked_lengths(emit: LayerNodes, layer: RecurrentLayer, lengths: Value) -> Value:
    """The lengths, taken from a table of all that can be, so that every target refuses others.

    Negative ones, which would count from the table's end, are moved before its start.
    """
    num_lengths = layer.steps + 1
    type_, shape = lengths.dtype, lengths.shape
    table = emit.constant(np.arange(num_lengths, dtype=np.int32), "lengths")
    zero, count = (emit.constant(np.array(n, np.int32), "length") for n in (0, num_lengths))
    is_negative = emit.one("Less", [lengths, zero], "length_negative", shape, dtype=DType.BOOL)
    before = emit.one("Sub", [lengths, count], "length_before", shape, dtype=type_)
    places = emit.one("Where", [is_negative, before, lengths], "length_place", shape, dtype=type_)
    return emit.one("Gather", [table, places], "sequence_lens", shape, {"axis": 0}, dtype=type_)


def biases(emit: LayerNodes, direction: int) -> tuple[Value | None, Value | None]:
    """What simply adds to the gates, and what a reset scales."""
    bias = emit.part(3, direction, "bias")
    if bias is None:
        return None, None
    scales = emit.node.op_type == "GRU" and bool(emit.node.int_attr("linear_before_reset", 0))
    data = emit.editor.data(bias)
    stem = f"bias_{direction}"
    if data is not None:
        wide = data.astype(np.float64) if bias.dtype.is_float else data
        added, scaled = split_bias(wide, linear_before_reset=scales)
        sums = emit.constant(added, f"{stem}_sum", bias.dtype)
        return sums, None if scaled is None else emit.constant(scaled, f"{stem}_scaled", bias.dtype)
    half = bias.num_elements // 2
    if not scales:
        first, second = emit.split(bias, stem, [half, half])
        return emit.one("Add", [first, second], f"{stem}_sum", (half,)), None
    third = half // 3
    first, candidate, second, scaled_part = emit.split(bias, stem, [2 * third, third, 2 * third, third])
    both = emit.one("Add", [first, second], f"{stem}_both", (2 * third,))
    return emit.concat([both, candidate], f"{stem}_sum"), scaled_part
