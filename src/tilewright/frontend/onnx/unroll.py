"""Loop and Scan over a known number of steps, as the nodes of all their steps.

The number of a step is a constant, so that shapes that follow from it are known. What is too long, or goes on
while its data says, stays one opaque node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from onnx import GraphProto, NodeProto

from tilewright.arrays import Array
from tilewright.frontend.onnx.limits import MAX_UNCOUNTED_STEPS, MAX_UNROLLED_NODES
from tilewright.frontend.onnx.loops import ScanAttributes, stacking_axis
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Attributes, Value


class Steps(Protocol):
    """What unrolling needs of an importer."""

    @property
    def num_nodes(self) -> int:
        """Nodes imported so far."""
        ...

    def step(self, arguments: Sequence[Value]) -> Sequence[Value | None]:
        """Import the body once: its results for these inputs."""
        ...

    def constant(self, data: Array) -> Value:
        """A new initializer."""
        ...

    def node(
        self, op_type: str, inputs: Sequence[Value], shape: Sequence[int], attributes: Attributes
    ) -> Value:
        """The result of a new node, of its first operand's type."""
        ...


def loop_body(node: NodeProto) -> GraphProto:
    """The body of a Loop or Scan."""
    body: GraphProto = next(a.g for a in node.attribute if a.name == "body")
    return body


def unroll(node: NodeProto, inputs: Sequence[Value | None], steps: Steps) -> list[Value] | None:
    """The results of a Loop or Scan, or None where it stays whole.

    Raises:
        UnsupportedOp: the body uses something that cannot be imported.
    """
    if node.op_type == "Scan":
        given = [value for value in inputs if value is not None]
        return _unroll_scan(node, given, steps) if len(given) == len(inputs) else None
    padded = [*inputs, None, None][: max(len(inputs), 2)]
    states = [value for value in padded[2:] if value is not None]
    return _unroll_loop(padded[0], padded[1], states, steps) if len(states) == len(padded) - 2 else None


class _Limit:
    """Whether steps become too many nodes, from how many the first few became."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._start = steps.num_nodes

    def allows(self, done: int, count: int) -> bool:
        """Whether `count` steps fit if they go on as the `done` ones did."""
        made = self._steps.num_nodes - self._start
        return count <= MAX_UNROLLED_NODES and made * max(count, done) <= MAX_UNROLLED_NODES * max(done, 1)


def _unroll_loop(
    count: Value | None, condition: Value | None, states: list[Value], steps: Steps
) -> list[Value] | None:
    known = [None if v is None else v.data for v in (count, condition)]
    if any(v is not None and d is None for v, d in zip((count, condition), known, strict=True)):
        return None
    limit = MAX_UNCOUNTED_STEPS + 1 if known[0] is None else int(known[0].reshape(-1)[0])
    going_on = known[1] is None or bool(known[1].reshape(-1)[0])
    allowed = _Limit(steps)
    stacks: list[list[Value]] = []
    done = 0
    while going_on and done < limit:
        number, entry = steps.constant(np.array(done, np.int64)), steps.constant(np.array(True))
        results = steps.step([number, entry, *states])
        if any(value is None for value in results):
            return None
        present = [value for value in results if value is not None]
        if present[0].data is None:
            return None
        going_on = bool(present[0].data.reshape(-1)[0])
        states = present[1 : 1 + len(states)]
        stacks = stacks or [[] for _ in present[1 + len(states) :]]
        for stack, value in zip(stacks, present[1 + len(states) :], strict=True):
            stack.append(value)
        done += 1
        if not allowed.allows(done, limit if going_on and known[0] is not None else done):
            return None
        if known[0] is None and done > MAX_UNCOUNTED_STEPS:
            return None
    if done == 0:
        return None  # nothing says what is stacked
    joined = [_stacked(stack, 0, steps) for stack in stacks]
    found = [value for value in joined if value is not None]
    return [*states, *found] if len(found) == len(joined) else None


def _unroll_scan(node: NodeProto, inputs: list[Value], steps: Steps) -> list[Value] | None:
    scan = ScanAttributes.of(node, inputs)
    num_states, length, num_stacked = scan.num_states, scan.num_steps, len(scan.out_axes)
    states, scanned = inputs[:num_states], inputs[num_states:]
    allowed = _Limit(steps)
    stacks: list[list[Value]] = [[] for _ in range(num_stacked)]
    for done in range(length):
        slices = [
            _slice(value, axis, length - 1 - done if turned else done, steps)
            for value, axis, turned in zip(scanned, scan.axes, scan.backward, strict=True)
        ]
        results = [value for value in steps.step([*states, *slices]) if value is not None]
        if len(results) != num_states + num_stacked:
            return None
        states = results[:num_states]
        for stack, value in zip(stacks, results[num_states:], strict=True):
            stack.append(value)
        if not allowed.allows(done + 1, length):
            return None
    if length == 0:
        return None
    found: list[Value] = []
    for stack, axis, turned in zip(stacks, scan.out_axes, scan.out_backward, strict=True):
        axis = stacking_axis(node, axis, len(stack[0].shape))
        joined = _stacked(stack[::-1] if turned else stack, axis, steps)
        if joined is None:
            return None
        found.append(joined)
    return [*states, *found]


def _slice(value: Value, axis: int, number: int, steps: Steps) -> Value:
    if value.data is not None:
        return steps.constant(np.asarray(np.take(value.data, number, axis)))
    index = steps.constant(np.array(number, np.int64))
    shape = (*value.shape[:axis], *value.shape[axis + 1 :])
    return steps.node("Gather", [value, index], shape, {"axis": axis})


def _stacked(values: Sequence[Value], axis: int, steps: Steps) -> Value | None:
    """Values of all steps along a new axis; None where their shapes or types differ."""
    first = values[0]
    if any(v.shape != first.shape or v.dtype is not first.dtype for v in values):
        return None
    axis %= len(first.shape) + 1
    known = [v.data for v in values if v.data is not None]
    if len(known) == len(values):
        return steps.constant(np.stack(known, axis))
    if first.dtype is DType.STRING or 0 in first.shape:  # a Reshape takes 0 for an extent that stays
        return None
    row = (*first.shape[:axis], 1, *first.shape[axis:])
    shape = steps.constant(np.array(row, np.int64))
    rows = [steps.node("Reshape", [value, shape], row, {}) for value in values]
    whole = (*row[:axis], len(values), *row[axis + 1 :])
    return steps.node("Concat", rows, whole, {"axis": axis})
