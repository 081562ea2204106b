"""Static result shapes of Scan and Loop, from the results of one pass over the body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Shape, Value

# Element type and, where it is known, shape of a result; None where neither is.
ResultType = tuple[DType, Shape | None] | None
# Imports a body on given inputs, for its results' types only.
ImportBody = Callable[[GraphProto, Sequence[Value]], Sequence[Value]]


def loop_types(
    node: NodeProto, inputs: Sequence[Value | None], import_body: ImportBody
) -> tuple[ResultType, ...]:
    """Types of all results of a Scan or Loop node."""
    body = next(a.g for a in node.attribute if a.name == "body")
    if node.op_type == "Scan":
        return _scan_types(node, body, [v for v in inputs if v is not None], import_body)
    return _loop_types(body, inputs, import_body)


def _scan_types(
    node: NodeProto, body: GraphProto, inputs: Sequence[Value], import_body: ImportBody
) -> tuple[ResultType, ...]:
    attributes = {a.name: a for a in node.attribute}
    num_scanned = int(attributes["num_scan_inputs"].i)
    num_states = len(inputs) - num_scanned
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * num_scanned
    states, scanned = inputs[:num_states], inputs[num_states:]
    arguments = [Value(f"state_{i}", v.dtype, v.shape) for i, v in enumerate(states)]
    num_steps = 0
    for i, (value, axis) in enumerate(zip(scanned, axes, strict=True)):
        axis %= len(value.shape)
        num_steps = value.shape[axis]
        arguments.append(Value(f"slice_{i}", value.dtype, value.shape[:axis] + value.shape[axis + 1 :]))
    results = import_body(body, arguments)
    stacked = results[num_states:]
    out_axes = (
        list(attributes["scan_output_axes"].ints) if "scan_output_axes" in attributes else [0] * len(stacked)
    )
    types: list[ResultType] = [_state_type(a, r) for a, r in zip(states, results, strict=False)]
    for value, axis in zip(stacked, out_axes, strict=True):
        axis %= len(value.shape) + 1
        types.append((value.dtype, (*value.shape[:axis], num_steps, *value.shape[axis:])))
    return tuple(types)


def _loop_types(
    body: GraphProto, inputs: Sequence[Value | None], import_body: ImportBody
) -> tuple[ResultType, ...]:
    padded = [*inputs, None, None][: max(len(inputs), 2)]
    count, condition = padded[0], padded[1]
    states = [v for v in padded[2:] if v is not None]
    always = condition is None or (condition.data is not None and bool(condition.data.reshape(-1)[0]))
    # With a true condition going in, a body that never stops shows a constant true coming out.
    entry = Value("condition", DType.BOOL, (), np.array(True) if always else None)
    arguments = [Value("iteration", DType.INT64, ()), entry]
    arguments += [Value(f"state_{i}", v.dtype, v.shape) for i, v in enumerate(states)]
    going_on, *results = import_body(body, arguments)
    endless = always and going_on.data is not None and bool(going_on.data.reshape(-1)[0])
    num_steps = None
    if endless and count is not None and count.data is not None:
        num_steps = max(int(count.data.reshape(-1)[0]), 0)
    types = [_state_type(a, r) for a, r in zip(states, results, strict=False)]
    for value in results[len(states) :]:
        types.append((value.dtype, None if num_steps is None else (num_steps, *value.shape)))
    return tuple(types)


def _state_type(before: Value, after: Value) -> ResultType:
    """A state keeps its shape through a body, or its shape depends on the number of steps."""
    return before.dtype, before.shape if before.shape == after.shape else None
