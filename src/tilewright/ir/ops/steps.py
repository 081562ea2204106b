"""All steps of a recurrent layer: RNNSteps, GRUSteps, LSTMSteps, in a domain of our own.

`loop-recurrent` makes them of RNN, GRU and LSTM for targets that run loops over steps. A step is a cell
(`cells.py`): its nests with an axis for the steps, and one for the directions, are those of the layer. The
product of all inputs with their weights, and the biases that simply add to it, come in as `gates`.

| operator | inputs | outputs |
|---|---|---|
| RNNSteps | gates `[T, N, D*H]`, recurrence `[D, H, H]`, hidden, alive `[T, N]` | hidden `[T, N, D, H]` |
| GRUSteps | gates `[T, N, D*3H]`, recurrence `[D, 3H, H]`, hidden, alive, bias `[D, H]` | hidden |
| LSTMSteps | gates `[T, N, D*4H]`, recurrence `[D, 4H, H]`, hidden, alive, memory, peephole `[D, 3H]`, \
scale `[D, 4H]`, zero `[D, 4H]` | hidden, memory `[D, N, H]` |

The inputs `hidden` and `memory`, both `[D, N, H]`, are the state before the first step, zeros where they are
omitted; the results are the hidden states after each step, and the memory after the last. `alive` says which
sequences a step belongs to: the others keep their state. Attributes are the cells', of one direction after
the other; `reverse` says of each whether it goes from the last step to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.arrays import Array
from tilewright.ir.expr import Expr, Iter, Read, call, select, substitute
from tilewright.ir.graph import Node, Shape, Value
from tilewright.ir.nest import Access, Affine, Description, Dim, Nest, Opaque, Operand, Stepwise, affine
from tilewright.ir.ops.build import (
    copy_nest,
    input_operand,
    output_operand,
    require,
    require_result,
    require_shape,
)
from tilewright.ir.ops.operands import optional
from tilewright.ir.ops.registry import INTERNAL_DOMAIN, describe, find_operator, operator
from tilewright.records import dataclass

STEP: Final = "t"
GATES: Final = {"RNNSteps": 1, "GRUSteps": 3, "LSTMSteps": 4}
# Inputs that a recurrence of bytes has: scales and zero points.
_OF_BYTES = (6, 7)
# Attributes that list the values of one direction after those of another.
_OF_DIRECTIONS = ("activations", "activation_alpha", "activation_beta")


def extents_of_steps(node: Node) -> tuple[int, int, int, int]:
    """Steps, directions, batch and size of the state."""
    steps, batch, directions, size = node.output.shape
    return steps, directions, batch, size


def cell_of(node: Node, direction: int) -> Node:
    """One step of a direction, as a node of no graph; its states before are always given."""
    _, directions, batch, size = extents_of_steps(node)
    op_type = node.op_type.removesuffix("Steps")
    rows = GATES[node.op_type] * size
    shapes: list[Shape] = [(batch, rows), (rows, size), (batch, size), (1, batch)]
    shapes += [(batch, size), (3 * size,), (rows,), (rows,)] if op_type == "LSTM" else [(size,)]
    is_state = {2, 4} if op_type == "LSTM" else {2}
    inputs: list[Value | None] = []
    for position, shape in enumerate(shapes):
        given = node.input(position)
        dtype = node.output.dtype if given is None else given.dtype
        is_there = given is not None or position in is_state
        inputs.append(Value(f"cell_input_{position}", dtype, shape) if is_there else None)
    while inputs[-1] is None:
        inputs.pop()
    outputs = [
        Value(f"cell_{i}", node.output.dtype, (batch, size)) for i in range(2 if op_type == "LSTM" else 1)
    ]
    attributes: dict[str, Any] = {k: v for k, v in node.attributes.items() if k != "reverse"}
    for name in _OF_DIRECTIONS:
        of_all = attributes[name]
        each = len(of_all) // directions
        attributes[name] = of_all[direction * each : (direction + 1) * each]
    return Node(f"{op_type}Cell", inputs, outputs, attributes, domain=INTERNAL_DOMAIN)


def _is_reverse(node: Node, direction: int) -> bool:
    ways = node.ints_attr("reverse")
    assert ways is not None
    return bool(ways[direction])


def _require_steps(node: Node) -> None:
    """The operands fit the results."""
    shape = list(node.output.shape)
    require(node, len(shape) == 4, f"its result has the shape {shape}, not 4 axes")
    steps, directions, batch, size = extents_of_steps(node)
    rows = GATES[node.op_type] * size
    require_shape(node, 0, (steps, batch, directions * rows), "the gates of all directions side by side")
    require_shape(node, 1, (directions, rows, size), "directions, gates and the state's size")
    require_shape(node, 2, (directions, batch, size), "the first state")
    require_shape(node, 3, (steps, batch), "one flag for each step and sequence")
    if node.op_type == "GRUSteps":
        require_shape(node, 4, (directions, size), "one for each element of the state")
    if node.op_type == "LSTMSteps":
        require_shape(node, 4, (directions, batch, size), "the first memory")
        require_shape(node, 5, (directions, 3 * size), "three of each element of the state")
        for position in _OF_BYTES:
            require_shape(node, position, (directions, rows), "one for each row of the recurrence")
        if len(node.outputs) > 1:
            require_result(node, (directions, batch, size), 1)
    count = len(node.ints_attr("reverse") or ())
    require(node, count == directions, f"reverse has {count} values for {directions} directions")


# References ------------------------------------------------------------------------------------------


def _steps_reference(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
    steps, directions, batch, size = extents_of_steps(node)
    gates, recurrence, hidden, alive, fourth, fifth, scale, zero = (optional(inputs, i) for i in range(8))
    assert gates is not None
    assert recurrence is not None
    is_lstm = node.op_type == "LSTMSteps"
    every = np.zeros((steps, batch, directions, size), gates.dtype)
    last = np.zeros((directions, batch, size), gates.dtype)
    rows = GATES[node.op_type] * size

    def of(array: Array | None, direction: int) -> Array | None:
        return None if array is None else array[direction]

    for d in range(directions):
        cell = cell_of(node, d)
        found = find_operator(cell)
        assert found is not None
        reference = found.reference
        assert reference is not None
        zeros = np.zeros((batch, size), gates.dtype)
        state = [zeros if a is None else a[d] for a in (hidden, fourth if is_lstm else None)]
        for t in reversed(range(steps)) if _is_reverse(node, d) else range(steps):
            given = [gates[t][:, d * rows : (d + 1) * rows], recurrence[d], state[0]]
            given += [None if alive is None else alive[t][None]]
            given += [state[1], of(fifth, d), of(scale, d), of(zero, d)] if is_lstm else [of(fourth, d)]
            state = [*reference(cell, given[: len(cell.inputs)])]
            every[t, :, d] = state[0]
        last[d] = state[-1]
    return [every, last] if is_lstm else [every]


# Nests -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rewrite:
    """The nests of a cell as those of all steps of a direction.

    What a cell makes has an axis for the steps; only the hidden states have one for the time, which a
    reverse direction goes through from its end.
    """

    node: Node
    direction: int
    locals: dict[tuple[str, int], Operand]
    next_local: int

    def _step(self, before: int = 0) -> Affine:
        return affine(STEP, -before)

    def _time(self, before: int = 0) -> Affine:
        if not _is_reverse(self.node, self.direction):
            return affine(STEP, -before)
        return affine((STEP, -1), extents_of_steps(self.node)[0] - 1 + before)

    def made(self, operand: Operand) -> Operand:
        """The temporary for all steps of what a cell makes for itself."""
        if operand.key not in self.locals:
            steps = extents_of_steps(self.node)[0]
            shape = (steps, *operand.shape)
            self.locals[operand.key] = Operand("local", self.next_local, operand.dtype, shape)
            self.next_local += 1
        return self.locals[operand.key]

    def nest(self, nest: Nest) -> Nest:
        reads: list[Access] = []
        values: list[Expr] = []
        for access in nest.reads:
            reads.append(self._read(access))
            value: Expr = Read(len(reads) - 1, access.operand.dtype.compute)
            first = self._first(access)
            if first is not None:
                reads.append(first)
                value = select(call("eq", Iter(STEP), 0), Read(len(reads) - 1, value.result), value)
            values.append(value)

        def replaced(expr: Expr | None) -> Expr | None:
            return None if expr is None else substitute(expr, lambda r: values[r.index])

        body = replaced(nest.body)
        assert body is not None
        return Nest(
            (Dim(STEP, extents_of_steps(self.node)[0]), *nest.dims),
            tuple(reads),
            self._write(nest.write),
            body,
            nest.combine,
            replaced(nest.init),
            replaced(nest.finish),
        )

    def _write(self, access: Access) -> Access:
        if access.operand.key == ("output", 0):
            row, unit = access.index
            index = (self._time(), row, affine(self.direction), unit)
            return Access(output_operand(self.node), index)
        return Access(self.made(access.operand), (self._step(), *access.index))

    def _read(self, access: Access) -> Access:
        direction, index = affine(self.direction), access.index
        if access.operand.kind != "input":
            return self._write(access)
        position = access.operand.position
        if position == 2:
            row, unit = index
            shown = (self._time(before=1), row, direction, unit)
            return Access(output_operand(self.node), shown, fill=0.0)
        if position == 4 and self.node.op_type == "LSTMSteps":
            memory = self.made(Operand("output", 1, access.operand.dtype, access.operand.shape))
            return Access(memory, (self._step(before=1), *index), fill=0.0)
        operand = input_operand(self.node, position)
        if position == 0:
            row, column = index
            assert isinstance(column, Affine)
            rows = GATES[self.node.op_type] * extents_of_steps(self.node)[3]
            shifted = replace(column, offset=column.offset + self.direction * rows)
            return Access(operand, (self._time(), row, shifted))
        if position == 3:
            return Access(operand, (self._time(), index[1]))
        return Access(operand, (direction, *index))

    def _first(self, access: Access) -> Access | None:
        """What a read of a state gets in the first step; None for zeros."""
        is_state = access.operand.position == 2 or (
            access.operand.position == 4 and self.node.op_type == "LSTMSteps"
        )
        if access.operand.kind != "input" or not is_state:
            return None
        if self.node.input(access.operand.position) is None:
            return None
        operand = input_operand(self.node, access.operand.position)
        return Access(operand, (affine(self.direction), *access.index))


@operator("RNNSteps", "GRUSteps", "LSTMSteps", reference=_steps_reference, domain=INTERNAL_DOMAIN)
def recurrent_steps(node: Node) -> Description:
    """The nests of each direction's cell, step by step; then the memory that is left."""
    _require_steps(node)
    steps, directions, batch, size = extents_of_steps(node)
    nests: list[Nest] = []
    ends: list[Nest] = []
    next_local = 0
    for direction in range(directions):
        description = describe(cell_of(node, direction))
        assert not isinstance(description, Opaque)
        rewrite = _Rewrite(node, direction, {}, next_local)
        nests += [rewrite.nest(nest) for nest in description]
        if node.op_type == "LSTMSteps" and len(node.outputs) > 1:
            memory = rewrite.locals["output", 1]
            dims = (Dim("m", batch), Dim("j", size))
            source = Access(memory, (affine(steps - 1), affine("m"), affine("j")))
            target = Access(output_operand(node, 1), (affine(direction), affine("m"), affine("j")))
            ends.append(copy_nest(dims, source, target))
        next_local = rewrite.next_local
    return Stepwise(f"{node.op_type}: recurrence over time", (*nests, *ends), STEP)
